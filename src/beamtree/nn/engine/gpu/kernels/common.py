"""Shared by several kernels: constants, hashed dropout, GELU and its derivative, and tiled matrix products."""

# mypy: ignore-errors

import triton
import triton.language as tl

_FACTORS = (0x2545F491, 0x3C6EF373, 0x1B873593, 0x6C62272F)
SAMPLE_FACTOR, START_FACTOR, MIDDLE_FACTOR, END_FACTOR = (tl.constexpr(factor) for factor in _FACTORS)
WORD_FACTOR = tl.constexpr(0x1E3779B1)
NOTHING = tl.constexpr(float("-inf"))
ROOT_HALF = tl.constexpr(0.7071067811865476)  # √½
DENSITY = tl.constexpr(0.3989422804014327)  # 1 / √(2π), the normal density at 0


@triton.jit
def _mix(x):
    """`beamtree.nn.engine.dropout.mix`, on unsigned integers, whose right shifts fill with zeros."""
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = (x ^ (x >> 15)) * 0x735A2D97
    return x ^ (x >> 15)


@triton.jit
def _drawn(key, seed, column):
    """A random value of a node, from −2¹⁵ to 2¹⁵ − 1. A word holds those of two columns, that of the lower first."""
    offset = (column // 2).to(tl.uint32) * WORD_FACTOR + tl.load(seed).to(tl.uint32, bitcast=True)
    word = _mix(key.to(tl.uint32, bitcast=True) + offset)
    value = tl.where(column % 2 == 1, word >> 16, word & 0xFFFF).to(tl.uint16).to(tl.int16, bitcast=True)
    return value.to(tl.int32)


@triton.jit
def _kept(key, seed, column, threshold):
    """Whether dropout keeps a column of a node's mask."""
    return _drawn(key, seed, column) >= threshold


@triton.jit
def _dropped(x, key, seed, column, threshold, scale):
    """x after dropout."""
    return tl.where(_kept(key, seed, column, threshold), x * scale, 0.0)


@triton.jit
def _product(
    states, rows, weight, column, column_inside, acc, D, S, E, BK: tl.constexpr, METHOD: tl.constexpr, row_inside
):
    """acc + states[rows] @ weight: rows of D elements, S apart, and a weight of E columns; see `gpu.precision`."""
    for k0 in range(0, D, BK):
        k = k0 + tl.arange(0, BK)
        x = tl.load(states + rows[:, None] * S + k[None, :], mask=row_inside[:, None] & (k < D)[None, :], other=0.0)
        inside = (k < D)[:, None] & column_inside[None, :]
        if METHOD == "split":
            place = weight + k[:, None] * (2 * E) + column[None, :]
            w1, w2 = tl.load(place, mask=inside, other=0.0), tl.load(place + E, mask=inside, other=0.0)
            x1 = ((x.to(tl.int32, bitcast=True) + 4096) & -8192).to(tl.float32, bitcast=True)  # as `precision.to_tf32`
            part = tl.dot(x - x1, w1, input_precision="tf32")
            part = tl.dot(x1, w2, part, input_precision="tf32")
            acc += tl.dot(x1, w1, part, input_precision="tf32")  # tensor cores would accumulate with fewer bits
        else:
            w = tl.load(weight + k[:, None] * E + column[None, :], mask=inside, other=0.0)
            if METHOD == "bf16":  # bfloat16 is exact in TF32, and the interpreter has no bfloat16 products
                x, w = x.to(tl.bfloat16).to(tl.float32), w.to(tl.bfloat16).to(tl.float32)
                acc = tl.dot(x, w, acc, input_precision="tf32")
            else:
                acc = tl.dot(x, w, acc, input_precision=METHOD)
    return acc


@triton.jit
def _pair_product(
    left, left_rows, right, right_rows, weight, bias, column, column_inside, D, S, E,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, METHOD: tl.constexpr, row_inside,
):  # fmt: skip
    """[l; r] W + b in a tile: the first product of a cell. The rows of l and r are as in `_product`."""
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    acc = _product(left, left_rows, weight, column, column_inside, acc, D, S, E, BK, METHOD, row_inside)
    lower = weight + D * E * (2 if METHOD == "split" else 1)
    acc = _product(right, right_rows, lower, column, column_inside, acc, D, S, E, BK, METHOD, row_inside)
    return acc + tl.load(bias + column, mask=column_inside, other=0.0)[None, :]


@triton.jit
def _gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * ROOT_HALF))


@triton.jit
def _gelu_slope(x):
    """GELU'(x)."""
    return 0.5 * (1.0 + tl.erf(x * ROOT_HALF)) + x * tl.exp(-0.5 * x * x) * DENSITY


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _grow(heights, new, left, right):
    """Write a parent's height."""
    left, right = left.to(tl.int64), right.to(tl.int64)
    tl.store(heights + new, tl.maximum(tl.load(heights + left), tl.load(heights + right)) + 1)


@triton.jit
def _key(spans, left, right):
    """The key of the dropout mask of the node that joins these two; see `beamtree.nn.engine.dropout`."""
    left, right = left.to(tl.int64), right.to(tl.int64)
    sample, start, middle = tl.load(spans + left * 3), tl.load(spans + left * 3 + 1), tl.load(spans + left * 3 + 2)
    end = tl.load(spans + right * 3 + 2)
    key = sample * SAMPLE_FACTOR + start * START_FACTOR + middle * MIDDLE_FACTOR + end * END_FACTOR
    return key.to(tl.int32)


@triton.jit
def _place(spans, new, left, right):
    """Write the span of the node that joins these two."""
    left, right = left.to(tl.int64), right.to(tl.int64)
    tl.store(spans + new * 3, tl.load(spans + left * 3))
    tl.store(spans + new * 3 + 1, tl.load(spans + left * 3 + 1))
    tl.store(spans + new * 3 + 2, tl.load(spans + right * 3 + 2))


@triton.jit
def _rising_level(level, ends, slot):
    """Where the level `slot` above the one in memory begins and ends in the order of nodes."""
    here = tl.load(level) + slot
    return tl.load(ends + here - 1).to(tl.int32), tl.load(ends + here).to(tl.int32)


@triton.jit
def _level(now, ends, slot):
    """The rows, low to high − 1, of level `slot` of the chunk; levels are counted from the highest down."""
    first, last, level = tl.load(now), tl.load(now + 1), tl.load(now + 2) - slot
    low = tl.load(ends + level - 1, mask=level > 0, other=0).to(tl.int32)
    high = tl.load(ends + level, mask=level > 0, other=0).to(tl.int32)
    return tl.maximum(low, first) - first, tl.minimum(high, last) - first
