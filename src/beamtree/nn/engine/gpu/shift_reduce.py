"""Shift-reduce parsing on the GPU: a search in a workspace, with five launches per step, captured in segments.

A workspace fits searches of one size: samples, beams and tokens. As in `beamtree.nn.engine.gpu.workspace`, its buffers
have fixed addresses, and the request, including its weights, is copied in before each search. The backward pass replays
the surviving nodes as a forest, in the same workspace.
"""

from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from beamtree.nn.cells import CellFunction
from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.gpu import workspace
from beamtree.nn.engine.gpu.cache import CACHE, Lease
from beamtree.nn.engine.gpu.capture import Captured, stream_of
from beamtree.nn.engine.gpu.cells import NewNodes
from beamtree.nn.engine.gpu.forest import ForestSource, PaddedForest
from beamtree.nn.engine.gpu.kernels import shift_reduce as kernels
from beamtree.nn.engine.gpu.precision import buffer_for, lay_out, method, precision, tile
from beamtree.nn.engine.gpu.replay import LeasedReplay, SearchWorkspace
from beamtree.nn.engine.gpu.workspace import padded_length, rounded
from beamtree.nn.engine.pool import Pool, new_tables
from beamtree.nn.engine.request import Request
from beamtree.nn.engine.shift_reduce.replay import SurvivingNodes, replay
from beamtree.nn.engine.shift_reduce.request import ParserRequest
from beamtree.nn.engine.shift_reduce.search import ParserStep, ParserTrace, StackEntries, new_entries


def encode(request: ParserRequest) -> Chart:
    """Same as `beamtree.nn.engine.shift_reduce.replay.encode`."""
    size = ParserSize.of(request)

    def make() -> SearchWorkspace[Any]:
        return SearchWorkspace(ParserWorkspace(size, request), parser_gradient)

    lease = CACHE.acquire(("shift-reduce", size), size.device, make)
    with torch.inference_mode():
        trace = lease.workspace.search.search(request)
    chart = replay(request, trace, partial(compose, lease))
    if not chart.store.requires_grad:
        lease.release()
    return chart


def compose(
    lease: Lease[SearchWorkspace[Any]], request: ParserRequest, survivors: SurvivingNodes
) -> Float[Tensor, "rows S"]:
    """Same as `beamtree.nn.engine.shift_reduce.replay.compose_survivors`.

    The pass owns the workspace until its gradient was computed. The scores are computed from the store, under autograd.
    """
    lease.workspace.search.keep(survivors)
    scores = request.start_scores()  # constant, and not read
    store, _ = LeasedReplay.apply(lease, survivors.ids, scores, request.leaves, *request.cell.weights)
    return store


@dataclass(frozen=True)
class ParserSize:
    """What a workspace and its graphs are specialised for: its key."""

    device: torch.device
    stream: int  # searches on two streams may run at the same time
    B: int
    N: int
    K: int
    cell: CellFunction  # unbound
    dropout: tuple[float, bool] | None  # see `NodeDropout.settings`
    precision: str  # of products

    @classmethod
    def of(cls, request: ParserRequest) -> "ParserSize":
        """The size of a request after padding."""
        B, N, _ = request.leaves.shape
        device = request.leaves.device
        assert isinstance(request.cell, CellFunction)
        dropout = None if request.dropout is None else request.dropout.settings
        kind = (request.cell.unbound, dropout, precision(device))
        return cls(device, stream_of(device), B, padded_length(N), request.beam_size, *kind)

    @property
    def beams(self) -> int:
        return self.B * self.K

    @property
    def steps(self) -> int:
        """Rounded up to whole segments; the padding steps change nothing."""
        return rounded(2 * self.N - 3, workspace.SEGMENT)

    @property
    def composed(self) -> int:
        """The id of the first node that a step adds."""
        return self.B * self.N

    @property
    def nodes(self) -> int:
        return self.composed + self.beams * self.steps


class ParserWorkspace:
    """Buffers of one size."""

    def __init__(self, size: ParserSize, request: ParserRequest) -> None:
        self.size = size
        B, K, T, n, D = size.B, size.K, size.steps, size.beams, size.cell.dim
        device: dict[str, Any] = {"device": size.device}
        int32, int64 = {**device, "dtype": torch.int32}, {**device, "dtype": torch.long}
        self.request = self._request_buffers(request)
        self.decision = [torch.empty_like(weight).contiguous() for weight in request.decision.weights]
        self.tables = new_tables(self.request, size.nodes)
        self.pool: Pool
        self.heights = torch.zeros(size.nodes + 1, **int32)
        self.entries = new_entries(B, K, T, size.device)
        self.base = torch.zeros(1, **int32)
        self.seed = self.request.dropout.offsets[:1] if self.request.dropout else torch.zeros(1, **int32)
        # The state of the beams, in two halves.
        self.top, self.words = torch.zeros(2, B, K, **int32), torch.zeros(2, B, K, **int32)
        self.scores = torch.zeros(2, B, K, **device)
        # The nodes that a step composes; −1: none.
        self.ids, self.keys = torch.zeros(n, **int64), torch.zeros(n, **int32)
        self.present = torch.zeros(n, dtype=torch.int8, **device)
        kernels_of_cell = size.cell.kernels()
        assert kernels_of_cell is not None
        self.cell_kernels = kernels_of_cell
        self.inner = torch.zeros(n, self.cell_kernels.inner_width * D, **device)
        self.gates = torch.zeros(n, self.cell_kernels.gates_width * D, **device)
        self.records = ParserStep(
            torch.zeros(T, B, K, **int64),
            torch.zeros(T, B, K, 3, **int64),
            torch.zeros(T, B, K, dtype=torch.int8, **device),
            torch.zeros(T, B, K, **int64),
            torch.zeros(T, B, K, **int64),
            torch.zeros(T, B, K, **int64),
        )
        # In the layout that the kernels read: a row of outputs for each input.
        self.method = method(n, size.precision)
        self.laid_out = [w if w.dim() == 1 else buffer_for(w.mT, self.method) for w in self.request.cell.weights]
        self.features = buffer_for(self.decision[0].mT, self.method)  # (3D, D)
        # A quarter of the columns of the cell's products, so the tiles are those for a quarter of the rows.
        self.tile = tile(n // 4, self.method)
        self.parts = torch.zeros(n, triton.cdiv(D, self.tile["BN"]), **device)
        # The surviving nodes by height, and where each height ends; the first two groups are empty.
        self.order, self.ends = torch.zeros(n * (size.N - 1), **int64), torch.zeros(size.N + 1, **int64)
        self.host_ends: list[int] = []
        self.beginning: Captured[None] = Captured(size.device)
        self.segments = {steps: Captured[None](size.device) for steps in (workspace.SEGMENT, workspace.SHORT)}

    def _request_buffers(self, request: ParserRequest) -> Request:
        """The request with buffers of this workspace in place of its tensors, without the decision."""
        leaves = request.leaves.new_zeros(self.size.B, self.size.N, request.leaves.shape[2])
        lengths = torch.zeros(self.size.B, dtype=torch.int32, device=self.size.device)
        cell = self.size.cell.bind([torch.empty_like(weight).contiguous() for weight in request.cell.weights])
        dropout = request.dropout and request.dropout.duplicate()
        return Request(leaves, lengths, cell, None, self.size.K, dropout=dropout)

    @property
    def bytes(self) -> int:
        large = (*self.tables, *self.records, self.heights, self.entries, self.inner, self.gates, self.order)
        return sum(tensor.nbytes for tensor in large)

    def search(self, request: ParserRequest) -> ParserTrace:
        """Same as `beamtree.nn.engine.shift_reduce.search.search`; the results stay in this workspace."""
        own, N, steps = self.request, request.leaves.shape[1], request.steps
        own.leaves[:, :N].copy_(request.leaves)
        own.lengths.copy_(request.lengths)
        torch._foreach_copy_([*own.weights, *self.decision], [*request.cell.weights, *request.decision.weights])
        if own.dropout and request.dropout:
            own.dropout.copy_(request.dropout)
        self.beginning.run(self._begin)
        done = 0
        while done < steps:
            segment = workspace.SEGMENT if steps - done > workspace.SEGMENT - workspace.SHORT else workspace.SHORT
            self.segments[segment].run(partial(self.launch, segment))
            done += segment
        records = ParserStep(*(field[:steps] for field in self.records))
        return ParserTrace(self.pool, records._replace(free=records.free.bool()), self.scores[0])

    def _begin(self) -> None:
        """Write the leaves, and push the first two words on the stacks."""
        for buffer, weight in zip(self.laid_out, self.request.cell.weights, strict=True):
            if buffer is not weight:
                lay_out(buffer, weight.mT)
        lay_out(self.features, self.decision[0].mT)
        self.pool = Pool(self.request, self.size.nodes, self.tables)
        self.pool.heights = self.heights
        self.base.zero_()
        self.top[0].copy_(StackEntries(self.request, self.size.steps, self.entries).top.expand(-1, self.size.K))
        self.words[0].fill_(2)
        self.scores[0].copy_(self.request.start_scores())

    @property
    def new_nodes(self) -> NewNodes:
        """The nodes that each step composes."""
        cell, dropout = self.request.cell, self.request.dropout
        assert isinstance(cell, CellFunction)
        buffers = (self.tables, self.ids, self.keys, self.present, self.inner, self.gates)
        return NewNodes(cell, self.laid_out, self.method, (), dropout, self.seed, *buffers)

    def launch(self, steps: int) -> None:
        """Launch every kernel of the given number of steps: even, so that each segment begins with the same half."""
        size, tables = self.size, self.tables
        n, D = size.beams, size.cell.dim
        _, bias, score_weight, score_bias = self.decision
        nodes, grid = self.new_nodes, (triton.cdiv(n, self.tile["BM"]), self.parts.shape[1])
        for slot in range(steps):
            half = slot % 2
            kernels.decide[grid](
                tables.states, self.entries, self.top, self.words, self.scores, self.request.lengths, self.features,
                bias, score_weight, self.parts, self.base,
                slot, half, n, size.N, D, tables.states.shape[1],
                K=size.K, **self.tile,
            )  # fmt: skip
            kernels.advance_stack[(n,)](
                self.entries, self.top, self.words, self.scores, self.request.lengths, self.parts, score_bias,
                tables.children, tables.spans, self.heights, self.base, *self.records, self.ids, self.keys,
                slot, half, size.composed, 2 * size.B, size.nodes, n, size.N,
                K=size.K, PARTS=grid[1], CONTINUATIONS=triton.next_power_of_2(2 * size.K), num_warps=1,
            )  # fmt: skip
            self.cell_kernels.compose(nodes)
        self.base += steps

    def keep(self, survivors: SurvivingNodes) -> None:
        """Store the nodes that have a gradient."""
        ids = survivors.ids
        self.order[: len(ids)].copy_(ids)
        self.host_ends = list(accumulate((0, 0, *survivors.sizes)))
        filled = self.host_ends + [len(ids)] * (len(self.ends) - len(self.host_ends))
        self.ends.copy_(torch.tensor(filled).to(self.size.device, non_blocking=True))

    def levels(self) -> list[int]:
        """Where each group of these nodes ends."""
        return self.host_ends


def parser_gradient(memory: ParserWorkspace) -> PaddedForest:
    """Buffers for the gradient of the nodes that a workspace holds."""
    request, size = memory.request, memory.size
    assert isinstance(request.cell, CellFunction)
    source = ForestSource(request.cell, request.dropout, memory.seed, memory.tables, memory.order, memory.ends)
    return PaddedForest(source, size.stream, size.precision, memory.levels, size.B, size.N)
