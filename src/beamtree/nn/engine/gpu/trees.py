"""Given trees on the GPU: composed level by level in captured graphs, and replayed as a forest.

A workspace fits all trees up to a number of nodes: which nodes a level has is read from device memory. The trees are
known on the host, so nothing synchronises with the device.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from beamtree.nn.cells import CellFunction
from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.dispatch import why_not_triton
from beamtree.nn.engine.forest import Forest, TreeRequest, chart_of_trees, of_merges
from beamtree.nn.engine.gpu.cache import CACHE
from beamtree.nn.engine.gpu.capture import Captured, multiprocessors, stream_of
from beamtree.nn.engine.gpu.cells import Levels, NewNodes
from beamtree.nn.engine.gpu.forest import LEVELS, ForestSource, ReplayedForest, graph_sizes
from beamtree.nn.engine.gpu.kernels import cells as kernels
from beamtree.nn.engine.gpu.precision import buffer_for, lay_out, method, precision
from beamtree.nn.engine.gpu.replay import LeasedReplay, SearchWorkspace
from beamtree.nn.engine.pool import Tables

MAX_NODES = 2**18  # whose inner activations the forward pass holds
EXPECTED = 16  # number of levels for which the tiles of products are chosen


@dataclass(frozen=True)
class TreeSize:
    """What a workspace is specialised for: its key."""

    device: torch.device
    stream: int
    leaves: int  # maximum number of leaves, …
    nodes: int  # … of nodes, …
    levels: int  # … and of levels
    cell: CellFunction  # unbound
    dropout: tuple[float, bool] | None  # see `NodeDropout.settings`
    precision: str


class TreeWorkspace:
    """Buffers of one size."""

    def __init__(self, size: TreeSize, request: TreeRequest) -> None:
        self.size = size
        device: dict[str, Any] = {"device": size.device}
        rows, S = size.leaves + size.nodes, size.cell.state_dim
        int64 = {**device, "dtype": torch.long}
        self.cell = size.cell.bind([torch.empty_like(weight).contiguous() for weight in request.cell.weights])
        self.dropout = request.dropout and request.dropout.duplicate()
        self.seed = self.dropout.offsets[:1] if self.dropout else torch.zeros(1, dtype=torch.int32, **device)
        self.tables = Tables(
            torch.zeros(rows, S, **device),
            torch.zeros(1, **device),  # nothing is scored
            torch.zeros(rows, 2, **int64),
            torch.zeros(rows, 3, **int64),
            torch.arange(rows, **int64),
        )
        self.order = torch.zeros(size.nodes, **int64)
        self.ends = torch.zeros(size.levels, **int64)
        self.level = torch.zeros(1, dtype=torch.int32, **device)
        self.keys = torch.zeros(size.nodes, dtype=torch.int32, **device)
        found = size.cell.kernels()
        assert found is not None
        self.kernels = found
        self.inner = torch.zeros(size.nodes, found.inner_width * size.cell.dim, **device)
        self.gates = torch.zeros(size.nodes, found.gates_width * size.cell.dim, **device)
        self.expected = max(size.nodes // EXPECTED, 1)
        self.method = method(self.expected, size.precision)
        self.laid_out = [w if w.dim() == 1 else buffer_for(w.mT, self.method) for w in self.cell.weights]
        self.host_ends: list[int] = []
        self.rising = {levels: Captured[None](size.device) for levels in (LEVELS, 1)}

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.tables, self.inner, self.gates))

    def compose(self, request: TreeRequest, forest: Forest) -> None:
        """Compose all nodes; their states stay in this workspace."""
        leaves, nodes = forest.levels[0], len(forest.children)
        torch._foreach_copy_(list(self.cell.weights), list(request.cell.weights))
        for buffer, weight in zip(self.laid_out, self.cell.weights, strict=True):
            if buffer is not weight:
                lay_out(buffer, weight.mT)
        states, _, children, spans, _ = self.tables
        states[:leaves].copy_(request.leaves.flatten(0, 1))
        rows = slice(leaves, leaves + nodes)
        children[rows].copy_(forest.children)
        self.order[:nodes].copy_(self.tables.ids[rows])
        if self.dropout and request.dropout and forest.spans is not None:
            self.dropout.copy_(request.dropout)
            N = request.leaves.shape[1]
            leaf = self.tables.ids[:leaves]
            spans[:leaves].copy_(torch.stack((leaf // N, leaf % N, leaf % N + 1), dim=1))
            spans[rows].copy_(torch.cat((forest.spans[:, 0, :2], forest.spans[:, 1, 2:]), dim=1))
            if nodes:
                kernels.make_keys[(nodes,)](self.order, children, spans, self.keys)
        self.host_ends = [end - leaves for end in forest.levels]
        filled = self.host_ends + [nodes] * (self.size.levels - len(self.host_ends))
        self.ends.copy_(torch.tensor(filled).to(self.size.device, non_blocking=True))
        self.level.fill_(2)  # group 0 is the leaves, and group 1 is empty
        for levels in graph_sizes(len(self.host_ends) - 2):
            self.rising[levels].run(partial(self._launch, levels))

    def levels(self) -> list[int]:
        """Where each group of nodes ends."""
        return self.host_ends

    def _launch(self, levels: int) -> None:
        """Launch every kernel of the given number of levels."""
        buffers = (self.tables, self.order, self.keys, self.keys, self.inner, self.gates)
        nodes = NewNodes(self.cell, self.laid_out, self.method, (), self.dropout, self.seed, *buffers)
        programs = 2 * multiprocessors(self.size.device)
        for slot in range(levels):
            self.kernels.compose_level(nodes, Levels(self.level, self.ends, programs, self.expected), slot)
        self.level += levels


def tree_gradient(memory: TreeWorkspace) -> ReplayedForest:
    """Buffers for the gradient of the trees that a workspace holds."""
    source = ForestSource(memory.cell, memory.dropout, memory.seed, memory.tables, memory.order, memory.ends)
    return ReplayedForest(source, memory.size.stream, memory.size.precision, memory.levels)


def why_not(request: TreeRequest) -> str | None:
    """Why given trees cannot be composed here; None if they can."""
    if reason := why_not_triton(request.leaves):
        return reason
    if not isinstance(request.cell, CellFunction):
        return "the cell has layers that are not plain: hooks, a subclass or a wrapper"
    if request.cell.kernels() is None:
        return "the cell has no kernels"
    nodes = request.leaves.shape[0] * request.leaves.shape[1]
    return f"it takes up to {MAX_NODES} nodes, not {nodes}" if nodes > MAX_NODES else None


def rounded_up(count: int, at_least: int) -> int:
    """Round up to a power of two, so that forests of similar sizes share a workspace."""
    return 1 << (max(count, at_least) - 1).bit_length()


def encode(request: TreeRequest) -> Chart:
    """Same as `beamtree.nn.engine.forest.encode`."""
    leaves, cell = request.leaves, request.cell
    assert isinstance(cell, CellFunction)
    device = leaves.device
    forest, nodes = of_merges(request.merges, request.lengths, device, spans=request.dropout is not None)
    dropout = None if request.dropout is None else request.dropout.settings
    size = TreeSize(
        device,
        stream_of(device),
        leaves=rounded_up(forest.levels[0], at_least=32),
        nodes=rounded_up(len(forest.children), at_least=32),
        levels=rounded_up(len(forest.levels) + LEVELS, at_least=64),
        cell=cell.unbound,
        dropout=dropout,
        precision=precision(device),
    )

    def make() -> SearchWorkspace[Any]:
        return SearchWorkspace(TreeWorkspace(size, request), tree_gradient)

    lease = CACHE.acquire(("trees", size), device, make)
    with torch.no_grad():
        lease.workspace.search.compose(request, forest)
    ids = lease.workspace.search.tables.ids[forest.levels[0] : forest.levels[-1]]
    scores = torch.zeros(len(leaves), 1, device=device)
    store, scores = LeasedReplay.apply(lease, ids.clone(), scores, leaves, *cell.weights)
    if not store.requires_grad:
        lease.release()
    return chart_of_trees(request, nodes, store, scores)
