"""CRvNN's iterations on a GPU: everything with one scalar per position, in few launches. See `kernels.continuous`."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import triton
from jaxtyping import Bool, Float
from torch import Tensor

from beamtree.nn.engine.gpu.kernels import continuous as kernels
from beamtree.nn.engine.gpu.kernels.windows import averages
from beamtree.nn.engine.loops.continuous import NeighbourAverage
from beamtree.nn.function import first_order, save

BLOCK = 256  # positions per program


def neighbours(
    existence: Float[Tensor, "B S"], absorbable: Bool[Tensor, "B S"], threshold: float
) -> tuple[NeighbourAverage, Bool[Tensor, "B S"]]:
    """Averages over neighbours, and the words that may be absorbed: those in `absorbable`, of unfinished samples."""
    totals, rising, active = Positioning.apply(existence, absorbable, threshold)
    return partial(averages, totals, rising), active.view(torch.bool)


class Positioning(torch.autograd.Function):
    """existence → start of each position."""

    @staticmethod
    def forward(
        ctx: Any, existence: Float[Tensor, "B S"], absorbable: Bool[Tensor, "B S"], threshold: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        B, S = existence.shape
        totals, rising = torch.empty(2, B, S + 1, dtype=torch.float64, device=existence.device).unbind()
        active = torch.empty(B, S, dtype=torch.int8, device=existence.device)
        kernels.lay_out[(B,)](
            existence.contiguous(), absorbable.contiguous().view(torch.int8), totals, rising, active, S, threshold,
            **_row(S),
        )  # fmt: skip
        ctx.dtype = existence.dtype
        ctx.mark_non_differentiable(rising, active)
        save(ctx, (existence,))
        return totals, rising, active

    @staticmethod
    @first_order
    def backward(
        ctx: Any, inputs: Sequence[Tensor], kept: Sequence[Any], gradient: Float[Tensor, "B edges"], *_: Any
    ) -> tuple[Tensor | None, ...]:
        B, S = len(gradient), gradient.shape[1] - 1
        d_existence = torch.empty(B, S, dtype=ctx.dtype, device=gradient.device)
        kernels.lay_out_back[(B,)](gradient.contiguous(), d_existence, S, **_row(S))
        return d_existence, None, None


def absorb(
    scores: Float[Tensor, "B S"],
    active: Bool[Tensor, "B S"],
    existence: Float[Tensor, "B S"],
    average: NeighbourAverage,
    largest: float,
) -> tuple[Float[Tensor, "B S"], Float[Tensor, "B S"]]:
    """c, and the existence after the iteration."""
    weights: Tensor = AbsorptionWeights.apply(scores, active, largest)
    beside = average(weights.unsqueeze(-1))  # 𝓛 exp(s) and 𝓡 exp(s), (B, 2, S, 1)
    probability, after = Absorption.apply(weights, beside, existence)
    return probability, after


class AbsorptionWeights(torch.autograd.Function):
    """s → exp(s) of the words that may be absorbed; 0 for the others."""

    @staticmethod
    def forward(
        ctx: Any, scores: Float[Tensor, "B S"], active: Bool[Tensor, "B S"], largest: float
    ) -> Float[Tensor, "B S"]:
        scores = scores.contiguous()
        weights = torch.empty(scores.shape, dtype=torch.float64, device=scores.device)
        n = scores.numel()
        kernels.weigh[_grid(n)](scores, active.view(torch.int8), weights, n, largest, BLOCK=BLOCK)
        ctx.largest = largest
        save(ctx, (scores,), weights)
        return weights

    @staticmethod
    @first_order
    def backward(
        ctx: Any, inputs: Sequence[Tensor], kept: Sequence[Any], gradient: Float[Tensor, "B S"]
    ) -> tuple[Tensor | None, ...]:
        (scores,), (weights,) = inputs, kept
        d_scores, n = torch.empty_like(scores), scores.numel()
        kernels.weigh_back[_grid(n)](scores, weights, gradient.contiguous(), d_scores, n, ctx.largest, BLOCK=BLOCK)
        return d_scores, None, None


class Absorption(torch.autograd.Function):
    """(weights, averages of the neighbours' weights, existence) → (c, existence after the iteration)."""

    @staticmethod
    def forward(
        ctx: Any,
        weights: Float[Tensor, "B S"],
        beside: Float[Tensor, "B 2 S 1"],
        existence: Float[Tensor, "B S"],
    ) -> tuple[Tensor, Tensor]:
        existence, beside = existence.contiguous(), beside.contiguous()
        probability, after = torch.empty(2, *existence.shape, dtype=existence.dtype, device=existence.device).unbind()
        n, S = existence.numel(), existence.shape[1]
        kernels.absorb[_grid(n)](weights, beside, existence, probability, after, n, S, BLOCK=BLOCK)
        save(ctx, (weights, beside, existence))
        return probability, after

    @staticmethod
    @first_order
    def backward(
        ctx: Any,
        inputs: Sequence[Tensor],
        kept: Sequence[Any],
        d_probability: Float[Tensor, "B S"],
        d_after: Float[Tensor, "B S"],
    ) -> tuple[Tensor | None, ...]:
        weights, beside, existence = inputs
        d_weights, d_beside, d_existence = (torch.empty_like(tensor) for tensor in inputs)
        n, S = existence.numel(), existence.shape[1]
        kernels.absorb_back[_grid(n)](
            weights, beside, existence, d_probability.contiguous(), d_after.contiguous(),
            d_weights, d_beside, d_existence, n, S, BLOCK=BLOCK,
        )  # fmt: skip
        return d_weights, d_beside, d_existence


def _grid(n: int) -> tuple[int]:
    return (triton.cdiv(n, BLOCK),)


def _row(S: int) -> dict[str, int]:
    """Launch options of a program that holds all positions of a sample."""
    block = triton.next_power_of_2(S)
    return {"BLOCK": block, "num_warps": min(max(block // 256, 1), 8)}
