"""The gradient of a fused search with OneSoft, captured: `beamtree.nn.engine.onesoft.replay` in seven kernels per step.

The candidates of many steps are recomposed in one chunk. Then each step, the last first, propagates the gradient of its
candidates to their children, that of the soft beam's states to the states they average and to the weights of the
average, and that of weights and scores to the logits and to the scores before the step.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.nn.engine.gpu.capture import Captured
from beamtree.nn.engine.gpu.cells import ReplayedNodes, shared_chunk
from beamtree.nn.engine.gpu.kernels import onesoft as soft_kernels
from beamtree.nn.engine.gpu.onesoft_workspace import SoftSize, SoftWorkspace, StepBlock
from beamtree.nn.engine.gpu.precision import buffer_for, lay_out

AT_ONCE = 8192  # maximum nodes of a chunk, unless a single step has more: 8 KiB each at a width of 128


class GradientPart(NamedTuple):
    """Nodes of a chunk, from `low` to `high` − 1.

    The candidates of the leaves are level 1, those of step t are level t + 2.
    """

    low: int
    high: int
    highest: int
    blocks: list[StepBlock]  # the steps that composed them, the last first

    @property
    def sizes(self) -> list[int]:
        """The number of nodes of each level."""
        return [block.made for block in self.blocks] or [self.high - self.low]


class SoftGradient:
    """Buffers for the gradient of the search that a workspace holds."""

    def __init__(self, memory: SoftWorkspace) -> None:
        self.memory, size = memory, memory.size
        tables = memory.tables
        device: dict[str, Any] = {"device": size.device}
        self.gradient = torch.zeros_like(tables.states)  # of every state; complete once all its users are processed
        self.logit_gradient = torch.zeros_like(tables.logits)
        self.score_gradient = torch.zeros_like(memory.scores)
        # Gradients of the weights in the average of each state, and of v.
        self.parents, self.lefts, self.rights = (torch.zeros(size.B, size.K, size.M, **device) for _ in range(3))
        self.v_gradient = torch.zeros(size.B, size.K, memory.J, **device)
        self.totals = [torch.zeros_like(weight) for weight in memory.cell.weights]
        self.parts = list(_gradient_parts(size))
        self.schedule = torch.tensor([part[:3] for part in self.parts], dtype=torch.int32, **device)
        begin = size.B * size.N
        self.ends = torch.tensor([begin, *(block.composed for block in size.blocks), size.blocks[0].elements], **device)
        rows = 1 << (max(part.high - part.low for part in self.parts) - 1).bit_length()
        self.method = memory.method
        self.matrices = [buffer_for(own, self.method) if self.method == "split" else own for own in memory.matrices]
        self.chunk = shared_chunk(rows, size.cell, size.device, size.stream, size.precision)
        self.captured: Captured[None] = Captured(size.device)

    @property
    def bytes(self) -> int:
        return self.gradient.nbytes + self.logit_gradient.nbytes + self.chunk.bytes

    def pull_back(
        self,
        leaves: Float[Tensor, "B N S"],
        nodes: Int[Tensor, "n"],
        states: Float[Tensor, "n S"],
        scores: Float[Tensor, "B K"],
    ) -> tuple[Tensor, ...]:
        """See `beamtree.nn.engine.gpu.replay.Gradient.pull_back`."""
        size = self.memory.size
        own = self.gradient[: size.B * size.N].view(size.B, size.N, -1)[:, : leaves.shape[1]]
        self.gradient.zero_()
        own.copy_(leaves)
        self.gradient.index_add_(0, nodes, states)
        self.logit_gradient.zero_()
        self.score_gradient[-1].copy_(scores)
        with self.chunk.lock, torch.autocast(size.device.type, enabled=False):
            self.captured.run(self._launch)
        scorer = self.memory.scorer.weight_gradients(self.memory.tables.states, self.logit_gradient)
        return own.clone(), *(total.clone() for total in self.totals), *scorer

    def _launch(self) -> None:
        memory, size, tables = self.memory, self.memory.size, self.memory.tables
        nodes = ReplayedNodes(
            memory.cell, self.matrices, self.method, memory.dropout, memory.seed, tables, self.gradient,
            order=tables.ids, ends=self.ends,
        )  # fmt: skip
        for buffer, matrix in zip(self.matrices, memory.matrices, strict=True):
            lay_out(buffer, matrix)
        torch._foreach_zero_(self.totals)
        for part, now in zip(self.parts, self.schedule, strict=True):
            here = self.chunk.first(part.high - part.low)
            here.now.copy_(now)
            here.compose(nodes)
            last = part.high
            for slot, made in enumerate(part.sizes):
                # From the nodes that one step composed to their children. These nodes were also scored.
                own = slice(last - made, last)
                self.gradient[own, : size.D].addr_(self.logit_gradient[own], memory.scorer.weights[0].squeeze(0))
                here.pull_back(nodes, slot, expected=made)
                last -= made
                if part.blocks:
                    self._through_choice(part.blocks[slot])
            here.add_weight_gradients(self.totals)

    def _through_choice(self, block: StepBlock) -> None:
        """Propagate from the soft beam's states and the scores to the states, logits and scores before a step."""
        memory, size, tables = self.memory, self.memory.size, self.memory.tables
        t, m, beams, W = block.t, block.m, size.B * size.K, size.M + 2
        operator, official = {"K": size.K, "J": memory.J}, size.mix == "official"
        wide = triton.next_power_of_2(size.M)
        warps = min(max(wide // 256, 1), 8)
        soft_kernels.average_gradient[(size.B * m,)](
            memory.rows, tables.states, tables.children, self.gradient, memory.all_columns, memory.weights,
            memory.lengths, self.parents, self.lefts, self.rights,
            t, m, block.elements, size.nodes, size.B, size.M, W, size.S,
            **operator, OFFICIAL=official, BLOCK=triton.next_power_of_2(size.S), num_warps=1,
        )  # fmt: skip
        soft_kernels.mixture_gradient[(beams,)](
            memory.all_columns, memory.weights, self.parents, self.lefts, self.rights, self.v_gradient,
            t, m, size.B, size.M,
            **operator, OFFICIAL=official, BLOCK=wide, num_warps=warps,
        )  # fmt: skip
        soft_kernels.choice_gradient[(beams,)](
            memory.rows, tables.logits, memory.lengths, memory.all_columns, memory.continuations, memory.weights,
            memory.order, self.v_gradient, self.score_gradient, self.logit_gradient,
            t, m, size.B, W,
            **operator, BLOCK=wide, CONTINUATIONS=triton.next_power_of_2(size.K * memory.J), num_warps=warps,
        )  # fmt: skip


def _gradient_parts(size: SoftSize) -> Iterator[GradientPart]:
    """Chunks of as many steps as fit, the last first; then the candidates of the leaves."""
    pending: list[StepBlock] = []
    for block in reversed(size.blocks):
        if pending and sum(other.made for other in pending) + block.made > AT_ONCE:
            yield _gradient_part(pending)
            pending = []
        pending.append(block)
    if pending:
        yield _gradient_part(pending)
    begin, end = size.B * size.N, size.B * (size.N + size.M)
    for low in range(begin, end, AT_ONCE):
        yield GradientPart(low, min(low + AT_ONCE, end), 1, [])


def _gradient_part(blocks: list[StepBlock]) -> GradientPart:
    return GradientPart(blocks[-1].composed, blocks[0].composed + blocks[0].made, blocks[0].t + 2, blocks)
