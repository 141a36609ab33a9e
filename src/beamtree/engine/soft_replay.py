"""OneSoft's replay: the gradient of a search with a soft beam.

Nothing but the pool's states is kept for backward, which undoes the steps one by one, last first. It pulls the gradient
of a step's candidates back to their children, then that of the soft beam's states to the states they average and to the
weights of the average, then that of the weights and scores to the logits and to the scores before.

What does not depend on the gradient is computed for many steps at once: the candidates are composed again, and the
weights of the averages found.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from beamtree.engine.adjoint import adjoint, batch_size
from beamtree.engine.autocast import Autocast
from beamtree.engine.base import Chart, Duplicates, Mix, Request
from beamtree.engine.duplicates import resolve
from beamtree.engine.lineage import along, make_chart, slots_after
from beamtree.engine.pool import take
from beamtree.engine.soft_search import SoftTrace, Undo, mixture, search, sequences

STRETCH = 16  # steps that are looked at together
CACHED = 2**15  # numbers of nodes' states: with four times as many activations, what a core's cache holds


def encode(request: Request) -> Chart:
    """Search with a soft beam, and replay where a gradient is wanted."""
    trace = search(request)
    slots = slots_after(trace.steps.source)
    action, node = (along(slots, field) for field in (trace.steps.action, trace.steps.node))
    chart = make_chart(trace.pool, action, node, trace.scores, trace.roots)
    if not request.wants_gradient():
        return chart
    leaves = request.leaves.flatten(0, 1)
    store, scores = SoftReplay.apply(request, trace, chart.nodes.flatten(), leaves, *request.weights)
    rows = torch.arange(len(leaves), len(store), device=store.device).view_as(chart.nodes)
    return replace(chart, store=store, scores=scores, nodes=rows)


class SoftReplay(torch.autograd.Function):
    """(leaves, weights) → (states of the leaves and of the beams' nodes, scores), with values from the search."""

    @staticmethod
    def forward(
        ctx: Any,
        request: Request,
        trace: SoftTrace,
        nodes: Int[Tensor, "n"],
        leaves: Float[Tensor, "L S"],
        *weights: Tensor,
    ) -> tuple[Float[Tensor, "rows S"], Float[Tensor, "B K"]]:
        pool = trace.pool
        ctx.cell, ctx.scorer, ctx.dropout = request.cell, request.scorer, request.dropout
        ctx.mix, ctx.duplicates, ctx.autocast = request.soft, request.duplicates, Autocast(leaves.device.type)
        ctx.leaves, ctx.blocks = len(leaves), [*trace.blocks, (pool.used, pool.used)]
        # Numbers of nodes fit 32 bits; they are the larger part of what is kept beside the states.
        spans = pool.spans.int() if request.dropout else None
        undo = [field for stretch in stretches(trace.undo, pool.absent) for field in stretch]
        kept = (pool.states, pool.logits, pool.children.int(), spans, nodes, request.active, trace.soft.clone(), *undo)
        # The weights too, so that PyTorch objects if they change before backward.
        ctx.weights = len(weights)
        ctx.save_for_backward(*weights, *kept)
        return torch.cat((leaves, take(pool.states, nodes))), trace.scores.clone()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, store_gradient: Float[Tensor, "rows S"], score_gradient: Float[Tensor, "B K"]
    ) -> tuple[Tensor | None, ...]:
        states, logits, children, spans, nodes, active, soft, *undo = ctx.saved_tensors[ctx.weights :]
        children, dim = children.long(), ctx.cell.dim
        gradient = torch.zeros_like(states)  # of every state, complete once its users have come by
        gradient[: ctx.leaves] = store_gradient[: ctx.leaves]
        gradient.index_add_(0, nodes, store_gradient[ctx.leaves :])
        logit_gradient = torch.zeros_like(logits)
        weight_gradients = [torch.zeros_like(weight) for weight in ctx.cell.parameters()]
        scorer_weight = ctx.scorer.weight.squeeze(0)
        B, first_step = len(active), ctx.blocks[0][0]
        composed, ends = [begin for _, begin in ctx.blocks[:-1]], [end for end, _ in ctx.blocks[1:]]
        starts = set(composed)  # of the candidates of each step
        fields = len(Undo._fields)
        stretches = [Undo(*undo[first : first + fields]) for first in range(0, len(undo), fields)]

        # In inference mode, as the search; whatever is returned was made outside of it.
        with torch.inference_mode(), ctx.autocast.again():
            steps = looked_at(stretches, logits, children, active, soft, ctx.mix)
            for group in groups([ctx.leaves, *composed], [first_step, *ends], states.device, dim):
                pairs = torch.cat([children[begin:end] for begin, end in group])  # (n, 2)
                mask = ctx.dropout.mask(*take(spans, pairs).unbind(1)) if ctx.dropout else None
                nodes, last = adjoint(ctx.cell, take(states, pairs), mask), 0
                for begin, end in group:
                    first, last = last, last + end - begin
                    gradient[begin:end, :dim].addr_(logit_gradient[begin:end], scorer_weight)
                    down = nodes.pull_back(slice(first, last), gradient[begin:end])  # (n, 2, S)
                    gradient.index_add_(0, pairs[first:last].flatten(), down.flatten(0, 1))
                    if begin not in starts:
                        continue
                    # All candidates of a step have come by.
                    step = next(steps)
                    elements = gradient[begin - B * step.left.shape[2] : begin].view(B, -1, states.shape[1])
                    weights = average_gradient(gradient, elements, states, step)
                    v_gradient = mixture_gradient(*weights, step, ctx.mix).flatten(1)
                    # Through the scores: a finished sample's were not touched.
                    found = continuation_gradient(score_gradient.where(step.going, 0), v_gradient, step)
                    if step.forests is not None:
                        found = resolve_gradient(found, logits, step, ctx.duplicates)
                    found = found.view_as(step.columns)  # (B, K, J)
                    before = found.sum(2)
                    rows = step.probabilities.mul_(-before.unsqueeze(2)).scatter_add_(2, step.columns, found)
                    logit_gradient.index_add_(0, step.rows.flatten(), rows.flatten())
                    score_gradient = before.where(step.going, score_gradient)
                torch._foreach_add_(weight_gradients, nodes.weight_gradients())
        return (
            None,
            None,
            None,
            gradient[: ctx.leaves],
            *weight_gradients,
            (logit_gradient @ states[:, :dim]).view_as(ctx.scorer.weight),
            logit_gradient.sum(0).view_as(ctx.scorer.bias),
        )


def groups(begins: list[int], ends: list[int], device: torch.device, dim: int) -> Iterator[list[tuple[int, int]]]:
    """Ranges of nodes, the last first, that are composed again in one batch; a range is cut where it is too long."""
    longest = batch_size(device)
    size = longest if device.type == "cuda" else CACHED // dim
    pending: list[tuple[int, int]] = []
    for begin, end in zip(reversed(begins), reversed(ends), strict=True):
        for low in reversed(range(begin, end, longest)):
            high = min(low + longest, end)
            if pending and sum(b - a for a, b in pending) + high - low > size:
                yield pending
                pending = []
            pending.append((low, high))
    if pending:
        yield pending


def stretches(steps: list[Undo], absent: int) -> Iterator[Undo]:
    """The records of all steps, those of up to STRETCH in one, whose rows are as wide as the first step's."""
    begin = 0
    while begin < len(steps):
        first = steps[begin]
        # In the last steps beams have fewer continuations each time.
        some = [step for step in steps[begin : begin + STRETCH] if step.columns.shape == first.columns.shape]
        begin += len(some)
        rows = torch.full((len(some), *first.rows.shape), absent, dtype=torch.int32, device=first.rows.device)
        for place, step in zip(rows, some, strict=True):
            place[..., : step.rows.shape[2]] = step.rows
        _, *others = zip(*some, strict=True)
        yield Undo._make([rows, *(None if values[0] is None else torch.stack(values) for values in others)])


class Known(NamedTuple):
    """What is known of a step, or of the T steps of a stretch, before the gradient comes."""

    rows: Int[Tensor, "*T B K W"]
    columns: Int[Tensor, "*T B K J"]
    v: Float[Tensor, "*T B KJ"]
    order: Int[Tensor, "*T B K"]
    continuations: Float[Tensor, "*T B KJ"]  # the scores of those in the mixture, else 0
    going: Bool[Tensor, "*T B 1"]  # whether a sample was not finished
    probabilities: Float[Tensor, "*T B K W"]  # of the candidates
    sequences: Int[Tensor, "*T B K n"]
    left: Float[Tensor, "*T B K m"]  # the mixture's weights of them, see `beamtree.engine.soft_search.Mixture`
    right: Float[Tensor, "*T B K m"]
    parents: Int[Tensor, "*T B K E"]
    weights: Float[Tensor, "*T B K E"]
    elements: Int[Tensor, "*T B K E"]  # the soft states that the parents are part of
    scores: Float[Tensor, "*T B K"] | None
    forests: Int[Tensor, "*T B KJ"] | None


def looked_at(
    stretches: list[Undo],
    logits: Float[Tensor, "P"],
    children: Int[Tensor, "P 2"],
    active: Bool[Tensor, "B T"],
    soft: Int[Tensor, "T B"],
    mix: Mix | None,
) -> Iterator[Known]:
    """All steps, the last first, a stretch at a time."""
    end = len(soft)
    for undo in reversed(stretches):
        rows, v = undo.rows.long(), undo.weights
        T, m = len(rows), rows.shape[3] - 2
        weights = mixture(v.view_as(undo.columns), undo.columns, m, mix)
        stretch = Known(
            rows,
            undo.columns,
            v,
            undo.order,
            undo.continuations.where(v > 0, 0),
            active.mT[end - T : end].unsqueeze(2),
            logits.take(rows).softmax(-1),
            sequences(children, rows),
            weights.left,
            weights.right,
            rows.gather(-1, weights.columns),
            weights.parents,
            weights.columns + (soft[end - T : end, :, None, None] - 1),
            undo.scores,
            undo.forests,
        )
        fields = (itertools.repeat(None) if field is None else field.unbind() for field in stretch)
        for t, step in reversed(list(enumerate(map(Known, *fields)))):
            yield shortened(step, m - t)
        end -= T


def shortened(step: Known, m: int) -> Known:
    """A step without what the first of its stretch had more."""
    E = min(m, step.parents.shape[2])
    return step._replace(
        sequences=step.sequences.narrow(2, 0, m + 1),
        left=step.left.narrow(2, 0, m),
        right=step.right.narrow(2, 0, m),
        parents=step.parents.narrow(2, 0, E),
        weights=step.weights.narrow(2, 0, E),
        elements=step.elements.narrow(2, 0, E),
    )


def average_gradient(
    gradient: Float[Tensor, "P S"], above: Float[Tensor, "B m S"], states: Float[Tensor, "P S"], step: Known
) -> tuple[Float[Tensor, "B K E"], Float[Tensor, "B K m"], Float[Tensor, "B K m"]]:
    """From the soft beam's new states back to the states they average, added to `gradient`, and to the weights of the
    average: of the parents, the left and the right states."""
    above_parents = take(gradient, step.elements)  # (B, K, E, S)
    parents = take(states, step.parents).mul_(above_parents).sum(3)  # (B, K, E)
    gradient.index_add_(0, step.parents.flatten(), above_parents.mul_(step.weights.unsqueeze(3)).flatten(0, 2))
    above = above.unsqueeze(1)  # (B, 1, m, S)
    H = take(states, step.sequences)  # (B, K, m+1, S)
    left, right = (H[:, :, :-1] * above).sum(3), (H[:, :, 1:] * above).sum(3)  # (B, K, m)
    # From here on the gradient of H: H[i] is in new[i] and in new[i−1].
    torch.mul(step.left.unsqueeze(3), above, out=H[:, :, :-1])
    H[:, :, -1].zero_()
    H[:, :, 1:].addcmul_(step.right.unsqueeze(3), above)
    gradient.index_add_(0, step.sequences.flatten(), H.flatten(0, 2))
    return parents, left, right


def mixture_gradient(
    parents: Float[Tensor, "B K E"],
    left: Float[Tensor, "B K m"],
    right: Float[Tensor, "B K m"],
    step: Known,
    mix: Mix | None,
) -> Float[Tensor, "B K J"]:
    """From the weights of the average back to v: the adjoint of `mixture`."""
    position = step.columns - 1
    if mix == "paper":
        return parents + around(left, right).gather(2, position)
    K, m = left.shape[1:]
    v = step.v.view_as(position)
    s = v.new_zeros(len(v), 1, m).scatter_add_(2, position.flatten(1).unsqueeze(1), v.flatten(1).unsqueeze(1))
    cum = s.cumsum(2)  # (B, 1, m)
    total = (parents * s + left * (1 - cum) + right * (cum - s)).sum(2, keepdim=True)  # (B, K, 1)
    share = v.sum(2, keepdim=True)  # (B, K, 1)
    parents, left, right = ((part * share).sum(1, keepdim=True) for part in (parents, left, right))  # (B, 1, m)
    through = parents + around(left, right) - left.sum(2, keepdim=True)
    return through.expand(-1, K, -1).gather(2, position) + total


def around(left: Float[Tensor, "B K m"], right: Float[Tensor, "B K m"]) -> Float[Tensor, "B K m"]:
    """For each position the sum of `left` before it and of `right` behind it: a merge leaves the states before it where
    they are, and those behind it move up."""
    until = right.cumsum(2)
    return left.cumsum(2) - left + until[..., -1:] - until


def continuation_gradient(
    gradient: Float[Tensor, "B K"], v_gradient: Float[Tensor, "B KJ"], step: Known
) -> Float[Tensor, "B KJ"]:
    """From the new scores and from v back to the scores of the continuations: the adjoint of `topk.soften`.

    The soft beam's score is Σ v·a, with v the softmax of a over the mixture.
    """
    v, soft = step.v, gradient[:, -1:]
    total = torch.addcmul(v_gradient, soft, step.continuations)
    mixed = (total - (v * total).sum(1, keepdim=True) + soft).mul_(v)
    return mixed.scatter_add_(1, step.order[:, :-1], gradient[:, :-1])


def resolve_gradient(
    gradient: Float[Tensor, "B KJ"], logits: Float[Tensor, "P"], step: Known, duplicates: Duplicates
) -> Float[Tensor, "B KJ"]:
    """Through dropped or merged duplicates, by autograd."""
    assert step.scores is not None
    assert step.forests is not None
    log_p = logits.take(step.rows).log_softmax(-1).gather(2, step.columns)
    scores = (step.scores.unsqueeze(2) + log_p).flatten(1)
    with torch.inference_mode(False), torch.enable_grad():
        scores = scores.clone().requires_grad_()
        return torch.autograd.grad(resolve(scores, step.forests, duplicates), scores, gradient.clone())[0]
