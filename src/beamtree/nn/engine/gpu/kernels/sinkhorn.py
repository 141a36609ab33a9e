"""Sinkhorn's iterations in one kernel, and the gradient of the plan in another.

Each iteration is two products with a small matrix: hundreds of dependent launches. Here each problem is one program,
which keeps its matrix in registers for all iterations. The gradient solves a small linear system, for which PyTorch
calls a library that cannot be captured in a CUDA graph.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

LARGEST = 2**13  # entries of a matrix that fits in registers


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
    # The matrix is padded with ones, so that nothing is divided by 0, and the sums with 0.
    G = tl.load(matrix + (problem * m + i[:, None]) * n + j[None, :], mask=inside, other=1.0)
    row = tl.load(rows + problem * m + i, mask=i_inside, other=0.0)
    column = tl.load(columns + problem * n + j, mask=j_inside, other=0.0)
    u, v = tl.zeros_like(row), tl.where(j_inside, 1.0, tl.zeros_like(column))
    for _ in range(iterations):
        u = row / tl.sum(G * v[None, :], axis=1)
        v = tl.where(j_inside, column / tl.sum(G * u[:, None], axis=0), 0.0)
    tl.store(u_out + problem * m + i, u, mask=i_inside)
    tl.store(v_out + problem * n + j, v, mask=j_inside)


@triton.jit
def pull_back(  # type: ignore[no-untyped-def]
    plan, gradient, out,
    least, m, n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """ε times the gradient of the costs, given that of the plan, by the equations of `beamtree.nn.topk.transport`."""
    problem = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    place = (problem * m + i[:, None]) * n + j[None, :]
    inside = (i < m)[:, None] & (j < n)[None, :]
    whole = tl.load(plan + place, mask=inside, other=0.0)  # Γ
    given = tl.load(gradient + place, mask=inside, other=0.0) * whole
    inner = tl.where((j < n - 1)[None, :], whole, 0.0)  # without the last column
    rows, columns = tl.sum(given, axis=1), tl.sum(given, axis=0)
    right = tl.where(j < n - 1, columns - tl.sum(inner * rows[:, None], axis=0), 0.0)
    # diag(ν) − ΓᵀΓ, padded with the identity; its r-th row is computed from the r-th column of Γ.
    r, c = j[:, None], j[None, :]
    system = tl.where(r == c, tl.where(j < n - 1, tl.sum(inner, axis=0) + least, 1.0)[None, :], 0.0)
    for p in range(n - 1):
        column = tl.sum(tl.where(c == p, inner, 0.0), axis=1)
        system -= tl.where(r == p, tl.sum(column[:, None] * inner, axis=0)[None, :], 0.0)
    # No pivoting is needed: the entry on the diagonal is the largest of its row and column.
    for p in range(n - 1):
        pivot_row = tl.sum(tl.where(r == p, system, 0.0), axis=0)
        pivot = tl.sum(tl.where(j == p, pivot_row, 0.0))
        pivot_row /= pivot
        known = tl.sum(tl.where(j == p, right, 0.0)) / pivot
        factor = tl.sum(tl.where(c == p, system, 0.0), axis=1)
        system = tl.where(r == p, pivot_row[None, :], system - factor[:, None] * pivot_row[None, :])
        right = tl.where(j == p, known, right - factor * known)
    g = tl.where(j < n - 1, right, 0.0)
    f = rows - tl.sum(inner * g[None, :], axis=1)
    tl.store(out + place, whole * (f[:, None] + g[None, :]) - given, mask=inside)


def fits(m: int, n: int) -> bool:
    """Whether a matrix can be kept in registers."""
    return triton.next_power_of_2(m) * triton.next_power_of_2(n) <= LARGEST


def scalings(
    G: Float[Tensor, "b m n"], rows: Float[Tensor, "b m 1"], columns: Float[Tensor, "b n 1"], iterations: int
) -> tuple[Float[Tensor, "b m 1"], Float[Tensor, "b n 1"]]:
    """u and v such that diag(u) G diag(v) has the sums `rows` and `columns`."""
    b, m, n = G.shape
    u, v = torch.empty_like(rows), torch.empty_like(columns)
    given = G.contiguous(), rows.contiguous(), columns.contiguous()
    with torch.cuda.device_of(G):  # `soft_topk` may be called with tensors of any device
        iterate[(b,)](*given, u, v, iterations, m, n, **_blocks(m, n))
    return u, v


def cost_gradient(
    plan: Float[Tensor, "b m n"], gradient: Float[Tensor, "b m n"], epsilon: float
) -> Float[Tensor, "b m n"]:
    """The gradient of the costs, given that of the plan."""
    b, m, n = plan.shape
    out, least = torch.empty_like(plan), torch.finfo(plan.dtype).eps
    with torch.cuda.device_of(plan):
        pull_back[(b,)](plan.contiguous(), gradient.contiguous(), out, least, m, n, **_blocks(m, n))
    return out.div_(epsilon)  # not in the kernel, which would receive ε in float32


def _blocks(m: int, n: int) -> dict[str, int]:
    blocks = triton.next_power_of_2(m), triton.next_power_of_2(n)
    return {"BLOCK_M": blocks[0], "BLOCK_N": blocks[1], "num_warps": min(max(blocks[0] * blocks[1] // 256, 1), 8)}
