"""The gradient of a forest on the GPU: `beamtree.nn.engine.forest.pull_back` in captured graphs.

Nodes that have a gradient are ordered by groups, so that the parents of a node are in later groups: first nodes without
parents, then the others by height. They are replayed in chunks of one size: first the nodes without parents, then the
others from the greatest height down. For each chunk,

    compose     recompose the nodes, in one batch
    pull back   propagate the gradient level by level; the bounds of a level are read from device memory
    add up      add the gradients of the weights, one product over the chunk

so that a few graphs serve all forests of a size. The host only needs to know the number of chunks and of levels.
"""

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.nn.cells import CellFunction
from beamtree.nn.engine.dropout import NodeDropout
from beamtree.nn.engine.gpu.capture import Captured
from beamtree.nn.engine.gpu.cells import ReplayedNodes, shared_chunk
from beamtree.nn.engine.gpu.precision import buffer_for, lay_out, method
from beamtree.nn.engine.pool import Tables

FEWEST, MOST = 1024, 16384  # nodes of a chunk: enough to fill a device, and few enough to save memory on short inputs
LEVELS = 8  # per graph
EXPECTED = 32  # levels of a chunk, for which the tiles of products are chosen


class ChunkPlan(NamedTuple):
    """A chunk of the order: the nodes from `low` to `high` − 1, with the given number of levels from `highest` down."""

    low: int
    high: int
    highest: int
    levels: int


class ForestSource(NamedTuple):
    """The nodes of a workspace, in buffers with fixed addresses."""

    cell: CellFunction  # whose weights are the buffers of the workspace
    dropout: NodeDropout | None
    seed: Int[Tensor, "1"]
    tables: Tables
    order: Int[Tensor, "P"]
    ends: Int[Tensor, "G"]  # where each group ends in `order`


class ForestGradient:
    """Buffers and graphs for the gradient of the forest that a workspace holds."""

    def __init__(self, source: ForestSource, stream: int, precision: str) -> None:
        states = source.tables.states
        self.source, self.device = source, states.device
        rows = min(max(len(states) // 8, FEWEST), MOST)
        self.rows = 1 << (rows - 1).bit_length()
        self.chunk = shared_chunk(self.rows, source.cell, self.device, stream, precision)
        self.method = method(self.rows // EXPECTED, precision)
        self.given = [weight for weight in source.cell.weights if weight.dim() == 2]
        self.matrices = [buffer_for(own, self.method) if self.method == "split" else own for own in self.given]
        self.gradient = torch.zeros_like(states)  # of every state; complete once all its parents were pulled back
        self.totals = [torch.zeros_like(weight) for weight in source.cell.weights]
        self.composing, self.adding = (Captured[None](self.device) for _ in range(2))
        self.pulling = {levels: Captured[None](self.device) for levels in (LEVELS, 1)}

    @property
    def bytes(self) -> int:
        return self.gradient.nbytes + self.chunk.bytes

    def prepare(self) -> None:
        """Lay out the weights, and zero the sums of their gradients. Can be captured."""
        for buffer, matrix in zip(self.matrices, self.given, strict=True):
            lay_out(buffer, matrix)
        torch._foreach_zero_(self.totals)

    def pull_back(self, ends: list[int]) -> None:
        """Propagate the gradient of all states to the leaves and the weights, in these buffers.

        `ends` are the first entries of `source.ends`: the groups that have a gradient. The caller must hold the chunk's
        lock.
        """
        plans = list(chunks(ends, self.rows))
        # Copied without synchronising with the device.
        schedule = torch.tensor([plan[:3] for plan in plans], dtype=torch.int32).to(self.device, non_blocking=True)
        for plan, now in zip(plans, schedule, strict=True):
            self.chunk.now.copy_(now)
            self.composing.run(lambda: self.chunk.compose(self.nodes))
            for levels in graph_sizes(plan.levels):
                self.pulling[levels].run(partial(self._pull_back, levels))
            self.adding.run(lambda: self.chunk.add_weight_gradients(self.totals))

    @property
    def nodes(self) -> ReplayedNodes:
        cell, dropout, seed, tables, order, ends = self.source
        return ReplayedNodes(cell, self.matrices, self.method, dropout, seed, tables, self.gradient, order, ends)

    def _pull_back(self, levels: int) -> None:
        for slot in range(levels):
            self.chunk.pull_back(self.nodes, slot, expected=self.rows // EXPECTED)
        self.chunk.now[2:] -= levels


class ReplayedForest:
    """The gradient of a search whose scores are constant: that of the forest in its workspace.

    See `beamtree.nn.engine.gpu.replay.Gradient`.
    """

    def __init__(self, source: ForestSource, stream: int, precision: str, levels: Callable[[], list[int]]) -> None:
        """levels: returns where each group that has a gradient ends, for the current search of the workspace."""
        self.forest, self.levels = ForestGradient(source, stream, precision), levels

    @property
    def bytes(self) -> int:
        return self.forest.bytes

    def pull_back(
        self,
        leaves: Float[Tensor, "B N S"],
        nodes: Int[Tensor, "n"],
        states: Float[Tensor, "n S"],
        scores: Float[Tensor, "B K"],
    ) -> tuple[Tensor, ...]:
        gradient, own = self.forest.gradient, self.leaf_gradient(leaves.shape)
        gradient.zero_()
        own.copy_(leaves)
        gradient.index_add_(0, nodes, states)
        with self.forest.chunk.lock, torch.autocast(leaves.device.type, enabled=False):
            self.begin(scores)
            self.forest.pull_back(self.levels())
            return own.clone(), *(total.clone() for total in self.totals)

    def leaf_gradient(self, shape: torch.Size) -> Float[Tensor, "B N S"]:
        """The rows of the gradient that belong to the leaves."""
        return self.forest.gradient[: shape[0] * shape[1]].view(shape)

    def begin(self, scores: Float[Tensor, "B K"]) -> None:
        """Prepare for the forest, given the gradient of the scores."""
        self.forest.prepare()

    @property
    def totals(self) -> list[Tensor]:
        """The gradients of all weights."""
        return self.forest.totals


class PaddedForest(ReplayedForest):
    """The same in a workspace whose inputs are padded to B·N leaves."""

    def __init__(
        self, source: ForestSource, stream: int, precision: str, levels: Callable[[], list[int]], B: int, N: int
    ) -> None:
        super().__init__(source, stream, precision, levels)
        self.B, self.N = B, N

    def leaf_gradient(self, shape: torch.Size) -> Float[Tensor, "B N S"]:
        return self.forest.gradient[: self.B * self.N].view(self.B, self.N, -1)[:, : shape[1]]


def chunks(ends: Sequence[int], rows: int) -> Iterator[ChunkPlan]:
    """Chunks of the first group, the nodes without parents; then of the others.

    `ends` are where each group ends, preceded by where the first one begins.
    """
    for low in range(0, ends[1], rows):
        yield ChunkPlan(low, min(low + rows, ends[1]), 1, 1)
    for high in range(ends[-1], ends[1], -rows):
        low = max(high - rows, ends[1])
        highest, lowest = bisect_left(ends, high), bisect_right(ends, low)
        yield ChunkPlan(low, high, highest, highest - lowest + 1)


def graph_sizes(levels: int) -> Iterator[int]:
    """Split a number of levels into graphs of LEVELS and of 1. Extra levels of the last graph are empty."""
    yield from itertools.repeat(LEVELS, levels // LEVELS)
    rest = levels % LEVELS
    yield from (LEVELS,) if rest > LEVELS // 2 else itertools.repeat(1, rest)
