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
    """The k kept entries, best first.

    Attributes:
        scores: their scores, (…, k).
        indices: their indices among the m entries, (…, k).
        payloads: their payloads, each (…, k, …).

    Examples:
        >>> beamtree.plain_topk(torch.tensor([0.1, 0.3, 0.2]), 2)
        TopK(scores=tensor([0.3000, 0.2000]), indices=tensor([1, 2]), payloads=())
    """

    scores: Float[Tensor, "*batch k"]
    indices: Int[Tensor, "*batch k"]
    payloads: tuple[Tensor, ...]


class SoftTopK(NamedTuple):
    """The k kept entries, best first, where the last is a mixture.

    Attributes:
        scores: their scores, (…, k).
        indices: their indices, (…, k); for the mixture, that of its entry of largest weight.
        payloads: their payloads, each (…, k, …).
        weights: the weight of each entry in the mixture, (…, m); 0 for the k−1 entries kept unchanged.

    Examples:
        >>> beamtree.onesoft_topk(torch.tensor([1.0, 0.0, 0.0]), 2).weights
        tensor([0.0000, 0.5000, 0.5000])
    """

    scores: Float[Tensor, "*batch k"]
    indices: Int[Tensor, "*batch k"]
    payloads: tuple[Tensor, ...]
    weights: Float[Tensor, "*batch m"]


@runtime_checkable
class TopKOperator(Protocol):
    """The interface of a top-k operator for beam search, such as `plain_topk`.

    Examples:
        >>> def greedy_topk(scores, k):
        ...     return beamtree.plain_topk(scores, k)
        >>> beamtree.encoder("bt-grc", dim=8, topk=greedy_topk)(torch.randn(1, 4, 8)).state.shape
        torch.Size([1, 8])
    """

    def __call__(self, scores: Float[Tensor, "*batch m"], k: int) -> TopK:
        """Select k entries.

        Args:
            scores: scores of the m entries, (…, m); −inf marks an absent entry.
            k: number of entries to keep.

        Returns:
            The k kept entries, best first.
        """


def plain_topk(scores: Float[Tensor, "*batch m"], k: int, *payloads: Tensor) -> TopK:
    """Keep the k largest scores.

    Ties are resolved in favour of the lower index, on every device.

    Args:
        scores: scores of the m entries, (…, m); −inf marks an absent entry.
        k: number of entries to keep, from 1 to m.
        *payloads: tensors (…, m, …), of which the kept entries are taken.

    Returns:
        The k kept entries, best first.

    Raises:
        ValueError: if scores, k or payloads do not fit.

    Examples:
        >>> scores, values = torch.tensor([0.1, 0.3, 0.2]), torch.arange(6.0).view(3, 2)
        >>> beamtree.plain_topk(scores, 2, values).payloads[0]
        tensor([[2., 3.],
                [4., 5.]])
    """
    check_scores(scores, k, payloads)
    return _take(scores, rank(scores.detach(), k), payloads)


def stochastic_topk(
    scores: Float[Tensor, "*batch m"], k: int, *payloads: Tensor, generator: torch.Generator | None = None
) -> TopK:
    """Sample k entries without replacement from softmax(scores), by Gumbel top-k (Kool et al. 2019).

    Args:
        scores: scores of the m entries, (…, m); −inf marks an absent entry.
        k: number of entries to keep, from 1 to m.
        *payloads: tensors (…, m, …), of which the kept entries are taken.
        generator: source of the noise; by default PyTorch's global generator.

    Returns:
        The k kept entries in the order of their perturbed scores. The returned scores are unperturbed.

    Raises:
        ValueError: if scores, k or payloads do not fit.

    Examples:
        >>> best = beamtree.stochastic_topk(torch.zeros(8), 3)
        >>> best.indices.unique().shape  # without replacement
        torch.Size([3])
    """
    check_scores(scores, k, payloads)
    noise = gumbel(scores.shape, scores, generator)
    return _take(scores, (scores.detach() + noise).topk(k).indices, payloads)


def onesoft_topk(scores: Float[Tensor, "*batch m"], k: int, *payloads: Tensor, hard: bool = False) -> SoftTopK:
    """Keep the k−1 best entries unchanged, and replace all others by their average (OneSoft).

    The average is weighted by softmax(scores), for both payloads and scores. Every entry thus receives a gradient.

    Args:
        scores: scores of the m entries, (…, m); −inf marks an absent entry.
        k: number of entries to keep, with the average, from 1 to m.
        *payloads: tensors (…, m, …) of floats, which must be finite, even those of absent entries.
        hard: whether to keep the k best entries instead, as `plain_topk` does; for inference.

    Returns:
        The k kept entries, best first, of which the last is the average, and its weights.

    Raises:
        ValueError: if scores, k or payloads do not fit.

    Examples:
        >>> scores = torch.tensor([2.0, 1.0, 1.0], requires_grad=True)
        >>> best = beamtree.onesoft_topk(scores, 2, torch.tensor([[1.0], [2.0], [4.0]]))
        >>> best.payloads[0].squeeze(1)
        tensor([1., 3.], grad_fn=<SqueezeBackward1>)
        >>> best.payloads[0].sum().backward()
        >>> scores.grad  # also of the entry that the plain top-k would drop
        tensor([ 0.0000, -0.5000,  0.5000])
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
