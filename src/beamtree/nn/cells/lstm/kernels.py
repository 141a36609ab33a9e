"""The Triton kernels of the Tree-LSTM, for the search and the backward pass.

    expand         the five gates, [h_l; h_r] W + b, in tiles (`beamtree.nn.engine.gpu.kernels.cells`)
    remember       the new memory and state, and its logit, a program for each new node
    remember_level the same for the nodes of a level
    into_memory    the gradient through the memory and the gates, for the nodes of a level

The equations are those of `beamtree.nn.cells.lstm.TreeLSTMAdjoint`.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from beamtree.nn.engine.gpu.kernels.common import NOTHING, _dropped, _kept, _level, _rising_level, _tanh


@triton.jit
def _remember_row(
    states, logits, children, gate, score_weight, score_bias, present, keys, seed, ids, row,
    D, S, threshold, scale,
    SCORED: tl.constexpr, DROPOUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, BLOCK)
    new = tl.load(ids + row).to(tl.int64)
    there = new >= 0
    inside = d < tl.where(there, D, 0)
    left = tl.load(children + new * 2, mask=there, other=0)
    right = tl.load(children + new * 2 + 1, mask=there, other=0)
    own = gate + row * 5 * D + d
    i, f_left = tl.load(own, mask=inside, other=0.0), tl.load(own + D, mask=inside, other=0.0)
    f_right, u = tl.load(own + 2 * D, mask=inside, other=0.0), tl.load(own + 3 * D, mask=inside, other=0.0)
    o = tl.load(own + 4 * D, mask=inside, other=0.0)
    update = _tanh(u)
    if DROPOUT:
        update = _dropped(update, tl.load(keys + row), seed, d, threshold, scale)
    c = tl.sigmoid(f_left + 1.0) * tl.load(states + left * S + D + d, mask=inside, other=0.0)
    c += tl.sigmoid(f_right + 1.0) * tl.load(states + right * S + D + d, mask=inside, other=0.0)
    c += tl.sigmoid(i) * update
    h = tl.sigmoid(o) * _tanh(c)
    tl.store(states + new * S + d, h, mask=inside)
    tl.store(states + new * S + D + d, c, mask=inside)
    if SCORED:
        h = tl.where(inside, h, 0.0)
        logit = tl.sum(h * tl.load(score_weight + d, mask=inside, other=0.0), axis=0) + tl.load(score_bias)
        tl.store(logits + new, tl.where(tl.load(present + row) != 0, logit, NOTHING), mask=there)


@triton.jit
def remember(
    states, logits, children, gate, score_weight, score_bias, present, keys, seed, ids,
    D, S, threshold, scale,
    SCORED: tl.constexpr, DROPOUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    _remember_row(
        states, logits, children, gate, score_weight, score_bias, present, keys, seed, ids, tl.program_id(0),
        D, S, threshold, scale, SCORED, DROPOUT, BLOCK,
    )  # fmt: skip


@triton.jit(do_not_specialize=["slot"])
def remember_level(
    states, children, gate, keys, seed, ids, level, ends,
    slot, D, S, threshold, scale,
    DROPOUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    low, high = _rising_level(level, ends, slot)
    for row in range(low + tl.program_id(0), high, tl.num_programs(0)):
        _remember_row(
            states, states, children, gate, gate, gate, ids, keys, seed, ids, row,
            D, S, threshold, scale, False, DROPOUT, BLOCK,
        )  # fmt: skip


@triton.jit(do_not_specialize=["slot"])
def into_memory(
    gradient, states, ids, pairs, gates, keys, seed, now, ends,
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
        node = tl.load(ids + row)
        d_h = tl.load(gradient + node * S + d, mask=inside, other=0.0)
        d_c = tl.load(gradient + node * S + D + d, mask=inside, other=0.0) + d_h * o * (1 - c * c)
        tl.store(own, d_c * i * (1 - i) * u * keep, mask=inside)
        tl.store(own + D, d_c * f_left * (1 - f_left) * c_left, mask=inside)
        tl.store(own + 2 * D, d_c * f_right * (1 - f_right) * c_right, mask=inside)
        tl.store(own + 3 * D, d_c * (1 - u * u) * i * keep, mask=inside)
        tl.store(own + 4 * D, d_h * o * (1 - o) * c, mask=inside)
        tl.atomic_add(gradient + left * S + D + d, d_c * f_left, mask=inside)
        tl.atomic_add(gradient + right * S + D + d, d_c * f_right, mask=inside)
