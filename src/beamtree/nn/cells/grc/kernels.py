"""The Triton kernels of the GRC, for the search and the backward pass.

    expand         g = mask ⊙ GELU([l; r] W1 + b1) for all pairs, in tiles (`beamtree.nn.engine.gpu.kernels.cells`)
    activate       what `expand` does after its product, for products computed elsewhere
    gates          [z; h; c; u] = g W2 + b2, in tiles
    finish         LN(σ(z) ⊙ l + σ(h) ⊙ r + σ(c) ⊙ u) + noise and its logit, a program for each new node
    gates_level, finish_level
                   the same two for the nodes of a level

    activate_rows  mask ⊙ GELU(a), a program for each row of a chunk; 0 where the chunk has no node
    into_gates     through LayerNorm, σ(z) ⊙ l + σ(h) ⊙ r + σ(c) ⊙ u and the gates, the nodes of a level
    into_inner     d[z; h; c; u] W2ᵀ ⊙ mask ⊙ GELU'(a), in tiles of a level

    gate_gradient, inner_gradient, child_gradient
                   the same three for a level that is a slice of a batch, whose rows the host knows

The equations are in `beamtree.nn.cells.grc.device`.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from beamtree.nn.cells.grc.device import _centred, _gated, _gates, _gates_back, _normalised, _normalised_back, _total
from beamtree.nn.engine.gpu.kernels.common import (
    NOTHING,
    _drawn,
    _dropped,
    _gelu,
    _gelu_slope,
    _level,
    _product,
    _rising_level,
)


@triton.jit
def activate(inner, keys, seed, E, threshold, scale, DROPOUT: tl.constexpr, BLOCK: tl.constexpr):
    """mask ⊙ GELU(a), in-place: what `expand` does after its product, for products computed elsewhere."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    place, inside = inner + row.to(tl.int64) * E + column, column < E
    out = _gelu(tl.load(place, mask=inside, other=0.0))
    if DROPOUT:
        out = _dropped(out, tl.load(keys + row), seed, column, threshold, scale)
    tl.store(place, out, mask=inside)


@triton.jit
def _gates_tile(
    inner, weight, bias, out, row, row_inside, column, E,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, METHOD: tl.constexpr,
):  # fmt: skip
    column_inside = column < E
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    acc = _product(inner, row.to(tl.int64), weight, column, column_inside, acc, E, E, E, BK, METHOD, row_inside)
    acc += tl.load(bias + column, mask=column_inside, other=0.0)[None, :]
    place = out + row.to(tl.int64)[:, None] * E + column[None, :]
    tl.store(place, acc, mask=row_inside[:, None] & column_inside[None, :])


@triton.jit(do_not_specialize=["n"])
def gates(
    inner, weight, bias, out, n, E,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, METHOD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    _gates_tile(inner, weight, bias, out, row, row < n, column, E, BM, BN, BK, METHOD)


@triton.jit(do_not_specialize=["slot"])
def gates_level(
    inner, weight, bias, out, level, ends, slot, E,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, METHOD: tl.constexpr,
):  # fmt: skip
    low, high = _rising_level(level, ends, slot)
    across = tl.cdiv(E, BN)
    for tile in range(tl.program_id(0), tl.cdiv(high - low, BM) * across, tl.num_programs(0)):
        row = low + tile // across * BM + tl.arange(0, BM)
        column = tile % across * BN + tl.arange(0, BN)
        _gates_tile(inner, weight, bias, out, row, row < high, column, E, BM, BN, BK, METHOD)


@triton.jit
def _finish_row(
    states, logits, children, gate, norm_weight, norm_bias, score_weight, score_bias, present, ids, keys, seed,
    noise_step, row, D, S, epsilon,
    SCORED: tl.constexpr, NOISE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, BLOCK)
    new = tl.load(ids + row).to(tl.int64)
    there = new >= 0
    inside = d < tl.where(there, D, 0)
    left = tl.load(children + new * 2, mask=there, other=0)
    right = tl.load(children + new * 2 + 1, mask=there, other=0)
    # Not `_gated`: the gates are read while the ids of the children are on their way.
    z, h, c, u = _gates(gate + row * 4 * D + d, inside, D)
    x = tl.load(states + left * S + d, mask=inside, other=0.0)
    y = tl.load(states + right * S + d, mask=inside, other=0.0)
    _, _, _, total = _total(x, y, z, h, c, u)
    centred, deviation = _centred(total, inside, D, epsilon)
    state = centred / deviation * tl.load(norm_weight + d, mask=inside, other=0.0)
    state += tl.load(norm_bias + d, mask=inside, other=0.0)
    if NOISE:  # after the columns of the dropout mask
        drawn = _drawn(tl.load(keys + row), seed, 4 * D + d)
        state = tl.where(inside, state + (drawn.to(tl.float32) + 0.5) * tl.load(noise_step), 0.0)
    tl.store(states + new * S + d, state, mask=inside)
    if SCORED:
        logit = tl.sum(state * tl.load(score_weight + d, mask=inside, other=0.0), axis=0) + tl.load(score_bias)
        tl.store(logits + new, tl.where(tl.load(present + row) != 0, logit, NOTHING), mask=there)


@triton.jit
def finish(
    states, logits, children, gate, norm_weight, norm_bias, score_weight, score_bias, present, ids, keys, seed,
    noise_step, D, S, epsilon,
    SCORED: tl.constexpr, NOISE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    _finish_row(
        states, logits, children, gate, norm_weight, norm_bias, score_weight, score_bias, present, ids, keys, seed,
        noise_step, tl.program_id(0), D, S, epsilon, SCORED, NOISE, BLOCK,
    )  # fmt: skip


@triton.jit(do_not_specialize=["slot"])
def finish_level(
    states, children, gate, norm_weight, norm_bias, ids, keys, seed, noise_step, level, ends,
    slot, D, S, epsilon,
    NOISE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    low, high = _rising_level(level, ends, slot)
    for row in range(low + tl.program_id(0), high, tl.num_programs(0)):
        _finish_row(
            states, states, children, gate, norm_weight, norm_bias, norm_weight, norm_bias, ids, ids, keys, seed,
            noise_step, row, D, S, epsilon, False, NOISE, BLOCK,
        )  # fmt: skip


@triton.jit
def activate_rows(
    a, inner, hats, reached, keys, seed, inside, D, threshold, scale, DROPOUT: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    there = tl.load(inside + row) > 0
    out = _gelu(tl.load(a + row * 4 * D + column, mask=column < 4 * D, other=0.0))
    if DROPOUT:
        out = _dropped(out, tl.load(keys + row), seed, column, threshold, scale)
    tl.store(inner + row * 4 * D + column, tl.where(there, out, 0.0), mask=column < 4 * D)
    nothing, empty = tl.zeros((BLOCK,), dtype=tl.float32), column < tl.where(there, 0, D)
    tl.store(hats + row * D + column, nothing, mask=empty)
    tl.store(reached + row * D + column, nothing, mask=empty)


@triton.jit(do_not_specialize=["slot"])
def into_gates(
    gradient, ids, pairs, children, gates, norm_weight, hats, reached, now, ends,
    slot, D, S, epsilon,
    BLOCK: tl.constexpr,
):  # fmt: skip
    low, high = _level(now, ends, slot)
    d = tl.arange(0, BLOCK)
    inside = d < D
    weight = tl.load(norm_weight + d, mask=inside, other=0.0)
    for row in range(low + tl.program_id(0), high, tl.num_programs(0)):
        first, second, own = children + row * 2 * D + d, children + row * 2 * D + D + d, gates + row * 4 * D + d
        left, right, z, h, c, u, total = _gated(first, second, own, inside, D)
        hat, rate = _normalised(total, inside, D, epsilon)
        g = tl.load(gradient + tl.load(ids + row) * S + d, mask=inside, other=0.0)
        tl.store(hats + row * D + d, g * hat, mask=inside)
        tl.store(reached + row * D + d, g, mask=inside)
        p = _normalised_back(g * weight, hat, rate, D)
        _gates_back(own, p, left, right, z, h, c, u, inside, D)
        tl.atomic_add(gradient + tl.load(pairs + row * 2) * S + d, p * z, mask=inside)
        tl.atomic_add(gradient + tl.load(pairs + row * 2 + 1) * S + d, p * h, mask=inside)


@triton.jit(do_not_specialize=["slot"])
def into_inner(
    gates, weight, a, keys, seed, now, ends,
    slot, E, threshold, scale,
    DROPOUT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, METHOD: tl.constexpr,
):  # fmt: skip
    """Overwrites a, in-place."""
    low, high = _level(now, ends, slot)
    across = tl.cdiv(E, BN)
    for tile in range(tl.program_id(0), tl.cdiv(high - low, BM) * across, tl.num_programs(0)):
        row = low + tile // across * BM + tl.arange(0, BM)
        column = tile % across * BN + tl.arange(0, BN)
        row_inside, column_inside = row < high, column < E
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        acc = _product(gates, row, weight, column, column_inside, acc, E, E, E, BK, METHOD, row_inside)
        place, both = a + row[:, None] * E + column[None, :], row_inside[:, None] & column_inside[None, :]
        out = acc * _gelu_slope(tl.load(place, mask=both, other=0.0))
        if DROPOUT:
            key = tl.load(keys + row, mask=row_inside, other=0)
            out = _dropped(out, key[:, None], seed, column[None, :], threshold, scale)
        tl.store(place, out, mask=both)


@triton.jit(do_not_specialize=["first"])
def gate_gradient(
    gradient, kept, total, mean, scale, norm_weight, children, opened, update, d_gates, d_total,
    first, D, S,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Through LayerNorm, σ(z) ⊙ l + σ(h) ⊙ r + σ(c) ⊙ u, and the gates: see `beamtree.nn.cells.grc.GRCAdjoint`."""
    here = tl.program_id(0)
    row = (first + here).to(tl.int64)
    d = tl.arange(0, BLOCK)
    inside = d < D
    g = tl.load(gradient + here.to(tl.int64) * S + d, mask=inside, other=0.0)
    tl.store(kept + row * D + d, g, mask=inside)
    rate = tl.load(scale + row)
    hat = tl.where(inside, (tl.load(total + row * D + d, mask=inside, other=0.0) - tl.load(mean + row)) * rate, 0.0)
    p = _normalised_back(g * tl.load(norm_weight + d, mask=inside, other=0.0), hat, rate, D)
    tl.store(d_total + row * D + d, p, mask=inside)
    z = tl.load(opened + row * 3 * D + d, mask=inside, other=0.0)
    h = tl.load(opened + row * 3 * D + D + d, mask=inside, other=0.0)
    c = tl.load(opened + row * 3 * D + 2 * D + d, mask=inside, other=0.0)
    left = tl.load(children + row * 2 * D + d, mask=inside, other=0.0)
    right = tl.load(children + row * 2 * D + D + d, mask=inside, other=0.0)
    u = tl.load(update + row * 4 * D + d, mask=inside, other=0.0)
    _gates_back(d_gates + row * 4 * D + d, p, left, right, z, h, c, u, inside, D)


@triton.jit(do_not_specialize=["first", "count"])
def inner_gradient(
    d_gates, weight, slope, d_inner,
    first, count, E,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, METHOD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    row_inside, column_inside = row < count, column < E
    row = (first + row).to(tl.int64)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    acc = _product(d_gates, row, weight, column, column_inside, acc, E, E, E, BK, METHOD, row_inside)
    place, both = row[:, None] * E + column[None, :], row_inside[:, None] & column_inside[None, :]
    tl.store(d_inner + place, acc * tl.load(slope + place, mask=both, other=0.0), mask=both)


@triton.jit(do_not_specialize=["first", "count"])
def child_gradient(
    d_inner, weight, d_total, opened, out,
    first, count, D, E,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, METHOD: tl.constexpr,
):  # fmt: skip
    here = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)  # of [l; r]
    row_inside, column_inside = here < count, column < 2 * D
    row = (first + here).to(tl.int64)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    acc = _product(d_inner, row, weight, column, column_inside, acc, E, E, 2 * D, BK, METHOD, row_inside)
    both = row_inside[:, None] & column_inside[None, :]
    # σ(z) and σ(h) are adjacent, like l and r.
    gate = tl.load(opened + row[:, None] * 3 * D + column[None, :], mask=both, other=0.0)
    p = tl.load(d_total + row[:, None] * D + (column % D)[None, :], mask=both, other=0.0)
    tl.store(out + here.to(tl.int64)[:, None] * 2 * D + column[None, :], acc + gate * p, mask=both)
