"""Dropout whose masks belong to nodes.

A node's mask is a function of a seed and of the two spans the node joins, not of when or how often it is computed.
So a candidate keeps its mask until it is chosen, the backward pass recomputes the masks of the forward pass instead of
storing them, and all engines use the same masks.
"""

from functools import cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.utils.checks import is_installed

FACTORS = (0x2545F491, 0x3C6EF373, 0x1B873593, 0x6C62272F)  # of sample, start, middle and end
ROUNDS = ((16, 0x21F0AAAD), (15, 0x735A2D97), (15, 1))  # of the hash: a shift and a factor


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
        """Prepare the masks of one forward pass.

        Args:
            rate: probability that an element is dropped.
            width: width of the mask of a node.
            like: a tensor with the dtype and device of the masks.
            generator: draws the seed of this pass.
            offsets: those of an earlier pass, to reproduce its masks; nothing is drawn then.
        """
        self.rate, self.dtype, self.scale = rate, like.dtype, 1 / (1 - rate)
        self.threshold = round(rate * 2**16) - 2**15
        if offsets is None:
            seed = torch.randint(2**31 - 1, (), device=like.device, generator=generator, dtype=torch.int32)
            # One 32-bit hash decides two elements of the mask, 16 bits each.
            offsets = torch.arange((width + 1) // 2, device=like.device, dtype=torch.int32) * 0x1E3779B1 + seed
        self.offsets = offsets
        self.width = width

    def mask(self, left: Int[Tensor, "*nodes 3"], right: Int[Tensor, "*nodes 3"]) -> Float[Tensor, "*nodes width"]:
        """The masks of the nodes that join these spans; a span is (sample, start, end)."""
        if left.device.type == "cpu":
            return self._by_numpy(left, right)
        key = self._key(left, right)
        if key.is_cuda and self.dtype == torch.float32 and is_installed("triton"):
            from beamtree.nn.engine.gpu.kernels.masks import masks

            return masks(key, self.offsets, self.width, self.threshold, self.scale)
        return self._by_torch(key)

    def _key(self, left: Int[Tensor, "*nodes 3"], right: Int[Tensor, "*nodes 3"]) -> Int[Tensor, "*nodes 1"]:
        """A sum for each node. Large odd factors make the sums of different nodes differ; the hash mixes their bits."""
        return (torch.cat((left, right[..., 2:]), dim=-1) * _factors(left.device)).sum(-1, keepdim=True)

    def _by_torch(self, key: Int[Tensor, "*nodes 1"]) -> Float[Tensor, "*nodes width"]:
        words = mix(key.int() + self.offsets)  # (…, ⌈width / 2⌉)
        values = words.view(torch.int16)[..., : self.width]  # uniform over all of int16
        # Compared as floats, which is exact: 2¹⁵, the threshold of the largest rates, does not fit in int16.
        return values.float().ge_(self.threshold).to(self.dtype).mul_(self.scale)

    def _by_numpy(self, left: Int[Tensor, "*nodes 3"], right: Int[Tensor, "*nodes 3"]) -> Float[Tensor, "*nodes width"]:
        """The same in NumPy, which takes less than half the time for the few masks of a search step."""
        key = left.numpy() @ np.array(FACTORS[:3]) + right.numpy()[..., 2] * np.int64(FACTORS[3])  # (…)
        words = key.astype(np.uint32)[..., None] + self.offsets.numpy().view(np.uint32)
        for shift, factor in ROUNDS:
            words ^= words >> np.uint32(shift)
            if factor != 1:
                words *= np.uint32(factor)
        kept = words.view(np.int16)[..., : self.width] >= self.threshold
        scale = np.float64(self.scale) if self.dtype == torch.float64 else np.float32(self.scale)
        return torch.from_numpy(kept * scale).to(self.dtype)


@cache
def _factors(device: torch.device) -> Int[Tensor, "4"]:
    """Cached per device to avoid a host sync. Training may use what inference allocated."""
    with torch.inference_mode(False):
        return torch.tensor(FACTORS, device=device)


def mix(x: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """A hash of 32-bit integers: every input bit flips every output bit about half the time.

    Products wrap around; a right shift fills with copies of the sign, which the bit masks clear.
    """
    for shift, factor in ROUNDS:
        x = (x >> shift).bitwise_and_((1 << 32 - shift) - 1).bitwise_xor_(x)
        if factor != 1:
            x = x.mul_(factor)
    return x
