"""Replay: the gradient of a shift-reduce search, over the nodes that survived it.

Only nodes and decisions on the lineages of the final beams have a gradient. The nodes are a `Forest`, whose states are
known from the search. Free decisions, where both actions were possible, are recomputed from these states under autograd
in one batch, each once even if several final beams share it. The score of a beam is the sum of its decisions'
log-probabilities.
"""

from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.nn.engine.beam.replay import by_height, mark
from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.forest import Forest, compose
from beamtree.nn.engine.lineage import along, slots_after
from beamtree.nn.engine.pool import START, Pool, take
from beamtree.nn.engine.shift_reduce.request import ParserRequest
from beamtree.nn.engine.shift_reduce.search import ParserTrace, search


def encode(request: ParserRequest) -> Chart:
    """Search, and replay if a gradient is required."""
    return replay(request, search(request), compose_survivors)


def replay(request: ParserRequest, trace: ParserTrace, composer: "Composer") -> Chart:
    """The chart of a search. It shares no memory with the trace, whose pool may have more padding than the request.

    composer: returns the store of leaves and surviving nodes, with gradients.
    """
    leaves, gradient = request.leaves.flatten(0, 1), request.wants_gradient()
    with torch.no_grad():
        slots = slots_after(trace.steps.source)  # (T, B, K)
        merges = merges_of(request, trace, slots)
        if not gradient:
            store = torch.cat((leaves, take(trace.pool.states, merges.nodes.flatten())))
            rows = torch.arange(len(leaves), len(store), device=store.device).view_as(merges.nodes)
            return Chart(store, trace.scores.clone(), merges.actions, rows, merges.spans)
        survivors = survivors_of(request, trace, merges.nodes)
    store = composer(request, survivors)
    scores = score(request, trace, slots, store, survivors.row)
    return Chart(store, scores, merges.actions, survivors.row[merges.nodes], merges.spans)


class ParserMerges(NamedTuple):
    """The reduces of each final beam in order, padded with the absent node."""

    nodes: Int[Tensor, "B K M"]  # ids in the pool
    actions: Int[Tensor, "B K M"]
    spans: Int[Tensor, "B K M 2"]


def merges_of(request: ParserRequest, trace: ParserTrace, slots: Int[Tensor, "T B K"]) -> ParserMerges:
    pool = trace.pool
    parent, position = along(slots, trace.steps.parent), along(slots, trace.steps.position)  # (B, K, T)
    shifts = (parent == pool.absent).byte()
    order = shifts.sort(dim=2, stable=True).indices[..., : request.candidates]  # (B, K, M)
    nodes = parent.gather(2, order)
    actions = position.gather(2, order).where(nodes != pool.absent, 0)
    return ParserMerges(nodes, actions, take(pool.spans, nodes)[..., START:])


class SurvivingNodes(NamedTuple):
    """The nodes of the final beams, sorted by height. The store holds the leaves, then these."""

    pool: Pool
    ids: Int[Tensor, "R"]
    sizes: list[int]  # number of nodes of each height, from 1 on
    row: Int[Tensor, "P"]  # of the store, for each node of the pool; 0 for those that did not survive


Composer = Callable[[ParserRequest, SurvivingNodes], Tensor]


def survivors_of(request: ParserRequest, trace: ParserTrace, nodes: Int[Tensor, "B K M"]) -> SurvivingNodes:
    pool, device = trace.pool, nodes.device
    (B, N, _), width = request.leaves.shape, pool.request.leaves.shape[1]
    chosen = mark(pool, nodes.where(trace.scores.isfinite().unsqueeze(2), pool.absent))
    ids, sizes = by_height(pool, chosen.nonzero().squeeze(1))  # (R,)
    row = torch.zeros(len(pool.states), dtype=torch.long, device=device)
    leaf = torch.arange(width, device=device).clamp(max=N - 1)  # padded leaves are never read
    row[: B * width] = (torch.arange(0, B * N, N, device=device).unsqueeze(1) + leaf).flatten()
    row[ids] = torch.arange(B * N, B * N + len(ids), device=device)
    return SurvivingNodes(pool, ids, sizes, row)


def compose_survivors(request: ParserRequest, survivors: SurvivingNodes) -> Float[Tensor, "rows S"]:
    """The store, with gradients. The states are those of the search."""
    pool, ids, sizes, row = survivors
    leaves = request.leaves.flatten(0, 1)
    with torch.no_grad():
        children = pool.children[ids]  # (R, 2)
        spans = take(pool.spans, children).int() if request.dropout else None
        forest = Forest(row[children], spans, list(accumulate((len(leaves), 0, *sizes))))
        states = pool.states[ids]  # (R, S)
    return compose(request.cell, request.dropout, forest, leaves, states)


def score(
    request: ParserRequest,
    trace: ParserTrace,
    slots: Int[Tensor, "T B K"],
    store: Float[Tensor, "rows S"],
    row: Int[Tensor, "P"],
) -> Float[Tensor, "B K"]:
    """The scores of the final beams, with all decisions in one batch. Gradients reach the states and the decision."""
    steps = trace.steps
    counted = torch.zeros_like(steps.free).scatter_(2, slots, True) & steps.free  # (T, B, K): on a final lineage
    action = steps.action[counted].unsqueeze(1)  # (n, 1)
    possible = torch.ones(len(action), 2, dtype=torch.bool, device=action.device)
    log_p = request.decision(take(store, row[steps.seen[counted]]), possible).gather(1, action).squeeze(1)  # (n,)
    all_steps = torch.zeros(counted.shape, dtype=trace.scores.dtype, device=log_p.device)
    all_steps = all_steps.masked_scatter(counted, log_p.to(all_steps.dtype))
    return along(slots, all_steps).sum(2).where(trace.scores.isfinite(), -torch.inf)
