"""OneSoft's replay: the gradient of a search with a soft beam.

Nothing but the pool's states is kept for backward, which undoes the steps one by one, last first. It composes a step's
nodes again and pulls their gradient back to their children, then that of the soft beam's states to the states they
average and to the weights of the average, then that of the weights and scores to the logits and to the scores before.
"""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from beamtree.engine.adjoint import adjoint, batch_size
from beamtree.engine.autocast import Autocast
from beamtree.engine.base import Chart, Duplicates, Mix, Request
from beamtree.engine.duplicates import resolve
from beamtree.engine.lineage import along, make_chart, slots_after
from beamtree.engine.pool import take
from beamtree.engine.search import copies, stack
from beamtree.engine.soft_search import SoftTrace, Undo, mixture, search


def encode(request: Request) -> Chart:
    """Search with a soft beam, and replay where a gradient is wanted."""
    trace = search(request)
    source, action, node = (stack([step[field] for step in trace.steps], trace.roots) for field in range(3))
    slots = slots_after(source)
    chart = make_chart(trace.pool, along(slots, action), along(slots, node), trace.scores, trace.roots)
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
        undo = copies(step._replace(rows=step.rows.int(), sequences=step.sequences.int()) for step in trace.undo)
        kept = (pool.states, pool.logits, pool.children.int(), spans, nodes, request.active, *undo)
        # The weights too, so that PyTorch objects if they change before backward.
        ctx.weights = len(weights)
        ctx.save_for_backward(*weights, *kept)
        return torch.cat((leaves, take(pool.states, nodes))), trace.scores.clone()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, store_gradient: Float[Tensor, "rows S"], score_gradient: Float[Tensor, "B K"]
    ) -> tuple[Tensor | None, ...]:
        states, logits, children, spans, nodes, active, *undo = ctx.saved_tensors[ctx.weights :]
        children, dim, size = children.long(), ctx.cell.dim, batch_size(states.device)
        gradient = torch.zeros_like(states)  # of every state, complete once its users have come by
        gradient[: ctx.leaves] = store_gradient[: ctx.leaves]
        gradient.index_add_(0, nodes, store_gradient[ctx.leaves :])
        logit_gradient = torch.zeros_like(logits)
        weight_gradients = [torch.zeros_like(weight) for weight in ctx.cell.parameters()]
        scorer_weight = ctx.scorer.weight.squeeze(0).to(states.dtype)

        def pull_back(begin: int, end: int) -> None:
            """From the nodes composed in one step to their children."""
            gradient[begin:end, :dim].addr_(logit_gradient[begin:end].to(states.dtype), scorer_weight)
            for first in range(begin, end, size):
                last = min(first + size, end)
                pairs = children[first:last]  # (n, 2)
                mask = ctx.dropout.mask(*take(spans, pairs).unbind(1)) if ctx.dropout else None
                nodes = adjoint(ctx.cell, take(states, pairs), mask)
                down = nodes.pull_back(slice(None), gradient[first:last])  # (n, 2, S)
                torch._foreach_add_(weight_gradients, nodes.weight_gradients())
                gradient.index_add_(0, pairs.flatten(), down.flatten(0, 1))

        # In inference mode, as the search; whatever is returned was made outside of it.
        with torch.inference_mode(), ctx.autocast.again():
            for number in reversed(range(len(ctx.blocks) - 1)):
                elements, composed = ctx.blocks[number]
                pull_back(composed, ctx.blocks[number + 1][0])
                step = Undo(*undo[number * len(Undo._fields) : (number + 1) * len(Undo._fields)])
                step = step._replace(rows=step.rows.long(), sequences=step.sequences.long())
                going = active[:, number, None]  # (B, 1)
                v_gradient = average_gradient(gradient, gradient[elements:composed], states, step, ctx.mix)

                # Through the scores: a finished sample's were not touched.
                row_logits = logits.take(step.rows)
                found = continuation_gradient(score_gradient.where(going, 0), v_gradient.to(logits.dtype), step)
                if step.forests is not None:
                    found = resolve_gradient(found, row_logits, step, step.forests, ctx.duplicates)
                found = found.view_as(step.columns)  # (B, K, J)
                before = found.sum(2)
                row_gradient = row_logits.softmax(-1).mul_(-before.unsqueeze(2)).scatter_add_(2, step.columns, found)
                logit_gradient.index_add_(0, step.rows.flatten(), row_gradient.flatten())
                score_gradient = before.where(going, score_gradient)
            pull_back(ctx.leaves, ctx.blocks[0][0])
        logit_gradient = logit_gradient.to(states.dtype)
        return (
            None,
            None,
            None,
            gradient[: ctx.leaves],
            *weight_gradients,
            (logit_gradient @ states[:, :dim]).view_as(ctx.scorer.weight),
            logit_gradient.sum(0).view_as(ctx.scorer.bias),
        )


def average_gradient(
    gradient: Float[Tensor, "P S"],
    above: Float[Tensor, "Bm S"],
    states: Float[Tensor, "P S"],
    step: Undo,
    mix: Mix | None,
) -> Float[Tensor, "B KJ"]:
    """From the soft beam's new states back to the states they average, added to `gradient`, and to v, returned."""
    weights = mixture(step.weights, step.columns, step.rows.shape[2] - 2, mix)
    parents = step.rows.gather(2, weights.columns)  # (B, K, E)
    above_parents = take(above, weights.positions().view_as(parents))  # (B, K, E, S)
    parent_gradient = take(states, parents).mul_(above_parents).sum(3)  # (B, K, E)
    gradient.index_add_(0, parents.flatten(), above_parents.mul_(weights.parents.unsqueeze(3)).flatten(0, 2))

    above = above.view(len(parents), 1, -1, states.shape[1])  # (B, 1, m, S)
    H = take(states, step.sequences)  # (B, K, m+1, S)
    left_gradient, right_gradient = (H[:, :, :-1] * above).sum(3), (H[:, :, 1:] * above).sum(3)  # (B, K, m)
    left, right = (weight.unsqueeze(3).to(states.dtype) for weight in (weights.left, weights.right))  # (B, K, m, 1)
    torch.mul(left, above, out=H[:, :, :-1])  # from here on the gradient of H: H[i] is in new[i] and in new[i−1]
    H[:, :, -1].zero_()
    H[:, :, 1:].addcmul_(right, above)
    gradient.index_add_(0, step.sequences.flatten(), H.flatten(0, 2))
    return mixture_gradient(parent_gradient, left_gradient, right_gradient, step, mix)


def mixture_gradient(
    parents: Float[Tensor, "B K E"],
    left: Float[Tensor, "B K m"],
    right: Float[Tensor, "B K m"],
    step: Undo,
    mix: Mix | None,
) -> Float[Tensor, "B KJ"]:
    """From the weights of the average back to v: the adjoint of `mixture`."""
    K, m = left.shape[1:]
    # An absent continuation may name a padding column; its weight is 0, and whatever it gets here is lost.
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
    # s[i] is in the running sums of all positions from i on.
    run = right - left
    running = run.sum(2, keepdim=True) - run.cumsum(2) + run - right  # (B, K or 1, m)
    return (direct + running.expand(-1, K, -1).gather(2, position) + total).flatten(1)


def continuation_gradient(
    gradient: Float[Tensor, "B K"], v_gradient: Float[Tensor, "B KJ"], step: Undo
) -> Float[Tensor, "B KJ"]:
    """From the new scores and from v back to the scores of the continuations: the adjoint of `topk.soften`.

    The soft beam's score is Σ v·a, with v the softmax of a over the mixture.
    """
    v, soft = step.weights, gradient[:, -1:]
    total = v_gradient + soft * step.continuations.where(v > 0, 0)
    mixed = v * (total - (v * total).sum(1, keepdim=True) + soft)
    return mixed.scatter_add_(1, step.order[:, :-1], gradient[:, :-1])


def resolve_gradient(
    gradient: Float[Tensor, "B KJ"],
    row_logits: Float[Tensor, "B K W"],
    step: Undo,
    forests: Int[Tensor, "B KJ"],
    duplicates: Duplicates,
) -> Float[Tensor, "B KJ"]:
    """Through dropped or merged duplicates, by autograd."""
    log_p = row_logits.log_softmax(-1).gather(2, step.columns)
    scores = (step.scores.unsqueeze(2) + log_p).flatten(1)
    with torch.inference_mode(False), torch.enable_grad():
        scores = scores.clone().requires_grad_()
        return torch.autograd.grad(resolve(scores, forests, duplicates), scores, gradient.clone())[0]
