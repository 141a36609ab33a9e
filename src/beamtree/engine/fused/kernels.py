"""The kernels of a search step, in Triton: what `beamtree.engine.search` does in a hundred operations, in five.

    propose   a program for each beam: log-softmax over its candidates, and the best of them
    advance   a program for each new beam: the best continuation, the shifted row, the two pairs to compose
    expand    g = mask ⊙ GELU([l; r] W1 + b1) for all pairs, in tiles
    gates     [z; h; c; u] = g W2 + b2, in tiles
    finish    LN(σ(z) ⊙ l + σ(h) ⊙ r + σ(c) ⊙ u) and its logit, a program for each new node

and for the Tree-LSTM, in place of the last three,

    expand    the five gates, [h_l; h_r] W + b, in tiles
    remember  the new memory and state, and its logit, a program for each new node

Composing makes n nodes a step, from the number `first` on. The number of the step is `base`, which is read from memory,
and `slot`: one captured sequence of launches serves any stretch of a search. The buffers are those of
`beamtree.engine.fused.workspaces`. Without a GPU the kernels run in Triton's interpreter.
"""


# mypy: ignore-errors

import triton
import triton.language as tl

_FACTORS = (0x2545F491, 0x3C6EF373, 0x1B873593, 0x6C62272F)
SAMPLE_FACTOR, START_FACTOR, MIDDLE_FACTOR, END_FACTOR = (tl.constexpr(factor) for factor in _FACTORS)
WORD_FACTOR = tl.constexpr(0x1E3779B1)
NOTHING = tl.constexpr(float("-inf"))
ROOT_HALF = tl.constexpr(0.7071067811865476)  # √½
DENSITY = tl.constexpr(0.3989422804014327)  # 1 / √(2π), the normal density at 0


@triton.jit(do_not_specialize=["slot", "half", "BEAMS", "M"])
def propose(
    rows, logits, noise, columns, log_p, normalisers, base,
    slot, half, BEAMS, M, W,
    J: tl.constexpr, NOISY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    beam = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    inside = place < M - tl.load(base) - slot  # the rest of the row is absent by now
    number = tl.load(rows + (half * BEAMS + beam) * W + 1 + place, mask=inside, other=0)
    logit = tl.load(logits + number, mask=inside, other=NOTHING)  # (BLOCK,)
    largest = tl.max(logit, axis=0)
    largest = tl.where(largest == NOTHING, 0.0, largest)
    normaliser = largest + tl.log(tl.maximum(tl.sum(tl.exp(logit - largest), axis=0), 1.0))  # 1 if nothing is there
    tl.store(normalisers + beam, normaliser)
    ranked = logit - normaliser
    if NOISY:
        ranked += tl.load(noise + (slot * BEAMS + beam) * M + place, mask=inside, other=0.0)
    ranked = tl.where(logit == NOTHING, NOTHING, ranked)
    for j in tl.static_range(J):
        best, at = tl.max(ranked, axis=0, return_indices=True)  # the first of equal ones
        tl.store(columns + beam * J + j, at + 1)
        # Read again, as the noise is not part of it; where nothing is left there is none.
        chosen = tl.load(rows + (half * BEAMS + beam) * W + 1 + at)
        tl.store(log_p + beam * J + j, tl.where(best == NOTHING, NOTHING, tl.load(logits + chosen) - normaliser))
        ranked = tl.where(place == at, NOTHING, ranked)


@triton.jit(do_not_specialize=["slot", "half", "first", "absent", "BEAMS"])
def advance(
    rows, scores, lengths, children, spans, heights, noise, columns, log_p, normalisers, base,
    source_at, action_at, dead_at, born_at, normaliser_at, keys, present,
    slot, half, first, absent, BEAMS, W,
    K: tl.constexpr, J: tl.constexpr, NOISY: tl.constexpr, BLOCK: tl.constexpr, CONTINUATIONS: tl.constexpr,
):  # fmt: skip
    beam = tl.program_id(0)
    sample, k = beam // K, beam % K
    step = tl.load(base) + slot
    active = step < tl.load(lengths + sample) - 2

    continuation = tl.arange(0, CONTINUATIONS)
    exists = continuation < K * J
    where = sample * K * J + continuation
    before = tl.load(scores + half * BEAMS + sample * K + continuation // J, mask=exists, other=NOTHING)
    total = before + tl.load(log_p + where, mask=exists, other=NOTHING)
    ranked = total
    if NOISY:
        drawn = tl.load(noise + slot * BEAMS * J + where, mask=exists, other=0.0)
        ranked = tl.where(total == NOTHING, NOTHING, total + drawn)
    own = 0
    score = NOTHING
    for rank in tl.static_range(K):
        best, at = tl.max(ranked, axis=0, return_indices=True)
        taken = tl.max(tl.where(continuation == at, total, NOTHING), axis=0)
        own = tl.where(rank == k, at, own)
        score = tl.where(rank == k, tl.where(best == NOTHING, NOTHING, taken), score)
        ranked = tl.where(continuation == at, NOTHING, ranked)
    moving = active & (score > NOTHING)
    source = tl.where(active, own // J, k)
    from_beam = sample * K + source
    column = tl.where(moving, tl.load(columns + from_beam * J + own % J), W)
    unchanged = tl.load(scores + half * BEAMS + beam)
    tl.store(scores + (1 - half) * BEAMS + beam, tl.where(active, score, unchanged))

    old = rows + (half * BEAMS + from_beam) * W
    left_one = tl.load(old + column - 1, mask=moving, other=absent)
    chosen = tl.load(old + column, mask=moving, other=absent)
    right_one = tl.load(old + column + 1, mask=moving, other=absent)
    left = tl.load(children + left_one.to(tl.int64) * 2)
    right = tl.load(children + right_one.to(tl.int64) * 2 + 1)
    new = first + (step * BEAMS + beam) * 2
    born_left = tl.where(left_one == absent, absent, new)
    born_right = tl.where(right_one == absent, absent, new + 1)

    place = tl.arange(0, BLOCK)
    inside = place < W
    here = tl.load(old + place, mask=inside, other=0)
    after = tl.load(old + place + 1, mask=place < W - 1, other=0)
    row = tl.where((place > column) & (place < W - 1), after, here)
    row = tl.where(moving & (place == column - 1), born_left, row)
    row = tl.where(moving & (place == column), born_right, row)
    tl.store(rows + ((1 - half) * BEAMS + beam) * W + place, row, mask=inside)

    record = step * BEAMS + beam
    tl.store(source_at + record, source)
    tl.store(action_at + record, column - 1)
    tl.store(dead_at + record * 3, left_one)
    tl.store(dead_at + record * 3 + 1, chosen)
    tl.store(dead_at + record * 3 + 2, right_one)
    tl.store(born_at + record * 2, born_left)
    tl.store(born_at + record * 2 + 1, born_right)
    normaliser = tl.load(normalisers + from_beam)
    tl.store(normaliser_at + record, tl.where(moving, normaliser, float("inf")))

    tl.store(children + new * 2, left)
    tl.store(children + new * 2 + 1, chosen)
    tl.store(children + new * 2 + 2, chosen)
    tl.store(children + new * 2 + 3, right)
    tl.store(present + beam * 2, left_one != absent)
    tl.store(present + beam * 2 + 1, right_one != absent)
    _place(spans, keys, new, beam * 2, left, chosen)
    _grow(heights, new, left, chosen)
    _place(spans, keys, new + 1, beam * 2 + 1, chosen, right)
    _grow(heights, new + 1, chosen, right)


@triton.jit
def _grow(heights, new, left, right):
    """A parent's height."""
    left, right = left.to(tl.int64), right.to(tl.int64)
    tl.store(heights + new, tl.maximum(tl.load(heights + left), tl.load(heights + right)) + 1)


@triton.jit
def _place(spans, keys, new, pair, left, right):
    """A parent's span, and the key of its dropout mask (`beamtree.dropout`)."""
    left, right = left.to(tl.int64), right.to(tl.int64)
    sample, start, middle = tl.load(spans + left * 3), tl.load(spans + left * 3 + 1), tl.load(spans + left * 3 + 2)
    end = tl.load(spans + right * 3 + 2)
    tl.store(spans + new * 3, sample)
    tl.store(spans + new * 3 + 1, start)
    tl.store(spans + new * 3 + 2, end)
    key = sample * SAMPLE_FACTOR + start * START_FACTOR + middle * MIDDLE_FACTOR + end * END_FACTOR
    tl.store(keys + pair, key.to(tl.int32))


@triton.jit
def _mix(x):
    """`beamtree.dropout.mix`, on unsigned numbers, whose shifts bring in zeros."""
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = (x ^ (x >> 15)) * 0x735A2D97
    return x ^ (x >> 15)


@triton.jit
def _kept(key, seed, column, threshold):
    """Whether dropout keeps a column of a node's mask. One word decides two columns, 16 bits each, the lower first."""
    offset = (column // 2).to(tl.uint32) * WORD_FACTOR + tl.load(seed).to(tl.uint32, bitcast=True)
    word = _mix(key.to(tl.uint32, bitcast=True) + offset)
    number = tl.where(column % 2 == 1, word >> 16, word & 0xFFFF).to(tl.uint16).to(tl.int16, bitcast=True)
    return number.to(tl.int32) >= threshold


@triton.jit
def _product(
    states, number, weight, column, column_inside, acc, D, S, E, BK: tl.constexpr, METHOD: tl.constexpr, row_inside
):
    """acc + states[number] @ weight: rows of D numbers, S apart, and a weight of E columns; see `products`."""
    for k0 in range(0, D, BK):
        k = k0 + tl.arange(0, BK)
        x = tl.load(states + number[:, None] * S + k[None, :], mask=row_inside[:, None] & (k < D)[None, :], other=0.0)
        inside = (k < D)[:, None] & column_inside[None, :]
        if METHOD == "split":
            place = weight + k[:, None] * (2 * E) + column[None, :]
            w1, w2 = tl.load(place, mask=inside, other=0.0), tl.load(place + E, mask=inside, other=0.0)
            x1 = ((x.to(tl.int32, bitcast=True) + 4096) & -8192).to(tl.float32, bitcast=True)  # as `products.to_tf32`
            part = tl.dot(x - x1, w1, input_precision="tf32")
            part = tl.dot(x1, w2, part, input_precision="tf32")
            acc += tl.dot(x1, w1, part, input_precision="tf32")  # tensor cores would add with fewer digits
        else:
            w = tl.load(weight + k[:, None] * E + column[None, :], mask=inside, other=0.0)
            if METHOD == "bf16":  # what was rounded to it is exact in TF32, and the interpreter knows no other products
                x, w = x.to(tl.bfloat16).to(tl.float32), w.to(tl.bfloat16).to(tl.float32)
                acc = tl.dot(x, w, acc, input_precision="tf32")
            else:
                acc = tl.dot(x, w, acc, input_precision=METHOD)
    return acc


@triton.jit
def _gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * ROOT_HALF))


@triton.jit(do_not_specialize=["slot", "first", "n"])
def expand(
    states, children, weight, bias, inner, keys, seed, base,
    slot, first, n, D, S, E, threshold, scale,
    GELU: tl.constexpr, DROPOUT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, METHOD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BM + tl.arange(0, BM)  # a pair
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    row_inside, column_inside = row < n, column < E
    new = (first + (tl.load(base) + slot) * n + row).to(tl.int64)
    left = tl.load(children + new * 2, mask=row_inside, other=0)
    right = tl.load(children + new * 2 + 1, mask=row_inside, other=0)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    acc = _product(states, left, weight, column, column_inside, acc, D, S, E, BK, METHOD, row_inside)
    second = weight + D * E * (2 if METHOD == "split" else 1)
    acc = _product(states, right, second, column, column_inside, acc, D, S, E, BK, METHOD, row_inside)
    out = acc + tl.load(bias + column, mask=column_inside, other=0.0)[None, :]
    if GELU:
        out = _gelu(out)
    if DROPOUT:
        key = tl.load(keys + row, mask=row_inside, other=0)
        out = tl.where(_kept(key[:, None], seed, column[None, :], threshold), out * scale, 0.0)
    tl.store(inner + row[:, None] * E + column[None, :], out, mask=row_inside[:, None] & column_inside[None, :])


@triton.jit
def activate(inner, keys, seed, E, threshold, scale, DROPOUT: tl.constexpr, BLOCK: tl.constexpr):
    """mask ⊙ GELU(a), in place: what `expand` does after its product, for products made elsewhere."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    place, inside = inner + row.to(tl.int64) * E + column, column < E
    out = _gelu(tl.load(place, mask=inside, other=0.0))
    if DROPOUT:
        out = tl.where(_kept(tl.load(keys + row), seed, column, threshold), out * scale, 0.0)
    tl.store(place, out, mask=inside)


@triton.jit(do_not_specialize=["n"])
def gates(
    inner, weight, bias, out, n, E,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, METHOD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    row_inside, column_inside = row < n, column < E
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    acc = _product(inner, row, weight, column, column_inside, acc, E, E, E, BK, METHOD, row_inside)
    acc += tl.load(bias + column, mask=column_inside, other=0.0)[None, :]
    tl.store(out + row[:, None] * E + column[None, :], acc, mask=row_inside[:, None] & column_inside[None, :])


@triton.jit(do_not_specialize=["slot", "first", "n"])
def finish(
    states, logits, children, gate, norm_weight, norm_bias, score_weight, score_bias, present, base,
    slot, first, n, D, S, epsilon,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    d = tl.arange(0, BLOCK)
    inside = d < D
    new = first + (tl.load(base) + slot).to(tl.int64) * n + row
    left, right = tl.load(children + new * 2), tl.load(children + new * 2 + 1)
    own = gate + row * 4 * D + d
    z, h = tl.load(own, mask=inside, other=0.0), tl.load(own + D, mask=inside, other=0.0)
    c, u = tl.load(own + 2 * D, mask=inside, other=0.0), tl.load(own + 3 * D, mask=inside, other=0.0)
    x = tl.sigmoid(z) * tl.load(states + left * S + d, mask=inside, other=0.0)
    x += tl.sigmoid(h) * tl.load(states + right * S + d, mask=inside, other=0.0)
    x += tl.sigmoid(c) * u
    mean = tl.sum(x, axis=0) / D
    centred = tl.where(inside, x - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / D
    state = centred / tl.sqrt(variance + epsilon) * tl.load(norm_weight + d, mask=inside, other=0.0)
    state += tl.load(norm_bias + d, mask=inside, other=0.0)
    tl.store(states + new * S + d, state, mask=inside)
    logit = tl.sum(state * tl.load(score_weight + d, mask=inside, other=0.0), axis=0) + tl.load(score_bias)
    tl.store(logits + new, tl.where(tl.load(present + row) != 0, logit, NOTHING))


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit(do_not_specialize=["slot", "first", "n"])
def remember(
    states, logits, children, gate, score_weight, score_bias, present, keys, seed, base,
    slot, first, n, D, S, threshold, scale,
    DROPOUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    d = tl.arange(0, BLOCK)
    inside = d < D
    new = first + (tl.load(base) + slot).to(tl.int64) * n + row
    left, right = tl.load(children + new * 2), tl.load(children + new * 2 + 1)
    own = gate + row * 5 * D + d
    i, f_left = tl.load(own, mask=inside, other=0.0), tl.load(own + D, mask=inside, other=0.0)
    f_right, u = tl.load(own + 2 * D, mask=inside, other=0.0), tl.load(own + 3 * D, mask=inside, other=0.0)
    o = tl.load(own + 4 * D, mask=inside, other=0.0)
    update = _tanh(u)
    if DROPOUT:
        update = tl.where(_kept(tl.load(keys + row), seed, d, threshold), update * scale, 0.0)
    c = tl.sigmoid(f_left + 1.0) * tl.load(states + left * S + D + d, mask=inside, other=0.0)
    c += tl.sigmoid(f_right + 1.0) * tl.load(states + right * S + D + d, mask=inside, other=0.0)
    c += tl.sigmoid(i) * update
    h = tl.sigmoid(o) * _tanh(c)
    tl.store(states + new * S + d, h, mask=inside)
    tl.store(states + new * S + D + d, c, mask=inside)
    h = tl.where(inside, h, 0.0)
    logit = tl.sum(h * tl.load(score_weight + d, mask=inside, other=0.0), axis=0) + tl.load(score_bias)
    tl.store(logits + new, tl.where(tl.load(present + row) != 0, logit, NOTHING))


@triton.jit(do_not_specialize=["first"])
def gate_gradient(
    gradient, kept, total, mean, scale, norm_weight, children, opened, update, d_gates, d_total,
    first, D, S,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Through LayerNorm, σ(z) ⊙ l + σ(h) ⊙ r + σ(c) ⊙ u, and the gates: see `beamtree.engine.adjoint.GRCAdjoint`."""
    here = tl.program_id(0)
    row = (first + here).to(tl.int64)
    d = tl.arange(0, BLOCK)
    inside = d < D
    g = tl.load(gradient + here.to(tl.int64) * S + d, mask=inside, other=0.0)
    tl.store(kept + row * D + d, g, mask=inside)
    rate = tl.load(scale + row)
    hat = tl.where(inside, (tl.load(total + row * D + d, mask=inside, other=0.0) - tl.load(mean + row)) * rate, 0.0)
    g *= tl.load(norm_weight + d, mask=inside, other=0.0)
    p = rate * (g - tl.sum(g, axis=0) / D - hat * (tl.sum(g * hat, axis=0) / D))
    tl.store(d_total + row * D + d, p, mask=inside)
    z = tl.load(opened + row * 3 * D + d, mask=inside, other=0.0)
    h = tl.load(opened + row * 3 * D + D + d, mask=inside, other=0.0)
    c = tl.load(opened + row * 3 * D + 2 * D + d, mask=inside, other=0.0)
    left = tl.load(children + row * 2 * D + d, mask=inside, other=0.0)
    right = tl.load(children + row * 2 * D + D + d, mask=inside, other=0.0)
    u = tl.load(update + row * 4 * D + d, mask=inside, other=0.0)
    out = d_gates + row * 4 * D + d
    tl.store(out, p * left * z * (1 - z), mask=inside)
    tl.store(out + D, p * right * h * (1 - h), mask=inside)
    tl.store(out + 2 * D, p * u * c * (1 - c), mask=inside)
    tl.store(out + 3 * D, p * c, mask=inside)


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
    # σ(z) and σ(h) lie side by side, as l and r do.
    gate = tl.load(opened + row[:, None] * 3 * D + column[None, :], mask=both, other=0.0)
    p = tl.load(d_total + row[:, None] * D + (column % D)[None, :], mask=both, other=0.0)
    tl.store(out + here.to(tl.int64)[:, None] * 2 * D + column[None, :], acc + gate * p, mask=both)
