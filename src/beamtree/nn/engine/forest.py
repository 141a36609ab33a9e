"""Forests: nodes composed by their ids and replayed level by level. Used by beam search, shift-reduce and given trees.

A forest consists of rows of a store: first the leaves, then the nodes, each with the rows of its two children. Nodes of
one level do not depend on each other, so a level is one call of the cell. Only the states are saved for the backward
pass. It recomputes the inner activations of many nodes in one batch, as all states are known, and only the gradient
runs level by level, from the roots down.

If the cell is only available as a module, the forest is composed level by level under autograd instead.

Letters: B batch, N length, M = N−1 merges, S width of a state, L leaves, R nodes.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.nn.cells import AnyCell, CellFunction
from beamtree.nn.cells.adjoint import batch_size
from beamtree.nn.engine.autocast import Autocast
from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.dispatch import Engine, why_not_triton
from beamtree.nn.engine.dropout import NodeDropout
from beamtree.nn.engine.merges import Merges
from beamtree.nn.engine.pool import AT_ONCE, take
from beamtree.nn.engine.transforms import is_wrapped
from beamtree.nn.function import first_order, save


class Forest(NamedTuple):
    """Nodes as rows of a store: leaves | nodes without parents | nodes by height.

    `levels` holds the end of each of these groups. A node's parents are all in later groups.
    """

    children: Int[Tensor, "R 2"]  # rows of the children
    spans: Int[Tensor, "R 2 3"] | None  # of the children; they determine the dropout masks
    levels: list[int]

    def masks(self, dropout: NodeDropout | None, rows: slice) -> Float[Tensor, "n width"] | None:
        """Dropout masks of these rows of the store; None if nothing is dropped."""
        if dropout is None or self.spans is None:
            return None
        leaves = self.levels[0]
        return dropout.mask(*self.spans[rows.start - leaves : rows.stop - leaves].unbind(1))

    def children_of(self, rows: slice) -> Int[Tensor, "n 2"]:
        leaves = self.levels[0]
        return self.children[rows.start - leaves : rows.stop - leaves]

    def upwards(self) -> Iterator[slice]:
        """The groups in an order in which they can be composed, in slices of at most `AT_ONCE` rows."""
        for low, high in (*itertools.pairwise(self.levels[1:]), (self.levels[0], self.levels[1])):
            for first in range(low, high, AT_ONCE):
                yield slice(first, min(first + AT_ONCE, high))

    def downwards(self, size: int) -> Iterator[tuple[slice, list[slice]]]:
        """Batches of about `size` rows to recompose, each with the groups it contains, in the order of the gradient.

        First the nodes without parents, in any order, then the others from the highest down.
        """
        bounds = self.levels
        for first in range(bounds[0], bounds[1], size):
            rows = slice(first, min(first + size, bounds[1]))
            yield rows, [rows]
        pending: list[slice] = []
        for low, high in reversed(list(itertools.pairwise(bounds[1:]))):
            if pending and pending[0].stop - low > size:
                yield slice(pending[-1].start, pending[0].stop), pending
                pending = []
            pending.append(slice(low, high))
        if pending:
            yield slice(pending[-1].start, pending[0].stop), pending


def compose(
    cell: AnyCell,
    dropout: NodeDropout | None,
    forest: Forest,
    leaves: Float[Tensor, "L S"],
    states: Float[Tensor, "n S"] | None = None,
) -> Float[Tensor, "R S"]:
    """The states of all rows, with gradients. `states` are those of the nodes, if they are already known."""
    if isinstance(cell, CellFunction):
        store: Tensor = Compose.apply(cell.unbound, dropout, forest, states, leaves, *cell.weights)
        return store
    return compose_by_autograd(cell, dropout, forest, leaves)


def compose_by_autograd(
    cell: AnyCell, dropout: NodeDropout | None, forest: Forest, leaves: Float[Tensor, "L S"]
) -> Float[Tensor, "R S"]:
    """The same for any cell. Autograd saves its inner activations."""
    without_parents: list[Tensor] = []  # precede the others in the store, but are composed last
    store = torch.cat((leaves, leaves.new_zeros(forest.levels[1] - forest.levels[0], leaves.shape[1])))
    for rows in forest.upwards():
        left, right = take(store, forest.children_of(rows)).unbind(1)
        new = cell(left, right, forest.masks(dropout, rows)).to(leaves.dtype)
        if rows.start >= forest.levels[1]:
            store = torch.cat((store, new))
        else:
            without_parents.append(new)
    return torch.cat((leaves, *without_parents, store[forest.levels[1] :]))


class Compose(torch.autograd.Function):
    """(leaves, weights) → the store."""

    @staticmethod
    def forward(
        ctx: Any,
        cell: CellFunction,
        dropout: NodeDropout | None,
        forest: Forest,
        states: Float[Tensor, "n S"] | None,
        leaves: Float[Tensor, "L S"],
        *weights: Tensor,
    ) -> Float[Tensor, "R S"]:
        ctx.cell, ctx.dropout, ctx.levels, ctx.autocast = cell, dropout, forest.levels, Autocast(leaves.device.type)
        store = leaves.new_empty(forest.levels[-1], leaves.shape[1])
        store[: len(leaves)] = leaves
        if states is not None:
            store[len(leaves) :] = states
        else:
            bound = cell.bind(weights)
            for rows in forest.upwards():
                left, right = take(store, forest.children_of(rows)).unbind(1)
                store[rows] = bound(left, right, forest.masks(dropout, rows))
        save(ctx, (leaves, *weights), store, forest.children, forest.spans)
        return store

    @staticmethod
    @first_order
    def backward(
        ctx: Any, inputs: Sequence[Tensor], kept: Sequence[Any], store_gradient: Float[Tensor, "R S"]
    ) -> tuple[Tensor | None, ...]:
        store, children, spans = kept
        gradient, weight_gradients = store_gradient.clone(), [torch.zeros_like(weight) for weight in inputs[1:]]
        forest = Forest(children, spans, ctx.levels)
        with ctx.autocast.again():
            pull_back(ctx.cell.bind(inputs[1:]), ctx.dropout, forest, store, gradient, weight_gradients)
        return None, None, None, None, gradient[: ctx.levels[0]], *weight_gradients


def pull_back(
    cell: CellFunction,
    dropout: NodeDropout | None,
    forest: Forest,
    store: Float[Tensor, "R S"],
    gradient: Float[Tensor, "R S"],
    weight_gradients: Sequence[Tensor],
) -> None:
    """Propagate the gradient of all states to the leaves, in-place, and add to the gradients of the cell's weights."""
    with torch.inference_mode():  # less overhead; all results are allocated outside
        for rows, levels in forest.downwards(batch_size(store.device)):
            nodes = cell.adjoint(take(store, forest.children_of(rows)), forest.masks(dropout, rows))
            for level in levels:
                inner = slice(level.start - rows.start, level.stop - rows.start)
                down = nodes.pull_back(inner, gradient[level])  # (n, 2, S)
                gradient.index_add_(0, forest.children_of(level).flatten(), down.flatten(0, 1))
            for total, part in zip(weight_gradients, nodes.weight_gradients(), strict=True):
                total += part


@dataclass(frozen=True)
class TreeRequest:
    """Composition along given trees, one per sample."""

    leaves: Float[Tensor, "B N S"]
    lengths: Int[Tensor, "B"]  # on the CPU
    merges: Merges
    cell: AnyCell
    dropout: NodeDropout | None = None


def encode(request: TreeRequest, run: Callable[..., Tensor] = compose) -> Chart:
    """The chart of these trees."""
    leaves, device = request.leaves, request.leaves.device
    forest, nodes = of_merges(request.merges, request.lengths, device, spans=request.dropout is not None)
    store = run(request.cell, request.dropout, forest, leaves.flatten(0, 1))
    scores = torch.zeros(len(leaves), 1, dtype=torch.promote_types(leaves.dtype, torch.float32), device=device)
    return chart_of_trees(request, nodes, store, scores)


def chart_of_trees(
    request: TreeRequest, nodes: Int[Tensor, "B M"], store: Float[Tensor, "R S"], scores: Float[Tensor, "B 1"]
) -> Chart:
    """A chart with one beam per sample."""
    chart = (request.merges.actions, nodes, request.merges.spans)
    actions, nodes, made = (t.unsqueeze(1).to(store.device) for t in chart)
    return Chart(store, scores, actions, nodes, made)


def of_merges(
    merges: Merges, lengths: Int[Tensor, "B"], device: torch.device, spans: bool
) -> tuple[Forest, Int[Tensor, "B M"]]:
    """The forest of these trees, and the row of each merge in the store; 0 for padding."""
    B, M = merges.splits.shape
    N = M + 1
    present = torch.arange(M) < lengths.unsqueeze(1) - 1  # (B, M)
    heights = (merges.heights * present).flatten()
    sizes = heights.bincount(minlength=1).tolist()
    order = heights.argsort(stable=True)[sizes[0] :]  # (R,)
    levels = list(itertools.accumulate((B * N, 0, *sizes[1:])))
    nodes = torch.zeros(B * M, dtype=torch.long).scatter_(0, order, torch.arange(B * N, levels[-1])).view(B, M)
    row = torch.cat((torch.arange(B * N).view(B, N), nodes), dim=1)  # (B, N+M), in the store
    children = row.gather(1, merges.children.flatten(1)).view(-1, 2)[order]  # (R, 2)
    child_spans = None
    if spans:
        sample, (start, end) = torch.arange(B).unsqueeze(1).expand(B, M), merges.spans.unbind(2)
        child_spans = torch.stack((sample, start, merges.splits, sample, merges.splits, end), dim=2)  # (B, M, 6)
        child_spans = child_spans.view(-1, 2, 3)[order].to(device)  # (R, 2, 3)
    return Forest(children.to(device), child_spans, levels), nodes


def _why_not_gpu(request: TreeRequest) -> str | None:
    if reason := why_not_triton(request.leaves):
        return reason
    from beamtree.nn.engine.gpu import trees  # needs triton, an optional package

    return trees.why_not(request)


def _on_gpu(request: TreeRequest) -> Chart:
    from beamtree.nn.engine.gpu import trees

    return trees.encode(request)


def _why_not_reference(request: TreeRequest) -> str | None:
    return "torch.func cannot transform trees, which are prepared on the host" if is_wrapped(request.leaves) else None


TREES: tuple[Engine[TreeRequest], ...] = (
    Engine("triton", _on_gpu, _why_not_gpu),
    Engine("torch", encode),
    Engine("reference", partial(encode, run=compose_by_autograd), _why_not_reference),
)
