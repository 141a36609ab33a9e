"""Straight-through sampling of trees on the pool of nodes: the function and gradients of `straight_through.reference`.

**Forward** is a search without gradients (see `beamtree.nn.engine.beam.search`) whose beams do not compete: each step
composes two new candidates for each sample, 3N nodes in all.

**Backward** runs through the steps, the last first. With G_j the gradient of the new sequence at a one-hot s,

    dL/ds_j = G_j · (P_j − h_{j+1}) + Σ_{i ≥ j} G_i · (h_{i+1} − h_i)
    dL/dℓ   = softmax'(y) dL/ds ,

so every candidate has a gradient in every step in which it is present, not only when it is chosen. But this gradient
is a scalar: the children receive it times the gradient of the candidate's logit ℓ, which is the same in every step and
is computed once for all candidates, in one batch. A step then only gathers, multiplies and adds. Only the chosen parent
has a vector as gradient, which is pulled back at the step that chose it. The weights need only the sum of each node's
gradients. Memory is O(K·N) vectors and O(K·N²) scalars.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from beamtree.nn.cells.adjoint import Adjoint, batch_size
from beamtree.nn.engine.autocast import Autocast
from beamtree.nn.engine.beam.replay import Functions
from beamtree.nn.engine.beam.search import copies, first_rows, roots, stack
from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.lineage import make_chart
from beamtree.nn.engine.noise import Noise
from beamtree.nn.engine.pool import Pool, take
from beamtree.nn.engine.request import Request
from beamtree.nn.engine.scorers import ParentScorerFunction
from beamtree.nn.engine.straight_through import reference
from beamtree.nn.function import first_order, save


@dataclass(frozen=True)
class Samples(Request):
    """A request whose `beam_size` beams are samples: all exist from the start, and they do not compete."""

    def start_scores(self) -> Float[Tensor, "B K"]:
        shape = (len(self.leaves), self.beam_size)
        return torch.zeros(shape, dtype=self.score_dtype, device=self.leaves.device)


class StepDistribution(NamedTuple):
    """The distribution that a step drew from. The final merge counts as a step too, with a single candidate."""

    rows: Int[Tensor, "B K m"]  # the candidates
    y: Float[Tensor, "B K m"]  # their probabilities under the noise


class SampleTrace(NamedTuple):
    """A finished search."""

    pool: Pool
    actions: Int[Tensor, "B K T"]
    nodes: Int[Tensor, "B K T"]  # what the actions made; the absent node where a sample had finished
    scores: Float[Tensor, "B K"]
    roots: Int[Tensor, "B K"]


class SampleGradients(NamedTuple):
    """The gradients before the first step."""

    sequence: Float[Tensor, "B K N S"]  # of the leaves, in each sample
    logits: Float[Tensor, "P"]  # of the logit of each node, over all steps
    states: Float[Tensor, "P S"]  # of each node, where it is the parent that a step made

    def copied(self) -> "SampleGradients":
        """A copy outside of the buffers of a workspace."""
        return SampleGradients(*(tensor.clone() for tensor in self))


Kept = list[Tensor | None]
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


@torch.inference_mode()
def search(pool: Pool) -> tuple[SampleTrace, list[StepDistribution]]:
    """Draw every sample's merges; see `beamtree.nn.engine.beam.search.run`."""
    request = pool.request
    rows = first_rows(pool)  # (B, K, m+2)
    scores = request.start_scores()
    noise, here = Noise(request), torch.arange(max(rows.shape[2], 3), device=rows.device)
    draws, actions, nodes = [], [], []
    # `narrow` and `select` are faster than indexing, which matters here.
    two, three = here.narrow(0, 0, 2), here.narrow(0, 0, 3)
    for step, active in enumerate(request.active.unsqueeze(1).unbind(2)):  # (B, 1)
        m = rows.shape[2] - 2
        candidates, candidate_noise = rows.narrow(2, 1, m), noise.at(step)[0]
        log_p = pool.logits.take(candidates).log_softmax(-1)  # (B, K, m)
        noisy = log_p if candidate_noise is None else log_p + candidate_noise.narrow(2, 0, m)
        column = noisy.argmax(-1, keepdim=True)  # (B, K, 1)
        scores = (scores + log_p.gather(2, column).squeeze(2)).where(active, scores)
        draws.append(StepDistribution(candidates, noisy.softmax(-1)))

        # Remove the drawn candidate and its neighbours; in a finished sample, the absent node at the end of its row.
        column = column.where(active.unsqueeze(2), m + 1)
        left, drawn, right = rows.gather(2, (column + three).clamp_(max=m + 1)).unbind(2)  # (B, K)
        beside = torch.stack((left, right), dim=2)  # (B, K, 2)
        children = take(pool.children, beside).flatten(2)  # (B, K, 2·2)
        pairs = torch.stack((children.select(2, 0), drawn, drawn, children.select(2, 3)), dim=2).unflatten(2, (2, 2))
        added = pool.compose(pairs, beside != pool.absent)  # (B, K, 2)
        rows = rows.narrow(2, 0, m + 1).where(here.narrow(0, 0, m + 1) <= column, rows.narrow(2, 1, m + 1))
        rows.scatter_(2, (column + two).clamp_(max=m), added)
        actions.append(column.squeeze(2))
        nodes.append(drawn)
    if request.candidates:
        last = rows[..., 1:-1]  # (B, K, 1)
        draws.append(StepDistribution(last, torch.ones_like(last, dtype=scores.dtype)))
    merges = [stack(values, rows[..., 0]).movedim(0, 2) for values in (actions, nodes)]  # (B, K, T)
    return SampleTrace(pool, merges[0], merges[1], scores, roots(pool, rows)), draws


def keep(trace: SampleTrace, draws: list[StepDistribution]) -> Kept:
    """What `backward_steps` needs.

    The last merge of every sample is assigned to the last step, where the longest sample has its own.
    """
    M = trace.pool.request.candidates
    actions = nn.functional.pad(trace.actions, (0, 1))[..., :M]  # (B, K, M)
    parents = torch.cat((trace.nodes, trace.roots.unsqueeze(2)), dim=2)[..., :M]
    # Node ids are stored as int32: with y, they take most of the memory besides the states.
    return [actions, parents, *copies(draw._replace(rows=draw.rows.int()) for draw in draws)]


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
    nodes: "SampleNodes",
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


class SampleNodes:
    """The nodes of the pool, to be recomposed: first the leaves, then the candidates, then the absent node."""

    def __init__(
        self,
        functions: Functions,
        states: Float[Tensor, "P S"],
        logits: Float[Tensor, "P"],
        children: Int[Tensor, "P 2"],
        spans: Int[Tensor, "P 3"],
        lengths: Int[Tensor, "B"],
        leaves: int,
    ) -> None:
        self.cell, scorer, self.dropout = functions.cell, functions.scorer, functions.dropout
        assert isinstance(scorer, ParentScorerFunction)
        self.scorer = scorer
        with torch.inference_mode(False):  # autograd tracks these weights, even if the user has frozen them
            self.tracked = self.cell.bind([weight.detach().requires_grad_() for weight in self.cell.weights])
        self.states, self.logits, self.children, self.spans, self.lengths = states, logits, children, spans, lengths
        self.size = batch_size(states.device)
        ends = (*range(leaves, len(states) - 1, self.size), len(states) - 1)
        self.parts = [slice(*pair) for pair in itertools.pairwise(ends)]  # all candidates
        self.latest: tuple[slice, tuple[Tensor, Tensor, Tensor]] | None = None

    def mask(self, pairs: Int[Tensor, "n 2"]) -> Float[Tensor, "n width"] | None:
        return self.dropout.mask(*take(self.spans, pairs).unbind(1)) if self.dropout else None

    def adjoint(self, ids: Int[Tensor, "n"]) -> Adjoint:
        pairs = take(self.children, ids)  # (n, 2)
        return self.cell.adjoint(take(self.states, pairs), self.mask(pairs))

    def compose(self, part: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Left children, right children and parents, under autograd.

        The latest part is cached, so that a single part is composed only once for `sides` and `add_weight_gradients`.
        """
        if self.latest is None or self.latest[0] != part:
            self.latest = None  # frees its memory
            with torch.inference_mode(False), torch.enable_grad():
                pairs = self.children[part]  # (n, 2)
                left, right = (side.requires_grad_() for side in take(self.states, pairs.mT))  # (n, S)
                self.latest = part, (left, right, self.tracked(left, right, self.mask(pairs)))
        return self.latest[1]

    def sides(self, sides: "Sides") -> "Sides":
        """Fill in the rows of all candidates."""
        for part in self.parts:
            left, right, parent = self.compose(part)
            torch.sub(self.states[part], right.detach(), out=sides.rise[part])
            torch.sub(right.detach(), left.detach(), out=sides.run[part])
            gradient = self.from_logits(self.states.new_ones(len(left))).to(parent.dtype)
            found = torch.autograd.grad(parent, (left, right), gradient, retain_graph=True)
            sides.left[part], sides.right[part] = found
        return sides

    def add_weight_gradients(self, weight_gradients: list[Tensor], gradient: Float[Tensor, "P S"]) -> None:
        for part in reversed(self.parts):
            parent = self.compose(part)[2]
            found = torch.autograd.grad(parent, self.tracked.weights, gradient[part].to(parent.dtype))
            torch._foreach_add_(weight_gradients, found)
            self.latest = None

    def from_logits(self, gradient: Float[Tensor, "n"]) -> Float[Tensor, "n S"]:
        """The gradient of nodes' states, given that of their logits."""
        weight = self.scorer.weights[0].squeeze(0).to(self.states.dtype)
        weight = nn.functional.pad(weight, (0, self.states.shape[1] - len(weight)))  # a Tree-LSTM's c is not scored
        return gradient.to(weight.dtype).unsqueeze(1) * weight


class Sides(NamedTuple):
    """What a step needs of each candidate P = R(l, r); 0 for leaves and for the absent node."""

    rise: Float[Tensor, "*shape S"]  # P − r
    run: Float[Tensor, "*shape S"]  # r − l
    left: Float[Tensor, "*shape S"]  # ∂ℓ/∂l, ℓ the logit of P
    right: Float[Tensor, "*shape S"]  # ∂ℓ/∂r

    def take(self, ids: Int[Tensor, "B K m"]) -> "Sides":
        return Sides(*(take(table, ids) for table in self))


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
