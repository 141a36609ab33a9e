"""The Triton kernels of the GRC for children that are rows of two tensors, one row per node.

    expand         a = [l; r] W1 + b1 and g = mask ⊙ GELU(a), in tiles
    finish         LN(σ(z) ⊙ l + σ(h) ⊙ r + σ(c) ⊙ u), a program for each row
    into_gates     through LayerNorm and the gates; programs share the rows, and each sums its part of the gradients
                   of LayerNorm's weights and of b2
    into_inner     d[z; h; c; u] W2ᵀ ⊙ mask ⊙ GELU'(a), in tiles, each with the sum of its columns for b1
    into_children  da W1ᵀ, in tiles, added to the gradient that `into_gates` computed for the children

`gates` is that of `beamtree.nn.cells.grc.kernels`. Children are views: row i begins at (i // length) · outer +
(i % length) · inner. Rows of a mask are `mask_width` apart. The equations are in `beamtree.nn.cells.grc.device`.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from beamtree.nn.cells.grc.device import _gated, _gates_back, _masked, _normalised, _normalised_back
from beamtree.nn.engine.gpu.kernels.common import _gelu, _gelu_slope, _pair_product, _product


@triton.jit
def _offset(row, length, outer, inner):
    """Where a row begins."""
    row = row.to(tl.int64)
    return row // length * outer + row % length * inner


@triton.jit(do_not_specialize=["n", "left_length", "right_length"])
def expand(
    left, right, weight, bias, mask, a, inner,
    n, left_length, left_outer, left_inner, right_length, right_outer, right_inner, mask_width, D, E,
    MASKED: tl.constexpr, KEEP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, METHOD: tl.constexpr,
):  # fmt: skip
    """KEEP: whether a is written too."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    row_inside, column_inside = row < n, column < E
    first = _offset(row, left_length, left_outer, left_inner)
    second = _offset(row, right_length, right_outer, right_inner)
    out = _pair_product(
        left, first, right, second, weight, bias, column, column_inside, D, 1, E, BM, BN, BK, METHOD, row_inside
    )
    place, both = row.to(tl.int64)[:, None] * E + column[None, :], row_inside[:, None] & column_inside[None, :]
    if KEEP:
        tl.store(a + place, out, mask=both)
    out = _gelu(out)
    if MASKED:
        out = _masked(out, mask, row, column, mask_width, both)
    tl.store(inner + place, out, mask=both)


@triton.jit(do_not_specialize=["left_length", "right_length"])
def finish(
    left, right, gates, norm_weight, norm_bias, out,
    left_length, left_outer, left_inner, right_length, right_outer, right_inner, D, epsilon,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row, d = tl.program_id(0), tl.arange(0, BLOCK)
    inside = d < D
    first = left + _offset(row, left_length, left_outer, left_inner) + d
    second = right + _offset(row, right_length, right_outer, right_inner) + d
    _, _, _, _, _, _, x = _gated(first, second, gates + row.to(tl.int64) * 4 * D + d, inside, D)
    hat, _ = _normalised(x, inside, D, epsilon)
    state = hat * tl.load(norm_weight + d, mask=inside, other=0.0) + tl.load(norm_bias + d, mask=inside, other=0.0)
    tl.store(out + row.to(tl.int64) * D + d, state, mask=inside)


@triton.jit(do_not_specialize=["n", "left_length", "right_length"])
def into_gates(
    gradient, left, right, gates, norm_weight, d_gates, d_left, d_right, sums,
    n, left_length, left_outer, left_inner, right_length, right_outer, right_inner, D, epsilon,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """For each program, `sums` holds the gradients of LayerNorm's weight and bias, and of the gates' biases."""
    d = tl.arange(0, BLOCK)
    inside = d < D
    weight = tl.load(norm_weight + d, mask=inside, other=0.0)
    sum_hat, sum_g = tl.zeros((BLOCK,), dtype=tl.float32), tl.zeros((BLOCK,), dtype=tl.float32)
    sum_z, sum_h = tl.zeros((BLOCK,), dtype=tl.float32), tl.zeros((BLOCK,), dtype=tl.float32)
    sum_c, sum_u = tl.zeros((BLOCK,), dtype=tl.float32), tl.zeros((BLOCK,), dtype=tl.float32)
    for index in range(tl.program_id(0), n, tl.num_programs(0)):
        row = index + tl.zeros((1,), dtype=tl.int64)
        first = left + _offset(row, left_length, left_outer, left_inner) + d
        second = right + _offset(row, right_length, right_outer, right_inner) + d
        x_left, x_right, z, h, c, u, x = _gated(first, second, gates + row * 4 * D + d, inside, D)
        hat, rate = _normalised(x, inside, D, epsilon)
        g = tl.load(gradient + row * D + d, mask=inside, other=0.0)
        sum_hat += g * hat
        sum_g += g
        p = _normalised_back(g * weight, hat, rate, D)
        own = d_gates + row * 4 * D + d
        d_z, d_h, d_c, d_u = _gates_back(own, p, x_left, x_right, z, h, c, u, inside, D)
        sum_z += d_z
        sum_h += d_h
        sum_c += d_c
        sum_u += d_u
        tl.store(d_left + row * D + d, p * z, mask=inside)
        tl.store(d_right + row * D + d, p * h, mask=inside)
    own = sums + tl.program_id(0) * 6 * D + d
    tl.store(own, tl.where(inside, sum_hat, 0.0), mask=inside)
    tl.store(own + D, sum_g, mask=inside)
    tl.store(own + 2 * D, sum_z, mask=inside)
    tl.store(own + 3 * D, sum_h, mask=inside)
    tl.store(own + 4 * D, sum_c, mask=inside)
    tl.store(own + 5 * D, sum_u, mask=inside)


@triton.jit(do_not_specialize=["n"])
def into_inner(
    d_gates, weight, a, mask, d_a, sums,
    n, mask_width, E,
    MASKED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, METHOD: tl.constexpr,
):  # fmt: skip
    """`sums` holds the column sums of each tile."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    row_inside, column_inside = row < n, column < E
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    acc = _product(d_gates, row.to(tl.int64), weight, column, column_inside, acc, E, E, E, BK, METHOD, row_inside)
    place, both = row.to(tl.int64)[:, None] * E + column[None, :], row_inside[:, None] & column_inside[None, :]
    out = acc * _gelu_slope(tl.load(a + place, mask=both, other=0.0))
    if MASKED:
        out = _masked(out, mask, row, column, mask_width, both)
    tl.store(d_a + place, out, mask=both)
    tl.store(sums + tl.program_id(0) * E + column, tl.sum(tl.where(both, out, 0.0), axis=0), mask=column_inside)


@triton.jit(do_not_specialize=["n"])
def into_children(
    d_a, weight, d_left, d_right,
    n, D, E,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, METHOD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)  # of [l; r]
    row_inside, column_inside = row < n, column < 2 * D
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    acc = _product(d_a, row.to(tl.int64), weight, column, column_inside, acc, E, E, 2 * D, BK, METHOD, row_inside)
    rows = row.to(tl.int64)[:, None] * D
    is_left, is_right = column < D, (column >= D) & column_inside
    to_left, both = d_left + rows + column[None, :], row_inside[:, None] & is_left[None, :]
    tl.store(to_left, acc + tl.load(to_left, mask=both, other=0.0), mask=both)
    to_right, both = d_right + rows + (column - D)[None, :], row_inside[:, None] & is_right[None, :]
    tl.store(to_right, acc + tl.load(to_right, mask=both, other=0.0), mask=both)
