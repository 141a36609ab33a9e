"""The GRC on a GPU: three kernels compose new nodes, and three compute the gradient of a level."""

from collections.abc import Sequence

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from beamtree.nn.cells import CellFunction
from beamtree.nn.cells.grc import GRCAdjoint, GRCFunction, kernels
from beamtree.nn.cells.grc.dense import fuse
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
from beamtree.nn.engine.gpu.precision import MANY, precision, tile
from beamtree.nn.engine.pool import take


def noise_arguments(nodes: NewNodes) -> tuple[Tensor, bool]:
    """The step of the noise in device memory, and whether there is noise; without, the tensor is not read."""
    if nodes.dropout is None or not nodes.dropout.noise_width:
        return nodes.seed, False
    return nodes.dropout.noise_step, True


class GRCKernels(CellKernels):
    inner_width, gates_width = 4, 4

    def compose(self, nodes: NewNodes) -> None:
        cell, tables, n = nodes.cell, nodes.tables, len(nodes.ids)
        assert isinstance(cell, GRCFunction)
        D, E, sizes = cell.dim, 4 * cell.dim, tile(n, nodes.method)
        W1, b1, W2, b2, norm_weight, norm_bias = nodes.laid_out
        masks, dropped = dropout_arguments(nodes.dropout), nodes.dropout is not None
        if n > MANY and nodes.method != "split":  # PyTorch's products are faster for many rows
            inner, gates = nodes.inner[:n], nodes.gates[:n]
            pairs = take(tables.states, take(tables.children, nodes.ids.clamp(min=0))).flatten(1)  # (n, 2D)
            torch.addmm(b1, pairs, W1, out=inner)
            kernels.activate[(n,)](
                inner, nodes.keys, nodes.seed, E, *masks,
                DROPOUT=dropped, BLOCK=triton.next_power_of_2(E), num_warps=4,
            )  # fmt: skip
            torch.addmm(b2, inner, W2, out=gates)
        else:
            grid = (triton.cdiv(n, sizes["BM"]), triton.cdiv(E, sizes["BN"]))
            cells.expand[grid](
                tables.states, tables.children, W1, b1, nodes.inner, nodes.keys, nodes.seed, nodes.ids,
                n, D, D, E, *masks, GELU=True, DROPOUT=dropped, **sizes,
            )  # fmt: skip
            kernels.gates[grid](nodes.inner, W2, b2, nodes.gates, n, E, **sizes)
        noise_step, noisy = noise_arguments(nodes)
        scored = len(nodes.scorer) > 0
        score_weight, score_bias = nodes.scorer if scored else (norm_weight, norm_bias)  # not read
        kernels.finish[(n,)](
            tables.states, tables.logits, tables.children, nodes.gates, norm_weight, norm_bias, score_weight,
            score_bias, nodes.present, nodes.ids, nodes.keys, nodes.seed, noise_step, D, D, cell.eps,
            SCORED=scored, NOISE=noisy, BLOCK=triton.next_power_of_2(D), num_warps=4,
        )  # fmt: skip

    def compose_level(self, nodes: NewNodes, levels: Levels, slot: int) -> None:
        cell, tables = nodes.cell, nodes.tables
        assert isinstance(cell, GRCFunction)
        D, E, sizes = cell.dim, 4 * cell.dim, tile(levels.expected, nodes.method)
        W1, b1, W2, b2, norm_weight, norm_bias = nodes.laid_out
        cells.expand_level[(levels.programs,)](
            tables.states, tables.children, W1, b1, nodes.inner, nodes.keys, nodes.seed, nodes.ids, levels.level,
            levels.ends, slot, D, D, E, *dropout_arguments(nodes.dropout),
            GELU=True, DROPOUT=nodes.dropout is not None, **sizes,
        )  # fmt: skip
        kernels.gates_level[(levels.programs,)](
            nodes.inner, W2, b2, nodes.gates, levels.level, levels.ends, slot, E, **sizes
        )
        noise_step, noisy = noise_arguments(nodes)
        kernels.finish_level[(levels.programs * 2,)](
            tables.states, tables.children, nodes.gates, norm_weight, norm_bias, nodes.ids, nodes.keys, nodes.seed,
            noise_step, levels.level, levels.ends, slot, D, D, cell.eps,
            NOISE=noisy, BLOCK=triton.next_power_of_2(D), num_warps=4,
        )  # fmt: skip

    def chunk(self, rows: int, dim: int, device: torch.device, precision: str) -> "GRCChunk":
        return GRCChunk(rows, dim, device, precision)

    def dense(self, cell: CellFunction, rows: int) -> CellFunction:
        assert isinstance(cell, GRCFunction)
        return fuse(cell, rows)


class GRCChunk(Chunk):
    def __init__(self, rows: int, dim: int, device: torch.device, precision: str) -> None:
        super().__init__(rows, dim, 4, device, precision)
        self.a, self.inner = (torch.zeros(rows, 4 * dim, device=device) for _ in range(2))
        self.hats, self.reached = (torch.zeros(rows, dim, device=device) for _ in range(2))  # for LayerNorm's weights

    def compose_gathered(self, nodes: ReplayedNodes) -> None:
        W1, b1, W2, b2, _, _ = nodes.cell.weights
        self.product(self.a, b1, self.children, W1)
        kernels.activate_rows[(self.rows,)](
            self.a, self.inner, self.hats, self.reached, self.keys, nodes.seed, self.inside, self.D,
            *dropout_arguments(nodes.dropout), DROPOUT=nodes.dropout is not None, **row_blocks(4 * self.D),
        )  # fmt: skip
        self.product(self.gates, b2, self.inner, W2)

    def pull_back(self, nodes: ReplayedNodes, slot: int, expected: int) -> None:
        D, E, cell = self.D, 4 * self.D, nodes.cell
        assert isinstance(cell, GRCFunction)
        W1, W2 = nodes.matrices
        kernels.into_gates[(min(self.programs * 4, self.rows),)](
            nodes.gradient, self.ids, self.pairs, self.children, self.gates, cell.weights[4], self.hats,
            self.reached, self.now, nodes.ends, slot, D, D, cell.eps,
            **row_blocks(D),
        )  # fmt: skip
        grid, sizes = self.tiles(E, expected, nodes.method)
        kernels.into_inner[grid](
            self.gates, W2, self.a, self.keys, nodes.seed, self.now, nodes.ends, slot, E,
            *dropout_arguments(nodes.dropout), DROPOUT=nodes.dropout is not None, **sizes,
        )  # fmt: skip
        grid, sizes = self.tiles(2 * D, expected, nodes.method)
        cells.into_children[grid](self.a, W1, nodes.gradient, self.pairs, self.now, nodes.ends, slot, D, D, E, **sizes)

    def add_weight_gradients(self, totals: Sequence[Tensor]) -> None:
        W1, b1, W2, b2, norm, norm_bias = totals
        self.add_product(W1, self.a, self.children)
        self.add_product(W2, self.gates, self.inner)
        for total, rows in ((b1, self.a), (b2, self.gates), (norm, self.hats), (norm_bias, self.reached)):
            total.addmv_(rows.mT, self.inside)


class FusedGRCAdjoint(GRCAdjoint):
    """The adjoint with three kernels per level, where `GRCAdjoint` launches seventeen operations.

        gate_gradient    a program for each node: through LayerNorm and the gates
        inner_gradient   d[z; h; c; u] W2ᵀ ⊙ mask ⊙ GELU'(a), in tiles
        child_gradient   da W1ᵀ + dp ⊙ [σ(z); σ(h)], in tiles

    It computes in float32. As in `GRCAdjoint`, the nodes are recomposed in one batch.
    """

    def __init__(
        self, cell: GRCFunction, children: Float[Tensor, "rows 2 S"], mask: Float[Tensor, "rows width"] | None
    ) -> None:
        super().__init__(cell, children, mask)
        self.d_total = torch.empty_like(self.total)  # (R, D)

    def to_gates(self, rows: slice, gradient: Float[Tensor, "rows S"]) -> Float[Tensor, "rows D"]:
        first = rows.start or 0
        kernels.gate_gradient[(len(gradient),)](
            gradient, self.gradient, self.total, self.mean, self.scale, self.norm_weight, self.children, self.open,
            self.update, self.d_gates, self.d_total, first, self.dim, gradient.stride(0),
            BLOCK=triton.next_power_of_2(self.dim), num_warps=4,
        )  # fmt: skip
        return self.d_total[rows]

    def to_children(self, rows: slice, total: Float[Tensor, "rows D"]) -> Float[Tensor, "rows 2 D"]:
        """For many nodes PyTorch's products are faster than kernels that save launches."""
        if len(total) > MANY:
            return super().to_children(rows, total)
        count, first = len(total), rows.start or 0
        D, E, sizes = self.dim, 4 * self.dim, tile(count, precision(total.device))
        found = total.new_empty(count, 2, D)
        kernels.inner_gradient[(triton.cdiv(count, sizes["BM"]), triton.cdiv(E, sizes["BN"]))](
            self.d_gates, self.W2, self.slope, self.d_inner, first, count, E, **sizes
        )
        kernels.child_gradient[(triton.cdiv(count, sizes["BM"]), triton.cdiv(2 * D, sizes["BN"]))](
            self.d_inner, self.W1, self.d_total, self.open, found, first, count, D, E,
            **sizes,
        )  # fmt: skip
        return found
