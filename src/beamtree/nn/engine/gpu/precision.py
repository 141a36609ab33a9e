"""Matrix products in the kernels: how exact they are, the tiles they are made in, and weights as they read them.

A GPU has no tensor cores for float32. They multiply TF32, which has a float32's range and 11 of its 24 bits. So a
product with many rows is made of three of them: each number is split into two that TF32 holds, x = x₁ + x₂ and
w = w₁ + w₂, and x w = x₂ w₁ + x₁ w₂ + x₁ w₁, where x₂ w₂ is too small to count. The sum over a tile is then added to
those before it in float32. That is nearer to the true product than adding up products of float32 one by one, and takes
less time. Weights are split once before the search, rows on the spot.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

# Rows up to which tiles are small, so that many processors share the work; tried out on an H200.
FEW, SOME, MANY = 64, 256, 1024


def precision(device: torch.device) -> str:
    """Of products, as PyTorch would have it: bfloat16 under autocast, else float32 in full or as TF32."""
    if torch.is_autocast_enabled(device.type):
        return "bf16"
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


def method(rows: int, precision: str) -> str:
    """How products of at most so many rows are made: by the precision, and "split" where three are faster than one."""
    return "split" if precision == "ieee" and rows > FEW else precision


def tile(rows: int, method: str) -> dict[str, Any]:
    """For a product of so many rows: the sizes of its tiles, and how it is made."""
    if method == "split":
        sizes = {"BM": 16, "BN": 32, "BK": 64} if rows <= SOME else {"BM": 32, "BN": 64, "BK": 32}
        return {**sizes, "num_stages": 3, "METHOD": method}
    if rows <= FEW:
        return {"BM": 16, "BN": 16, "BK": 64, "num_stages": 4, "METHOD": method}
    return {"BM": 32, "BN": 32 if rows <= MANY else 64, "BK": 32, "num_stages": 3, "METHOD": method}


def room_for(matrix: Float[Tensor, "rows columns"], method: str) -> Tensor:
    """Memory for a weight as kernels read it: row by row, each in both of its parts if it is to be split."""
    rows, columns = matrix.shape
    return matrix.new_empty((rows, 2, columns) if method == "split" else (rows, columns))


def lay_out(room: Tensor, matrix: Float[Tensor, "rows columns"]) -> None:
    """Write a weight there, unless that is where it lies."""
    if room is matrix:
        return
    if room.dim() == 2:
        room.copy_(matrix)
    else:
        first = to_tf32(matrix)
        torch.stack((first, to_tf32(matrix - first)), dim=1, out=room)


def to_tf32(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Rounded to 11 bits."""
    return (x.contiguous().view(torch.int32) + (1 << 12)).bitwise_and_(-1 << 13).view(torch.float32)
