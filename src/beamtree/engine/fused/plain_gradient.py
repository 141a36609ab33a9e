"""The gradient of a fused search with plain beams: `beamtree.engine.replay` in captured pieces.

The nodes that have a gradient stand in the order that the search has put them in: candidates that were not chosen, then
the chosen ones by height. They are gone through in chunks of one size, first the former, then the latter from the
highest down:

    compose     a chunk's nodes again, many in one batch
    pull back   level by level, as many times as the chunk has levels; their bounds are read from memory
    add up      the gradients of the weights, one product over the whole chunk

so that a few graphs serve all searches of a size. How many chunks and levels there are is all that the host must know.
"""

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.engine.fused.capture import Captured
from beamtree.engine.fused.chunks import Nodes, chunk
from beamtree.engine.fused.products import lay_out, method, room_for
from beamtree.engine.fused.workspaces import Workspace
from beamtree.engine.score_gradient import from_parents, linear

FEWEST, MOST = 1024, 16384  # nodes of a chunk: many fill a device, and few bound the memory of short inputs
LEVELS = 8  # in a graph
EXPECTED = 32  # levels of a chunk: what the tiles of products are made for


class Part(NamedTuple):
    """A chunk of the order: from `low` to `high` − 1, which has so many levels, the highest first."""

    low: int
    high: int
    highest: int
    levels: int


class PlainGradient:
    """Buffers for the gradient of the search that a workspace holds."""

    def __init__(self, memory: Workspace) -> None:
        self.memory, size = memory, memory.size
        self.rows = min(max(size.nodes // 8, FEWEST), MOST)
        self.rows = 1 << (self.rows - 1).bit_length()
        self.chunk = chunk(self.rows, size.cell, size.D, size.device, size.stream, size.precision)
        self.method = method(self.rows // EXPECTED, size.precision)
        self.given = [weight for weight in memory.request.cell.parameters() if weight.dim() == 2]
        self.matrices = [room_for(own, self.method) if self.method == "split" else own for own in self.given]
        self.gradient = torch.zeros_like(memory.tables.states)  # of every state, complete once its parents came by
        self.score_gradient = torch.zeros_like(memory.scores[0])
        self.totals = torch.zeros(sum(weight.numel() for weight in memory.request.weights), device=size.device)
        self.beginning, self.composing, self.adding = (Captured[None](size.device) for _ in range(3))
        self.pulling = {levels: Captured[None](size.device) for levels in (LEVELS, 1)}

    @property
    def bytes(self) -> int:
        return self.gradient.nbytes + self.chunk.bytes

    def pull_back(
        self,
        leaves: Float[Tensor, "B N S"],
        nodes: Int[Tensor, "n"],
        states: Float[Tensor, "n S"],
        scores: Float[Tensor, "B K"],
    ) -> tuple[Tensor, ...]:
        """As `beamtree.engine.fused.leases.Gradient.pull_back`."""
        size, N = self.memory.size, leaves.shape[1]
        own = self.gradient[: size.B * size.N].view(size.B, size.N, -1)[:, :N]
        self.gradient.zero_()
        own.copy_(leaves)
        self.gradient.index_add_(0, nodes, states)
        self.score_gradient.copy_(scores)
        with torch.autocast(size.device.type, enabled=False):
            self.beginning.run(self._through_scores)
            parts = list(chunks(self.memory.levels(), self.rows))
            # Of a tensor on the host without waiting: the device need not have come so far.
            schedule = torch.tensor([part[:3] for part in parts], dtype=torch.int32).to(size.device, non_blocking=True)
            for part, now in zip(parts, schedule, strict=True):
                self.chunk.now.copy_(now)
                self.composing.run(self._compose)
                for levels in runs(part.levels):
                    self.pulling[levels].run(partial(self._pull_back, levels))
                self.adding.run(self._add_weights)
        return own.clone(), *self._weights(self.totals.clone())

    def _weights(self, totals: Tensor) -> tuple[Tensor, ...]:
        """The parts that belong to the cell's parameters and to the scorer's."""
        weights = self.memory.request.weights
        parts = totals.split([weight.numel() for weight in weights])
        return tuple(part.view(weight.shape) for part, weight in zip(parts, weights, strict=True))

    def _through_scores(self) -> None:
        """To the logits of all candidates, to their states, and to the scorer's weights."""
        for room, matrix in zip(self.matrices, self.given, strict=True):
            lay_out(room, matrix)
        memory, (states, logits, *_) = self.memory, self.memory.tables
        found = linear(self.score_gradient, len(logits), memory.survivors.candidates, memory.survivors.coefficients)
        scorer = from_parents(memory.request.scorer, memory.size.D, found, states, self.gradient)
        self.totals.zero_()
        for total, part in zip(self._weights(self.totals)[-2:], scorer, strict=True):
            total.copy_(part)

    @property
    def nodes(self) -> Nodes:
        memory, request, survivors = self.memory, self.memory.request, self.memory.survivors
        return Nodes(
            request.cell, self.matrices, self.method, request.dropout, memory.seed, memory.tables, self.gradient,
            survivors.order, survivors.ends,
        )  # fmt: skip

    def _compose(self) -> None:
        self.chunk.compose(self.nodes)

    def _pull_back(self, levels: int) -> None:
        for slot in range(levels):
            self.chunk.pull_back(self.nodes, slot, expected=self.rows // EXPECTED)
        self.chunk.now[2:] -= levels

    def _add_weights(self) -> None:
        self.chunk.add_weights(self._weights(self.totals)[:-2])


def chunks(ends: list[int], rows: int) -> Iterator[Part]:
    """Of the candidates that were not chosen, which are one level, the first; then of the chosen nodes. `ends` are
    those of the levels, from the one below the first on."""
    for low in range(0, ends[1], rows):
        yield Part(low, min(low + rows, ends[1]), 1, 1)
    for high in range(ends[-1], ends[1], -rows):
        low = max(high - rows, ends[1])
        highest, lowest = bisect_left(ends, high), bisect_right(ends, low)
        yield Part(low, high, highest, highest - lowest + 1)


def runs(levels: int) -> Iterator[int]:
    """As many levels in graphs of LEVELS and of 1. Those too many of the last graph are empty."""
    yield from itertools.repeat(LEVELS, levels // LEVELS)
    rest = levels % LEVELS
    yield from (LEVELS,) if rest > LEVELS // 2 else itertools.repeat(1, rest)
