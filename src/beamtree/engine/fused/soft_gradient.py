"""The gradient of a fused search with OneSoft, captured: `beamtree.engine.soft_replay` in eight kernels a step.

The candidates of many steps are composed again in one batch. Then each step, the last first, brings the gradient of its
candidates to their children, that of the soft beam's states to the states they average and to the weights of the
average, and that of weights and scores to the logits and to the scores before the step.
"""

from collections.abc import Iterator
from typing import Any

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.engine.fused import soft_kernels
from beamtree.engine.fused.capture import Captured
from beamtree.engine.fused.gradient import FusedGRCAdjoint
from beamtree.engine.fused.soft_workspaces import Block, SoftWorkspace
from beamtree.engine.pool import take

AT_ONCE = 8192  # nodes that are composed again in one batch: 16 KiB each at a width of 128


class SoftGradient:
    """Buffers for the gradient of the search that a workspace holds."""

    def __init__(self, memory: SoftWorkspace) -> None:
        self.memory, size = memory, memory.size
        tables = memory.tables
        device: dict[str, Any] = {"device": size.device}
        self.gradient = torch.zeros_like(tables.states)  # of every state, complete once its users have come by
        self.logit_gradient = torch.zeros_like(tables.logits)
        self.score_gradient = torch.zeros_like(memory.scores)
        # Of the weights in the average of each state, and of v.
        self.parents, self.lefts, self.rights = (torch.zeros(size.B, size.K, size.M, **device) for _ in range(3))
        self.v_gradient = torch.zeros(size.B, size.K, memory.J, **device)
        self.totals = [torch.zeros_like(weight) for weight in memory.cell.parameters()]
        self.captured: Captured[None] = Captured(size.device)

    @property
    def bytes(self) -> int:
        return self.gradient.nbytes + self.logit_gradient.nbytes

    def pull_back(
        self,
        leaves: Float[Tensor, "B N S"],
        nodes: Int[Tensor, "n"],
        states: Float[Tensor, "n S"],
        scores: Float[Tensor, "B K"],
    ) -> tuple[Tensor, ...]:
        """As `beamtree.engine.fused.leases.Room.pull_back`."""
        size = self.memory.size
        own = self.gradient[: size.B * size.N].view(size.B, size.N, -1)[:, : leaves.shape[1]]
        self.gradient.zero_()
        own.copy_(leaves)
        self.gradient.index_add_(0, nodes, states)
        self.logit_gradient.zero_()
        self.score_gradient[-1].copy_(scores)
        self.captured.run(self._launch)
        scorer = self.memory.scorer
        return (
            own.clone(),
            *(total.clone() for total in self.totals),
            (self.logit_gradient @ self.memory.tables.states).view_as(scorer.weight),
            self.logit_gradient.sum(0).view_as(scorer.bias),
        )

    def _launch(self) -> None:
        for total in self.totals:
            total.zero_()
        for blocks in _groups(self.memory.size.blocks, AT_ONCE):
            first = blocks[-1].composed
            nodes = self._compose_again(first, blocks[0].composed + blocks[0].made)
            for block in blocks:
                self._through_cells(nodes, first, block.composed, block.composed + block.made)
                self._through_choice(block)
            self._add_weights(nodes)
            del nodes  # before the next ones are made
        begin, end = (self.memory.size.B * count for count in (self.memory.size.N, 2 * self.memory.size.N - 1))
        for first in range(begin, end, AT_ONCE):
            last = min(first + AT_ONCE, end)
            nodes = self._compose_again(first, last)
            self._through_cells(nodes, first, first, last)
            self._add_weights(nodes)
            del nodes

    def _compose_again(self, first: int, last: int) -> FusedGRCAdjoint:
        tables, dropout = self.memory.tables, self.memory.dropout
        pairs = tables.children[first:last]  # (n, 2)
        mask = dropout.mask(*take(tables.spans, pairs).unbind(1)) if dropout else None
        return FusedGRCAdjoint(self.memory.cell, take(tables.states, pairs), mask)

    def _through_cells(self, nodes: FusedGRCAdjoint, offset: int, first: int, last: int) -> None:
        """From nodes that one step has composed to their children."""
        own = self.gradient[first:last]
        own.addr_(self.logit_gradient[first:last], self.memory.scorer.weight.squeeze(0))
        down = nodes.pull_back(slice(first - offset, last - offset), own)  # (n, 2, S)
        self.gradient.index_add_(0, self.memory.tables.children[first:last].flatten(), down.flatten(0, 1))

    def _add_weights(self, nodes: FusedGRCAdjoint) -> None:
        for total, part in zip(self.totals, nodes.weight_gradients(), strict=True):
            total += part

    def _through_choice(self, block: Block) -> None:
        """From the soft beam's states and the scores after a step to the states, logits and scores before it."""
        memory, size, tables = self.memory, self.memory.size, self.memory.tables
        t, m, beams, W = block.t, block.m, size.B * size.K, size.M + 2
        operator, official = {"K": size.K, "J": memory.J}, size.mix == "official"
        wide = triton.next_power_of_2(size.M)
        warps = min(max(wide // 256, 1), 8)
        soft_kernels.average_gradient[(size.B * m,)](
            memory.rows, tables.states, tables.children, self.gradient, memory.all_columns, memory.weights,
            memory.lengths, self.parents, self.lefts, self.rights,
            t, m, block.elements, size.nodes, size.B, size.M, W, size.D,
            **operator, OFFICIAL=official, BLOCK=triton.next_power_of_2(size.D), num_warps=1,
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


def _groups(blocks: list[Block], size: int) -> Iterator[list[Block]]:
    """Steps, the last first, whose candidates are composed again in one batch."""
    pending: list[Block] = []
    for block in reversed(blocks):
        if pending and sum(other.made for other in pending) + block.made > size:
            yield pending
            pending = []
        pending.append(block)
    if pending:
        yield pending
