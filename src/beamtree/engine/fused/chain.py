"""Stretches of a chain, captured in CUDA graphs: a step is some ten small kernels, so that launching them is what takes
the time.

A graph fits stretches of one size. Its buffers, a copy of the cell among them, stay where they are: everything is
copied in before each run and out after it.
"""

import copy
from collections import OrderedDict
from collections.abc import Hashable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from beamtree.cells import GRC
from beamtree.engine.chain import STRETCH, Down, come_back, go
from beamtree.engine.fused.capture import Captured, stream_of
from beamtree.engine.fused.gradient import FusedGRCAdjoint
from beamtree.engine.fused.leases import too_many
from beamtree.engine.fused.products import precision

KEPT = 16  # graphs at most, those used last: batches have few sizes


class Graphs:
    """Captured stretches of STRETCH steps; shorter ones are filled up with steps whose results nobody reads."""

    @torch.no_grad()
    def __init__(self, cell: GRC, leaves: Float[Tensor, "N B D"]) -> None:
        _, B, D = leaves.shape
        self.bytes = STRETCH * B * D * 4 * 40  # most of it for backward: ten activations, four states wide
        self.cell = copy.deepcopy(cell).requires_grad_(False)
        self.start = leaves.new_zeros(B, D)
        self.leaves, self.before, self.gradient = leaves.new_zeros(3, STRETCH, B, D).unbind(0)
        self.mask: Tensor | None = None  # until one is given
        self.forth: dict[bool, Captured[Tensor]] = {masked: Captured(leaves.device) for masked in (False, True)}
        self.back: dict[bool, Captured[Down]] = {masked: Captured(leaves.device) for masked in (False, True)}

    def take_weights(self, cell: GRC) -> None:
        for own, given in zip(self.cell.parameters(), cell.parameters(), strict=True):
            own.copy_(given)

    def go(
        self, start: Float[Tensor, "B D"], leaves: Float[Tensor, "T B D"], mask: Float[Tensor, "T B E"] | None
    ) -> Float[Tensor, "T B D"]:
        """As `beamtree.engine.chain.go`; what it gives is overwritten by the next run."""
        self.start.copy_(start)
        kept = self._fill(leaves, mask)
        states = self.forth[mask is not None].run(lambda: go(self.cell, self.start, self.leaves, kept))
        return states[: len(leaves)]

    def come_back(
        self,
        before: Float[Tensor, "T B D"],
        leaves: Float[Tensor, "T B D"],
        mask: Float[Tensor, "T B E"] | None,
        gradient: Float[Tensor, "T B D"],
    ) -> Down:
        """As `beamtree.engine.chain.come_back`; what it gives is overwritten by the next run."""
        kept = self._fill(leaves, mask)
        fill(self.before, before)
        fill(self.gradient, gradient)  # 0 where there is no step, which then gives nothing to the weights

        def launch() -> Down:
            return come_back(FusedGRCAdjoint, self.cell, self.before, self.leaves, kept, self.gradient)

        found = self.back[mask is not None].run(launch)
        return found._replace(leaves=found.leaves[: len(leaves)])

    def _fill(self, leaves: Float[Tensor, "T B D"], mask: Float[Tensor, "T B E"] | None) -> Tensor | None:
        fill(self.leaves, leaves)
        if mask is None:
            return None
        if self.mask is None:
            with torch.inference_mode(False):  # forward may use it too
                self.mask = mask.new_zeros(STRETCH, *mask.shape[1:])
        fill(self.mask, mask)
        return self.mask


def fill(buffer: Float[Tensor, "M B D"], values: Float[Tensor, "T B D"]) -> None:
    """Values, and zeros where there are too few."""
    buffer.copy_(pad(values, (0, 0, 0, 0, 0, len(buffer) - len(values))))


_kept: OrderedDict[Hashable, Graphs] = OrderedDict()


def graphs(cell: GRC, leaves: Float[Tensor, "N B D"]) -> Graphs:
    """Those for chains of this size, with the cell's weights; the ones not used for longest make way for new ones."""
    size = (leaves.device, stream_of(leaves.device), leaves.shape[1:], precision(leaves.device))
    if size not in _kept:
        with torch.inference_mode(False):
            _kept[size] = Graphs(cell, leaves)
        while too_many([kept.bytes for kept in _kept.values()], KEPT, leaves.device):
            _kept.popitem(last=False)
    _kept.move_to_end(size)
    _kept[size].take_weights(cell)
    return _kept[size]


def release() -> None:
    """Give all memory back."""
    _kept.clear()
