"""Sinkhorn's iterations in one kernel.

Each of them is two products with a small matrix: hundreds of launches, one waiting for the other. Here a problem has
one program, which keeps its matrix in registers from the first iteration to the last.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

LARGEST = 2**13  # entries of a matrix that registers have room for


@triton.jit
def iterate(  # type: ignore[no-untyped-def]
    matrix, rows, columns, u_out, v_out,
    iterations, m, n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    problem = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    i_inside, j_inside = i < m, j < n
    inside = i_inside[:, None] & j_inside[None, :]
    # Beyond the matrix there are ones, so that nothing is divided by 0, and sums of 0.
    G = tl.load(matrix + (problem * m + i[:, None]) * n + j[None, :], mask=inside, other=1.0)
    row = tl.load(rows + problem * m + i, mask=i_inside, other=0.0)
    column = tl.load(columns + problem * n + j, mask=j_inside, other=0.0)
    u, v = tl.zeros_like(row), tl.where(j_inside, 1.0, tl.zeros_like(column))
    for _ in range(iterations):
        u = row / tl.sum(G * v[None, :], axis=1)
        v = tl.where(j_inside, column / tl.sum(G * u[:, None], axis=0), 0.0)
    tl.store(u_out + problem * m + i, u, mask=i_inside)
    tl.store(v_out + problem * n + j, v, mask=j_inside)


def fits(m: int, n: int) -> bool:
    """Whether a matrix can be kept in registers."""
    return triton.next_power_of_2(m) * triton.next_power_of_2(n) <= LARGEST


def scalings(
    G: Float[Tensor, "b m n"], rows: Float[Tensor, "b m 1"], columns: Float[Tensor, "b n 1"], iterations: int
) -> tuple[Float[Tensor, "b m 1"], Float[Tensor, "b n 1"]]:
    """u and v, with which diag(u) G diag(v) has the sums `rows` and `columns`."""
    b, m, n = G.shape
    u, v = torch.empty_like(rows), torch.empty_like(columns)
    blocks = triton.next_power_of_2(m), triton.next_power_of_2(n)
    warps = min(max(blocks[0] * blocks[1] // 256, 1), 8)
    iterate[(b,)](
        G.contiguous(), rows.contiguous(), columns.contiguous(), u, v,
        iterations, m, n, BLOCK_M=blocks[0], BLOCK_N=blocks[1], num_warps=warps,
    )  # fmt: skip
    return u, v
