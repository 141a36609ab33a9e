"""The Tree-LSTM on a GPU: two kernels compose new nodes, and two compute the gradient of a level."""

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from beamtree.nn.cells.lstm import kernels
from beamtree.nn.engine.gpu.cells import (
    CellKernels,
    Chunk,
    Levels,
    NewNodes,
    ReplayedNodes,
    dropout_arguments,
    row_blocks,
)
from beamtree.nn.engine.gpu.kernels import cells
from beamtree.nn.engine.gpu.precision import tile


class TreeLSTMKernels(CellKernels):
    inner_width, gates_width = 0, 5

    def compose(self, nodes: NewNodes) -> None:
        tables, n, D = nodes.tables, len(nodes.ids), nodes.cell.dim
        E, sizes = 5 * D, tile(n, nodes.method)
        weight, bias = nodes.laid_out
        scored = len(nodes.scorer) > 0
        score_weight, score_bias = nodes.scorer if scored else (bias, bias)  # not read
        cells.expand[(triton.cdiv(n, sizes["BM"]), triton.cdiv(E, sizes["BN"]))](
            tables.states, tables.children, weight, bias, nodes.gates, nodes.keys, nodes.seed, nodes.ids,
            n, D, 2 * D, E, 0, 1.0, GELU=False, DROPOUT=False, **sizes,
        )  # fmt: skip
        kernels.remember[(n,)](
            tables.states, tables.logits, tables.children, nodes.gates, score_weight, score_bias, nodes.present,
            nodes.keys, nodes.seed, nodes.ids, D, 2 * D, *dropout_arguments(nodes.dropout),
            SCORED=scored, DROPOUT=nodes.dropout is not None, BLOCK=triton.next_power_of_2(D), num_warps=4,
        )  # fmt: skip

    def compose_level(self, nodes: NewNodes, levels: Levels, slot: int) -> None:
        tables, D = nodes.tables, nodes.cell.dim
        weight, bias = nodes.laid_out
        cells.expand_level[(levels.programs,)](
            tables.states, tables.children, weight, bias, nodes.gates, nodes.keys, nodes.seed, nodes.ids, levels.level,
            levels.ends, slot, D, 2 * D, 5 * D, 0, 1.0,
            GELU=False, DROPOUT=False, **tile(levels.expected, nodes.method),
        )  # fmt: skip
        kernels.remember_level[(levels.programs * 2,)](
            tables.states, tables.children, nodes.gates, nodes.keys, nodes.seed, nodes.ids, levels.level, levels.ends,
            slot, D, 2 * D, *dropout_arguments(nodes.dropout),
            DROPOUT=nodes.dropout is not None, BLOCK=triton.next_power_of_2(D), num_warps=4,
        )  # fmt: skip

    def chunk(self, rows: int, dim: int, device: torch.device, precision: str) -> "TreeLSTMChunk":
        return TreeLSTMChunk(rows, dim, 5, device, precision)


class TreeLSTMChunk(Chunk):
    def compose_gathered(self, nodes: ReplayedNodes) -> None:
        weight, bias = nodes.cell.weights
        self.product(self.gates, bias, self.children, weight)

    def pull_back(self, nodes: ReplayedNodes, slot: int, expected: int) -> None:
        D, E = self.D, 5 * self.D
        kernels.into_memory[(min(self.programs * 4, self.rows),)](
            nodes.gradient, nodes.tables.states, self.ids, self.pairs, self.gates, self.keys, nodes.seed, self.now,
            nodes.ends, slot, D, 2 * D,
            *dropout_arguments(nodes.dropout), DROPOUT=nodes.dropout is not None, **row_blocks(D),
        )  # fmt: skip
        grid, sizes = self.tiles(2 * D, expected, nodes.method)
        (weight,) = nodes.matrices
        cells.into_children[grid](
            self.gates, weight, nodes.gradient, self.pairs, self.now, nodes.ends, slot, D, 2 * D, E, **sizes
        )

    def add_weight_gradients(self, totals: Sequence[Tensor]) -> None:
        weight, bias = totals
        self.add_product(weight, self.gates, self.children)
        bias.addmv_(self.gates.mT, self.inside)
