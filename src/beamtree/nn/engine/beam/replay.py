"""Replay: the gradient of a beam search, over the nodes that survived it.

Only nodes on the lineages of the final beams have a gradient: those that were chosen, and the other candidates, which
affect the scores. Their children's states are known from the search, so only states are saved, and the backward pass
replays them as a `Forest`. Memory is O(K·N·S).

If the scorer reads children, candidates that no beam chose have no state. They are pairs of chosen nodes, and pass the
gradient of their logits to both children before the replay by levels starts.

Cells and scorers that are only available as modules are called under autograd in the forward pass, on the same nodes.
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
    """Search, and replay if a gradient is required."""
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
    """The final beams of a search: lineages, candidates, and their coefficients in the scores.

    The last two are None if no gradient is required, or if duplicates are merged.
    """

    lineages: Lineages
    candidates: Int[Tensor, "B K C"] | None = None  # padded with the absent node
    coefficients: Float[Tensor, "B K C"] | None = None  # 0 for padding


def look_back(trace: Trace, gradient: bool) -> FinalBeams:
    """All shapes depend on the shapes of the request only, so that this can be captured."""
    pool, lineages = trace.pool, trace_back(trace)
    if not gradient or pool.request.duplicates == "merge":
        return FinalBeams(lineages)
    with torch.no_grad():
        exists = trace.scores.isfinite()[..., None]  # (B, K, 1)
        on_lineage = candidates(pool, lineages).where(exists, pool.absent)  # (B, K, C)
        return FinalBeams(lineages, on_lineage, coefficients(pool, lineages).where(on_lineage != pool.absent, 0))


class ReplayPlan(NamedTuple):
    """The nodes to replay, as a forest in which candidates that were not chosen have no parents.

    The logits belong to all rows of the store, or to `pairs` if these are given.
    """

    forest: Forest
    states: Float[Tensor, "R S"]  # of the forest's nodes, from the search
    scores: Float[Tensor, "B K"]
    score_gradient: Callable[..., Tensor]  # maps the gradient of the scores to that of the logits …
    score_tensors: tuple[Tensor | None, ...]  # … given these further arguments
    row: Int[Tensor, "P"]  # the row of each node of the pool
    pairs: Int[Tensor, "Q 2"] | None = None  # rows of all candidates' children, if the scorer reads children


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
    """The nodes with a gradient, except the leaves, in the order of the store."""

    ids: Int[Tensor, "R"]
    levels: list[int]
    row: Int[Tensor, "P"]  # of each node of the pool; the absent node maps to a leaf, whose logit is −inf too
    scored: Int[Tensor, "Q"] | None  # the absent node and all candidates, if these have no rows in the store


def needed(trace: Trace, history: FinalBeams) -> Needed:
    pool = trace.pool
    B, N, _ = pool.request.leaves.shape
    size, leaves = len(pool.states), B * N
    if history.candidates is None:  # every merged beam affects the scores: keep all
        is_candidate = pool.logits.isfinite()
        chosen = mark(pool, pool.children[is_candidate], trace.roots)
    else:
        is_candidate = mark(pool, history.candidates)
        exists = trace.scores.isfinite()[..., None]
        chosen = mark(pool, history.lineages.node.where(exists, pool.absent), trace.roots)
    scored = None
    if pool.request.scores_children:
        is_candidate[pool.absent :] = True
        scored = is_candidate.nonzero().squeeze(1)
        is_candidate = torch.zeros_like(is_candidate)
    beside = (is_candidate & ~chosen).nonzero().squeeze(1)
    chosen_ids, sizes = by_height(pool, chosen.nonzero().squeeze(1))
    ids = torch.cat((beside, chosen_ids))  # (R,)
    row = torch.zeros(size, dtype=torch.long, device=ids.device)
    row[:leaves] = torch.arange(leaves, device=ids.device)
    row[ids] = torch.arange(leaves, leaves + len(ids), device=ids.device)
    return Needed(ids, list(itertools.accumulate((leaves, len(beside), *sizes))), row, scored)


def mark(pool: Pool, *ids: Int[Tensor, "..."]) -> Bool[Tensor, "P"]:
    """Mask of these nodes, without leaves and the absent node."""
    marks = torch.zeros(len(pool.states), dtype=torch.bool, device=pool.states.device)
    for some in ids:
        marks.index_fill_(0, some.flatten(), True)
    marks[: pool.request.leaves.shape[0] * pool.request.leaves.shape[1]] = False
    marks[pool.absent :] = False  # a slice: assigning to one element would copy from the host, which cannot be captured
    return marks


def by_height(pool: Pool, ids: Int[Tensor, "n"]) -> tuple[Int[Tensor, "n"], list[int]]:
    """These nodes, lowest first, and the number of nodes of each height."""
    heights = height_of(pool.children, ids) if pool.heights is None else pool.heights[ids]
    order = heights.argsort(stable=True)
    return ids[order], heights.bincount().tolist()[1:]


def height_of(children: Int[Tensor, "P 2"], ids: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
    """The height of each of these nodes, which must include all their descendants except leaves."""
    height = torch.zeros(len(children), dtype=torch.long, device=children.device)
    left, right = children[ids].unbind(1)
    while True:
        new = torch.maximum(height[left], height[right]) + 1
        if torch.equal(new, height[ids]):
            return new
        height[ids] = new


@dataclass(frozen=True)
class Functions(Composite):
    """The functions that the backward pass recomputes."""

    cell: CellFunction
    scorer: ScorerFunction
    dropout: NodeDropout | None

    @classmethod
    def of(cls, request: Request) -> "Functions":
        """Those of a functional request, without weights, which autograd provides."""
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
        gradient = store_gradient.clone()  # of every state; complete once all its parents are processed
        weight_gradients = [torch.zeros_like(weight) for weight in cell.weights]

        # The scores depend on the states of all candidates, or of their children, through the scorer.
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
    """The same as `Replay`, but with the modules called under autograd in the forward pass."""
    store = compose(request.cell, request.dropout, plan.forest, leaves)
    logits = request.score(store if plan.pairs is None else take(store, plan.pairs))
    scores: Tensor = LinearScores.apply(plan.score_gradient, plan.scores, logits, *plan.score_tensors)
    return store, scores
