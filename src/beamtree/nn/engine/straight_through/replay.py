"""Straight-through sampling of trees on the pool of nodes: the function and gradients of `straight_through.reference`.

**Forward** is the search of `beamtree.nn.engine.straight_through.search`.

**Backward** runs through the steps, the last first. With G_j the gradient of the new sequence at a one-hot s,

    dL/ds_j = G_j · (P_j − h_{j+1}) + Σ_{i ≥ j} G_i · (h_{i+1} − h_i)
    dL/dℓ   = softmax'(y) dL/ds ,

so every candidate has a gradient in every step in which it is present, not only when it is chosen. But this gradient
is a scalar: the children receive it times the gradient of the candidate's logit ℓ, which is the same in every step and
is computed once for all candidates, in one batch. A step then only gathers, multiplies and adds. Only the chosen parent
has a vector as gradient, which is pulled back at the step that chose it. The weights need only the sum of each node's
gradients. Memory is O(K·N) vectors and O(K·N²) scalars.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from beamtree.nn.engine.autocast import Autocast
from beamtree.nn.engine.beam.replay import Functions
from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.lineage import make_chart
from beamtree.nn.engine.pool import Pool, take
from beamtree.nn.engine.straight_through import reference
from beamtree.nn.engine.straight_through.nodes import SampleNodes, Sides
from beamtree.nn.engine.straight_through.search import Kept, Samples, SampleTrace, StepDistribution, keep, search
from beamtree.nn.function import first_order, save


class SampleGradients(NamedTuple):
    """The gradients before the first step."""

    sequence: Float[Tensor, "B K N S"]  # of the leaves, in each sample
    logits: Float[Tensor, "P"]  # of the logit of each node, over all steps
    states: Float[Tensor, "P S"]  # of each node, where it is the parent that a step made

    def copied(self) -> "SampleGradients":
        """A copy outside of the buffers of a workspace."""
        return SampleGradients(*(tensor.clone() for tensor in self))


# Arguments: the nodes, the gradients of the nodes that the actions made and of the scores, and the kept tensors.
BackwardSteps = Callable[..., SampleGradients]


def encode(request: Samples) -> Chart:
    """Search, and run backward through its steps if a gradient is needed.

    The reference computes gradients of cells and scorers that are known only as modules.
    """
    if not request.is_functional and request.wants_gradient():
        return reference.encode(request)
    B, N, _ = request.leaves.shape
    pool = Pool(request, size=B * (N + request.candidates + 2 * request.beam_size * request.steps))
    trace, draws = search(pool)
    return finish(trace, backward_steps, keep(trace, draws) if request.wants_gradient() else [])


def finish(trace: SampleTrace, backward_steps: BackwardSteps, kept: Kept) -> Chart:
    """The chart of a search. `backward_steps` computes its gradient, from the pool and the kept tensors."""
    request = trace.pool.request
    chart = make_chart(trace.pool, trace.actions, trace.nodes, trace.scores, trace.roots)
    if not request.wants_gradient():
        return chart
    leaves = request.leaves.flatten(0, 1)
    settings = SampleSettings(Functions.of(request), trace.pool, backward_steps, kept)
    store, scores = StraightThrough.apply(settings, chart.nodes, chart.scores, leaves, *request.weights)
    rows = torch.arange(len(leaves), len(store), device=store.device).view_as(chart.nodes)
    return replace(chart, store=store, scores=scores, nodes=rows)


class SampleSettings(NamedTuple):
    """Non-differentiable arguments of `StraightThrough`, besides the chart."""

    functions: Functions
    pool: Pool
    backward_steps: BackwardSteps
    kept: Kept


class StraightThrough(torch.autograd.Function):
    """(leaves, weights) → (states of the leaves and of the samples' nodes, scores), with values from the search."""

    @staticmethod
    def forward(
        ctx: Any,
        settings: SampleSettings,
        nodes: Int[Tensor, "B K M"],
        scores: Float[Tensor, "B K"],
        leaves: Float[Tensor, "L S"],
        *weights: Tensor,
    ) -> tuple[Float[Tensor, "rows S"], Float[Tensor, "B K"]]:
        ctx.functions, pool, ctx.backward_steps, kept = settings
        ctx.set_materialize_grads(False)  # without a gradient of the scores some work is skipped
        ctx.shape, ctx.autocast = nodes.shape, Autocast(leaves.device.type)
        tables = (pool.states, pool.logits, pool.children.int(), pool.spans.int())
        save(ctx, (leaves, *weights), *tables, pool.request.lengths, *kept)
        return torch.cat((leaves, take(pool.states, nodes.flatten()))), scores.clone()

    @staticmethod
    @first_order
    def backward(
        ctx: Any,
        inputs: Sequence[Tensor],
        saved: Sequence[Any],
        store_gradient: Float[Tensor, "rows S"] | None,
        score_gradient: Float[Tensor, "B K"] | None,
    ) -> tuple[Tensor | None, ...]:
        states, logits, children, spans, lengths, *kept = saved
        functions = ctx.functions.bind(inputs[1:])
        (B, K, M), S = ctx.shape, states.shape[1]
        leaves = B * (M + 1)
        if store_gradient is None:
            store_gradient = states.new_zeros(leaves + B * K * M, S)
        above = store_gradient[leaves:].view(B, K, M, S)
        weight_gradients = [torch.zeros_like(weight) for weight in functions.cell.weights]
        nodes = SampleNodes(functions, states, logits, children, spans, lengths, leaves)

        # In inference mode, like the search. The returned tensors are allocated outside of it.
        with torch.inference_mode(), ctx.autocast.again():
            sequence, logit_gradient, gradient = ctx.backward_steps(nodes, above, score_gradient, *kept)
            gradient += nodes.from_logits(logit_gradient)
            nodes.add_weight_gradients(weight_gradients, gradient)
        logit_gradient = logit_gradient.to(states.dtype)
        return (
            None,
            None,
            None,
            sequence.sum(1).flatten(0, 1) + store_gradient[:leaves],
            *weight_gradients,
            *nodes.scorer.weight_gradients(states, logit_gradient),
        )


def backward_steps(
    nodes: SampleNodes,
    above: Float[Tensor, "B K M S"],
    score_gradient: Float[Tensor, "B K"] | None,
    actions: Int[Tensor, "B K M"],
    parents: Int[Tensor, "B K M"],
    *fields: Tensor,
) -> SampleGradients:
    """The backward pass of all steps, the last first.

    `above` is the gradient of the actions' nodes; `fields` are those of all draws.
    """
    draws = [StepDistribution(rows, y) for rows, y in zip(fields[::2], fields[1::2], strict=True)]
    (B, K, M, S), merging = above.shape, has_merge(nodes.lengths, above.shape[2])
    # The gradient of the sequence, which has m + 1 elements before a step and m after it; the rest of G is 0.
    G = nodes.states.new_zeros(B, K, M + 2, S)
    logit_gradient, gradient = torch.zeros_like(nodes.logits), torch.zeros_like(nodes.states)
    sides = nodes.sides(Sides(*(torch.zeros_like(nodes.states) for _ in Sides._fields)))
    here = torch.arange(M, device=G.device)
    # Where nothing was merged, the column is past all elements, where G is 0.
    columns = actions.where(merging.unsqueeze(1), M - here).movedim(2, 0).unsqueeze(3)  # (M, B, K, 1)
    pairs = torch.cat((columns, columns + 1), dim=3).unsqueeze(4).expand(-1, -1, -1, -1, S)  # (M, B, K, 2, S)
    by_steps = [t.unbind(0) for t in (columns, pairs[..., :1, :], pairs, by_step(above, nodes.lengths, merging))]
    places = torch.arange(B * K * (M + 2), device=G.device).view(B, K, M + 2)
    logit_gradients: list[Tensor] = []  # of the candidates of each step, the last step first
    parent_gradients: list[Tensor] = []  # of the nodes that each step made
    at_once = max(nodes.size // (B * K), 1)  # steps
    for first in reversed(range(0, M, at_once)):
        segment = parents[..., first : first + at_once]  # (B, K, steps)
        chosen = nodes.adjoint(segment.movedim(2, 0).flatten())
        for step in reversed(range(first, first + segment.shape[2])):
            draw, m = draws[step], M - step
            column, place, pair, node = (table[step] for table in by_steps)
            new, behind = G.narrow(2, 0, m), G.narrow(2, 1, m)
            side = sides.take(draw.rows)
            G.scatter_add_(2, place, node)
            logit = draw_gradient(s_gradient(new, side), draw, column, nodes.logits, score_gradient)  # (B, K, m)
            parent = G.gather(2, place).view(B * K, S)
            down = chosen.pull_back(slice((step - first) * B * K, (step - first + 1) * B * K), parent)
            # Before the merge: elements to the right of the parent shift by one, and the children replace it.
            source = places.narrow(2, 0, m) + (here.narrow(0, 0, m) <= column)
            behind.copy_(take(G.view(-1, S), source))
            G.scatter_(2, pair, down.view(B, K, 2, S))
            logit_gradients.append(logit.flatten())
            parent_gradients.append(parent)
            logit = logit.to(G.dtype).unsqueeze(3)
            new.addcmul_(logit, side.left)
            behind.addcmul_(logit, side.right)
    if M > 0:
        rows = torch.cat([draw.rows.flatten() for draw in reversed(draws)])
        logit_gradient.index_add_(0, rows, torch.cat(logit_gradients))
        gradient.index_add_(0, parents.movedim(2, 0).flip(0).flatten(), torch.cat(parent_gradients))
    return SampleGradients(G[:, :, : M + 1], logit_gradient, gradient)


def has_merge(lengths: Int[Tensor, "B"], M: int) -> Bool[Tensor, "B M"]:
    """Whether a sample merges in a step: while it has a choice, and in the last step."""
    step = torch.arange(M, device=lengths.device)
    lengths = lengths.unsqueeze(1)
    return (step < lengths - 2) | ((step == M - 1) & (lengths > 1))


def by_step(
    gradient: Float[Tensor, "B K M S"], lengths: Int[Tensor, "B"], merging: Bool[Tensor, "B M"]
) -> Float[Tensor, "M B K 1 S"]:
    """The gradient of each node, by the step that made it. In the chart, a sample's last merge follows its others."""
    B, K, M, S = gradient.shape
    step = torch.arange(M, device=lengths.device)
    source = (lengths.unsqueeze(1) - 2).clamp(min=0).where(step == M - 1, step)  # (B, M)
    gradient = gradient.gather(2, source.view(B, 1, M, 1).expand(B, K, M, S))
    return gradient.where(merging.view(B, 1, M, 1), 0).movedim(2, 0).unsqueeze(3)


def s_gradient(new: Float[Tensor, "B K m S"], side: Sides) -> Float[Tensor, "B K m"]:
    """The gradient of s, given that of the new sequence, up to a constant, which the gradient of softmax cancels.

    So the sum over i ≥ j is replaced by minus the sum over i < j.
    """
    rise, run = (side.rise * new).sum(3), (side.run * new).sum(3)  # (B, K, m)
    return rise + run - run.cumsum(2)


def draw_gradient(
    s: Float[Tensor, "B K m"],
    draw: StepDistribution,
    column: Int[Tensor, "B K 1"],
    logits: Float[Tensor, "P"],
    score_gradient: Float[Tensor, "B K"] | None,
) -> Float[Tensor, "B K m"]:
    """The gradient of the logits, given those of s and of the scores. It is 0 for finished samples: there y = 1."""
    y, s = draw.y, s.to(draw.y.dtype)
    if score_gradient is None:
        return y * (s - (y * s).sum(2, keepdim=True))
    merged = column < y.shape[2]  # (B, K, 1)
    gradient, column = score_gradient.unsqueeze(2).where(merged, 0), column.where(merged, 0)
    log_p = logits.take(draw.rows.long()).log_softmax(2)
    s = s + gradient * (log_p - log_p.gather(2, column)).exp()  # of log Σ s·p, through s
    direct = (log_p.exp() * -gradient).scatter_add_(2, column, gradient)  # and through p
    return y * (s - (y * s).sum(2, keepdim=True)) + direct
