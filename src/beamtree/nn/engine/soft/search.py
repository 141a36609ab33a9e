"""Beam search whose beams are all mixtures: the plain search with a different second operator.

Each of the K new beams is a mixture of all continuations, with weights A. For continuation i = (q, j) of beam q, with
score a_i and updated sequence S_i, the new beam p is

    a'_p = Σ_i A_ip a_i        S'_p = Σ_i A_ip S_i .

Continuations of one beam q share its states H_q and candidate parents P_q, so the sum over K² sequences reduces to one
over K beams. With s_pq[i] the weight of q's continuation that merges at i, cum its running sum and V_pq its total,

    S'_p[i] = Σ_q  s_pq[i] · P_q[i] + (V_pq − cum_pq[i]) · H_q[i] + (cum_pq[i] − s_pq[i]) · H_q[i+1] .

All beams are dense, so every candidate must be composed at each step. `search` saves the states for the backward pass,
which recomputes the cell's inner activations.

Letters: B batch, K beams, n elements of a sequence at a step, S width of a state, J choices of a beam, T steps.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from beamtree.nn.cells import CellFunction
from beamtree.nn.engine.beam.reference import compose, log_probabilities, shorten
from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.lineage import along, slots_after
from beamtree.nn.engine.noise import Noise
from beamtree.nn.engine.request import Mix, Request
from beamtree.nn.engine.scorers import ScorerFunction
from beamtree.nn.function import watched
from beamtree.nn.topk.transport import TransportTopK
from beamtree.utils.interrupts import check_interrupt

Operator = Callable[[Float[Tensor, "B m"], int], TransportTopK]
StepIndex = int | Int[Tensor, ""]
Call = Callable[..., Any]  # takes a function and its arguments, and calls it


class Mixed(NamedTuple):
    """The beams between two steps."""

    states: Float[Tensor, "B K n S"]
    bounds: Int[Tensor, "B K n+1"]  # element i covers bounds[i] to bounds[i+1]
    scores: Float[Tensor, "B K"]  # −inf: no such beam


class Merged(NamedTuple):
    """What a step did in each new beam: the merge of largest weight in its mixture."""

    source: Int[Tensor, "*T B K"]  # the beam it comes from
    choice: Int[Tensor, "*T B K"]
    spans: Int[Tensor, "*T B K 2"]
    states: Float[Tensor, "*T B K S"]  # the mixture at the position of that merge


def checkpointed(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the function; the backward pass recomputes its intermediate results."""
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)


def uncheckpointed(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the function; autograd saves its intermediate results."""
    return function(*arguments)


def search(request: Request, operator: Operator, call: Call = checkpointed) -> Chart:
    """call: `checkpointed` or `uncheckpointed`, for functions with large activations.

    Modules are never checkpointed: their weights may have changed when the backward pass calls them.
    """
    if not request.is_functional:
        call = uncheckpointed
    elif call is checkpointed and request.wants_gradient():
        request = watch(request)
    beams, live = start(request), 1  # beams from index `live` on are empty in every sample
    noise, steps = Noise(request), []
    for step in range(request.steps):
        check_interrupt()
        beams, merged = advance(request, beams, step, noise.at(step)[0], operator, live, call)
        live = min(request.beam_size, live * min(request.beam_size, beams.states.shape[2]))
        steps.append(merged)
    return chart_of_mixtures(request, Merged(*map(torch.stack, zip(*steps, strict=True))) if steps else None, beams)


def watch(request: Request) -> Request:
    """The request with weights that must not change before the backward pass, which recomputes with them."""
    assert isinstance(request.cell, CellFunction)
    assert isinstance(request.scorer, ScorerFunction)
    weights, split = watched(request.weights), request.cell.COUNT
    return replace(request, cell=request.cell.bind(weights[:split]), scorer=request.scorer.bind(weights[split:]))


def start(request: Request) -> Mixed:
    B, N, S = request.leaves.shape
    K, device = request.beam_size, request.leaves.device
    states = request.leaves.unsqueeze(1).expand(B, K, N, S)
    return Mixed(states, torch.arange(N + 1, device=device).expand(B, K, N + 1), request.start_scores())


def advance(
    request: Request,
    beams: Mixed,
    step: StepIndex,
    noise: Float[Tensor, "B K width"] | None,
    operator: Operator,
    live: int,
    call: Call = checkpointed,
) -> tuple[Mixed, Merged]:
    """One step. Sequences may be padded on the right beyond the elements left at this step.

    live: beams from this index on are empty in every sample.
    call: `checkpointed` or `uncheckpointed`, for functions with large activations.
    """
    H, bounds, scores = beams
    B, K, n, S = H.shape
    device = H.device
    parents, log_p = call(propose, request, H[:, :live], bounds[:, :live], step)

    # First operator: J choices for each beam.
    J = min(K, n - 1)
    choices = request.choose(log_p, J, None if noise is None else noise[:, :live])  # (B, live, J)
    new_scores = (scores[:, :live].unsqueeze(2) + log_p.gather(2, choices)).flatten(1)  # (B, live·J)

    # Second operator: K mixtures of all continuations.
    best = operator(new_scores, min(K, live * J))
    new_H = call(mixtures, H[:, :live], parents, choices, best.weights, request.soft)
    order, new_scores = widen(best.indices, K), widen(best.scores, K, -torch.inf)  # (B, K)
    new_H = widen(new_H, K)  # (B, K, n−1, S)
    source, choice = order // J, choices.flatten(1).gather(1, order)

    # A finished sample only drops a padded element on the right.
    active = (step < request.lengths - 2).unsqueeze(1)  # (B, 1)
    before = bounds.gather(1, source.unsqueeze(2).expand_as(bounds))  # (B, K, n+1)
    merged = Merged(
        source.where(active, torch.arange(K, device=device)),
        choice,
        before.gather(2, torch.stack((choice, choice + 2), dim=2)),
        new_H.gather(2, choice.view(B, K, 1, 1).expand(B, K, 1, S)).squeeze(2),
    )
    after = Mixed(
        new_H.where(active[..., None, None], H[:, :, :-1]),
        shorten(before, choice).where(active[..., None], bounds[:, :, :-1]),
        new_scores.where(active, scores),
    )
    return after, merged


def propose(
    request: Request, H: Float[Tensor, "B b n S"], bounds: Int[Tensor, "B b n+1"], step: StepIndex
) -> tuple[Float[Tensor, "B b n-1 S"], Float[Tensor, "B b n-1"]]:
    """The candidate parents of all pairs of neighbours, and their log-probabilities."""
    parents = compose(request, H, bounds)
    return parents, log_probabilities(request, parents, step)


def mixtures(
    H: Float[Tensor, "B b n S"],
    parents: Float[Tensor, "B b n-1 S"],
    choices: Int[Tensor, "B b J"],
    weights: Float[Tensor, "B bJ k"],
    mix: Mix | None,
) -> Float[Tensor, "B k n-1 S"]:
    """The k mixtures of the continuations of b beams, by the formula of this module's docstring."""
    B, b, J = choices.shape
    k = weights.shape[2]
    v = weights.mT.reshape(B, k, b, J).to(H.dtype)
    s = v.new_zeros(B, k, b, parents.shape[2]).scatter(3, choices.unsqueeze(1).expand(B, k, b, J), v)  # (B, k, b, n−1)
    total = v.sum(3, keepdim=True)  # (B, k, b, 1)
    if mix == "paper":
        cum = s.cumsum(3)
        stay, shift = total - cum, cum - s
    else:  # the published code averages choices, parents and old states separately: the same sum, other weights
        s = s.sum(2, keepdim=True)  # (B, k, 1, n−1)
        cum = s.cumsum(3)
        s, stay, shift = s * total, (1 - cum) * total, (cum - s) * total
    parts = torch.cat((s, stay, shift), dim=2)  # (B, k, 3b, n−1)
    states = torch.cat((parents, H[:, :, :-1], H[:, :, 1:]), dim=1)  # (B, 3b, n−1, S)
    with torch.autocast(H.device.type, enabled=False):  # keep the average in full precision
        return torch.einsum("bpqi,bqis->bpis", parts, states)


def chart_of_mixtures(request: Request, steps: Merged | None, end: Mixed) -> Chart:
    """The chart of all steps (None if there are none) and of the last merge, which has no alternative or score."""
    B, N, _ = request.leaves.shape
    rows, K = [request.leaves.flatten(0, 1)], request.beam_size
    actions = nodes = torch.zeros(B, K, 0, dtype=torch.long, device=request.leaves.device)
    spans = actions.unsqueeze(3).expand(-1, -1, -1, 2)

    def store(states: Float[Tensor, "*nodes S"]) -> Int[Tensor, "*nodes"]:
        """Append states to the store, and return their rows."""
        first = sum(map(len, rows))
        rows.append(states.flatten(0, -2))
        return torch.arange(first, first + len(rows[-1]), device=states.device).view(states.shape[:-1])

    if steps is not None:
        slots = slots_after(steps.source)
        actions, nodes, spans = (along(slots, field) for field in (steps.choice, store(steps.states), steps.spans))
    if N > 1:
        root = store(compose(request, end.states[:, :, :2], end.bounds[:, :, :3]).squeeze(2))  # (B, K)
        actions, nodes = request.close(actions, torch.zeros_like(root)), request.close(nodes, root)
        spans = request.close(spans, end.bounds[:, :, :3:2])
    return Chart(torch.cat(rows), end.scores, actions, nodes, spans)


def widen(table: Tensor, width: int, value: float = 0) -> Tensor:
    """Pad the table (B, k, …) to `width` beams."""
    missing = width - table.shape[1]
    if missing == 0:  # `pad` would copy
        return table
    return F.pad(table, (*(0 for _ in range(2 * (table.dim() - 2))), 0, missing), value=value)
