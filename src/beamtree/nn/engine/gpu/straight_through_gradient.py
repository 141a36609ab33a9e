"""The gradient of fused straight-through sampling: six kernels per step, in captured segments of steps.

As in `beamtree.nn.engine.straight_through.replay`, what a step needs of each candidate (`Sides`) is computed beforehand
for all candidates in one batch, and the gradients of the weights afterwards. Only the part that runs step by step is
captured. The rows of candidates need not be kept: the backward pass of a merge restores them.
"""

from typing import Any

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.nn.cells import CellFunction
from beamtree.nn.cells.adjoint import Adjoint
from beamtree.nn.cells.grc import GRCFunction
from beamtree.nn.cells.grc.gpu import FusedGRCAdjoint
from beamtree.nn.engine.dropout import NodeDropout
from beamtree.nn.engine.gpu import workspace
from beamtree.nn.engine.gpu.capture import Captured
from beamtree.nn.engine.gpu.kernels import straight_through as kernels
from beamtree.nn.engine.gpu.workspace import Size
from beamtree.nn.engine.pool import take
from beamtree.nn.engine.straight_through.nodes import SampleNodes, Sides
from beamtree.nn.engine.straight_through.replay import SampleGradients, by_step, has_merge

AT_ONCE = 8192  # nodes that are recomposed in one batch: 20 KiB each at a width of 128
ELEMENTS = 8  # of a sequence, per program: few, so that many multiprocessors share a long one


class SampleGradient:
    """Buffers for the gradient of searches of one size, including copies of the cell's weights and the dropout seed."""

    def __init__(self, size: Size, cell: CellFunction, dropout: NodeDropout | None) -> None:
        self.size, beams, M, S, steps = size, size.beams, size.M, cell.state_dim, workspace.SEGMENT
        device: dict[str, Any] = {"device": size.device}
        int32 = {**device, "dtype": torch.int32}
        self.sides = Sides(*torch.zeros(4, size.nodes, S, **device).unbind(0))  # those of the leaves stay 0
        self.logits, self.logit_gradient = torch.zeros(2, size.nodes + 1, **device).unbind(0)
        # For each sample, in two halves: after a step and before it.
        self.rows = torch.zeros(2, beams, M, **int32)
        self.sequence = torch.zeros(2, beams, M + 1, S, **device)
        self.rise, self.run, self.found = torch.zeros(3, beams, M, **device).unbind(0)
        self.score_gradient = torch.zeros(beams, **device)
        # For each step of a segment.
        self.extent = torch.zeros(1, **int32)
        self.noise = torch.zeros(steps if size.stochastic else 1, beams, M, **device)
        self.actions, self.removed = torch.zeros(steps, beams, **int32), torch.zeros(steps, beams, 3, **int32)
        self.above, self.parents = torch.zeros(2, steps, beams, S, **device).unbind(0)
        self.children = torch.zeros(steps, beams, 2, S, **device)
        self.spans = torch.zeros(steps, beams, 2, 3, **int32)  # of the children
        # Copies, since a graph needs fixed addresses.
        self.cell = cell.bind([torch.empty_like(weight).contiguous() for weight in cell.weights])
        self.dropout = dropout and dropout.duplicate()
        self.captured: Captured[None] = Captured(size.device)

    @property
    def bytes(self) -> int:
        """The size of the large buffers, with the graph's memory for recomposed nodes."""
        large = (*self.sides, self.rows, self.sequence, self.noise, self.above, self.parents, self.children)
        at_once = min(workspace.SEGMENT, self._at_once) * self.size.beams
        return sum(tensor.nbytes for tensor in large) + at_once * self.size.D * 4 * 40

    @property
    def _at_once(self) -> int:
        """The number of steps whose nodes are recomposed in one batch."""
        return max(AT_ONCE // self.size.beams, 1)

    def backward_steps(
        self,
        nodes: SampleNodes,
        above: Float[Tensor, "B K M S"],
        score_gradient: Float[Tensor, "B K"] | None,
        actions: Int[Tensor, "T B K"],
        removed: Int[Tensor, "T B K 3"],
        roots: Int[Tensor, "B K"],
        noise: Float[Tensor, "t B K m"] | None,
    ) -> SampleGradients:
        """Same as `beamtree.nn.engine.straight_through.replay.backward_steps`.

        The steps are padded to whole segments; padding steps have no noise and change nothing. The results are in these
        buffers.
        """
        (B, K, M, S), beams, steps = above.shape, self.size.beams, workspace.SEGMENT
        self._take_weights(nodes)
        nodes.sides(self.sides)
        used, gradient = len(nodes.states), torch.zeros_like(nodes.states)
        self.logits[:used].copy_(nodes.logits)
        self.logit_gradient.zero_()
        self.score_gradient.zero_()
        if score_gradient is not None:
            self.score_gradient.copy_(score_gradient.flatten())

        # The last merge of every sample, which is not a choice.
        by_steps = by_step(above, nodes.lengths, has_merge(nodes.lengths, M)).view(M, beams, S)
        last = roots.flatten()
        gradient.index_add_(0, last, by_steps[-1])
        self.sequence[0].zero_()
        self.sequence[0, :, :2].copy_(nodes.adjoint(last).pull_back(slice(0, beams), by_steps[-1]))
        self.rows[0].zero_()
        self.rows[0, :, 0].copy_(last)

        for first in reversed(range(0, len(actions), steps)):
            segment = slice(first, first + steps)
            chosen = removed[segment, ..., 1].flatten()
            pairs = take(nodes.children, chosen)  # (T·B·K, 2)
            self.children.copy_(take(nodes.states, pairs).view_as(self.children))
            if self.dropout:
                self.spans.copy_(take(nodes.spans, pairs).view_as(self.spans))
            self.actions.copy_(actions[segment].view_as(self.actions))
            self.removed.copy_(removed[segment].view_as(self.removed))
            self.above[: M - first].copy_(by_steps[segment])
            if noise is not None:
                drawn = noise[segment].flatten(1, 2)  # (t, B·K, m)
                self.noise[: len(drawn), :, : drawn.shape[2]].copy_(drawn)
            self.extent.fill_(M - first)
            self.captured.run(self._launch)
            gradient.index_add_(0, chosen, self.parents.flatten(0, 1))  # finished samples add to a leaf: not read
        return SampleGradients(self.sequence[0].view(B, K, M + 1, S), self.logit_gradient[:used], gradient)

    def _take_weights(self, nodes: SampleNodes) -> None:
        torch._foreach_copy_(list(self.cell.weights), list(nodes.cell.weights))
        if self.dropout and nodes.dropout:
            self.dropout.copy_(nodes.dropout)

    def _launch(self) -> None:
        """Launch every kernel of a segment, the last step first."""
        beams = self.size.beams
        for first in reversed(range(0, workspace.SEGMENT, self._at_once)):
            last = min(first + self._at_once, workspace.SEGMENT)
            nodes = self._compose_again(slice(first, last))
            for slot in reversed(range(first, last)):
                self._backward_step(slot, nodes, slice((slot - first) * beams, (slot - first + 1) * beams))
            del nodes  # frees them before the next ones are allocated

    def _compose_again(self, steps: slice) -> Adjoint:
        children = self.children[steps].flatten(0, 1)  # (steps·B·K, 2, S)
        mask = self.dropout.mask(*self.spans[steps].flatten(0, 1).unbind(1)) if self.dropout else None
        return (
            FusedGRCAdjoint(self.cell, children, mask)
            if isinstance(self.cell, GRCFunction)
            else self.cell.adjoint(children, mask)
        )

    def _backward_step(self, slot: int, nodes: Adjoint, rows: slice) -> None:
        size, sides, S = self.size, self.sides, self.cell.state_dim
        half = (workspace.SEGMENT - 1 - slot) % 2
        step = (slot, half, size.beams, size.M)
        wide = triton.next_power_of_2(size.M)
        tile = {"ELEMENTS": ELEMENTS, "BLOCK": min(triton.next_power_of_2(S), 128), "num_warps": 4}
        kernels.weigh[(size.beams, triton.cdiv(size.M, ELEMENTS))](
            self.rows, self.sequence, self.above, self.actions, self.removed, sides.rise, sides.run,
            self.rise, self.run, self.parents, self.extent, *step, S, **tile,
        )  # fmt: skip
        kernels.draw_gradient[(size.beams,)](
            self.rows, self.logits, self.noise, self.actions, self.score_gradient, self.rise, self.run,
            self.found, self.logit_gradient, self.extent, *step,
            NOISY=size.stochastic, BLOCK=wide, num_warps=min(max(wide // 256, 4), 16),
        )  # fmt: skip
        down = nodes.pull_back(rows, self.parents[slot])  # (B·K, 2, S)
        kernels.sequence_gradient[(size.beams, triton.cdiv(size.M + 1, ELEMENTS))](
            self.rows, self.sequence, self.actions, down, self.found, sides.left, sides.right, self.extent,
            *step, S, **tile,
        )  # fmt: skip
