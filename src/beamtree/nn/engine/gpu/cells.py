"""The GPU interface of a cell: kernels that compose nodes by their ids, and the gradient of a chunk of nodes.

A cell defines both in a module `gpu` of its own folder; see `beamtree.nn.cells.grc.gpu`.
"""

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.nn.cells import CellFunction
from beamtree.nn.engine.dropout import NodeDropout
from beamtree.nn.engine.gpu.capture import multiprocessors
from beamtree.nn.engine.gpu.kernels import cells as kernels
from beamtree.nn.engine.gpu.precision import tile, weight_gradient
from beamtree.nn.engine.pool import Tables


class NewNodes(NamedTuple):
    """Nodes to compose, with the buffers needed for it."""

    cell: CellFunction  # whose weights are the buffers of the workspace
    laid_out: Sequence[Tensor]  # its weights in the layout of the kernels; see `precision.lay_out`
    method: str  # of products
    scorer: Sequence[Tensor]  # the weight and bias of a scorer of parents; none if nodes are not scored
    dropout: NodeDropout | None
    seed: Int[Tensor, "1"]
    tables: Tables
    ids: Int[Tensor, "n"]
    keys: Int[Tensor, "n"]  # of their dropout masks
    present: Int[Tensor, "n"]  # 0: its logit is −inf
    inner: Float[Tensor, "n E"]
    gates: Float[Tensor, "n G"]


class Levels(NamedTuple):
    """The levels of a forest, in device memory, so that one graph serves forests of any shape."""

    level: Int[Tensor, "1"]  # the one to compose next
    ends: Int[Tensor, "G"]  # where each level ends in the order of the nodes
    programs: int  # number of programs that share its nodes
    expected: int  # number of nodes of a level for which the tiles of products are chosen


class ReplayedNodes(NamedTuple):
    """All nodes of a search, and how they were composed."""

    cell: CellFunction
    matrices: Sequence[Tensor]  # of the cell, in the layout of the kernels for this method
    method: str
    dropout: NodeDropout | None
    seed: Int[Tensor, "1"]
    tables: Tables
    gradient: Float[Tensor, "P S"]  # of every state; complete once all nodes made from it were pulled back
    order: Int[Tensor, "R"]  # ids of those to replay
    ends: Int[Tensor, "G"]  # where each level ends in `order`


class CellKernels(ABC):
    """The Triton kernels of a cell."""

    inner_width: int  # of the buffers `inner` and `gates`, in units of D
    gates_width: int

    @abstractmethod
    def compose(self, nodes: NewNodes) -> None:
        """Write the states of new nodes, and their logits if they are scored."""

    @abstractmethod
    def compose_level(self, nodes: NewNodes, levels: "Levels", slot: int) -> None:
        """The same for the nodes of one level, which are not scored; `nodes.ids` are those of all levels."""

    @abstractmethod
    def chunk(self, rows: int, dim: int, device: torch.device, precision: str) -> "Chunk": ...

    def dense(self, cell: CellFunction, rows: int) -> CellFunction:
        """The same function with fewer launches, for about `rows` pairs per call. By default the cell itself."""
        return cell


def dense(cell: CellFunction, rows: int) -> CellFunction:
    """The cell for loops that compose about `rows` pairs per step. Kernels compute in float32."""
    kernels = cell.kernels() if cell.weights[0].dtype == torch.float32 else None
    return cell if kernels is None else kernels.dense(cell, rows)


def dropout_arguments(dropout: NodeDropout | None) -> tuple[int, float]:
    """The threshold and scale of the masks, as arguments of kernels."""
    return (dropout.threshold, dropout.scale) if dropout else (0, 1.0)


def row_blocks(columns: int) -> dict[str, int]:
    """Options of a kernel with one program per row: the power of two that holds a row, and the number of warps."""
    block = triton.next_power_of_2(columns)
    return {"BLOCK": block, "num_warps": min(max(block // 128, 1), 8)}


class Chunk(ABC):
    """Buffers for nodes of a cell that are recomposed and pulled back. All launches can be captured.

    Inner activations are not kept; they are recomputed chunk by chunk, from the states of the children. Gates and
    activations are overwritten by their gradients, in-place.
    """

    def __init__(self, rows: int, dim: int, gates: int, device: torch.device, precision: str) -> None:
        self.rows, self.D, self.precision = rows, dim, precision
        self.lock = threading.Lock()  # held while launching: the launches of one stream then run in order
        self.programs = 2 * multiprocessors(device)  # that share the rows of a level
        on: dict[str, Any] = {"device": device}
        self.now = torch.zeros(3, dtype=torch.int32, **on)  # begin and end in the order of all nodes; highest level
        self.ids = torch.zeros(rows, dtype=torch.long, **on)
        self.pairs = torch.zeros(rows, 2, dtype=torch.long, **on)
        self.keys = torch.zeros(rows, dtype=torch.int32, **on)
        self.inside = torch.zeros(rows, **on)  # 1, or 0 where there is no node
        self.children = torch.zeros(rows, 2 * dim, **on)
        self.gates = torch.zeros(rows, gates * dim, **on)

    @property
    def bytes(self) -> int:
        return sum(buffer.nbytes for buffer in vars(self).values() if isinstance(buffer, Tensor))

    def first(self, rows: int) -> "Chunk":
        """The same buffers, limited to their first rows."""
        part = copy.copy(self)
        for name, buffer in vars(self).items():
            if isinstance(buffer, Tensor) and buffer is not self.now:
                setattr(part, name, buffer[:rows])
        part.rows = rows
        return part

    def compose(self, nodes: ReplayedNodes) -> None:
        """Recompose the nodes from `now[0]` to `now[1]` − 1 of the order."""
        states, _, children, spans, _ = nodes.tables
        kernels.gather[(self.rows,)](
            nodes.order, states, children, spans, self.now, self.ids, self.pairs, self.children, self.keys,
            self.inside, self.D, states.shape[1],
            **row_blocks(self.D),
        )  # fmt: skip
        self.compose_gathered(nodes)

    @abstractmethod
    def compose_gathered(self, nodes: ReplayedNodes) -> None:
        """Compute the gates from the gathered children."""

    @abstractmethod
    def pull_back(self, nodes: ReplayedNodes, slot: int, expected: int) -> None:
        """Propagate the gradient of one level to the children of its nodes.

        `slot` counts levels from the highest down; `expected` is an estimate of the number of nodes.
        """

    @abstractmethod
    def add_weight_gradients(self, totals: Sequence[Tensor]) -> None:
        """Add to the gradients of the cell's weights. Call after all levels were pulled back."""

    def tiles(self, columns: int, expected: int, method: str) -> tuple[tuple[int], dict[str, Any]]:
        """Grid and tiles for a product of about `expected` rows."""
        sizes = tile(expected, method)
        return (min(self.programs, triton.cdiv(self.rows, sizes["BM"]) * triton.cdiv(columns, sizes["BN"])),), sizes

    def product(self, out: Tensor, bias: Tensor, x: Tensor, weight: Tensor) -> None:
        if self.precision == "bf16":
            out.copy_(torch.addmm(bias.bfloat16(), x.bfloat16(), weight.mT.bfloat16()))
        else:
            torch.addmm(bias, x, weight.mT, out=out)

    def add_product(self, total: Tensor, gradient: Tensor, x: Tensor) -> None:
        if self.precision == "bf16":
            total += weight_gradient(gradient, x, self.precision)
        else:
            total.addmm_(gradient.mT, x)


_shared: WeakValueDictionary[Any, Chunk] = WeakValueDictionary()
_lock = threading.Lock()


def shared_chunk(rows: int, cell: CellFunction, device: torch.device, stream: int, precision: str) -> Chunk:
    """One chunk for all workspaces of a stream. Hold its lock while launching work on it."""
    key = (rows, cell.unbound, device, stream, precision)
    kernels = cell.kernels()
    assert kernels is not None
    with _lock:
        found = _shared.get(key)
        if found is None:
            found = _shared[key] = kernels.chunk(rows, cell.dim, device, precision)
        return found
