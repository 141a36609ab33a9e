"""Replay: the gradient of a search, over the nodes that survived it.

Only nodes on the lineages of the final beams matter: those that were chosen, and the candidates that stood beside
them and so have a part in the scores. Their children's states are known from the search, so nothing is stored but
the states themselves: backward composes again, many nodes in one batch, and only the gradient runs level by level,
from the roots down. Memory is O(K·N·S).

Where the scorer reads children, candidates that nobody chose have no state. They are pairs of nodes that were, and
bring the gradient of their logits to both, all of them before the levels begin.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from beamtree.engine.adjoint import adjoint, batch_size
from beamtree.engine.autocast import Autocast
from beamtree.engine.base import Chart, Request
from beamtree.engine.lineage import Lineages, make_chart, trace_back
from beamtree.engine.pool import Pool, take
from beamtree.engine.score_gradient import candidates, coefficients, from_children, from_parents, linear, merged
from beamtree.engine.search import Trace, copies, search


def encode(request: Request) -> Chart:
    """Search, and replay where a gradient is wanted."""
    trace = search(request)
    history = look_back(trace, request.wants_gradient())
    lineages = history.lineages
    chart = make_chart(trace.pool, lineages.action, lineages.node, trace.scores, trace.roots)
    if not request.wants_gradient():
        return chart
    plan = make_plan(trace, history)
    store, scores = Replay.apply(request, plan, request.leaves.flatten(0, 1), *request.weights)
    return replace(chart, store=store, scores=scores, nodes=plan.row[chart.nodes])


class History(NamedTuple):
    """What a search says of its final beams: the lineages, the candidates that stood on them, and their part in the
    scores. The last two are None where no gradient is wanted, or where duplicates are merged."""

    lineages: Lineages
    candidates: Int[Tensor, "B K C"] | None = None  # the absent node where there is none
    coefficients: Float[Tensor, "B K C"] | None = None  # 0 there


def look_back(trace: Trace, gradient: bool) -> History:
    """The shapes of everything here follow from those of the request alone."""
    pool, lineages = trace.pool, trace_back(trace)
    if not gradient or pool.request.duplicates == "merge":
        return History(lineages)
    with torch.no_grad():
        exists = trace.scores.isfinite()[..., None]  # (B, K, 1)
        standing = candidates(pool, lineages).where(exists, pool.absent)  # (B, K, C)
        return History(lineages, standing, coefficients(pool, lineages).where(standing != pool.absent, 0))


class Plan(NamedTuple):
    """The nodes to replay, as rows of a store: leaves | candidates that were not chosen | chosen nodes by height.

    `levels` holds the last row of each group that can go at once; a group's parents are all in later groups. The
    logits are those of all rows, or else those of `pairs`.
    """

    states: Float[Tensor, "R S"]  # of all rows but the leaves
    children: Int[Tensor, "R 2"]  # rows of their children
    spans: Int[Tensor, "R 2 3"]  # of their children: what dropout masks are made from
    levels: list[int]
    scores: Float[Tensor, "B K"]
    score_gradient: Callable[..., Tensor]  # from the gradient of the scores to that of the logits …
    score_tensors: tuple[Tensor | None, ...]  # … with these further arguments
    row: Int[Tensor, "P"]  # the row of each node of the pool
    pairs: Int[Tensor, "Q 2"] | None = None  # rows of the children of all candidates, where the scorer reads those


@torch.no_grad()
def make_plan(trace: Trace, history: History) -> Plan:
    pool = trace.pool
    numbers, levels, row, scored = needed(trace, history)
    children = pool.children[numbers]  # (R, 2)
    if scored is None:
        place, pairs = row, None
    else:
        place = torch.zeros_like(row).index_copy_(0, scored, torch.arange(len(scored), device=row.device))
        pairs = row[pool.children[scored]]
    score_gradient: Callable[..., Tensor]
    score_tensors: tuple[Tensor | None, ...]
    if history.candidates is None or history.coefficients is None:
        score_gradient = merged
        logits = pool.logits[torch.cat((pool.numbers[: levels[0]], numbers)) if scored is None else scored]
        choices = (choice._replace(rows=place[choice.rows].int()) for choice in trace.choices)
        score_tensors = (logits, pool.request.active, *copies(choices))
    else:
        score_gradient = linear
        score_tensors = (place[history.candidates], history.coefficients.clone())
    return Plan(
        pool.states[numbers],
        row[children],
        take(pool.spans, children),
        levels,
        trace.scores,
        score_gradient,
        score_tensors,
        row,
        pairs,
    )


class Needed(NamedTuple):
    """The nodes that have a gradient, besides the leaves, in the order of the store."""

    numbers: Int[Tensor, "R"]
    levels: list[int]
    row: Int[Tensor, "P"]  # of each node of the pool; the absent node is a leaf, whose logit is −inf too
    scored: Int[Tensor, "Q"] | None  # the absent node and all candidates, where these have no rows of their own


def needed(trace: Trace, history: History) -> Needed:
    pool = trace.pool
    B, N, _ = pool.request.leaves.shape
    size, leaves = len(pool.states), B * N
    if history.candidates is None:  # every beam that was merged has a part in the scores: keep all
        standing = pool.logits.isfinite()
        chosen = mark(pool, pool.children[standing], trace.roots)
    else:
        standing = mark(pool, history.candidates)
        exists = trace.scores.isfinite()[..., None]
        chosen = mark(pool, history.lineages.node.where(exists, pool.absent), trace.roots)
    scored = None
    if pool.request.scores_children:
        standing[pool.absent :] = True
        scored = standing.nonzero().squeeze(1)
        standing = torch.zeros_like(standing)
    beside = (standing & ~chosen).nonzero().squeeze(1)
    chosen_numbers, sizes = by_height(pool, chosen.nonzero().squeeze(1))
    numbers = torch.cat((beside, chosen_numbers))  # (R,)
    row = torch.zeros(size, dtype=torch.long, device=numbers.device)
    row[:leaves] = torch.arange(leaves, device=numbers.device)
    row[numbers] = torch.arange(leaves, leaves + len(numbers), device=numbers.device)
    return Needed(numbers, list(itertools.accumulate((leaves, len(beside), *sizes))), row, scored)


def mark(pool: Pool, *numbers: Int[Tensor, "..."]) -> Bool[Tensor, "P"]:
    """Which nodes these are; leaves and the absent node do not count."""
    marks = torch.zeros(len(pool.states), dtype=torch.bool, device=pool.states.device)
    for some in numbers:
        marks.index_fill_(0, some.flatten(), True)
    marks[: pool.request.leaves.shape[0] * pool.request.leaves.shape[1]] = False
    marks[pool.absent :] = False  # of a slice: a single element would be copied from the host, which no graph can
    return marks


def by_height(pool: Pool, numbers: Int[Tensor, "n"]) -> tuple[Int[Tensor, "n"], list[int]]:
    """These nodes, lowest first, and how many have each height."""
    heights = height_of(pool.children, numbers) if pool.heights is None else pool.heights[numbers]
    order = heights.argsort(stable=True)
    return numbers[order], heights.bincount().tolist()[1:]


def height_of(children: Int[Tensor, "P 2"], numbers: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
    """The height of each of these nodes, among which are all their descendants but leaves."""
    height = torch.zeros(len(children), dtype=torch.long, device=children.device)
    left, right = children[numbers].unbind(1)
    while True:
        new = torch.maximum(height[left], height[right]) + 1
        if torch.equal(new, height[numbers]):
            return new
        height[numbers] = new


class Replay(torch.autograd.Function):
    """(leaves, weights) → (states of the store, scores of the beams), with values taken from the search."""

    @staticmethod
    def forward(
        ctx: Any, request: Request, plan: Plan, leaves: Float[Tensor, "L S"], *weights: Tensor
    ) -> tuple[Float[Tensor, "R S"], Float[Tensor, "B K"]]:
        store = torch.cat((leaves, plan.states))
        ctx.cell, ctx.scorer, ctx.dropout, ctx.levels = request.cell, request.scorer, request.dropout, plan.levels
        ctx.autocast = Autocast(leaves.device.type)
        spans = plan.spans.int() if request.dropout else None
        ctx.score_gradient = plan.score_gradient
        # The weights too, so that PyTorch objects if they change before backward.
        ctx.weights = len(weights)
        ctx.save_for_backward(*weights, store, plan.children, spans, plan.pairs, *plan.score_tensors)
        return store, plan.scores.clone()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, store_gradient: Float[Tensor, "R S"], score_gradient: Float[Tensor, "B K"]
    ) -> tuple[Tensor | None, ...]:
        store, children, spans, pairs, *score_tensors = ctx.saved_tensors[ctx.weights :]
        leaves = ctx.levels[0]
        gradient = store_gradient.clone()  # of every state, complete once all its parents have come by
        weight_gradients = [torch.zeros_like(weight) for weight in ctx.cell.parameters()]

        # The scores reach the states of all candidates, or of their children, through the scorer.
        logits = len(store) if pairs is None else len(pairs)
        logit_gradient = ctx.score_gradient(score_gradient, logits, *score_tensors).to(store.dtype)
        if pairs is None:
            scorer_gradients = from_parents(ctx.scorer, ctx.cell.dim, logit_gradient, store, gradient)
        else:
            with ctx.autocast.again():
                scorer_gradients = from_children(ctx.scorer, pairs, logit_gradient, store, gradient)

        # In inference mode, as the search; whatever is returned was made outside of it.
        with torch.inference_mode(), ctx.autocast.again():
            for first, last, levels in batches(ctx.levels, batch_size(store.device)):
                below = children[first - leaves : last - leaves]  # (n, 2)
                mask = ctx.dropout.mask(*spans[first - leaves : last - leaves].unbind(1)) if ctx.dropout else None
                nodes = adjoint(ctx.cell, take(store, below), mask)
                for low, high in levels:
                    level = slice(low - first, high - first)
                    down = nodes.pull_back(level, gradient[low:high])  # (n, 2, S)
                    gradient.index_add_(0, below[level].flatten(), down.flatten(0, 1))
                for total, part in zip(weight_gradients, nodes.weight_gradients(), strict=True):
                    total += part
        return None, None, gradient[:leaves], *weight_gradients, *scorer_gradients


def batches(levels: list[int], size: int) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Rows from `first` to `last` to compose at once, and the levels among them, in the order gradients flow.

    First the candidates that nobody chose, in any order; then the chosen nodes from the highest down.
    """
    for first in range(levels[0], levels[1], size):
        last = min(first + size, levels[1])
        yield first, last, [(first, last)]
    pending: list[tuple[int, int]] = []
    for low, high in reversed(list(itertools.pairwise(levels[1:]))):
        if pending and pending[0][1] - low > size:
            yield pending[-1][0], pending[0][1], pending
            pending = []
        pending.append((low, high))
    if pending:
        yield pending[-1][0], pending[0][1], pending
