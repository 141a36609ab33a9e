"""Dropout masks in one kernel, where `beamtree.nn.engine.dropout` takes seventeen operations."""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.nn.engine.gpu.kernels.common import _kept

LARGEST = 1024  # columns per program


@triton.jit
def draw(  # type: ignore[no-untyped-def]
    keys, seed, out,
    width, threshold, scale,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A program for each node, or for a part of a wide mask."""
    node = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    kept = _kept(tl.load(keys + node).to(tl.int32), seed, column, threshold)
    tl.store(out + node * width + column, tl.where(kept, scale, 0.0), mask=column < width)


def masks(
    keys: Int[Tensor, "*nodes 1"], offsets: Int[Tensor, "words"], width: int, threshold: int, scale: float
) -> Float[Tensor, "*nodes width"]:
    """The masks of nodes in float32, given the keys of the nodes. The first of the offsets is the seed."""
    out = torch.empty(*keys.shape[:-1], width, device=keys.device)
    block = min(triton.next_power_of_2(width), LARGEST)
    if keys.numel() > 0:
        grid = (keys.numel(), triton.cdiv(width, block))
        draw[grid](keys.contiguous(), offsets, out, width, threshold, scale, BLOCK=block, num_warps=4)
    return out
