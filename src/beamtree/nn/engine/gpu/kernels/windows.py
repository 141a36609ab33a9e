"""Averages over windows of width 1 to the left and to the right of each position of a continuous sequence.

Positions 0 to S−1 are adjacent intervals, as wide as they exist: position j extends from total_j to total_{j+1}. The
window to the left of position i is [total_i − 1, total_i], the one to its right [total_{i+1}, total_{i+1} + 1], and an
average weighs each position by its overlap with the window. A window covers a few positions next to i, as long as these
exist. So a program for each window moves outwards until it passes the end; matrices would have S² weights, mostly 0.

If the start of a window moves, the window gains at one end what it loses at the other. Besides the weights, the
backward pass therefore needs the edges of positions in a window: i+1 to `last` for the window to the right of i, and
`first` to i for the one to the left.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable


@triton.jit
def _weight(low, high, start):  # type: ignore[no-untyped-def]
    """The length of the overlap of [low, high] and [start, start + 1]."""
    before = tl.minimum(tl.maximum(low - start, 0.0), 1.0)
    return tl.minimum(tl.maximum(high - start, 0.0), 1.0) - before


@triton.jit
def _reaches(total, front, start, side, S):  # type: ignore[no-untyped-def]
    """Whether the window reaches position `front`; an end that falls on its edge does."""
    inside = (front >= 0) & (front < S)
    edge = tl.load(total + front + 1 - side, mask=inside, other=0.0) - start
    return inside & tl.where(side == 1, edge <= 1.0, edge >= 0.0)


@triton.jit
def _columns(column, D, condition):  # type: ignore[no-untyped-def]
    """All columns if the condition holds, else none. The interpreter has no `&` of a vector and a scalar."""
    return column < tl.where(condition, D, 0)


@triton.jit(do_not_specialize=["S"])
def average(  # type: ignore[no-untyped-def]
    totals, values, out, edges,
    S, D,
    BY_SIDE: tl.constexpr, BJ: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program for each position and side (0: left, 1: right)."""
    b, i, side = (tl.program_id(0) // S).to(tl.int64), tl.program_id(0) % S, tl.program_id(1)
    column = tl.arange(0, BLOCK)
    total = totals + b * (S + 1)
    if BY_SIDE:
        values += (b * 2 + side) * S * D
    else:
        values += b * S * D
    start = tl.load(total + i + side) - (1 - side)
    outwards = 2 * side - 1
    acc = tl.zeros((BLOCK,), dtype=out.dtype.element_ty)
    passed = tl.zeros((BJ,), dtype=tl.int32)
    front = i + outwards
    while _reaches(total, front, start, side, S):
        j = front + outwards * tl.arange(0, BJ)
        exists = (j >= 0) & (j < S)
        low, high = tl.load(total + j, mask=exists, other=0.0), tl.load(total + j + 1, mask=exists, other=0.0)
        place, both = values + j[:, None] * D + column[None, :], exists[:, None] & (column < D)[None, :]
        weight = tl.where(exists, _weight(low, high, start), 0.0).to(acc.dtype)
        acc += tl.sum(weight[:, None] * tl.load(place, mask=both, other=0.0), axis=0)
        passed += (exists & tl.where(side == 1, high - start <= 1.0, low - start >= 0.0)).to(tl.int32)
        front += outwards * BJ
    where = (b * 2 + side) * S + i
    tl.store(out + where * D + column, acc, mask=column < D)
    tl.store(edges + where, i + side + outwards * tl.sum(passed))


@triton.jit(do_not_specialize=["S"])
def average_gradient(  # type: ignore[no-untyped-def]
    totals, values, edges, gradient, d_values, d_totals,
    S, D,
    BY_SIDE: tl.constexpr, BJ: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program for each edge j, the left one of position j, which visits the windows that contain either."""
    b, j = (tl.program_id(0) // (S + 1)).to(tl.int64), tl.program_id(0) % (S + 1)
    column = tl.arange(0, BLOCK)
    inside = column < D
    total = totals + b * (S + 1)
    low = tl.load(total + j)
    high = tl.load(total + j + 1, mask=j < S, other=0.0)
    high = tl.where(j < S, high, low)
    d_value = tl.zeros((BLOCK,), dtype=d_values.dtype.element_ty)
    d_total = tl.zeros((BLOCK,), dtype=tl.float64)
    for side in tl.static_range(2):
        rows = (b * 2 + side) * S
        h = values + (rows if BY_SIDE else b * S) * D + column
        here = tl.load(h + j * D, mask=_columns(column, D, j < S), other=0.0)
        before = tl.load(h + (j - 1) * D, mask=_columns(column, D, j > 0), other=0.0)
        # Windows to the right start at or before the edge, those to the left after it.
        outwards, front = 1 - 2 * side, j - side
        if BY_SIDE:
            d_value = tl.zeros_like(d_value)
        pull = tl.zeros((BLOCK,), dtype=d_value.dtype)
        more = j >= 0
        while more:
            i = front + outwards * tl.arange(0, BJ)
            exists = (i >= 0) & (i < S)
            start = tl.load(total + i + side, mask=exists, other=0.0) - (1 - side)
            place, both = gradient + (rows + i[:, None]) * D + column[None, :], exists[:, None] & inside[None, :]
            reached = tl.load(place, mask=both, other=0.0)
            weight = tl.where(exists, _weight(low, high, start), 0.0).to(reached.dtype)
            d_value += tl.sum(weight[:, None] * reached, axis=0)
            held = exists & (low - start <= 1.0 if side == 1 else low - start >= 0.0)
            pull += tl.sum(tl.where(held[:, None], reached, 0.0), axis=0)
            front += outwards * BJ
            inner = (front >= 0) & (front < S)
            start_there = tl.load(total + front + side, mask=inner, other=0.0) - (1 - side)
            more = inner & (low - start_there <= 1.0 if side == 1 else high - start_there >= 0.0)
        d_total += (pull * (before - here)).to(tl.float64)
        # The edge is also the start of a window: the one to the right of j−1, or to the left of j.
        own = j - side
        is_start = (own >= 0) & (own < S)
        edge = tl.load(edges + rows + own, mask=is_start, other=0)
        if side == 1:
            lost, gained = own, edge
        else:
            lost, gained = edge - 1, own
        g = tl.load(gradient + (rows + own) * D + column, mask=_columns(column, D, is_start), other=0.0)
        lost_value = tl.load(h + lost * D, mask=_columns(column, D, is_start & (lost >= 0)), other=0.0)
        gained_value = tl.load(h + gained * D, mask=_columns(column, D, is_start & (gained < S)), other=0.0)
        d_total += (g * (gained_value - lost_value)).to(tl.float64)
        if BY_SIDE:
            tl.store(d_values + (rows + j) * D + column, d_value, mask=_columns(column, D, j < S))
    if not BY_SIDE:
        tl.store(d_values + (b * S + j) * D + column, d_value, mask=_columns(column, D, j < S))
    tl.store(d_totals + b * (S + 1) + j, tl.sum(d_total))


def averages(
    total: Float[Tensor, "B edges"], rising: Float[Tensor, "B edges"], values: Float[Tensor, "B *sides S D"]
) -> Float[Tensor, "B 2 S D"]:
    """Averages of the values to the left and to the right of each position. Each side may have its own values.

    total: where each position begins, and where the last ends, in float64; receives the gradient.
    rising: the running maximum of `total`, which rounding can make decrease; used for the averages.
    """
    found: Tensor = WindowAverages.apply(total, rising, values)
    return found


class WindowAverages(torch.autograd.Function):
    """(total, values) → averages."""

    @staticmethod
    def forward(
        ctx: Any,
        _: Float[Tensor, "B edges"],
        total: Float[Tensor, "B edges"],
        values: Float[Tensor, "B *sides S D"],
    ) -> Float[Tensor, "B 2 S D"]:
        values = values.contiguous()
        B, (S, D) = len(values), values.shape[-2:]
        out = values.new_empty(B, 2, S, D)
        edges = torch.empty(B, 2, S, dtype=torch.int32, device=values.device)
        average[(B * S, 2)](total, values, out, edges, S, D, BY_SIDE=values.dim() == 4, **_sizes(D))
        ctx.save_for_backward(total, values, edges)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "B 2 S D"]) -> tuple[Tensor, None, Tensor]:
        total, values, edges = ctx.saved_tensors
        B, (S, D) = len(values), values.shape[-2:]
        d_total, d_values = torch.empty_like(total), torch.empty_like(values)
        average_gradient[(B * (S + 1),)](
            total, values, edges, gradient.contiguous(), d_values, d_total,
            S, D, BY_SIDE=values.dim() == 4, **_sizes(D),
        )  # fmt: skip
        return d_total, None, d_values


def _sizes(columns: int) -> dict[str, int]:
    """A window covers few positions, as long as these exist: a program that reads two at a time reads the fewest."""
    block = triton.next_power_of_2(columns)
    return {"BJ": 2 if columns > 1 else 16, "BLOCK": block, "num_warps": max(min(block // 128, 4), 1)}
