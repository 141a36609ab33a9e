"""Segments of a chain, captured in CUDA graphs: a step is about ten small kernels, so launch overhead dominates.

A graph fits segments of one size. Its buffers, including a copy of the cell's weights, have fixed addresses: inputs are
copied in before each run, and results out after it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from beamtree.nn.cells.grc import GRCFunction
from beamtree.nn.cells.grc.gpu import FusedGRCAdjoint
from beamtree.nn.engine.gpu.cache import CACHE
from beamtree.nn.engine.gpu.capture import Captured, stream_of
from beamtree.nn.engine.gpu.precision import precision
from beamtree.nn.engine.loops.chain import SEGMENT, SegmentGradients, backward_segment, forward_segment


class CapturedChain:
    """Captured segments of SEGMENT steps; shorter ones are padded with steps whose results are not read."""

    def __init__(self, cell: GRCFunction, leaves: Float[Tensor, "N B D"]) -> None:
        _, B, D = leaves.shape
        self.bytes = SEGMENT * B * D * 4 * 40  # most of it for the backward pass: ten activations, four states wide
        self.cell = cell.bind([torch.empty_like(weight).contiguous() for weight in cell.weights])
        self.start = leaves.new_zeros(B, D)
        self.leaves, self.before, self.gradient = leaves.new_zeros(3, SEGMENT, B, D).unbind(0)
        self.mask: Tensor | None = None  # allocated with the first mask
        self.forward: dict[bool, Captured[Tensor]] = {masked: Captured(leaves.device) for masked in (False, True)}
        self.backward: dict[bool, Captured[SegmentGradients]] = {
            masked: Captured(leaves.device) for masked in (False, True)
        }

    def copy_weights(self, cell: GRCFunction) -> None:
        torch._foreach_copy_(list(self.cell.weights), list(cell.weights))

    def forward_segment(
        self, start: Float[Tensor, "B D"], leaves: Float[Tensor, "T B D"], mask: Float[Tensor, "T B E"] | None
    ) -> Float[Tensor, "T B D"]:
        """Same as `loops.chain.forward_segment`; the result is overwritten by the next run."""
        self.start.copy_(start)
        kept = self._fill(leaves, mask)
        captured = self.forward[mask is not None]
        states = captured.run(lambda: forward_segment(self.cell, self.start, self.leaves, kept))
        return states[: len(leaves)]

    def backward_segment(
        self,
        before: Float[Tensor, "T B D"],
        leaves: Float[Tensor, "T B D"],
        mask: Float[Tensor, "T B E"] | None,
        gradient: Float[Tensor, "T B D"],
    ) -> SegmentGradients:
        """Same as `loops.chain.backward_segment`; the result is overwritten by the next run."""
        kept = self._fill(leaves, mask)
        fill_steps(self.before, before)
        fill_steps(self.gradient, gradient)  # 0 in padding steps, which then add nothing to the weights' gradients

        def launch() -> SegmentGradients:
            return backward_segment(FusedGRCAdjoint, self.cell, self.before, self.leaves, kept, self.gradient)

        found = self.backward[mask is not None].run(launch)
        return found._replace(leaves=found.leaves[: len(leaves)])

    def _fill(self, leaves: Float[Tensor, "T B D"], mask: Float[Tensor, "T B E"] | None) -> Tensor | None:
        fill_steps(self.leaves, leaves)
        if mask is None:
            return None
        if self.mask is None:
            with torch.inference_mode(False):  # training may use what inference allocated
                self.mask = mask.new_zeros(SEGMENT, *mask.shape[1:])
        fill_steps(self.mask, mask)
        return self.mask


def fill_steps(buffer: Float[Tensor, "M B D"], values: Float[Tensor, "T B D"]) -> None:
    """Copy the values, padded with zeros."""
    buffer.copy_(pad(values, (0, 0, 0, 0, 0, len(buffer) - len(values))))


@contextmanager
def captured_chain(cell: GRCFunction, leaves: Float[Tensor, "N B D"]) -> Iterator[CapturedChain]:
    """Borrow captured segments for chains of this size, with the cell's weights."""
    device = leaves.device
    key = ("chain", device, stream_of(device), leaves.shape[1:], cell.unbound, precision(device))
    with CACHE.borrow(key, device, lambda: CapturedChain(cell, leaves)) as segments:
        with torch.no_grad():
            segments.copy_weights(cell)
        yield segments
