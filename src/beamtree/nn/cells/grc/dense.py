"""The GRC of many pairs on a GPU as one differentiable function.

It takes three kernels in the forward pass, and five launches and two products for the weights in the backward pass,
instead of about forty operations of PyTorch.

For loops that compose all neighbours at each step, such as CRvNN's. For the precision of products see
`beamtree.nn.engine.gpu.precision`: float32 by three TF32 products, TF32, or bfloat16.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from beamtree.nn.cells.grc import GRCFunction, dense_kernels, kernels
from beamtree.nn.engine.gpu.capture import multiprocessors
from beamtree.nn.engine.gpu.cells import row_blocks
from beamtree.nn.engine.gpu.precision import buffer_for, lay_out, method, precision, tile, weight_gradient
from beamtree.nn.function import first_order, save


class Rows(NamedTuple):
    """A tensor (…, D) as rows: row i begins at (i // length) · outer + (i % length) · inner."""

    tensor: Tensor
    length: int
    outer: int
    inner: int

    @property
    def strides(self) -> tuple[int, int, int]:
        return self.length, self.outer, self.inner


def as_rows(x: Float[Tensor, "*nodes D"]) -> Rows:
    """The rows of a tensor, without a copy if all but one of the dimensions are contiguous, as in a slice along one."""
    shape, strides = list(x.shape[:-1]), list(x.stride()[:-1])
    while len(shape) > 2:  # join the first two of the last three
        if strides[-3] != shape[-2] * strides[-2]:
            return as_rows(x.contiguous())
        shape[-3:-1], strides[-3:-1] = [shape[-3] * shape[-2]], [strides[-2]]
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        return as_rows(x.contiguous())
    if len(shape) == 2:
        return Rows(x, max(shape[1], 1), strides[0], strides[1])
    return Rows(x, max(shape[0], 1), 0, strides[0])


@dataclass(frozen=True)
class DenseGRC(GRCFunction):
    """The GRC for rows of children. Create it with `fuse`, once for all calls with the same weights."""

    method: str  # of products
    laid_out: dict[str, list[Tensor]]  # W1 and W2 as kernels read them in forward and in backward

    def bind(self, weights: Sequence[Tensor]) -> "DenseGRC":
        return replace(self, weights=tuple(weights), laid_out={})

    def matrices(self, use: Literal["forward", "backward"]) -> list[Tensor]:
        """Laid out on first use."""
        if use not in self.laid_out:
            with torch.no_grad():
                found = [self.weights[i].mT if use == "forward" else self.weights[i] for i in (0, 2)]
                self.laid_out[use] = [buffer_for(matrix, self.method) for matrix in found]
                for buffer, matrix in zip(self.laid_out[use], found, strict=True):
                    lay_out(buffer, matrix)
        return self.laid_out[use]

    def __call__(
        self,
        left: Float[Tensor, "*nodes D"],
        right: Float[Tensor, "*nodes D"],
        mask: Float[Tensor, "*nodes mask"] | None = None,
    ) -> Float[Tensor, "*nodes D"]:
        found: Tensor = DenseComposition.apply(self, left, right, mask, *self.weights)
        return found


def fuse(cell: GRCFunction, rows: int) -> DenseGRC:
    """The cell for about `rows` rows per call."""
    products = method(rows, precision(cell.weights[0].device))
    return DenseGRC(cell.dim, cell.weights, cell.eps, products, {})


class DenseComposition(torch.autograd.Function):
    """(left, right, weights) → parents."""

    @staticmethod
    def forward(
        ctx: Any,
        dense: DenseGRC,
        left: Float[Tensor, "*nodes D"],
        right: Float[Tensor, "*nodes D"],
        mask: Float[Tensor, "*nodes mask"] | None,
        *weights: Tensor,
    ) -> Float[Tensor, "*nodes D"]:
        D, n = dense.dim, left.numel() // dense.dim
        mask = None if mask is None else mask.contiguous()
        out = left.new_empty(left.shape)
        keep = any(ctx.needs_input_grad)
        inner, gates = left.new_empty(2, n, 4 * D).unbind()
        a = torch.empty_like(inner) if keep else inner
        if n:
            W1, W2 = dense.matrices("forward")
            b1, b2, norm_weight, norm_bias = (weights[i] for i in (1, 3, 4, 5))
            first, second = as_rows(left), as_rows(right)
            sizes = tile(n, dense.method)
            grid = (triton.cdiv(n, sizes["BM"]), triton.cdiv(4 * D, sizes["BN"]))
            dense_kernels.expand[grid](
                first.tensor, second.tensor, W1, b1, inner if mask is None else mask, a, inner,
                n, *first.strides, *second.strides, 4 * D, D, 4 * D,
                MASKED=mask is not None, KEEP=keep, **sizes,
            )  # fmt: skip
            kernels.gates[grid](inner, W2, b2, gates, n, 4 * D, **sizes)
            dense_kernels.finish[(n,)](
                first.tensor, second.tensor, gates, norm_weight, norm_bias, out,
                *first.strides, *second.strides, D, dense.eps,
                **row_blocks(D),
            )  # fmt: skip
        ctx.dense = dense
        if keep:
            save(ctx, (left, right, *weights), mask, a, inner, gates)
        return out

    @staticmethod
    @first_order
    def backward(
        ctx: Any, inputs: Sequence[Tensor], kept: Sequence[Any], gradient: Float[Tensor, "*nodes D"]
    ) -> tuple[Tensor | None, ...]:
        (left, right, *weights), (mask, a, inner, gates) = inputs, kept
        dense: DenseGRC = ctx.dense
        D, n, norm_weight = dense.dim, len(a), weights[4]
        d_left, d_right = torch.empty(2, *left.shape, dtype=left.dtype, device=left.device).unbind()
        if not n:
            return None, d_left, d_right, None, *(torch.zeros_like(weight) for weight in weights)
        first, second = as_rows(left), as_rows(right)
        d_gates, d_a = torch.empty_like(gates), torch.empty_like(a)
        programs = min(n, 8 * multiprocessors(left.device))
        row_sums = left.new_empty(programs, 6 * D)
        dense_kernels.into_gates[(programs,)](
            gradient.contiguous(), first.tensor, second.tensor, gates, norm_weight, d_gates, d_left, d_right, row_sums,
            n, *first.strides, *second.strides, D, dense.eps,
            **row_blocks(D),
        )  # fmt: skip
        W1, W2 = dense.matrices("backward")
        sizes = tile(n, dense.method)
        tiles = triton.cdiv(n, sizes["BM"])
        tile_sums = left.new_empty(tiles, 4 * D)
        dense_kernels.into_inner[(tiles, triton.cdiv(4 * D, sizes["BN"]))](
            d_gates, W2, a, a if mask is None else mask, d_a, tile_sums, n, 4 * D, 4 * D,
            MASKED=mask is not None, **sizes,
        )  # fmt: skip
        dense_kernels.into_children[(tiles, triton.cdiv(2 * D, sizes["BN"]))](
            d_a, W1, d_left, d_right, n, D, 4 * D, **sizes
        )
        children = torch.cat((left.reshape(n, D), right.reshape(n, D)), dim=1)
        d_norm_weight, d_norm_bias, d_b2 = row_sums.sum(0).split((D, D, 4 * D))
        d_W1, d_W2 = weight_gradient(d_a, children, dense.method), weight_gradient(d_gates, inner, dense.method)
        return None, d_left, d_right, None, d_W1, tile_sums.sum(0), d_W2, d_b2, d_norm_weight, d_norm_bias
