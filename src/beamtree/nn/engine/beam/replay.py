"""Replay: the gradient of a beam search, over the nodes that survived it.

Only nodes on the lineages of the final beams matter: those that were chosen, and the candidates beside them, which have
a part in the scores. Their children's states are known from the search, so nothing is kept but the states themselves,
and backward replays them as a `Forest`. Memory is O(K·N·S).

Where the scorer reads children, candidates that nobody chose have no state. They are pairs of nodes that were chosen,
and pass the gradient of their logits to both, all of them before the levels begin.

Cells and scorers that are known only as modules are called under autograd in forward, on the same nodes.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from beamtree.nn.cells import CellFunction
from beamtree.nn.engine.autocast import Autocast
from beamtree.nn.engine.beam.score_gradient import (
    LinearScores,
    candidates,
    coefficients,
    from_children,
    from_parents,
    linear,
    merged,
)
from beamtree.nn.engine.beam.search import Trace, copies, search
from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.dropout import NodeDropout
from beamtree.nn.engine.forest import Forest, compose, pull_back
from beamtree.nn.engine.functional import Composite
from beamtree.nn.engine.lineage import Lineages, make_chart, trace_back
from beamtree.nn.engine.pool import Pool, take
from beamtree.nn.engine.request import Request
from beamtree.nn.engine.scorers import ParentScorerFunction, ScorerFunction
from beamtree.nn.function import first_order, save


def encode(request: Request) -> Chart:
    """Search, and replay where a gradient is wanted."""
    trace = search(request)
    history = look_back(trace, request.wants_gradient())
    lineages = history.lineages
    chart = make_chart(trace.pool, lineages.action, lineages.node, trace.scores, trace.roots)
    if not request.wants_gradient():
        return chart
    plan, leaves = make_plan(trace, history), request.leaves.flatten(0, 1)
    if request.is_functional:
        store, scores = Replay.apply(Functions.of(request), plan, leaves, *request.weights)
    else:
        store, scores = replay_by_autograd(request, plan, leaves)
    return replace(chart, store=store, scores=scores, nodes=plan.row[chart.nodes])


class FinalBeams(NamedTuple):
    """What a search says of its final beams: the lineages, the candidates that stood on them, and their part in the
    scores. The last two are None where no gradient is wanted, or where duplicates are merged."""

    lineages: Lineages
    candidates: Int[Tensor, "B K C"] | None = None  # the absent node where there is none
    coefficients: Float[Tensor, "B K C"] | None = None  # 0 there


def look_back(trace: Trace, gradient: bool) -> FinalBeams:
    """The shapes of everything here follow from those of the request alone."""
    pool, lineages = trace.pool, trace_back(trace)
    if not gradient or pool.request.duplicates == "merge":
        return FinalBeams(lineages)
    with torch.no_grad():
        exists = trace.scores.isfinite()[..., None]  # (B, K, 1)
        standing = candidates(pool, lineages).where(exists, pool.absent)  # (B, K, C)
        return FinalBeams(lineages, standing, coefficients(pool, lineages).where(standing != pool.absent, 0))


class ReplayPlan(NamedTuple):
    """The nodes to replay: as a forest, candidates that were not chosen have no parents. The logits are those of all
    rows of the store, or else those of `pairs`."""

    forest: Forest
    states: Float[Tensor, "R S"]  # of the forest's nodes, from the search
    scores: Float[Tensor, "B K"]
    score_gradient: Callable[..., Tensor]  # from the gradient of the scores to that of the logits …
    score_tensors: tuple[Tensor | None, ...]  # … with these further arguments
    row: Int[Tensor, "P"]  # the row of each node of the pool
    pairs: Int[Tensor, "Q 2"] | None = None  # rows of the children of all candidates, where the scorer reads those


@torch.no_grad()
def make_plan(trace: Trace, history: FinalBeams) -> ReplayPlan:
    pool = trace.pool
    ids, levels, row, scored = needed(trace, history)
    children = pool.children[ids]  # (R, 2)
    if scored is None:
        place, pairs = row, None
    else:
        place = torch.zeros_like(row).index_copy_(0, scored, torch.arange(len(scored), device=row.device))
        pairs = row[pool.children[scored]]
    score_gradient: Callable[..., Tensor]
    score_tensors: tuple[Tensor | None, ...]
    if history.candidates is None or history.coefficients is None:
        score_gradient = merged
        logits = pool.logits[torch.cat((pool.ids[: levels[0]], ids)) if scored is None else scored]
        choices = (choice._replace(rows=place[choice.rows].int()) for choice in trace.choices)
        score_tensors = (logits, pool.request.active, *copies(choices))
    else:
        score_gradient = linear
        score_tensors = (place[history.candidates], history.coefficients.clone())
    spans = take(pool.spans, children).int() if pool.request.dropout else None
    forest = Forest(row[children], spans, levels)
    return ReplayPlan(forest, pool.states[ids], trace.scores, score_gradient, score_tensors, row, pairs)


class Needed(NamedTuple):
    """The nodes that have a gradient, besides the leaves, in the order of the store."""

    ids: Int[Tensor, "R"]
    levels: list[int]
    row: Int[Tensor, "P"]  # of each node of the pool; the absent node is a leaf, whose logit is −inf too
    scored: Int[Tensor, "Q"] | None  # the absent node and all candidates, where these have no rows of their own


def needed(trace: Trace, history: FinalBeams) -> Needed:
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
    chosen_ids, sizes = by_height(pool, chosen.nonzero().squeeze(1))
    ids = torch.cat((beside, chosen_ids))  # (R,)
    row = torch.zeros(size, dtype=torch.long, device=ids.device)
    row[:leaves] = torch.arange(leaves, device=ids.device)
    row[ids] = torch.arange(leaves, leaves + len(ids), device=ids.device)
    return Needed(ids, list(itertools.accumulate((leaves, len(beside), *sizes))), row, scored)


def mark(pool: Pool, *ids: Int[Tensor, "..."]) -> Bool[Tensor, "P"]:
    """Which nodes these are; leaves and the absent node do not count."""
    marks = torch.zeros(len(pool.states), dtype=torch.bool, device=pool.states.device)
    for some in ids:
        marks.index_fill_(0, some.flatten(), True)
    marks[: pool.request.leaves.shape[0] * pool.request.leaves.shape[1]] = False
    marks[pool.absent :] = False  # of a slice: a single element would be copied from the host, which no graph can
    return marks


def by_height(pool: Pool, ids: Int[Tensor, "n"]) -> tuple[Int[Tensor, "n"], list[int]]:
    """These nodes, lowest first, and how many have each height."""
    heights = height_of(pool.children, ids) if pool.heights is None else pool.heights[ids]
    order = heights.argsort(stable=True)
    return ids[order], heights.bincount().tolist()[1:]


def height_of(children: Int[Tensor, "P 2"], ids: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
    """The height of each of these nodes, among which are all their descendants but leaves."""
    height = torch.zeros(len(children), dtype=torch.long, device=children.device)
    left, right = children[ids].unbind(1)
    while True:
        new = torch.maximum(height[left], height[right]) + 1
        if torch.equal(new, height[ids]):
            return new
        height[ids] = new


@dataclass(frozen=True)
class Functions(Composite):
    """What is computed again in backward."""

    cell: CellFunction
    scorer: ScorerFunction
    dropout: NodeDropout | None

    @classmethod
    def of(cls, request: Request) -> "Functions":
        """Those of a functional request, without weights, which come from autograd."""
        assert isinstance(request.cell, CellFunction)
        assert isinstance(request.scorer, ScorerFunction)
        return cls(request.cell.unbound, request.scorer.unbound, request.dropout)


class Replay(torch.autograd.Function):
    """(leaves, weights) → (states of the store, scores of the beams), with values taken from the search."""

    @staticmethod
    def forward(
        ctx: Any, functions: Functions, plan: ReplayPlan, leaves: Float[Tensor, "L S"], *weights: Tensor
    ) -> tuple[Float[Tensor, "R S"], Float[Tensor, "B K"]]:
        store, forest = torch.cat((leaves, plan.states)), plan.forest
        ctx.functions, ctx.levels, ctx.autocast = functions, forest.levels, Autocast(leaves.device.type)
        ctx.score_gradient = plan.score_gradient
        save(ctx, (leaves, *weights), store, forest.children, forest.spans, plan.pairs, *plan.score_tensors)
        return store, plan.scores.clone()

    @staticmethod
    @first_order
    def backward(
        ctx: Any,
        inputs: Sequence[Tensor],
        kept: Sequence[Any],
        store_gradient: Float[Tensor, "R S"],
        score_gradient: Float[Tensor, "B K"],
    ) -> tuple[Tensor | None, ...]:
        store, children, spans, pairs, *score_tensors = kept
        bound = ctx.functions.bind(inputs[1:])
        cell, scorer, dropout = bound.cell, bound.scorer, bound.dropout
        gradient = store_gradient.clone()  # of every state, complete once all its parents were pulled back
        weight_gradients = [torch.zeros_like(weight) for weight in cell.weights]

        # The scores reach the states of all candidates, or of their children, through the scorer.
        logits = len(store) if pairs is None else len(pairs)
        logit_gradient = ctx.score_gradient(score_gradient, logits, *score_tensors).to(store.dtype)
        with ctx.autocast.again():
            if pairs is None:
                assert isinstance(scorer, ParentScorerFunction)
                scorer_gradients = from_parents(scorer, logit_gradient, store, gradient)
            else:
                scorer_gradients = from_children(scorer, pairs, logit_gradient, store, gradient)
            forest = Forest(children, spans, ctx.levels)
            pull_back(cell, dropout, forest, store, gradient, weight_gradients)
        return None, None, gradient[: ctx.levels[0]], *weight_gradients, *scorer_gradients


def replay_by_autograd(
    request: Request, plan: ReplayPlan, leaves: Float[Tensor, "L S"]
) -> tuple[Float[Tensor, "R S"], Float[Tensor, "B K"]]:
    """The same as `Replay`, with the modules called in forward."""
    store = compose(request.cell, request.dropout, plan.forest, leaves)
    logits = request.score(store if plan.pairs is None else take(store, plan.pairs))
    scores: Tensor = LinearScores.apply(plan.score_gradient, plan.scores, logits, *plan.score_tensors)
    return store, scores
