"""Dropout that belongs to a node.

A node's mask is a function of a seed and of the two spans the node joins, not of when or how often it is computed.
So a candidate keeps its mask while it waits to be chosen, backward can recompute what forward saw without storing
it, and every engine sees the same masks.
"""

from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.checks import is_installed


class NodeDropout:
    """Masks for the nodes of one forward pass, already scaled by 1 / (1 − rate)."""

    def __init__(
        self,
        rate: float,
        width: int,
        like: Tensor,
        generator: torch.Generator | None = None,
        offsets: Int[Tensor, "words"] | None = None,
    ) -> None:
        """
        like: gives the masks' type and device.
        generator: from which the seed of this pass is drawn.
        offsets: those of a pass whose masks are wanted again; then nothing is drawn.
        """
        self.dtype, self.scale = like.dtype, 1 / (1 - rate)
        self.threshold = round(rate * 2**16) - 2**15
        if offsets is None:
            seed = torch.randint(2**31 - 1, (), device=like.device, generator=generator, dtype=torch.int32)
            # One 32-bit hash decides two numbers of the mask, 16 bits each.
            offsets = torch.arange((width + 1) // 2, device=like.device, dtype=torch.int32) * 0x1E3779B1 + seed
        self.offsets = offsets
        self.factors = _factors(like.device)
        self.width = width

    def mask(self, left: Int[Tensor, "*nodes 3"], right: Int[Tensor, "*nodes 3"]) -> Float[Tensor, "*nodes width"]:
        """The masks of the nodes that join these spans; a span is (sample, start, end)."""
        # Large odd factors keep the sums of different nodes apart; the hash then makes them unlike each other.
        key = (torch.cat((left, right[..., 2:]), dim=-1) * self.factors).sum(-1, keepdim=True)
        if key.is_cuda and self.dtype == torch.float32 and is_installed("triton"):
            from beamtree.engine.fused.masks import masks

            return masks(key, self.offsets, self.width, self.threshold, self.scale)
        words = mix(key.int() + self.offsets)  # (…, ⌈width / 2⌉)
        numbers = words.view(torch.int16)[..., : self.width]  # uniform over all of int16
        # Compared as floats, which hold them exactly: a CPU does that five times as fast.
        return numbers.float().ge_(self.threshold).to(self.dtype).mul_(self.scale)


@cache
def _factors(device: torch.device) -> Int[Tensor, "4"]:
    """Made once for a device, which has to wait for them. Training may use what inference made."""
    with torch.inference_mode(False):
        return torch.tensor((0x2545F491, 0x3C6EF373, 0x1B873593, 0x6C62272F), device=device)


def mix(x: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """A hash of 32-bit integers: every input bit moves every output bit about half the time. Products wrap around;
    a shift to the right brings in copies of the sign, which the masks take away again."""
    x = (x >> 16).bitwise_and_(0xFFFF).bitwise_xor_(x).mul_(0x21F0AAAD)
    x = (x >> 15).bitwise_and_(0x1FFFF).bitwise_xor_(x).mul_(0x735A2D97)
    return (x >> 15).bitwise_and_(0x1FFFF).bitwise_xor_(x)
