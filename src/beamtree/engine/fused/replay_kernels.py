"""The kernels of replay, in Triton: the gradient of a chunk of nodes, level by level.

    gather         a program for each row of the chunk: a node's children, and the key of its dropout mask
    activate       mask ⊙ GELU(a), a program for each row; 0 where the chunk has no node
    into_gates     through LayerNorm, σ(z) ⊙ l + σ(h) ⊙ r + σ(c) ⊙ u and the gates
    into_memory    through the memory and the gates of the Tree-LSTM
    into_inner     d[z; h; c; u] W2ᵀ ⊙ mask ⊙ GELU'(a), in tiles
    into_children  what was found times W1ᵀ, in tiles, added to the gradient of the children

How many nodes a level has is known on the device alone. So that one captured sequence of launches serves all levels, a
kernel reads from memory which rows it has (`_level`), and its programs share them, however many there are.

The equations are those of `beamtree.engine.adjoint`. `now` holds where the chunk begins and ends in the order of all
nodes, and its highest level.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from beamtree.engine.fused.kernels import (
    DENSITY,
    END_FACTOR,
    MIDDLE_FACTOR,
    ROOT_HALF,
    SAMPLE_FACTOR,
    START_FACTOR,
    _gelu,
    _kept,
    _product,
    _tanh,
)


@triton.jit
def gather(
    order, states, child_of, spans, now, numbers, pairs, children, keys, inside,
    D, S,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    there = tl.load(now) + row < tl.load(now + 1)
    number = tl.load(order + tl.load(now) + row, mask=there, other=0)
    left = tl.load(child_of + number * 2, mask=there, other=0)
    right = tl.load(child_of + number * 2 + 1, mask=there, other=0)
    tl.store(numbers + row, number)
    tl.store(pairs + row * 2, left)
    tl.store(pairs + row * 2 + 1, right)
    tl.store(inside + row, there.to(tl.float32))
    start, middle = tl.load(spans + left * 3 + 1), tl.load(spans + left * 3 + 2)
    sample, end = tl.load(spans + left * 3), tl.load(spans + right * 3 + 2)
    key = sample * SAMPLE_FACTOR + start * START_FACTOR + middle * MIDDLE_FACTOR + end * END_FACTOR
    tl.store(keys + row, key.to(tl.int32))
    d = tl.arange(0, BLOCK)
    own, filled = children + row * 2 * D + d, d < tl.where(there, D, 0)
    tl.store(own, tl.load(states + left * S + d, mask=filled, other=0.0), mask=d < D)
    tl.store(own + D, tl.load(states + right * S + d, mask=filled, other=0.0), mask=d < D)


@triton.jit
def activate(
    a, inner, hats, reached, keys, seed, inside, D, threshold, scale, DROPOUT: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    there = tl.load(inside + row) > 0
    out = _gelu(tl.load(a + row * 4 * D + column, mask=column < 4 * D, other=0.0))
    if DROPOUT:
        out = tl.where(_kept(tl.load(keys + row), seed, column, threshold), out * scale, 0.0)
    tl.store(inner + row * 4 * D + column, tl.where(there, out, 0.0), mask=column < 4 * D)
    nothing, empty = tl.zeros((BLOCK,), dtype=tl.float32), column < tl.where(there, 0, D)
    tl.store(hats + row * D + column, nothing, mask=empty)
    tl.store(reached + row * D + column, nothing, mask=empty)


@triton.jit
def _level(now, ends, slot):
    """The rows of the chunk that its level `slot`, counted from the highest down, has: from low to high − 1."""
    first, last, level = tl.load(now), tl.load(now + 1), tl.load(now + 2) - slot
    low = tl.load(ends + level - 1, mask=level > 0, other=0).to(tl.int32)
    high = tl.load(ends + level, mask=level > 0, other=0).to(tl.int32)
    return tl.maximum(low, first) - first, tl.minimum(high, last) - first


@triton.jit(do_not_specialize=["slot"])
def into_gates(
    gradient, numbers, pairs, children, gates, norm_weight, hats, reached, now, ends,
    slot, D, S, epsilon,
    BLOCK: tl.constexpr,
):  # fmt: skip
    low, high = _level(now, ends, slot)
    d = tl.arange(0, BLOCK)
    inside = d < D
    weight = tl.load(norm_weight + d, mask=inside, other=0.0)
    for row in range(low + tl.program_id(0), high, tl.num_programs(0)):
        left = tl.load(children + row * 2 * D + d, mask=inside, other=0.0)
        right = tl.load(children + row * 2 * D + D + d, mask=inside, other=0.0)
        own = gates + row * 4 * D + d
        z = tl.sigmoid(tl.load(own, mask=inside, other=0.0))
        h = tl.sigmoid(tl.load(own + D, mask=inside, other=0.0))
        c = tl.sigmoid(tl.load(own + 2 * D, mask=inside, other=0.0))
        u = tl.load(own + 3 * D, mask=inside, other=0.0)
        x = z * left + h * right + c * u
        mean = tl.sum(tl.where(inside, x, 0.0), axis=0) / D
        centred = tl.where(inside, x - mean, 0.0)
        rate = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / D + epsilon)
        hat = centred * rate
        g = tl.load(gradient + tl.load(numbers + row) * S + d, mask=inside, other=0.0)
        tl.store(hats + row * D + d, g * hat, mask=inside)
        tl.store(reached + row * D + d, g, mask=inside)
        g *= weight
        p = rate * (g - tl.sum(g, axis=0) / D - hat * (tl.sum(g * hat, axis=0) / D))
        tl.store(own, p * left * z * (1 - z), mask=inside)
        tl.store(own + D, p * right * h * (1 - h), mask=inside)
        tl.store(own + 2 * D, p * u * c * (1 - c), mask=inside)
        tl.store(own + 3 * D, p * c, mask=inside)
        tl.atomic_add(gradient + tl.load(pairs + row * 2) * S + d, p * z, mask=inside)
        tl.atomic_add(gradient + tl.load(pairs + row * 2 + 1) * S + d, p * h, mask=inside)


@triton.jit(do_not_specialize=["slot"])
def into_memory(
    gradient, states, numbers, pairs, gates, keys, seed, now, ends,
    slot, D, S, threshold, scale,
    DROPOUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    low, high = _level(now, ends, slot)
    d = tl.arange(0, BLOCK)
    inside = d < D
    for row in range(low + tl.program_id(0), high, tl.num_programs(0)):
        left, right = tl.load(pairs + row * 2), tl.load(pairs + row * 2 + 1)
        own = gates + row * 5 * D + d
        i = tl.sigmoid(tl.load(own, mask=inside, other=0.0))
        f_left = tl.sigmoid(tl.load(own + D, mask=inside, other=0.0) + 1.0)
        f_right = tl.sigmoid(tl.load(own + 2 * D, mask=inside, other=0.0) + 1.0)
        u = _tanh(tl.load(own + 3 * D, mask=inside, other=0.0))
        o = tl.sigmoid(tl.load(own + 4 * D, mask=inside, other=0.0))
        keep = tl.full((BLOCK,), 1.0, tl.float32)
        if DROPOUT:
            keep = tl.where(_kept(tl.load(keys + row), seed, d, threshold), scale, 0.0)
        c_left = tl.load(states + left * S + D + d, mask=inside, other=0.0)
        c_right = tl.load(states + right * S + D + d, mask=inside, other=0.0)
        c = _tanh(f_left * c_left + f_right * c_right + i * u * keep)
        number = tl.load(numbers + row)
        d_h = tl.load(gradient + number * S + d, mask=inside, other=0.0)
        d_c = tl.load(gradient + number * S + D + d, mask=inside, other=0.0) + d_h * o * (1 - c * c)
        tl.store(own, d_c * i * (1 - i) * u * keep, mask=inside)
        tl.store(own + D, d_c * f_left * (1 - f_left) * c_left, mask=inside)
        tl.store(own + 2 * D, d_c * f_right * (1 - f_right) * c_right, mask=inside)
        tl.store(own + 3 * D, d_c * (1 - u * u) * i * keep, mask=inside)
        tl.store(own + 4 * D, d_h * o * (1 - o) * c, mask=inside)
        tl.atomic_add(gradient + left * S + D + d, d_c * f_left, mask=inside)
        tl.atomic_add(gradient + right * S + D + d, d_c * f_right, mask=inside)


@triton.jit(do_not_specialize=["slot"])
def into_inner(
    gates, weight, a, keys, seed, now, ends,
    slot, E, threshold, scale,
    DROPOUT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, METHOD: tl.constexpr,
):  # fmt: skip
    """In place of a."""
    low, high = _level(now, ends, slot)
    across = tl.cdiv(E, BN)
    for tile in range(tl.program_id(0), tl.cdiv(high - low, BM) * across, tl.num_programs(0)):
        row = low + tile // across * BM + tl.arange(0, BM)
        column = tile % across * BN + tl.arange(0, BN)
        row_inside, column_inside = row < high, column < E
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        acc = _product(gates, row, weight, column, column_inside, acc, E, E, E, BK, METHOD, row_inside)
        place, both = a + row[:, None] * E + column[None, :], row_inside[:, None] & column_inside[None, :]
        x = tl.load(place, mask=both, other=0.0)
        out = acc * (0.5 * (1.0 + tl.erf(x * ROOT_HALF)) + x * tl.exp(-0.5 * x * x) * DENSITY)
        if DROPOUT:
            key = tl.load(keys + row, mask=row_inside, other=0)
            out = tl.where(_kept(key[:, None], seed, column[None, :], threshold), out * scale, 0.0)
        tl.store(place, out, mask=both)


@triton.jit(do_not_specialize=["slot"])
def into_children(
    found, weight, gradient, pairs, now, ends,
    slot, D, S, E,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, METHOD: tl.constexpr,
):  # fmt: skip
    low, high = _level(now, ends, slot)
    across = tl.cdiv(2 * D, BN)
    for tile in range(tl.program_id(0), tl.cdiv(high - low, BM) * across, tl.num_programs(0)):
        row = low + tile // across * BM + tl.arange(0, BM)
        column = tile % across * BN + tl.arange(0, BN)  # of [l; r]
        row_inside, column_inside = row < high, column < 2 * D
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        acc = _product(found, row, weight, column, column_inside, acc, E, E, 2 * D, BK, METHOD, row_inside)
        both = row_inside[:, None] & column_inside[None, :]
        child = tl.load(pairs + row[:, None] * 2 + (column // D)[None, :], mask=both, other=0)
        tl.atomic_add(gradient + child * S + (column % D)[None, :], acc, mask=both)
