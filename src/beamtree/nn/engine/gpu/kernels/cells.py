"""The Triton kernels that cells share.

    expand         x W + b for pairs of children gathered from the pool, in tiles; for the GRC with GELU and dropout
    expand_level   the same for the nodes of a level
    gather         a program for each row of a chunk: a node's children, and the key of its dropout mask
    into_children  a gradient times Wᵀ, in tiles of a level, added to the gradient of the children

New nodes are composed by their ids (−1: none), which are read from memory, so that one captured sequence of launches
serves any segment of a search. The number of nodes of a level is known only on the device: kernels of a level read its
bounds from memory (`_level`), and their programs share its rows. `now` holds where a chunk begins and ends in the order
of all nodes, and its highest level.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from beamtree.nn.engine.gpu.kernels.common import (
    END_FACTOR,
    MIDDLE_FACTOR,
    SAMPLE_FACTOR,
    START_FACTOR,
    _dropped,
    _gelu,
    _key,
    _level,
    _pair_product,
    _product,
    _rising_level,
)


@triton.jit
def _expand_tile(
    states, children, weight, bias, inner, keys, seed, ids, row, row_inside, column,
    D, S, E, threshold, scale,
    GELU: tl.constexpr, DROPOUT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    METHOD: tl.constexpr,
):  # fmt: skip
    """Compute these columns for the nodes at these rows of `ids`."""
    column_inside = column < E
    new = tl.load(ids + row, mask=row_inside, other=-1).to(tl.int64)
    row_inside = row_inside & (new >= 0)
    left = tl.load(children + new * 2, mask=row_inside, other=0)
    right = tl.load(children + new * 2 + 1, mask=row_inside, other=0)
    out = _pair_product(
        states, left, states, right, weight, bias, column, column_inside, D, S, E, BM, BN, BK, METHOD, row_inside
    )
    if GELU:
        out = _gelu(out)
    if DROPOUT:
        key = tl.load(keys + row, mask=row_inside, other=0)
        out = _dropped(out, key[:, None], seed, column[None, :], threshold, scale)
    place = inner + row.to(tl.int64)[:, None] * E + column[None, :]
    tl.store(place, out, mask=row_inside[:, None] & column_inside[None, :])


@triton.jit(do_not_specialize=["n"])
def expand(
    states, children, weight, bias, inner, keys, seed, ids,
    n, D, S, E, threshold, scale,
    GELU: tl.constexpr, DROPOUT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, METHOD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BM + tl.arange(0, BM)  # a pair
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    _expand_tile(
        states, children, weight, bias, inner, keys, seed, ids, row, row < n, column, D, S, E, threshold, scale,
        GELU, DROPOUT, BM, BN, BK, METHOD,
    )  # fmt: skip


@triton.jit(do_not_specialize=["slot"])
def expand_level(
    states, children, weight, bias, inner, keys, seed, ids, level, ends,
    slot, D, S, E, threshold, scale,
    GELU: tl.constexpr, DROPOUT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, METHOD: tl.constexpr,
):  # fmt: skip
    low, high = _rising_level(level, ends, slot)
    across = tl.cdiv(E, BN)
    for tile in range(tl.program_id(0), tl.cdiv(high - low, BM) * across, tl.num_programs(0)):
        row = low + tile // across * BM + tl.arange(0, BM)
        column = tile % across * BN + tl.arange(0, BN)
        _expand_tile(
            states, children, weight, bias, inner, keys, seed, ids, row, row < high, column, D, S, E, threshold, scale,
            GELU, DROPOUT, BM, BN, BK, METHOD,
        )  # fmt: skip


@triton.jit
def make_keys(ids, children, spans, keys):
    """The key of the dropout mask of each node, a program for each."""
    row = tl.program_id(0)
    node = tl.load(ids + row).to(tl.int64)
    left, right = tl.load(children + node * 2), tl.load(children + node * 2 + 1)
    tl.store(keys + row, _key(spans, left, right))


@triton.jit
def gather(
    order, states, child_of, spans, now, ids, pairs, children, keys, inside,
    D, S,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    there = tl.load(now) + row < tl.load(now + 1)
    node = tl.load(order + tl.load(now) + row, mask=there, other=0)
    left = tl.load(child_of + node * 2, mask=there, other=0)
    right = tl.load(child_of + node * 2 + 1, mask=there, other=0)
    tl.store(ids + row, node)
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
