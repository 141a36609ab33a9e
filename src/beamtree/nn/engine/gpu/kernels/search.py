"""The Triton kernels of a search step. New nodes are composed by the kernels of the cell.

    propose      a program for each beam: log-softmax over its candidates, and the best of them
    advance      a program for each new beam: the best continuation, the shifted row, the two pairs of new candidates
    score_pairs  logits of new candidates where the scorer reads children: w · GELU(V [l[:d]; r[:d]] + c) + b, in tiles

The index of a step is `base`, which is read from memory, plus `slot`, so one captured sequence of launches serves any
segment of a search. The buffers are those of `beamtree.nn.engine.gpu.workspace`. Without a GPU the kernels run in
Triton's interpreter.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from beamtree.nn.engine.gpu.kernels.common import NOTHING, _gelu, _grow, _key, _place, _product


@triton.jit(do_not_specialize=["slot", "half", "BEAMS", "M"])
def propose(
    rows, logits, noise, columns, log_p, normalisers, base,
    slot, half, BEAMS, M, W,
    J: tl.constexpr, NOISY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    beam = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    inside = place < M - tl.load(base) - slot  # the rest of the row is absent
    node = tl.load(rows + (half * BEAMS + beam) * W + 1 + place, mask=inside, other=0)
    logit = tl.load(logits + node, mask=inside, other=NOTHING)  # (BLOCK,)
    largest = tl.max(logit, axis=0)
    largest = tl.where(largest == NOTHING, 0.0, largest)
    normaliser = largest + tl.log(tl.maximum(tl.sum(tl.exp(logit - largest), axis=0), 1.0))  # 1 if the row is empty
    tl.store(normalisers + beam, normaliser)
    ranked = logit - normaliser
    if NOISY:
        ranked += tl.load(noise + (slot * BEAMS + beam) * M + place, mask=inside, other=0.0)
    ranked = tl.where(logit == NOTHING, NOTHING, ranked)
    for j in tl.static_range(J):
        best, at = tl.max(ranked, axis=0, return_indices=True)  # the first in a tie
        tl.store(columns + beam * J + j, at + 1)
        # Read again, without the noise; −inf if no candidate is left.
        chosen = tl.load(rows + (half * BEAMS + beam) * W + 1 + at)
        tl.store(log_p + beam * J + j, tl.where(best == NOTHING, NOTHING, tl.load(logits + chosen) - normaliser))
        ranked = tl.where(place == at, NOTHING, ranked)


@triton.jit(do_not_specialize=["slot", "half", "first", "absent", "BEAMS"])
def advance(
    rows, scores, lengths, children, spans, heights, noise, columns, log_p, normalisers, base,
    source_at, action_at, removed_at, added_at, normaliser_at, ids, keys, added, present,
    slot, half, first, absent, BEAMS, W,
    K: tl.constexpr, J: tl.constexpr, NOISY: tl.constexpr, CHILDREN: tl.constexpr, BLOCK: tl.constexpr,
    CONTINUATIONS: tl.constexpr,
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
    added_left = tl.where(left_one == absent, absent, new)
    added_right = tl.where(right_one == absent, absent, new + 1)

    place = tl.arange(0, BLOCK)
    inside = place < W
    here = tl.load(old + place, mask=inside, other=0)
    after = tl.load(old + place + 1, mask=place < W - 1, other=0)
    row = tl.where((place > column) & (place < W - 1), after, here)
    row = tl.where(moving & (place == column - 1), added_left, row)
    row = tl.where(moving & (place == column), added_right, row)
    tl.store(rows + ((1 - half) * BEAMS + beam) * W + place, row, mask=inside)

    record = step * BEAMS + beam
    tl.store(source_at + record, source)
    tl.store(action_at + record, column - 1)
    tl.store(removed_at + record * 3, left_one)
    tl.store(removed_at + record * 3 + 1, chosen)
    tl.store(removed_at + record * 3 + 2, right_one)
    tl.store(added_at + record * 2, added_left)
    tl.store(added_at + record * 2 + 1, added_right)
    normaliser = tl.load(normalisers + from_beam)
    tl.store(normaliser_at + record, tl.where(moving, normaliser, float("inf")))

    tl.store(children + new * 2, left)
    tl.store(children + new * 2 + 1, chosen)
    tl.store(children + new * 2 + 2, chosen)
    tl.store(children + new * 2 + 3, right)
    tl.store(present + beam * 2, left_one != absent)
    tl.store(present + beam * 2 + 1, right_one != absent)
    _place(spans, new, left, chosen)
    _grow(heights, new, left, chosen)
    _place(spans, new + 1, chosen, right)
    _grow(heights, new + 1, chosen, right)
    tl.store(added + beam * 2, new)
    tl.store(added + beam * 2 + 1, new + 1)
    if CHILDREN:  # new candidates are only scored; the chosen one is composed
        first_child = tl.load(children + chosen.to(tl.int64) * 2)
        second_child = tl.load(children + chosen.to(tl.int64) * 2 + 1)
        tl.store(ids + beam, tl.where(moving, chosen, -1))
        tl.store(keys + beam, _key(spans, first_child, second_child))
    else:  # new candidates are composed
        tl.store(keys + beam * 2, _key(spans, left, chosen))
        tl.store(keys + beam * 2 + 1, _key(spans, chosen, right))


@triton.jit(do_not_specialize=["n"])
def score_pairs(
    states, children, ids, present, weight, bias, hidden, hidden_bias, logits,
    n, d, S,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, METHOD: tl.constexpr,
):  # fmt: skip
    """A program for each tile of pairs, with all d columns of V."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.arange(0, BN)
    row_inside, column_inside = row < n, column < d
    new = tl.load(ids + row, mask=row_inside, other=0).to(tl.int64)
    left = tl.load(children + new * 2, mask=row_inside, other=0)
    right = tl.load(children + new * 2 + 1, mask=row_inside, other=0)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    acc = _product(states, left, hidden, column, column_inside, acc, d, S, d, BK, METHOD, row_inside)
    second = hidden + d * d * (2 if METHOD == "split" else 1)
    acc = _product(states, right, second, column, column_inside, acc, d, S, d, BK, METHOD, row_inside)
    acc = _gelu(acc + tl.load(hidden_bias + column, mask=column_inside, other=0.0)[None, :])
    parts = acc * tl.load(weight + column, mask=column_inside, other=0.0)[None, :]
    logit = tl.sum(parts, axis=1) + tl.load(bias)
    there = tl.load(present + row, mask=row_inside, other=0) != 0
    tl.store(logits + new, tl.where(there, logit, NOTHING), mask=row_inside)
