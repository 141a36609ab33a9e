"""The Triton kernels of CRvNN's iterations for scalars of each position, in float64. The averages are in `windows.py`.

    lay_out        a program for each sample: where positions begin, and which words may be absorbed
    lay_out_back   its gradient
    weigh          exp(s) of the words that may be absorbed
    absorb         c = w / (w + 1 + beside), and the existence after it
    absorb_back, weigh_back
                   their gradients

The equations are those of `beamtree.nn.engine.loops.continuous`.
"""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit(do_not_specialize=["S"])
def lay_out(existence, absorbable, totals, rising, active, S, threshold, BLOCK: tl.constexpr):
    """`rising` is the running maximum of `totals`, which rounding can make decrease.

    A sample is finished if at most three positions exist: START, END and one word.
    """
    b, i = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = i < S
    e = tl.load(existence + b * S + i, mask=inside, other=0.0)
    count = tl.sum((inside & (e > threshold)).to(tl.int32), axis=0)
    may = tl.load(absorbable + b * S + i, mask=inside, other=0) != 0
    tl.store(active + b * S + i, (may & (count > 3)).to(tl.int8), mask=inside)
    total = tl.cumsum(e.to(tl.float64), axis=0)
    highest = tl.maximum(tl.associative_scan(total, 0, _larger), 0.0)
    row = b * (S + 1)
    tl.store(totals + row + 1 + i, total, mask=inside)
    tl.store(rising + row + 1 + i, highest, mask=inside)
    first = i < 1
    tl.store(totals + row + i, tl.zeros_like(total), mask=first)
    tl.store(rising + row + i, tl.zeros_like(total), mask=first)


@triton.jit(do_not_specialize=["S"])
def lay_out_back(d_totals, d_existence, S, BLOCK: tl.constexpr):
    """The existence of a position shifts all edges after it."""
    b, i = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = i < S
    d = tl.load(d_totals + b * (S + 1) + 1 + i, mask=inside, other=0.0)
    behind = tl.sum(d, axis=0) - tl.cumsum(d, axis=0) + d
    tl.store(d_existence + b * S + i, behind.to(d_existence.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["n"])
def weigh(scores, active, weights, n, largest, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    s = tl.load(scores + i, mask=inside, other=0.0).to(tl.float64)
    is_active = tl.load(active + i, mask=inside, other=0) != 0
    tl.store(weights + i, tl.where(is_active, tl.exp(tl.minimum(s, largest)), 0.0), mask=inside)


@triton.jit(do_not_specialize=["n"])
def weigh_back(scores, weights, gradient, d_scores, n, largest, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    s = tl.load(scores + i, mask=inside, other=0.0).to(tl.float64)
    d = tl.load(gradient + i, mask=inside, other=0.0) * tl.load(weights + i, mask=inside, other=0.0)
    tl.store(d_scores + i, tl.where(s <= largest, d, 0.0).to(d_scores.dtype.element_ty), mask=inside)


@triton.jit
def _beside(beside, i, inside, S):
    """The sum of what is to the left and to the right of each position; `beside` is (B, 2, S)."""
    place = beside + (i // S * 2) * S + i % S
    return tl.load(place, mask=inside, other=0.0) + tl.load(place + S, mask=inside, other=0.0)


@triton.jit(do_not_specialize=["n", "S"])
def absorb(weights, beside, existence, probability, after, n, S, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    w = tl.load(weights + i, mask=inside, other=0.0)
    c = (w / (w + 1.0 + _beside(beside, i, inside, S))).to(probability.dtype.element_ty)
    e = tl.load(existence + i, mask=inside, other=0.0)
    tl.store(probability + i, c, mask=inside)
    tl.store(after + i, e * (1 - c), mask=inside)


@triton.jit(do_not_specialize=["n", "S"])
def absorb_back(
    weights, beside, existence, d_probability, d_after, d_weights, d_beside, d_existence, n, S, BLOCK: tl.constexpr
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    w, e = tl.load(weights + i, mask=inside, other=0.0), tl.load(existence + i, mask=inside, other=0.0)
    total = w + 1.0 + _beside(beside, i, inside, S)
    c, d_e = w / total, tl.load(d_after + i, mask=inside, other=0.0)
    tl.store(d_existence + i, (d_e * (1 - c)).to(d_existence.dtype.element_ty), mask=inside)
    d_c = tl.load(d_probability + i, mask=inside, other=0.0).to(tl.float64) - (d_e * e).to(tl.float64)
    d_total = -d_c * c / total
    tl.store(d_weights + i, d_c / total + d_total, mask=inside)
    place = d_beside + (i // S * 2) * S + i % S
    tl.store(place, d_total, mask=inside)
    tl.store(place + S, d_total, mask=inside)
