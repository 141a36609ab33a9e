"""Dropout whose masks belong to nodes, and noise that does.

A node's mask is a function of a seed and of the two spans the node joins, not of when or how often it is computed.
So a candidate keeps its mask until it is chosen, the backward pass recomputes the masks of the forward pass instead of
storing them, and all engines use the same masks. The same holds for the noise that is added to a node's state.
"""

import copy
from functools import cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.nn.engine.transforms import is_wrapped
from beamtree.utils.checks import is_installed

FACTORS = (0x2545F491, 0x3C6EF373, 0x1B873593, 0x6C62272F)  # of sample, start, middle and end
ROUNDS = ((16, 0x21F0AAAD), (15, 0x735A2D97), (15, 1))  # of the hash: a shift and a factor


class NodeDropout:
    """Masks for the nodes of one forward pass, already scaled by 1 / (1 − rate).

    With noise, what belongs to a node is [mask; noise], where the noise is uniform with mean 0.
    """

    def __init__(
        self,
        rate: float,
        width: int,
        like: Tensor,
        generator: torch.Generator | None = None,
        offsets: Int[Tensor, "words"] | None = None,
        noise: float = 0.0,
        noise_width: int = 0,
    ) -> None:
        """Prepare the masks of one forward pass.

        Args:
            rate: probability that an element is dropped.
            width: width of the mask of a node.
            like: a tensor with the dtype and device of the masks.
            generator: draws the seed of this pass.
            offsets: those of an earlier pass, to reproduce its masks; nothing is drawn then.
            noise: standard deviation of the noise.
            noise_width: width of a node's noise; 0 if there is none.
        """
        self.rate, self.dtype, self.scale = rate, like.dtype, 1 / (1 - rate)
        self.width, self.noise_width = width, noise_width if noise else 0
        self.threshold = round(rate * 2**16) - 2**15
        if offsets is None:
            seed = torch.randint(2**31 - 1, (), device=like.device, generator=generator, dtype=torch.int32)
            # One 32-bit hash decides two elements of the mask, 16 bits each.
            words = (width + self.noise_width + 1) // 2
            offsets = torch.arange(words, device=like.device, dtype=torch.int32) * 0x1E3779B1 + seed
        self.offsets = offsets
        # The noise is this, times an integer of 16 bits. A uniform distribution over (−a, a) has deviation a / √3.
        # In device memory, so that a captured graph serves noise of any deviation.
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        steps = 1 if self.noise_width else 0
        self.noise_step = torch.full((steps,), noise * 3**0.5 / 2**15, dtype=dtype, device=like.device)

    @property
    def settings(self) -> tuple[float, bool]:
        """What kernels are specialised for: the scale of the masks, from which their threshold follows, and noise."""
        return float(self.scale), self.noise_width > 0

    def duplicate(self) -> "NodeDropout":
        """A copy with tensors of its own, whose addresses can be part of a captured graph."""
        own = copy.copy(self)
        own.offsets, own.noise_step = self.offsets.clone(), self.noise_step.clone()
        return own

    def copy_(self, other: "NodeDropout") -> None:
        """Take the masks and the noise of another pass, which must have the same settings."""
        self.offsets.copy_(other.offsets)
        self.noise_step.copy_(other.noise_step)

    def mask(self, left: Int[Tensor, "*nodes 3"], right: Int[Tensor, "*nodes 3"]) -> Float[Tensor, "*nodes width"]:
        """The masks of the nodes that join these spans, and their noise; a span is (sample, start, end)."""
        if left.device.type == "cpu" and not is_wrapped(left):
            return self._by_numpy(left, right)
        key = self._key(left, right)
        if key.is_cuda and self.dtype == torch.float32 and not self.noise_width and is_installed("triton"):
            from beamtree.nn.engine.gpu.kernels.masks import masks

            return masks(key, self.offsets, self.width, self.threshold, self.scale)
        return self._by_torch(key)

    def _key(self, left: Int[Tensor, "*nodes 3"], right: Int[Tensor, "*nodes 3"]) -> Int[Tensor, "*nodes 1"]:
        """A sum for each node. Large odd factors make the sums of different nodes differ; the hash mixes their bits."""
        return (torch.cat((left, right[..., 2:]), dim=-1) * _factors(left.device)).sum(-1, keepdim=True)

    def _by_torch(self, key: Int[Tensor, "*nodes 1"]) -> Float[Tensor, "*nodes width"]:
        words = mix(key.int() + self.offsets)  # (…, ⌈width / 2⌉)
        values = words.view(torch.int16)  # uniform over all of int16
        # Compared as floats, which is exact: 2¹⁵, the threshold of the largest rates, does not fit in int16.
        mask = values[..., : self.width].float().ge_(self.threshold).to(self.dtype).mul_(self.scale)
        if not self.noise_width:
            return mask
        noise = values[..., self.width : self.width + self.noise_width].to(self.noise_step.dtype)
        return torch.cat((mask, noise.add_(0.5).mul_(self.noise_step).to(self.dtype)), dim=-1)

    def _by_numpy(self, left: Int[Tensor, "*nodes 3"], right: Int[Tensor, "*nodes 3"]) -> Float[Tensor, "*nodes width"]:
        """The same in NumPy, which takes less than half the time for the few masks of a search step."""
        key = left.numpy() @ np.array(FACTORS[:3]) + right.numpy()[..., 2] * np.int64(FACTORS[3])  # (…)
        words = key.astype(np.uint32)[..., None] + self.offsets.numpy().view(np.uint32)
        for shift, factor in ROUNDS:
            words ^= words >> np.uint32(shift)
            if factor != 1:
                words *= np.uint32(factor)
        values, dtype = words.view(np.int16), np.float64 if self.dtype == torch.float64 else np.float32
        mask = torch.from_numpy((values[..., : self.width] >= self.threshold) * dtype(self.scale)).to(self.dtype)
        if not self.noise_width:
            return mask
        noise = values[..., self.width : self.width + self.noise_width].astype(dtype)
        noise = torch.from_numpy((noise + dtype(0.5)) * self.noise_step.numpy())
        return torch.cat((mask, noise.to(self.dtype)), dim=-1)


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
