"""Kernels of the Neural Data Router: geometric attention, its gradient, and the dropout masks of a layer.

Attention takes one pass over a (B, H, n, n) tensor, where `beamtree.nn.engine.ndr.attention` takes twelve, and its
gradient another pass.

A program handles one row of the matrix, which it reads in the order of distance: sorting is only address arithmetic.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

from beamtree.nn.engine.gpu.kernels.common import MIDDLE_FACTOR, NOTHING, SAMPLE_FACTOR, START_FACTOR, _kept

LARGEST = 2**12  # positions: a row must fit in registers
COLUMNS = 1024  # of a mask, per program


@triton.jit
def _log1p(u):  # type: ignore[no-untyped-def]
    """log(1 + u) for 0 ≤ u ≤ 1, exact in float32 even for tiny u: 2 artanh(u / (u + 2)), by its series up to z¹³."""
    z = u / (u + 2.0)
    s = z * z
    series = 1.0 / 7 + s * (1.0 / 9 + s * (1.0 / 11 + s * (1.0 / 13)))
    return 2.0 * z * (1.0 + s * (1.0 / 3 + s * (1.0 / 5 + s * series)))


@triton.jit
def _logits(content, back, front, present, row, i, sample, place, n):  # type: ignore[no-untyped-def]
    """The logits at these places of a row sorted by distance, −inf where masked; and their columns.

    The order is that of `beamtree.nn.engine.ndr.attention.closest`.
    """
    both = tl.minimum(i, n - 1 - i)
    step = (place + 1) // 2
    alternating = tl.where(place % 2 == 1, i + step, i - step)
    one_sided = tl.where(i < n - 1 - i, i + (place - both), i - (place - both))
    j = tl.where(place <= 2 * both, alternating, one_sided)
    seen = (place > 0) & (place < n)  # place 0 is i itself
    seen = seen & (tl.load(present + sample * n + j, mask=seen, other=0) != 0)
    side = tl.where(j < i, tl.load(back + row).to(tl.float32), tl.load(front + row).to(tl.float32))
    logits = tl.load(content + row * n + j, mask=seen, other=0.0).to(tl.float32) + side
    return tl.where(seen, logits, NOTHING), j


@triton.jit
def _weights(content, back, front, present, row, place, heads, n):  # type: ignore[no-untyped-def]
    """A row of the attention, sorted by distance, with its logits and columns."""
    i, sample = (row % n).to(tl.int32), row // n // heads
    closer, _ = _logits(content, back, front, present, row, i, sample, place - 1, n)
    missed = tl.maximum(closer, 0.0) + _log1p(tl.exp(-tl.abs(closer)))  # −log of the probability of no match
    logits, j = _logits(content, back, front, present, row, i, sample, place, n)
    match = tl.minimum(logits, 0.0) - _log1p(tl.exp(-tl.abs(logits)))
    first = match - tl.cumsum(missed, axis=0)
    parts = tl.exp(first - tl.max(first, axis=0))
    return parts / tl.sum(parts, axis=0), logits, i, j


@triton.jit
def weigh(  # type: ignore[no-untyped-def]
    content, back, front, present, out,
    heads, n,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row, place = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    weights, _, _, j = _weights(content, back, front, present, row, place, heads, n)
    tl.store(out + row * n + j, weights, mask=place < n)


@triton.jit
def weigh_gradient(  # type: ignore[no-untyped-def]
    content, back, front, present, gradient, content_out, back_out, front_out,
    heads, n,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row, place = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    weights, logits, i, j = _weights(content, back, front, present, row, place, heads, n)
    given = tl.load(gradient + row * n + j, mask=place < n, other=0.0).to(tl.float32)
    first = weights * (given - tl.sum(weights * given, axis=0))
    small = tl.exp(-tl.abs(logits))
    match = tl.where(logits > 0, 1.0, small) / (1.0 + small)  # its probability
    found = first - match * tl.cumsum(first, axis=0, reverse=True)
    tl.store(content_out + row * n + j, found, mask=place < n)
    tl.store(back_out + row, tl.sum(tl.where(j < i, found, 0.0), axis=0))
    tl.store(front_out + row, tl.sum(tl.where(j > i, found, 0.0), axis=0))


@triton.jit(do_not_specialize=["layer"])
def draw(  # type: ignore[no-untyped-def]
    seed, out,
    layer, n, width, limit, last_limit,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A program for each position, or for a part of its columns."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    key = row // n * SAMPLE_FACTOR + row % n * START_FACTOR + layer.to(tl.int64) * MIDDLE_FACTOR
    threshold = tl.where(column == width - 1, last_limit, limit) + 1
    kept = _kept(key.to(tl.int32), seed, column, threshold)
    tl.store(out + row * width + column, kept.to(tl.uint8), mask=column < width)


def geometric(
    content: Float[Tensor, "B H n n"],
    back: Float[Tensor, "B H n 1"],
    front: Float[Tensor, "B H n 1"],
    present: Bool[Tensor, "B n"],
) -> Float[Tensor, "B H n n"]:
    """The weights of the attention, in the dtype of the logits."""
    out = torch.empty_like(content, memory_format=torch.contiguous_format)
    _launch(weigh, content, back, front, present, out)
    return out


def geometric_gradient(
    content: Float[Tensor, "B H n n"],
    back: Float[Tensor, "B H n 1"],
    front: Float[Tensor, "B H n 1"],
    present: Bool[Tensor, "B n"],
    gradient: Float[Tensor, "B H n n"],
) -> tuple[Float[Tensor, "B H n n"], Float[Tensor, "B H n 1"], Float[Tensor, "B H n 1"]]:
    """The gradients of content, back and front, given that of the weights."""
    out = torch.empty_like(content, memory_format=torch.contiguous_format)
    back_out = torch.empty_like(back, memory_format=torch.contiguous_format)
    front_out = torch.empty_like(back_out)
    _launch(weigh_gradient, content, back, front, present, gradient.contiguous(), out, back_out, front_out)
    return out, back_out, front_out


def _launch(kernel: Any, content: Tensor, back: Tensor, front: Tensor, present: Tensor, *others: Tensor) -> None:
    """Launch a program for each row."""
    B, heads, n, _ = content.shape
    block = triton.next_power_of_2(n)
    inputs = content.contiguous(), back.contiguous(), front.contiguous(), present.contiguous().view(torch.uint8)
    with torch.cuda.device_of(content):
        kernel[(B * heads * n,)](*inputs, *others, heads, n, BLOCK=block, num_warps=min(max(block // 256, 1), 8))


def kept(
    offsets: Int[Tensor, "words"], layer: int, B: int, n: int, width: int, limit: int, last_limit: int
) -> Bool[Tensor, "B n width"]:
    """Same as `beamtree.nn.engine.ndr.layer.kept`. The first of the offsets is the seed."""
    out = torch.empty(B, n, width, dtype=torch.bool, device=offsets.device)
    block = min(triton.next_power_of_2(width), COLUMNS)
    grid = (B * n, triton.cdiv(width, block))
    with torch.cuda.device_of(offsets):
        draw[grid](offsets, out.view(torch.uint8), layer, n, width, limit, last_limit, BLOCK=block, num_warps=4)
    return out
