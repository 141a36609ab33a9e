"""Matrix products in the kernels: their precision, their tiles, and the layout of weights.

A GPU has no tensor cores for float32. Its tensor cores multiply TF32, which has the range of float32 and 11 of its 24
bits. So a float32 product with many rows is computed as three TF32 products: each value is split into two TF32 values,
x = x₁ + x₂ and w = w₁ + w₂, and x w = x₂ w₁ + x₁ w₂ + x₁ w₁, where x₂ w₂ is negligible. The sums over tiles are
accumulated in float32. This is more accurate than adding up float32 products one by one, and faster. Weights are split
once before the search, rows inside the kernel.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

# Rows up to which tiles are small, so that many multiprocessors share the work; tuned on an H200.
FEW, SOME, MANY = 64, 256, 1024


def precision(device: torch.device) -> str:
    """The precision of products, by PyTorch's settings: bfloat16 under autocast, else TF32 or full float32."""
    if torch.is_autocast_enabled(device.type):
        return "bf16"
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


def method(rows: int, precision: str) -> str:
    """How products of at most `rows` rows are computed: "split" where three are faster than one, else the precision."""
    return "split" if precision == "ieee" and rows > FEW else precision


def tile(rows: int, method: str) -> dict[str, Any]:
    """The tile sizes and the method of a product of `rows` rows, as arguments of kernels."""
    if method == "split":
        sizes = {"BM": 16, "BN": 32, "BK": 64} if rows <= SOME else {"BM": 32, "BN": 64, "BK": 32}
        return {**sizes, "num_stages": 3, "METHOD": method}
    if rows <= FEW:
        return {"BM": 16, "BN": 16, "BK": 64, "num_stages": 4, "METHOD": method}
    return {"BM": 32, "BN": 32 if rows <= MANY else 64, "BK": 32, "num_stages": 3, "METHOD": method}


def buffer_for(matrix: Float[Tensor, "rows columns"], method: str) -> Tensor:
    """A buffer for a weight in the layout of the kernels: row by row, each in two parts if the method is "split"."""
    rows, columns = matrix.shape
    return matrix.new_empty((rows, 2, columns) if method == "split" else (rows, columns))


def lay_out(buffer: Tensor, matrix: Float[Tensor, "rows columns"]) -> None:
    """Write a weight to its buffer, unless they are the same tensor."""
    if buffer is matrix:
        return
    if buffer.dim() == 2:
        buffer.copy_(matrix)
    else:
        first = to_tf32(matrix)
        torch.stack((first, to_tf32(matrix - first)), dim=1, out=buffer)


def weight_gradient(
    gradient: Float[Tensor, "n rows"], x: Float[Tensor, "n columns"], method: str
) -> Float[Tensor, "rows columns"]:
    """The gradient of a weight, given those of its products with n rows x: one product, by PyTorch."""
    if method == "bf16":
        return (gradient.bfloat16().mT @ x.bfloat16()).to(x.dtype)
    return gradient.mT @ x


def to_tf32(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Round to 11 significant bits."""
    return (x.contiguous().view(torch.int32) + (1 << 12)).bitwise_and_(-1 << 13).view(torch.float32)
