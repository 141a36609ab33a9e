"""Chunks: so many nodes of a search, composed again, and their gradient.

What is inside the cells is nowhere kept; it is computed again for one chunk after the other, from the states of the
children. Buffers are overwritten by what is no longer needed: the gates by their gradient, and the activation too.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.cells import GRC, Cell, TreeLSTM
from beamtree.dropout import NodeDropout
from beamtree.engine.fused import replay_kernels as kernels
from beamtree.engine.fused.compose import masks
from beamtree.engine.fused.products import tile
from beamtree.engine.pool import Tables

PROGRAMS = 264  # that share the rows of a level: two for each processor of an H200


class Nodes(NamedTuple):
    """All nodes of a search, and how they were composed."""

    cell: Any  # of the kind that the chunk is for
    matrices: Sequence[Tensor]  # of the cell, as the kernels read them for products of this method
    method: str
    dropout: NodeDropout | None
    seed: Tensor
    tables: Tables
    gradient: Float[Tensor, "P S"]  # of every state, complete once all that was made from it has come by
    order: Int[Tensor, "R"]  # numbers of those to go through
    ends: Int[Tensor, "G"]  # where each level ends there


def _wide(columns: int) -> dict[str, int]:
    """A program for each row: the power of two that holds it, and its warps."""
    block = triton.next_power_of_2(columns)
    return {"BLOCK": block, "num_warps": min(max(block // 128, 1), 8)}


class Chunk(ABC):
    """Buffers for some nodes of a cell. All launches can be captured."""

    def __init__(self, rows: int, dim: int, gates: int, device: torch.device, precision: str) -> None:
        self.rows, self.D, self.precision = rows, dim, precision
        on: dict[str, Any] = {"device": device}
        self.now = torch.zeros(3, dtype=torch.int32, **on)  # begin and end in the order of all nodes; the highest level
        self.numbers = torch.zeros(rows, dtype=torch.long, **on)
        self.pairs = torch.zeros(rows, 2, dtype=torch.long, **on)
        self.keys = torch.zeros(rows, dtype=torch.int32, **on)
        self.inside = torch.zeros(rows, **on)  # 1, or 0 where there is no node
        self.children = torch.zeros(rows, 2 * dim, **on)
        self.gates = torch.zeros(rows, gates * dim, **on)

    @property
    def bytes(self) -> int:
        return sum(buffer.nbytes for buffer in vars(self).values() if isinstance(buffer, Tensor))

    def first(self, rows: int) -> "Chunk":
        """The same buffers, of which only so many rows are used."""
        part = copy.copy(self)
        for name, buffer in vars(self).items():
            if isinstance(buffer, Tensor) and buffer is not self.now:
                setattr(part, name, buffer[:rows])
        part.rows = rows
        return part

    def compose(self, nodes: Nodes) -> None:
        """The nodes that stand there in the order, again."""
        states, _, children, spans, _ = nodes.tables
        kernels.gather[(self.rows,)](
            nodes.order, states, children, spans, self.now, self.numbers, self.pairs, self.children, self.keys,
            self.inside, self.D, states.shape[1],
            **_wide(self.D),
        )  # fmt: skip
        self._compose(nodes)

    @abstractmethod
    def _compose(self, nodes: Nodes) -> None:
        """From the children to the gates."""

    @abstractmethod
    def pull_back(self, nodes: Nodes, slot: int, expected: int) -> None:
        """From the nodes of one level, of which we expect so many, to their children, in the gradient of all states.
        The levels are counted from the highest down."""

    @abstractmethod
    def add_weights(self, totals: Sequence[Tensor]) -> None:
        """To the gradients of the cell's parameters, once all levels have come by."""

    def _tiles(self, columns: int, expected: int, method: str) -> tuple[tuple[int], dict[str, Any]]:
        """Grid and tiles for a product of about so many rows."""
        sizes = tile(expected, method)
        return (min(PROGRAMS, triton.cdiv(self.rows, sizes["BM"]) * triton.cdiv(columns, sizes["BN"])),), sizes

    def _product(self, out: Tensor, bias: Tensor, x: Tensor, weight: Tensor) -> None:
        if self.precision == "bf16":
            out.copy_(torch.addmm(bias.bfloat16(), x.bfloat16(), weight.mT.bfloat16()))
        else:
            torch.addmm(bias, x, weight.mT, out=out)

    def _add_product(self, total: Tensor, gradient: Tensor, x: Tensor) -> None:
        if self.precision == "bf16":
            total += gradient.bfloat16().mT @ x.bfloat16()
        else:
            total.addmm_(gradient.mT, x)


class GRCChunk(Chunk):
    def __init__(self, rows: int, dim: int, device: torch.device, precision: str) -> None:
        super().__init__(rows, dim, 4, device, precision)
        self.a, self.inner = (torch.zeros(rows, 4 * dim, device=device) for _ in range(2))
        self.hats, self.reached = (torch.zeros(rows, dim, device=device) for _ in range(2))  # for LayerNorm's weights

    def _compose(self, nodes: Nodes) -> None:
        cell: GRC = nodes.cell
        self._product(self.a, cell.expand.bias, self.children, cell.expand.weight)
        kernels.activate[(self.rows,)](
            self.a, self.inner, self.hats, self.reached, self.keys, nodes.seed, self.inside, self.D,
            *masks(nodes.dropout), DROPOUT=nodes.dropout is not None, **_wide(4 * self.D),
        )  # fmt: skip
        self._product(self.gates, cell.gates.bias, self.inner, cell.gates.weight)

    def pull_back(self, nodes: Nodes, slot: int, expected: int) -> None:
        D, E = self.D, 4 * self.D
        cell: GRC = nodes.cell
        expand, gates = nodes.matrices
        kernels.into_gates[(min(PROGRAMS * 4, self.rows),)](
            nodes.gradient, self.numbers, self.pairs, self.children, self.gates, cell.norm.weight, self.hats,
            self.reached, self.now, nodes.ends, slot, D, D, cell.norm.eps,
            **_wide(D),
        )  # fmt: skip
        grid, sizes = self._tiles(E, expected, nodes.method)
        kernels.into_inner[grid](
            self.gates, gates, self.a, self.keys, nodes.seed, self.now, nodes.ends, slot, E,
            *masks(nodes.dropout), DROPOUT=nodes.dropout is not None, **sizes,
        )  # fmt: skip
        grid, sizes = self._tiles(2 * D, expected, nodes.method)
        kernels.into_children[grid](
            self.a, expand, nodes.gradient, self.pairs, self.now, nodes.ends, slot, D, D, E, **sizes
        )

    def add_weights(self, totals: Sequence[Tensor]) -> None:
        expand, expand_bias, gates, gates_bias, norm, norm_bias = totals
        self._add_product(expand, self.a, self.children)
        self._add_product(gates, self.gates, self.inner)
        for total, rows in (
            (expand_bias, self.a),
            (gates_bias, self.gates),
            (norm, self.hats),
            (norm_bias, self.reached),
        ):
            total.addmv_(rows.mT, self.inside)


class TreeLSTMChunk(Chunk):
    def __init__(self, rows: int, dim: int, device: torch.device, precision: str) -> None:
        super().__init__(rows, dim, 5, device, precision)

    def _compose(self, nodes: Nodes) -> None:
        self._product(self.gates, nodes.cell.gates.bias, self.children, nodes.cell.gates.weight)

    def pull_back(self, nodes: Nodes, slot: int, expected: int) -> None:
        D, E = self.D, 5 * self.D
        kernels.into_memory[(min(PROGRAMS * 4, self.rows),)](
            nodes.gradient, nodes.tables.states, self.numbers, self.pairs, self.gates, self.keys, nodes.seed, self.now,
            nodes.ends, slot, D, 2 * D,
            *masks(nodes.dropout), DROPOUT=nodes.dropout is not None, **_wide(D),
        )  # fmt: skip
        grid, sizes = self._tiles(2 * D, expected, nodes.method)
        (weight,) = nodes.matrices
        kernels.into_children[grid](
            self.gates, weight, nodes.gradient, self.pairs, self.now, nodes.ends, slot, D, 2 * D, E, **sizes
        )

    def add_weights(self, totals: Sequence[Tensor]) -> None:
        weight, bias = totals
        self._add_product(weight, self.gates, self.children)
        bias.addmv_(self.gates.mT, self.inside)


CHUNKS: dict[type[Cell], Callable[..., Chunk]] = {GRC: GRCChunk, TreeLSTM: TreeLSTMChunk}
_shared: WeakValueDictionary[Any, Chunk] = WeakValueDictionary()


def chunk(rows: int, cell: type[Cell], dim: int, device: torch.device, stream: int, precision: str) -> Chunk:
    """One for all that run after each other: on one stream."""
    key = (rows, cell, dim, device, stream, precision)
    found = _shared.get(key)
    if found is None:
        found = _shared[key] = CHUNKS[cell](rows, dim, device, precision)
    return found
