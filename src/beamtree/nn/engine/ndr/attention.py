"""Geometric attention (Csordás et al., *The Neural Data Router*, ICLR 2022) as a function of tensors, and its gradient.

Position i scans the others from the closest to the farthest and stops at the first match. With logits ℓ and
s = softplus(ℓ) = −log(1 − σ(ℓ)), its weights are

    A_ij ∝ σ(ℓ_ij) Π_m (1 − σ(ℓ_im)) = exp(ℓ_ij − s_ij − Σ_m s_im)      over all m that are closer to i than j,

where the right of two positions at the same distance counts as closer. For a gradient g of the weights,

    t_ij = A_ij (g_ij − Σ_m A_im g_im)
    ∂ℓ_ij = t_ij − σ(ℓ_ij) Σ_m t_im                                      over m = j and all m that are farther than j.

Both sums over m are cumulative sums along a row sorted by distance. Each starts at its own end of the row, which avoids
differences of large numbers.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from beamtree.utils.checks import is_installed

EXACT = 40.0  # above this softplus(x) equals x, even in float64


class Distances(NamedTuple):
    """The order of n positions by their distance from each of them, as indices into a flattened (n, n) matrix.

    `index_select` sorts a matrix by one index for all heads and samples.
    """

    closest_first: Int[Tensor, "n*n"]  # row i: i itself, then all others
    closer: Int[Tensor, "n*n"]  # (i, j): place in sorted row i of the position before j; for j = i, of i itself
    farthest_first: Int[Tensor, "n*n"]
    from_farthest: Int[Tensor, "n*n"]  # (i, j): place of j in row i sorted from the farthest

    @classmethod
    def of(cls, n: int, device: torch.device) -> "Distances":
        position = torch.arange(n, device=device)
        i, j = position.unsqueeze(1), position
        both = torch.minimum(i, n - 1 - i)  # up to this distance there are positions on both sides
        distance = (j - i).abs()
        place = torch.where(distance <= both, 2 * distance - (j > i).long(), distance + both)  # (n, n)
        order = closest(i, position, n)
        parts = (order, (place - 1).clamp(min=0), order.flip(1), n - 1 - place)
        return cls(*((part + n * i).flatten() for part in parts))


def closest(i: Int[Tensor, "rows 1"], place: Int[Tensor, "places"], n: int) -> Int[Tensor, "rows places"]:
    """The positions at these places of all n sorted by their distance from i.

    The order is right, left, right, … until one side is exhausted.
    """
    both = torch.minimum(i, n - 1 - i)
    step = (place + 1) // 2
    alternating = torch.where(place % 2 == 1, i + step, i - step)
    one_sided = torch.where(i < n - 1 - i, i + (place - both), i - (place - both))
    return torch.where(place <= 2 * both, alternating, one_sided)


def attend(
    present: Bool[Tensor, "B n"],
    distances: Distances,
    queries: Float[Tensor, "B H n d"],
    keys: Float[Tensor, "B H n d"],
    values: Float[Tensor, "B H n d"],
    back: Float[Tensor, "B H n 1"],
    front: Float[Tensor, "B H n 1"],
) -> Float[Tensor, "B H n d"]:
    """The attention output of each position.

    Its logits are queries · keys, plus `back` for the positions before it and `front` for those after it. It attends
    neither to itself nor to positions that are not present.
    """
    return Attend.apply(queries, keys, values, back, front, present, distances)


class Attend(torch.autograd.Function):
    """Saves two (B, H, n, n) tensors, where autograd would save nine."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Float[Tensor, "B H n d"],
        keys: Float[Tensor, "B H n d"],
        values: Float[Tensor, "B H n d"],
        back: Float[Tensor, "B H n 1"],
        front: Float[Tensor, "B H n 1"],
        present: Bool[Tensor, "B n"],
        distances: Distances,
    ) -> Float[Tensor, "B H n d"]:
        content = queries @ keys.mT  # (B, H, n, n)
        if kernels := _kernels(content):
            weights = kernels.geometric(content, back, front, present)
        else:
            weights = geometric(directed(content, back, front, present), distances)
        ctx.save_for_backward(queries, keys, values, back, front, present, content, weights)
        ctx.distances = distances
        return _product(weights, values)

    @staticmethod
    def backward(ctx: Any, gradient: Float[Tensor, "B H n d"]) -> tuple[Tensor | None, ...]:
        queries, keys, values, back, front, present, content, weights = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is required: differentiate the plain formula
            given = [tensor.view_as(tensor) for tensor in (queries, keys, values, back, front)]
            product = given[0].to(content.dtype) @ given[1].to(content.dtype).mT
            logits = directed(product, given[3], given[4], present)
            found = _product(geometric(logits, ctx.distances), given[2].to(gradient.dtype))
            return *torch.autograd.grad(found, given, gradient, create_graph=True), None, None
        weights_gradient = gradient @ values.to(gradient.dtype).mT  # (B, H, n, n)
        if kernels := _kernels(content):
            gradients = kernels.geometric_gradient(content, back, front, present, weights_gradient)
        else:
            logits = directed(content, back, front, present)
            gradients = direction_gradients(geometric_gradient(logits, weights, weights_gradient, ctx.distances))
        content_gradient, back_gradient, front_gradient = gradients
        content_gradient = content_gradient.to(content.dtype)
        return (
            _product(content_gradient, keys.to(content.dtype)).to(queries.dtype),
            _product(content_gradient.mT, queries.to(content.dtype)).to(keys.dtype),
            _product(weights.to(gradient.dtype).mT, gradient).to(values.dtype),
            back_gradient.to(back.dtype),
            front_gradient.to(front.dtype),
            None,
            None,
        )


def directed(
    content: Float[Tensor, "B H n n"],
    back: Float[Tensor, "B H n 1"],
    front: Float[Tensor, "B H n 1"],
    present: Bool[Tensor, "B n"],
) -> Float[Tensor, "B H n n"]:
    """The logits, in at least float32, since they are summed over rows; −inf where a position does not attend."""
    dtype, n = torch.promote_types(content.dtype, torch.float32), content.shape[-1]
    ones = torch.ones(n, n, dtype=dtype, device=content.device)
    hidden = ~present[:, None, None, :] | ones.bool().triu().tril()  # (B, 1, n, n)
    unseen = torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, -torch.inf)
    back, front = back.to(dtype), front.to(dtype)
    return (content + front).addcmul_(ones.tril(-1), back - front).add_(unseen)


def direction_gradients(logits_gradient: Float[Tensor, "B H n n"]) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of content, back and front."""
    n = logits_gradient.shape[-1]
    before = torch.ones(n, n, dtype=logits_gradient.dtype, device=logits_gradient.device).tril_(-1)
    back = (logits_gradient * before).sum(3, keepdim=True)
    return logits_gradient, back, logits_gradient.sum(3, keepdim=True) - back


def geometric(logits: Float[Tensor, "B H n n"], distances: Distances) -> Float[Tensor, "B H n n"]:
    """Row i: the normalised probability that j is the first match, in order of distance; 0 where the logit is −inf."""
    missed = F.softplus(logits, threshold=EXACT)  # −log of the probability that j does not match
    passed = _cumulate(missed, distances.closest_first, distances.closer)  # all closer ones
    return (logits - missed).sub_(passed).softmax(3)


def geometric_gradient(
    logits: Float[Tensor, "B H n n"],
    weights: Float[Tensor, "B H n n"],
    weights_gradient: Float[Tensor, "B H n n"],
    distances: Distances,
) -> Float[Tensor, "B H n n"]:
    """The gradient of the logits, given that of the weights."""
    gradient = weights_gradient - (weights * weights_gradient).sum(3, keepdim=True)
    gradient = gradient.mul_(weights)
    farther = _cumulate(gradient, distances.farthest_first, distances.from_farthest)  # this one and all farther ones
    return gradient.addcmul_(logits.sigmoid(), farther, value=-1)


def _cumulate(
    x: Float[Tensor, "B H n n"], order: Int[Tensor, "n*n"], place: Int[Tensor, "n*n"]
) -> Float[Tensor, "B H n n"]:
    """Cumulative sums of each row in the given order, read at the given places."""
    sums = x.flatten(2).flatten(0, 1).index_select(1, order).view_as(x).cumsum_(3)
    return sums.flatten(2).flatten(0, 1).index_select(1, place).view_as(x)


def _product(weights: Float[Tensor, "B H n m"], values: Float[Tensor, "B H m d"]) -> Float[Tensor, "B H n d"]:
    """weights @ values. Heads are narrow; with the long dimension last a CPU takes a fifth of the time."""
    return (values.mT @ weights.to(values.dtype).mT).mT


def _kernels(content: Float[Tensor, "B H n n"]) -> Any:
    """The module of Triton kernels; None if they do not apply."""
    if not content.is_cuda or content.dtype == torch.float64 or not is_installed("triton"):
        return None
    from beamtree.nn.engine.gpu.kernels import ndr

    return ndr if content.shape[-1] <= ndr.LARGEST else None
