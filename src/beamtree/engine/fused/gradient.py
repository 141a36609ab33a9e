"""The adjoint of the GRC with three kernels a level, where `beamtree.engine.adjoint` launches seventeen operations.

    gate_gradient    a program for each node: through LayerNorm and the gates
    inner_gradient   d[z; h; c; u] W2ᵀ ⊙ mask ⊙ GELU'(a), in tiles
    child_gradient   da W1ᵀ + dp ⊙ [σ(z); σ(h)], in tiles

A level has few nodes and there are many levels, so that launching is what takes the time.
"""

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from beamtree.cells import GRC
from beamtree.engine.adjoint import GRCAdjoint
from beamtree.engine.fused import kernels
from beamtree.engine.fused.products import MANY, precision, tile


class FusedGRCAdjoint(GRCAdjoint):
    """The same function on a CUDA device in float32. The nodes are composed again as there, many in one batch."""

    def __init__(
        self, cell: GRC, children: Float[Tensor, "rows 2 S"], mask: Float[Tensor, "rows width"] | None
    ) -> None:
        super().__init__(cell, children, mask)
        self.d_total = torch.empty_like(self.total)  # (R, D)

    def to_gates(self, rows: slice, gradient: Float[Tensor, "rows S"]) -> Float[Tensor, "rows D"]:
        cell, first = self.cell, rows.start or 0
        kernels.gate_gradient[(len(gradient),)](
            gradient, self.gradient, self.total, self.mean, self.scale, cell.norm.weight, self.children, self.open,
            self.update, self.d_gates, self.d_total, first, cell.dim, gradient.stride(0),
            BLOCK=triton.next_power_of_2(cell.dim), num_warps=4,
        )  # fmt: skip
        return self.d_total[rows]

    def to_children(self, rows: slice, total: Float[Tensor, "rows D"]) -> Float[Tensor, "rows 2 D"]:
        """With many nodes PyTorch's products are faster than those that save launches."""
        if len(total) > MANY:
            return super().to_children(rows, total)
        cell, count, first = self.cell, len(total), rows.start or 0
        D, E, sizes = cell.dim, 4 * cell.dim, tile(count, precision(total.device))
        found = total.new_empty(count, 2, D)
        kernels.inner_gradient[(triton.cdiv(count, sizes["BM"]), triton.cdiv(E, sizes["BN"]))](
            self.d_gates, cell.gates.weight, self.slope, self.d_inner, first, count, E, **sizes
        )
        kernels.child_gradient[(triton.cdiv(count, sizes["BM"]), triton.cdiv(2 * D, sizes["BN"]))](
            self.d_inner, cell.expand.weight, self.d_total, self.open, found, first, count, D, E,
            **sizes,
        )  # fmt: skip
        return found
