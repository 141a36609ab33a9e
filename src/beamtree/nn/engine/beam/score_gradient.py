"""The gradient of a beam's score, without the history of its candidates.

A lineage's score is Σ_t (ℓ(c_t) − Z_t): the logit of the chosen candidate minus the log-normaliser over all candidates
of the step. A candidate c exists from the step that added it to the step that removed it, so

    ∂ score / ∂ ℓ(c) = [c was chosen] − exp ℓ(c) · Σ_{t = added … removed} exp(−Z_t) ,

and only these steps and Z_t must be saved: O(N) values, while the candidates of all steps are O(N²).

The sum over an interval is not computed as a difference of running sums: if Z falls by more than about 30 nats along a
lineage, the difference of two float64 values has no correct digit. Sums over dyadic blocks avoid this cancellation: an
interval consists of at most two blocks of each size, added in log space. This takes log N operations on O(K·N) values.

If duplicates are merged, a beam has more than one lineage, and the formula does not apply. `merged` then recomputes the
scores under autograd, at a cost of O(K·N²) scalars.

The end of this file passes the gradient of the logits to the scorer and to the states it reads, parents or children.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from beamtree.nn.cells.adjoint import batch_size
from beamtree.nn.engine.beam.search import Choice
from beamtree.nn.engine.duplicates import resolve
from beamtree.nn.engine.lineage import Lineages
from beamtree.nn.engine.pool import Pool, take
from beamtree.nn.engine.request import Duplicates
from beamtree.nn.engine.scorers import ParentScorerFunction, ScorerFunction
from beamtree.nn.function import first_order, save


def linear(
    gradient: Float[Tensor, "B K"],
    size: int,
    candidates: Int[Tensor, "B K C"],
    coefficients: Float[Tensor, "B K C"],
) -> Float[Tensor, "size"]:
    """The gradient of all logits, given that of the scores and the rows of the candidates on each lineage."""
    # Coefficients of absent candidates are 0, and their rows may be those of any sample.
    parts = (coefficients * gradient.unsqueeze(-1)).masked_fill(coefficients == 0, 0)
    return parts.new_zeros(size).index_add_(0, candidates.flatten(), parts.flatten())


def merged(
    gradient: Float[Tensor, "B K"],
    size: int,
    logits: Float[Tensor, "size"],
    active: Bool[Tensor, "B T"],
    *fields: Any,
) -> Float[Tensor, "size"]:
    """The same for merged beams, given the fields of each step's `Choice`, concatenated over the steps."""
    width = len(Choice._fields)
    choices = [Choice(*fields[i : i + width]) for i in range(0, len(fields), width)]
    logits = logits.detach().requires_grad_()
    if not choices:
        return torch.zeros_like(logits)
    with torch.enable_grad():
        scores = recompute_scores(logits, gradient, active, choices, "merge")
    return torch.autograd.grad(scores, logits, gradient)[0]


def recompute_scores(
    logits: Float[Tensor, "size"],
    like: Float[Tensor, "B K"],
    active: Bool[Tensor, "B T"],
    choices: Sequence[Choice],
    duplicates: Duplicates,
) -> Float[Tensor, "B K"]:
    """The final scores as a differentiable function of all logits."""
    scores = torch.full_like(like, -torch.inf)
    scores[:, 0] = 0
    for step, (rows, columns, forests, order) in enumerate(choices):
        log_p = logits[rows.long()].log_softmax(-1).gather(2, columns)  # (B, K, J)
        new = (scores.unsqueeze(2) + log_p).flatten(1)
        if forests is not None:
            new = resolve(new, forests, duplicates)
        scores = new.gather(1, order).where(active[:, step, None], scores)
    return scores


def candidates(pool: Pool, lineages: Lineages) -> Int[Tensor, "B K C"]:
    """Ids of all candidates on each lineage: the first ones, then those added by each step. C = (N−1) + 2T."""
    B, K = lineages.action.shape[:2]
    N, M = pool.request.leaves.shape[1], pool.request.candidates
    first = torch.arange(B * N, B * (N + M), device=lineages.added.device).view(B, 1, M)
    first = first.where(pool.logits[first].isfinite(), pool.absent).expand(B, K, M)
    return torch.cat((first, lineages.added.flatten(2)), dim=2)


def coefficients(pool: Pool, lineages: Lineages) -> Float[Tensor, "B K C"]:
    """∂ score / ∂ ℓ(c) for each of `candidates`."""
    B, K, T = lineages.action.shape
    M = pool.request.candidates
    C = M + 2 * T
    logits = pool.logits[candidates(pool, lineages)]  # (B, K, C)
    removed = places(pool, lineages.removed)  # (B, K, T, 3)
    step = torch.arange(T, device=removed.device)
    # The only candidate that is never removed, the root, is added after the last choice and takes part in none.
    removed_at = removed.new_full((B, K, C + 1), -1)  # the last column is for absent candidates
    removed_at.scatter_(2, removed.flatten(2), step.view(1, 1, T, 1).expand_as(removed).flatten(2))
    chosen = logits.new_zeros(B, K, C + 1).scatter_(2, removed[..., 1], 1)
    added_at = torch.cat((step.new_zeros(M), (step + 1).repeat_interleave(2))).expand(B, K, C)
    log_sum = interval_logsumexp(-lineages.normaliser, added_at, removed_at[..., :C] + 1)
    return chosen[..., :C] - (logits + log_sum).exp()


def places(pool: Pool, ids: Int[Tensor, "B *shape"]) -> Int[Tensor, "B *shape"]:
    """The index of a node in `candidates`. The first ids are ordered by sample; later ones by step, beam and side."""
    B, N, _ = pool.request.leaves.shape
    M, K, T = pool.request.candidates, pool.request.beam_size, pool.request.steps
    sample = torch.arange(B, device=ids.device).view(B, *(1 for _ in ids.shape[1:]))
    first = ids - B * N - sample * M
    later = ids - B * (N + M)  # = step · 2BK + (sample · K + beam) · 2 + side
    later_place = M + later // (2 * B * K) * 2 + later % 2
    return later_place.where(later >= 0, first).where(ids != pool.absent, M + 2 * T)


def interval_logsumexp(
    x: Float[Tensor, "*batch T"], low: Int[Tensor, "*batch C"], high: Int[Tensor, "*batch C"]
) -> Float[Tensor, "*batch C"]:
    """log Σ exp x[t] over low ≤ t < high; −inf if that interval is empty."""
    total = torch.full(low.shape, -torch.inf, dtype=x.dtype, device=x.device)
    size = x.shape[-1]
    while size > 0:
        # Add the unpaired blocks of this size at either end; the rest are pairs, which are blocks of the next size.
        some = low < high
        first = x.gather(-1, low.clamp(max=size - 1)).where(some & (low % 2 == 1), -torch.inf)
        last = x.gather(-1, (high - 1).clamp(min=0)).where(some & (high % 2 == 1), -torch.inf)
        total = torch.logaddexp(total, torch.logaddexp(first, last))
        low, high = (low + 1) // 2, high // 2
        x = torch.nn.functional.pad(x, (0, size % 2), value=-torch.inf)
        x = torch.logaddexp(x[..., ::2], x[..., 1::2])
        size = x.shape[-1] if size > 1 else 0
    return total


def from_parents(
    scorer: ParentScorerFunction,
    logit_gradient: Float[Tensor, "R"],
    store: Float[Tensor, "R S"],
    gradient: Float[Tensor, "R S"],
) -> tuple[Tensor, ...]:
    """Add the gradient of the scored states to `gradient`, and return that of the scorer's weights."""
    gradient[:, : scorer.width].addr_(logit_gradient, scorer.weights[0].squeeze(0).to(store.dtype))
    return scorer.weight_gradients(store, logit_gradient)


def from_children(
    scorer: ScorerFunction,
    pairs: Int[Tensor, "Q 2"],
    logit_gradient: Float[Tensor, "Q"],
    store: Float[Tensor, "R S"],
    gradient: Float[Tensor, "R S"],
) -> tuple[Tensor, ...]:
    """The same for a scorer that reads two states. Its inner activations are recomputed."""
    weight_gradients = tuple(torch.zeros_like(weight) for weight in scorer.weights)
    size = batch_size(store.device)
    for part, above in zip(pairs.split(size), logit_gradient.split(size), strict=True):
        down, found = scorer.pull_back(take(store, part), above)  # (n, 2, d)
        gradient[:, : down.shape[2]].index_add_(0, part.flatten(), down.flatten(0, 1))
        for total, each in zip(weight_gradients, found, strict=True):
            total += each
    return weight_gradients


class LinearScores(torch.autograd.Function):
    """logits → scores. The values are those of the search."""

    @staticmethod
    def forward(
        ctx: Any,
        score_gradient: Callable[..., Tensor],
        scores: Float[Tensor, "B K"],
        logits: Float[Tensor, "size"],
        *tensors: Tensor | None,
    ) -> Float[Tensor, "B K"]:
        ctx.score_gradient = score_gradient
        save(ctx, (logits,), *tensors)
        return scores.clone()

    @staticmethod
    @first_order
    def backward(
        ctx: Any, inputs: Sequence[Tensor], tensors: Sequence[Any], gradient: Float[Tensor, "B K"]
    ) -> tuple[Tensor | None, ...]:
        (logits,) = inputs
        found = ctx.score_gradient(gradient, len(logits), *tensors).to(logits.dtype)
        return None, None, found, *(None for _ in tensors)
