"""OneSoft's replay: the gradient of a search with a soft beam.

The backward pass runs through the steps, the last first; of the nodes it needs only the pool's states. In each
step it recomposes the nodes and propagates their gradient to their children; then the gradient of the soft beam's
states to the states they average and to the weights of the average; then the gradient of the weights and scores to the
logits and to the scores before the step.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from beamtree.nn.cells import CellFunction
from beamtree.nn.cells.adjoint import Adjoint, batch_size
from beamtree.nn.engine.autocast import Autocast
from beamtree.nn.engine.beam import reference
from beamtree.nn.engine.beam.replay import Functions
from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.dropout import NodeDropout
from beamtree.nn.engine.duplicates import resolve
from beamtree.nn.engine.lineage import along, make_chart, slots_after
from beamtree.nn.engine.onesoft.search import SoftTrace, StepRecord, mixture, search
from beamtree.nn.engine.pool import take
from beamtree.nn.engine.request import Duplicates, Mix, Request
from beamtree.nn.engine.scorers import ParentScorerFunction
from beamtree.nn.function import first_order, save

# Fields of `StepRecord` that hold indices.
INDICES = tuple(StepRecord._fields.index(name) for name in ("rows", "sequences", "columns", "order"))


def encode(request: Request) -> Chart:
    """Search with a soft beam, and replay the search if a gradient is needed.

    The reference computes gradients of cells and scorers that are known only as modules.
    """
    if not request.is_functional and request.wants_gradient():
        return reference.encode(request)
    trace = search(request)
    slots = slots_after(trace.steps.source)
    actions, made = along(slots, trace.steps.action), along(slots, trace.steps.node)
    chart = make_chart(trace.pool, actions, made, trace.scores, trace.roots)
    if not request.wants_gradient():
        return chart
    leaves = request.leaves.flatten(0, 1)
    settings = SoftSettings(Functions.of(request), request.soft, request.duplicates, request.active)
    store, scores = SoftReplay.apply(settings, trace, chart.nodes.flatten(), leaves, *request.weights)
    rows = torch.arange(len(leaves), len(store), device=store.device).view_as(chart.nodes)
    return replace(chart, store=store, scores=scores, nodes=rows)


class SoftSettings(NamedTuple):
    """Non-differentiable arguments of `SoftReplay`."""

    functions: Functions
    mix: Mix | None
    duplicates: Duplicates
    active: Bool[Tensor, "B T"]


class SoftReplay(torch.autograd.Function):
    """(leaves, weights) → (states of the leaves and of the beams' nodes, scores), with values from the search."""

    @staticmethod
    def forward(
        ctx: Any,
        settings: SoftSettings,
        trace: SoftTrace,
        nodes: Int[Tensor, "n"],
        leaves: Float[Tensor, "L S"],
        *weights: Tensor,
    ) -> tuple[Float[Tensor, "rows S"], Float[Tensor, "B K"]]:
        pool = trace.pool
        ctx.functions, ctx.mix, ctx.duplicates, active = settings
        ctx.autocast = Autocast(leaves.device.type)
        ctx.leaves, ctx.blocks, ctx.composed = len(leaves), trace.blocks, pool.used
        spans = pool.spans.int() if ctx.functions.dropout else None
        ctx.shapes, records = [[field.shape for field in present(step)] for step in trace.records], pack(trace.records)
        kept = (
            pool.states,
            pool.logits,
            pool.children[len(leaves) : pool.used].int(),
            spans,
            nodes,
            active,
            *records,
        )
        save(ctx, (leaves, *weights), *kept)
        return torch.cat((leaves, take(pool.states, nodes))), trace.scores.clone()

    @staticmethod
    @first_order
    def backward(
        ctx: Any,
        inputs: Sequence[Tensor],
        kept: Sequence[Any],
        store_gradient: Float[Tensor, "rows S"],
        score_gradient: Float[Tensor, "B K"],
    ) -> tuple[Tensor | None, ...]:
        states, logits, children, spans, nodes, active, *records = kept
        bound = ctx.functions.bind(inputs[1:])
        cell, scorer, dropout = bound.cell, bound.scorer, bound.dropout
        assert isinstance(scorer, ParentScorerFunction)
        dim = cell.dim
        gradient = torch.zeros_like(states)  # of every state; complete once all its users are processed
        gradient[: ctx.leaves] = store_gradient[: ctx.leaves]
        gradient.index_add_(0, nodes, store_gradient[ctx.leaves :])
        logit_gradient = torch.zeros_like(logits)
        weight_gradients = [torch.zeros_like(weight) for weight in cell.weights]
        scorer_weight = scorer.weights[0].squeeze(0).to(states.dtype)

        tables = (states, children.long(), spans, ctx.leaves)
        composed = Composed(cell, dropout, *tables, gradient, weight_gradients)
        # In inference mode, like the search. The returned tensors are allocated outside of it.
        with torch.inference_mode(), ctx.autocast.again():

            def pull_back(low: int, high: int) -> None:
                """Propagate the gradient of composed nodes to their children."""
                gradient[low:high, :dim].addr_(logit_gradient[low:high].to(states.dtype), scorer_weight)
                composed.pull_back(low, high)

            steps, end = unpack(records, ctx.shapes), ctx.composed
            for index in reversed(range(len(ctx.blocks))):
                block = ctx.blocks[index]
                pull_back(block.composed, end)
                end = block.composed
                step = steps[index]
                is_active = active[:, index, None]  # (B, 1)
                made = len(is_active) * (step.rows.shape[2] - 2)  # B·m
                above = gradient[block.elements : block.elements + made]  # (B·m, S)
                v_gradient = average_gradient(gradient, above, states, step, ctx.mix)

                # Through the scores; the step did not change those of finished samples.
                row_logits = logits.take(step.rows)
                found = continuation_gradient(score_gradient.where(is_active, 0), v_gradient.to(logits.dtype), step)
                if step.forests is not None:
                    found = resolve_gradient(found, row_logits, step, step.forests, ctx.duplicates)
                found = found.view_as(step.columns)  # (B, K, J)
                before = found.sum(2)
                row_gradient = row_logits.softmax(-1).mul_(-before.unsqueeze(2)).scatter_add_(2, step.columns, found)
                logit_gradient.index_add_(0, step.rows.flatten(), row_gradient.flatten())
                score_gradient = before.where(is_active, score_gradient)
            pull_back(ctx.leaves, end)
            composed.finish()
        logit_gradient = logit_gradient[: ctx.composed].to(states.dtype)  # later rows have no logit
        return (
            None,
            None,
            None,
            gradient[: ctx.leaves],
            *weight_gradients,
            *scorer.weight_gradients(states[: ctx.composed], logit_gradient),
        )


def present(step: StepRecord) -> list[Tensor]:
    """The fields that are not None: `forests`, the last, is None if duplicates are kept."""
    return [field for field in step if field is not None]


def pack(steps: list[StepRecord]) -> list[Tensor]:
    """Each field of all steps as one tensor, to be saved for the backward pass.

    Node ids are stored as int32: besides the states, they take most of the memory.
    """
    fields = [torch.cat([part.flatten() for part in parts]) for parts in zip(*map(present, steps), strict=True)]
    return [field.int() if index in INDICES else field for index, field in enumerate(fields)]


def unpack(fields: Sequence[Tensor], shapes: list[list[torch.Size]]) -> list[StepRecord]:
    """The inverse of `pack`. A missing field is None."""
    columns = []
    for field, sizes in zip(fields, zip(*shapes, strict=True), strict=True):
        whole = field if field.is_floating_point() else field.long()
        parts = whole.split([size.numel() for size in sizes])
        columns.append([part.view(size) for part, size in zip(parts, sizes, strict=True)])
    missing = [None] * (len(StepRecord._fields) - len(columns))
    return [StepRecord(*step, *missing) for step in zip(*columns, strict=True)]


class Composed:
    """The adjoint of all nodes that the search composed, from the last to the first.

    Nodes are recomposed in batches, independently of the steps they come from: all their children are known.
    """

    def __init__(
        self,
        cell: CellFunction,
        dropout: NodeDropout | None,
        states: Float[Tensor, "P S"],
        children: Int[Tensor, "C 2"],
        spans: Int[Tensor, "P 3"] | None,
        leaves: int,
        gradient: Float[Tensor, "P S"],
        weight_gradients: list[Tensor],
    ) -> None:
        """`children` are those of the nodes after the leaves.

        Results are added to `gradient` and to `weight_gradients`, the gradients of the cell's weights.
        """
        self.cell, self.dropout, self.states, self.children, self.spans = cell, dropout, states, children, spans
        self.leaves, self.gradient, self.weight_gradients = leaves, gradient, weight_gradients
        self.size = batch_size(states.device)
        self.first = leaves + len(children)  # of the current batch
        self.nodes: Adjoint | None = None

    def pull_back(self, low: int, high: int) -> None:
        """Propagate the gradient of rows `low` to `high` − 1 of the pool to their children."""
        while high > low:
            if high <= self.first:
                self._compose(high)
            assert self.nodes is not None
            begin = max(low, self.first)
            down = self.nodes.pull_back(slice(begin - self.first, high - self.first), self.gradient[begin:high])
            pairs = self.children[begin - self.leaves : high - self.leaves]  # (n, 2)
            self.gradient.index_add_(0, pairs.flatten(), down.flatten(0, 1))
            high = begin

    def finish(self) -> None:
        """Add the weight gradients of the current batch, and free it."""
        if self.nodes is not None:
            torch._foreach_add_(self.weight_gradients, self.nodes.weight_gradients())
            self.nodes = None

    def _compose(self, last: int) -> None:
        """Recompose the batch of nodes that ends before `last`, in place of the current one."""
        self.finish()
        self.first = max(last - self.size, self.leaves)
        pairs = self.children[self.first - self.leaves : last - self.leaves]  # (n, 2)
        mask = None
        if self.dropout and self.spans is not None:
            mask = self.dropout.mask(*take(self.spans, pairs).unbind(1))
        self.nodes = self.cell.adjoint(take(self.states, pairs), mask)


def average_gradient(
    gradient: Float[Tensor, "P S"],
    above: Float[Tensor, "Bm S"],
    states: Float[Tensor, "P S"],
    step: StepRecord,
    mix: Mix | None,
) -> Float[Tensor, "B KJ"]:
    """Add the gradient of the soft beam's new states to that of the states they average; returns that of v."""
    weights = mixture(step.weights, step.columns, step.rows.shape[2] - 2, mix)
    parents = step.rows.gather(2, weights.columns)  # (B, K, E)
    above_parents = take(above, weights.positions().view_as(parents))  # (B, K, E, S)
    parent_gradient = take(states, parents).mul_(above_parents).sum(3)  # (B, K, E)
    gradient.index_add_(0, parents.flatten(), above_parents.mul_(weights.parents.unsqueeze(3)).flatten(0, 2))

    above = above.view(len(parents), 1, -1, states.shape[1])  # (B, 1, m, S)
    H = take(states, step.sequences)  # (B, K, m+1, S)
    left_gradient, right_gradient = (H[:, :, :-1] * above).sum(3), (H[:, :, 1:] * above).sum(3)  # (B, K, m)
    left, right = (weight.unsqueeze(3).to(states.dtype) for weight in (weights.left, weights.right))  # (B, K, m, 1)
    torch.mul(left, above, out=H[:, :, :-1])  # H now holds its gradient: H[i] is part of new[i] and new[i−1]
    H[:, :, -1].zero_()
    H[:, :, 1:].addcmul_(right, above)
    gradient.index_add_(0, step.sequences.flatten(), H.flatten(0, 2))
    return mixture_gradient(parent_gradient, left_gradient, right_gradient, step, mix)


def mixture_gradient(
    parents: Float[Tensor, "B K E"],
    left: Float[Tensor, "B K m"],
    right: Float[Tensor, "B K m"],
    step: StepRecord,
    mix: Mix | None,
) -> Float[Tensor, "B KJ"]:
    """The adjoint of `mixture`: the gradient of v, given that of the weights of the average."""
    K, m = left.shape[1:]
    # The column of an absent continuation may be padding. Its weight is 0, so its gradient here is discarded.
    position = (step.columns - 1).clamp(0, m - 1)
    if mix == "paper":
        total = left.sum(2, keepdim=True)  # (B, K, 1)
        direct = parents  # (B, K, J)
    else:
        v = step.weights.view_as(step.columns)
        s = v.new_zeros(len(v), 1, m).scatter_add_(2, position.flatten(1).unsqueeze(1), v.flatten(1).unsqueeze(1))
        cum = s.cumsum(2)  # (B, 1, m)
        total = (parents * s + left * (1 - cum) + right * (cum - s)).sum(2, keepdim=True)
        share = v.sum(2, keepdim=True)  # (B, K, 1)
        parents, left, right = ((part * share).sum(1, keepdim=True) for part in (parents, left, right))  # (B, 1, m)
        direct = parents.expand(-1, K, -1).gather(2, position)
    # s[i] is part of the running sums at position i and all later ones.
    run = right - left
    running = run.sum(2, keepdim=True) - run.cumsum(2) + run - right  # (B, K or 1, m)
    return (direct + running.expand(-1, K, -1).gather(2, position) + total).flatten(1)


def continuation_gradient(
    gradient: Float[Tensor, "B K"], v_gradient: Float[Tensor, "B KJ"], step: StepRecord
) -> Float[Tensor, "B KJ"]:
    """The adjoint of `topk.soften`: the gradient of the continuations' scores, given those of the new scores and of v.

    The soft beam's score is Σ v·a, with v the softmax of a over the mixture.
    """
    v, soft = step.weights, gradient[:, -1:]
    total = v_gradient + soft * step.continuations.where(v > 0, 0)
    mixed = v * (total - (v * total).sum(1, keepdim=True) + soft)
    return mixed.scatter_add_(1, step.order[:, :-1], gradient[:, :-1])


def resolve_gradient(
    gradient: Float[Tensor, "B KJ"],
    row_logits: Float[Tensor, "B K W"],
    step: StepRecord,
    forests: Int[Tensor, "B KJ"],
    duplicates: Duplicates,
) -> Float[Tensor, "B KJ"]:
    """The gradient through dropped or merged duplicates, by autograd."""
    log_p = row_logits.log_softmax(-1).gather(2, step.columns)
    scores = (step.scores.unsqueeze(2) + log_p).flatten(1)
    with torch.inference_mode(False), torch.enable_grad():
        scores = scores.clone().requires_grad_()
        return torch.autograd.grad(resolve(scores, forests, duplicates), scores, gradient.clone())[0]
