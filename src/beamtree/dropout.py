"""Dropout that belongs to a node.

A node's mask is a function of a seed and of the two spans the node joins, not of when or how often it is computed.
So a candidate keeps its mask while it waits to be chosen, backward can recompute what forward saw without storing
it, and every engine sees the same masks.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

_LOW32 = 0xFFFFFFFF


class NodeDropout:
    """Masks for the nodes of one forward pass, already scaled by 1 / (1 − rate)."""

    def __init__(self, rate: float, width: int, like: Tensor, generator: torch.Generator | None = None) -> None:
        """Draws the seed of this pass. `like` gives the masks' type and device."""
        self.dtype, self.scale = like.dtype, 1 / (1 - rate)
        self.threshold = round(rate * 2**16)
        self.seed = torch.randint(2**31, (), device=like.device, generator=generator)
        # One 32-bit hash decides two numbers of the mask, 16 bits each.
        halves = (width + 1) // 2
        self.offsets = torch.arange(halves, device=like.device) * 0x9E3779B1 & _LOW32
        self.width = width

    def mask(
        self,
        sample: Int[Tensor, "*nodes"],
        start: Int[Tensor, "*nodes"],
        split: Int[Tensor, "*nodes"],
        end: Int[Tensor, "*nodes"],
    ) -> Float[Tensor, "*nodes width"]:
        """The masks of the nodes that join the spans [start, split) and [split, end) of their samples."""
        # Large odd factors keep the sums of different nodes apart; the hash then makes them unlike each other.
        key = self.seed + sample * 0x2545F491 + start * 0x3C6EF373 + split * 0x1B873593 + end * 0x6C62272F
        words = mix(mix(key & _LOW32).unsqueeze(-1) + self.offsets & _LOW32)  # (…, ⌈width / 2⌉)
        numbers = torch.cat((words & 0xFFFF, words >> 16), dim=-1)[..., : self.width]
        return (numbers >= self.threshold).to(self.dtype) * self.scale


def mix(x: Tensor) -> Tensor:
    """A hash of 32-bit numbers held in int64: every input bit moves every output bit about half the time.
    Both constants are below 2³¹, so that no product leaves int64."""
    x = (x ^ (x >> 16)) * 0x21F0AAAD & _LOW32
    x = (x ^ (x >> 15)) * 0x735A2D97 & _LOW32
    return x ^ (x >> 15)
