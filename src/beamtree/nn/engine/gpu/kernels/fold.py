"""The Triton kernels of the fold of Ordered Memory, besides those of `beamtree.nn.cells.grc.dense_kernels`.

    finish      a slot's candidate h = x + s (R(l, r) − x), and what the next slot's product reads: h ⊙ its mask
    into_gates  from the gradient of a candidate to that of the gates, of the share, and, past the gates, of l and r
    into_child  da Wᵀ ⊙ mask, in tiles, plus the gradient from `into_gates`

A row is a sample, or a sample in one of the slots. Rows of a mask are `mask_width` apart. The equations are those of
`beamtree.nn.engine.loops.fold`, and the cell's are in `beamtree.nn.cells.grc.device`.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from beamtree.nn.cells.grc.device import _gated, _gates_back, _masked, _normalised, _normalised_back
from beamtree.nn.engine.gpu.kernels.common import _product


@triton.jit
def finish(
    left, right, gates, norm_weight, norm_bias, leaf, share, mask, out, following,
    mask_width, D, epsilon,
    MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, d = tl.program_id(0), tl.arange(0, BLOCK)
    inside, own = d < D, row * D + d
    _, _, _, _, _, _, total = _gated(left + own, right + own, gates + row * 4 * D + d, inside, D)
    hat, _ = _normalised(total, inside, D, epsilon)
    parent = hat * tl.load(norm_weight + d, mask=inside, other=0.0) + tl.load(norm_bias + d, mask=inside, other=0.0)
    x = tl.load(leaf + own, mask=inside, other=0.0)
    state = x + tl.load(share + row) * (parent - x)
    tl.store(out + own, state, mask=inside)
    if MASKED:
        state *= tl.load(mask + row * mask_width + d, mask=inside, other=0.0)
    tl.store(following + own, state, mask=inside)


@triton.jit
def into_gates(
    gradient, carried, left, right, gates, norm_weight, norm_bias, leaf, share,
    d_state, d_gates, d_left, d_right, d_share, hats, reached,
    D, epsilon,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row, d = tl.program_id(0), tl.arange(0, BLOCK)
    inside, own = d < D, row * D + d
    x, y, z, h, c, u, total = _gated(left + own, right + own, gates + row * 4 * D + d, inside, D)
    hat, rate = _normalised(total, inside, D, epsilon)
    weight = tl.load(norm_weight + d, mask=inside, other=0.0)
    parent = hat * weight + tl.load(norm_bias + d, mask=inside, other=0.0)
    g = tl.load(gradient + own, mask=inside, other=0.0) + tl.load(carried + own, mask=inside, other=0.0)
    tl.store(d_state + own, g, mask=inside)
    difference = parent - tl.load(leaf + own, mask=inside, other=0.0)
    tl.store(d_share + row, tl.sum(tl.where(inside, g * difference, 0.0), axis=0))
    g *= tl.load(share + row)
    tl.store(hats + own, g * hat, mask=inside)
    tl.store(reached + own, g, mask=inside)
    p = _normalised_back(g * weight, hat, rate, D)
    _gates_back(d_gates + row * 4 * D + d, p, x, y, z, h, c, u, inside, D)
    tl.store(d_left + own, p * z, mask=inside)
    tl.store(d_right + own, p * h, mask=inside)


@triton.jit(do_not_specialize=["n"])
def into_child(
    d_a, weight, mask, past, out,
    n, mask_width, D, E,
    MASKED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, METHOD: tl.constexpr,
):  # fmt: skip
    """The weight is one half of W1, whose rows are 2D wide."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    row_inside, column_inside = row < n, column < D
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    acc = _product(d_a, row.to(tl.int64), weight, column, column_inside, acc, E, E, 2 * D, BK, METHOD, row_inside)
    both = row_inside[:, None] & column_inside[None, :]
    if MASKED:
        acc = _masked(acc, mask, row, column, mask_width, both)
    place = row.to(tl.int64)[:, None] * D + column[None, :]
    tl.store(out + place, acc + tl.load(past + place, mask=both, other=0.0), mask=both)
