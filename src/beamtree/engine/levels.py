"""Composing trees that are known beforehand, level by level.

All nodes of one height, over the whole batch, are one call of the cell: as many calls as the highest tree has levels.
Nothing is stored but the states. Backward composes again, many nodes in one batch, and only the gradient runs level by
level, from the roots down, as in `replay`.

Which nodes those are is worked out on the host, from integers. A tree is its merges in post-order (children before
parents, left before right), for which a merge's number and its span say all: when the merge m of span [start, end) is
made, `end` leaves have been shifted and m merges done, so that end − m elements are left and it joins the last two.

Letters: B batch, N length, M = N−1 merges, S width of a state, R nodes.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from beamtree.cells import Cell
from beamtree.dropout import NodeDropout
from beamtree.engine.adjoint import adjoint, batch_size
from beamtree.engine.autocast import Autocast
from beamtree.engine.base import Chart
from beamtree.engine.pool import AT_ONCE, take
from beamtree.engine.replay import batches
from beamtree.trees import Tree


class Merges(NamedTuple):
    """The trees of a batch, on the host: merges in post-order, a sample of n leaves having its n−1 first.

    What follows them joins the padding one by one, so that every row is a tree over N leaves.
    """

    spans: Int[Tensor, "B M 2"]  # [start, end)
    splits: Int[Tensor, "B M"]  # where the right child begins

    @property
    def actions(self) -> Int[Tensor, "B M"]:
        """Action j joins elements j and j+1 of the sequence at that time."""
        return self.spans[..., 1] - torch.arange(self.splits.shape[1]) - 2

    @property
    def children(self) -> Int[Tensor, "B M 2"]:
        """Numbers of the children: 0 to N−1 are the leaves, N + m is the merge m."""
        M, (start, end) = self.splits.shape[1], self.spans.unbind(2)
        last = torch.arange(M) + M  # the number of the merge before: the root of the right child, all of which is new
        left = start.where(self.splits - start == 1, last + 1 - (end - self.splits))
        return torch.stack((left, self.splits.where(end - self.splits == 1, last)), dim=2)

    @property
    def heights(self) -> Int[Tensor, "B M"]:
        B, M = self.splits.shape
        rows, children = torch.arange(B).unsqueeze(1).numpy(), self.children.numpy()  # small steps are faster there
        heights = torch.zeros(B, 2 * M + 1, dtype=torch.long).numpy()
        for merge in range(M):
            heights[:, M + 1 + merge] = heights[rows, children[:, merge]].max(1) + 1
        return torch.from_numpy(heights)[:, M + 1 :]


def from_spans(spans: Int[Tensor, "B M 2"]) -> Merges:
    """Of all constituents but leaves, in any order."""
    start, end = spans.unbind(2)
    order = (end * (spans.shape[1] + 2) - start).argsort(dim=1)  # post-order: by the end, then the shortest first
    start, end = start.gather(1, order), end.gather(1, order)
    # The right child is the merge before if that has the same end, else a leaf.
    before, same = start.roll(1, dims=1), end == end.roll(1, dims=1)
    same[:, :1] = False
    return Merges(torch.stack((start, end), dim=2), before.where(same, end - 1))


def from_trees(trees: Sequence[Tree], length: int) -> Merges:
    """Of trees that have up to `length` leaves."""
    spans = [
        tree.spans(leaves=False) + [(0, end) for end in range(len(tree) + 1, length + 1)]  # padding
        for tree in trees
    ]
    return from_spans(torch.tensor(spans, dtype=torch.long).view(len(trees), length - 1, 2))


def from_actions(actions: Int[Tensor, "B M"], lengths: Int[Tensor, "B"]) -> Merges:
    """Of merges in any order that can be made; what is beyond a sample's length has no part in it."""
    B, M = actions.shape
    actions = actions.where(torch.arange(M) < lengths.unsqueeze(1) - 1, 0)
    starts = torch.arange(M + 2).expand(B, -1)  # of the elements, and the end of the last
    spans = []
    for action in actions.unsqueeze(2).unbind(1):  # (B, 1)
        spans.append(starts.gather(1, action + torch.tensor([0, 2])))
        keep = torch.arange(starts.shape[1] - 1)
        starts = starts.gather(1, keep + (keep > action))  # without the right child's
    return from_spans(torch.stack(spans, dim=1) if spans else actions.unsqueeze(2).expand(-1, -1, 2))


def from_times(times: Int[Tensor, "B M"] | Float[Tensor, "B M"], lengths: Int[Tensor, "B"]) -> Merges:
    """Of the times at which neighbours are joined: times[:, i] is that of the leaves i and i+1, or of what has become
    of them. Among equal times the left one is first.

    The constituent made at a time is what lies between the nearest later times on either side.
    """
    M = times.shape[1]
    places = torch.arange(M)
    rank = times.argsort(dim=1, stable=True).argsort(dim=1)
    rank = rank.where(places < lengths.unsqueeze(1) - 1, M + places)  # padding is joined last, from left to right
    start, end = M - _later(rank.flip(1)).flip(1), _later(rank) + 1
    return from_spans(torch.stack((start, end), dim=2))


def _later(rank: Int[Tensor, "B M"]) -> Int[Tensor, "B M"]:
    """The nearest position on the right with a higher rank, M where there is none; by halving what it may be."""
    M = rank.shape[1]
    end = 2 * M  # higher than all
    highest = [pad(rank, (0, M + 1), value=end)]  # highest[k][:, i]: of the 2^k ranks from i on
    while 2 ** len(highest) <= M:
        half = 2 ** (len(highest) - 1)
        highest.append(torch.maximum(highest[-1], pad(highest[-1][:, half:], (0, half), value=end)))
    position = torch.arange(1, M + 1).expand_as(rank)
    for k in reversed(range(len(highest))):
        position = position + 2**k * (highest[k].gather(1, position) < rank)
    return position


def compose(
    leaves: Float[Tensor, "B N S"],
    lengths: Int[Tensor, "B"],
    merges: Merges,
    cell: Cell,
    dropout: NodeDropout | None = None,
) -> Chart:
    """The chart of these trees, one a sample; `lengths` on the host."""
    B, N, _ = leaves.shape
    M, device = N - 1, leaves.device
    present = torch.arange(M) < lengths.unsqueeze(1) - 1  # (B, M)
    heights = (merges.heights * present).flatten()
    sizes = heights.bincount(minlength=1).tolist()
    order = heights.argsort(stable=True)[sizes[0] :]  # (R,)
    levels = list(itertools.accumulate((B * N, *sizes[1:])))
    nodes = torch.zeros(B * M, dtype=torch.long).scatter_(0, order, torch.arange(B * N, levels[-1])).view(B, M)
    row = torch.cat((torch.arange(B * N).view(B, N), nodes), dim=1)  # (B, N+M), of the store
    children = row.gather(1, merges.children.flatten(1)).view(-1, 2)[order]  # (R, 2)
    spans = None
    if dropout is not None:
        sample, (start, end) = torch.arange(B).unsqueeze(1).expand(B, M), merges.spans.unbind(2)
        spans = torch.stack((sample, start, merges.splits, sample, merges.splits, end), dim=2)  # (B, M, 6)
        spans = spans.view(-1, 2, 3)[order].to(device)  # (R, 2, 3)
    plan = Plan(children.to(device), spans, levels)
    store = Compose.apply(cell, dropout, plan, leaves.flatten(0, 1), *cell.parameters())
    scores = torch.zeros(B, 1, dtype=torch.promote_types(leaves.dtype, torch.float32), device=device)
    actions, nodes, made = (t.unsqueeze(1).to(device) for t in (merges.actions, nodes, merges.spans))
    return Chart(store, scores, actions, nodes, made)


class Plan(NamedTuple):
    """The nodes to compose, as rows of a store: leaves | nodes by height. `levels` holds the last row of each."""

    children: Int[Tensor, "R 2"]  # rows of their children
    spans: Int[Tensor, "R 2 3"] | None  # of their children: what dropout masks are made from
    levels: list[int]


class Compose(torch.autograd.Function):
    """(leaves, weights) → the store."""

    @staticmethod
    def forward(
        ctx: Any, cell: Cell, dropout: NodeDropout | None, plan: Plan, leaves: Float[Tensor, "L S"], *weights: Tensor
    ) -> Float[Tensor, "R S"]:
        store = leaves.new_empty(plan.levels[-1], leaves.shape[1])
        store[: len(leaves)] = leaves
        for low, high in itertools.pairwise(plan.levels):
            for first in range(low, high, AT_ONCE):
                rows = slice(first, min(first + AT_ONCE, high))
                inner = slice(rows.start - len(leaves), rows.stop - len(leaves))
                mask = _masks(dropout, plan.spans, inner)
                store[rows] = cell(*take(store, plan.children[inner]).unbind(1), mask)
        ctx.cell, ctx.dropout, ctx.levels, ctx.autocast = cell, dropout, plan.levels, Autocast(leaves.device.type)
        # The weights too, so that PyTorch objects if they change before backward.
        ctx.save_for_backward(store, plan.children, plan.spans, *weights)
        return store

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, store_gradient: Float[Tensor, "R S"]) -> tuple[Tensor | None, ...]:
        store, children, spans, *weights = ctx.saved_tensors
        leaves = ctx.levels[0]
        gradient = store_gradient.clone()  # of every state, complete once all its parents have come by
        weight_gradients = [torch.zeros_like(weight) for weight in weights]
        # In inference mode, which is faster; whatever is returned was made outside of it.
        with torch.inference_mode(), ctx.autocast.again():
            for first, last, levels in batches([leaves, *ctx.levels], batch_size(store.device)):
                rows = slice(first - leaves, last - leaves)
                nodes = adjoint(ctx.cell, take(store, children[rows]), _masks(ctx.dropout, spans, rows))
                for low, high in levels:
                    down = nodes.pull_back(slice(low - first, high - first), gradient[low:high])  # (n, 2, S)
                    pairs = children[low - leaves : high - leaves].flatten()
                    gradient.index_add_(0, pairs, down.flatten(0, 1))
                for total, part in zip(weight_gradients, nodes.weight_gradients(), strict=True):
                    total += part
        return None, None, None, gradient[:leaves], *weight_gradients


def _masks(
    dropout: NodeDropout | None, spans: Int[Tensor, "R 2 3"] | None, rows: slice
) -> Float[Tensor, "n width"] | None:
    return None if dropout is None or spans is None else dropout.mask(*spans[rows].unbind(1))
