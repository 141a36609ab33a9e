"""Top-k operators: plain, stochastic, and OneSoft (paper §3.1).

Each takes scores (…, m) and any number of payloads (…, m, …) and returns the k best with their payloads:

    best = onesoft_topk(scores, 3, values)
    best.scores          # (…, 3)
    best.payloads[0]     # (…, 3, …)

A score of −inf marks an absent entry, which is selected only if no other is left. This module is independent of trees
and beams.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor


class TopK(NamedTuple):
    """The k kept entries, best first."""

    scores: Float[Tensor, "*batch k"]
    indices: Int[Tensor, "*batch k"]  # of the kept entries
    payloads: tuple[Tensor, ...]  # each (…, k, …)


class SoftTopK(NamedTuple):
    """The k kept entries, best first, where the last is a mixture."""

    scores: Float[Tensor, "*batch k"]
    indices: Int[Tensor, "*batch k"]  # of the kept entries; for the mixture, its entry of largest weight
    payloads: tuple[Tensor, ...]
    weights: Float[Tensor, "*batch m"]  # of each entry in the mixture; 0 for the k−1 entries kept unchanged


@runtime_checkable
class TopKOperator(Protocol):
    """A top-k operator for beam search, such as `plain_topk`. Returns the k kept entries, best first."""

    def __call__(self, scores: Float[Tensor, "*batch m"], k: int) -> TopK: ...


def plain_topk(scores: Float[Tensor, "*batch m"], k: int, *payloads: Tensor) -> TopK:
    """The k largest scores. Ties are resolved in favour of the lower index, on every device."""
    check_scores(scores, k, payloads)
    return _take(scores, rank(scores.detach(), k), payloads)


def stochastic_topk(
    scores: Float[Tensor, "*batch m"], k: int, *payloads: Tensor, generator: torch.Generator | None = None
) -> TopK:
    """k entries sampled without replacement from softmax(scores), by Gumbel top-k (Kool et al. 2019). The returned
    scores are unperturbed, in the order of the perturbed scores."""
    check_scores(scores, k, payloads)
    noise = gumbel(scores.shape, scores, generator)
    return _take(scores, (scores.detach() + noise).topk(k).indices, payloads)


def onesoft_topk(scores: Float[Tensor, "*batch m"], k: int, *payloads: Tensor, hard: bool = False) -> SoftTopK:
    """OneSoft: keep the k−1 best entries unchanged, and replace all others by one entry, their average weighted by
    softmax(scores), for both payloads and scores. Every entry thus receives a gradient. Payloads must be finite, even
    those of absent entries.

    If `hard`, for inference, this is the plain top-k.
    """
    check_scores(scores, k, payloads)
    for number, payload in enumerate(payloads):
        if not payload.is_floating_point():
            raise ValueError(f"payload {number} is {payload.dtype}: OneSoft averages payloads, pass floats")
    order = rank(scores.detach(), k)  # (…, k)
    if hard:
        return SoftTopK(*_take(scores, order, payloads), torch.zeros_like(scores))
    return soften(scores, order, *payloads)


def soften(scores: Float[Tensor, "*batch m"], order: Int[Tensor, "*batch k"], *payloads: Tensor) -> SoftTopK:
    """OneSoft for a given ranking: keep its first k−1 entries, and average all others."""
    top = _take(scores, order[..., :-1], payloads)
    rest = scores.scatter(-1, order[..., :-1], -torch.inf)  # (…, m)
    absent = rest.isneginf()
    empty = absent.gather(-1, order[..., -1:])  # (…, 1): if the best of the rest is absent, all are
    weights = rest.masked_fill(empty, 0).softmax(-1).masked_fill(absent, 0)
    score = (weights * rest.masked_fill(absent, 0)).sum(-1, keepdim=True).masked_fill(empty, -torch.inf)
    mixed = (_mix(weights, payload) for payload in payloads)
    return SoftTopK(
        torch.cat((top.scores, score), dim=-1),
        order,
        tuple(torch.cat(pair, dim=weights.dim() - 1) for pair in zip(top.payloads, mixed, strict=True)),
        weights,
    )


def gumbel(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard Gumbel noise of this shape, with the dtype and device of `like`."""
    uniform = torch.rand(shape, dtype=like.dtype, device=like.device, generator=generator)
    # rand may return exactly 0; clamping to the smallest normal number keeps the noise finite.
    return uniform.clamp_(min=torch.finfo(like.dtype).tiny).log_().neg_().log_().neg_()


def rank(scores: Float[Tensor, "*batch m"], k: int) -> Int[Tensor, "*batch k"]:
    """Indices of the k largest scores, ties by index. `torch.topk` does not specify the order of ties."""
    if scores.dtype != torch.float32 or scores.shape[-1] <= 64:  # for short rows sorting is cheap
        return scores.sort(dim=-1, descending=True, stable=True).indices[..., :k]
    # Pack a float32 and its index into one int64 that sorts in the required order: the bits of positive floats increase
    # with their value, those of negative floats decrease, and adding 0.0 turns −0.0 into 0.0.
    bits = (scores + 0.0).view(torch.int32).long()
    key = (bits ^ ((bits >> 31) & 0x7FFFFFFF)) << 32
    key -= torch.arange(scores.shape[-1], device=scores.device)
    return key.topk(k).indices


def _take(scores: Tensor, indices: Tensor, payloads: tuple[Tensor, ...]) -> TopK:
    dim = indices.dim() - 1
    taken = []
    for payload in payloads:
        inner = payload.shape[dim + 1 :]
        index = indices.view(*indices.shape, *(1 for _ in inner)).expand(*indices.shape, *inner)
        taken.append(payload.gather(dim, index))
    return TopK(scores.gather(-1, indices), indices, tuple(taken))


def _mix(weights: Float[Tensor, "*batch m"], payload: Tensor) -> Tensor:
    """Weighted sum over the payload's m axis, which is kept with size 1."""
    flat = payload.reshape(*weights.shape, -1)  # (…, m, r)
    with torch.autocast(flat.device.type, enabled=False):  # keep the average in full precision
        mixed = weights.unsqueeze(-2).to(flat.dtype) @ flat
    return mixed.view(*weights.shape[:-1], 1, *payload.shape[weights.dim() :])


def check_scores(scores: Tensor, k: int, payloads: tuple[Tensor, ...]) -> None:
    if not scores.is_floating_point() or scores.dim() == 0:
        kind = f"of {scores.dtype} and shape {tuple(scores.shape)}"
        raise ValueError(f"scores are {kind}: they must be floats of shape (…, m)")
    if not isinstance(k, int) or not 1 <= k <= scores.shape[-1]:
        raise ValueError(f"k = {k} with {scores.shape[-1]} scores: k must be an integer between 1 and their number")
    for number, payload in enumerate(payloads):
        if payload.shape[: scores.dim()] != scores.shape:
            raise ValueError(
                f"payload {number} has shape {tuple(payload.shape)}: it must begin with that of the scores, "
                f"{tuple(scores.shape)}"
            )
