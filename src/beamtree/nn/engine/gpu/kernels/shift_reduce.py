"""The Triton kernels of a step of shift-reduce parsing. New nodes are composed by the kernels of the cell.

    decide         w · GELU(W [s₂; s₁; q] + b) for the beams that have a choice, in tiles; each tile of columns
                   writes a partial sum
    advance_stack  a program for each new beam: the best continuation, and its stack, queue and parent

The index of a step is `base`, which is read from memory, plus `slot`, so one captured sequence of launches serves any
segment of a search. The state of the beams is in two halves, read from one and written to the other. The buffers are
those of `beamtree.nn.engine.gpu.shift_reduce`. Without a GPU the kernels run in Triton's interpreter.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from beamtree.nn.engine.gpu.kernels.common import NOTHING, _gelu, _grow, _key, _place, _product

REDUCE, SHIFT = tl.constexpr(0), tl.constexpr(1)  # as in `beamtree.nn.engine.shift_reduce.request`


@triton.jit(do_not_specialize=["slot", "half", "BEAMS", "N"])
def decide(
    states, entries, top, words, scores, lengths, weight, bias, score_weight, parts, base,
    slot, half, BEAMS, N, D, S,
    K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, METHOD: tl.constexpr,
):  # fmt: skip
    beam = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    inside, column_inside = beam < BEAMS, column < D
    own = half * BEAMS + beam
    word = tl.load(words + own, mask=inside, other=0)
    free = inside & (2 * word - 2 - tl.load(base) - slot > 1)  # at least two on the stack
    free = free & (word < tl.load(lengths + beam // K, mask=inside, other=0))
    free = free & (tl.load(scores + own, mask=inside, other=NOTHING) > NOTHING)
    entry = tl.load(top + own, mask=free, other=0).to(tl.int64)
    second = tl.load(entries + entry * 2 + 1, mask=free, other=0)
    s1 = tl.load(entries + entry * 2, mask=free, other=0)
    s2 = tl.load(entries + second * 2, mask=free, other=0)
    q = (beam // K).to(tl.int64) * N + word
    part = D * D * (2 if METHOD == "split" else 1)  # elements of the weight for each of the three states
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    acc = _product(states, s2, weight, column, column_inside, acc, D, S, D, BK, METHOD, free)
    acc = _product(states, s1, weight + part, column, column_inside, acc, D, S, D, BK, METHOD, free)
    acc = _product(states, q, weight + 2 * part, column, column_inside, acc, D, S, D, BK, METHOD, free)
    hidden = _gelu(acc + tl.load(bias + column, mask=column_inside, other=0.0)[None, :])
    hidden = hidden * tl.load(score_weight + column, mask=column_inside, other=0.0)[None, :]
    tl.store(parts + beam * tl.num_programs(1) + tl.program_id(1), tl.sum(hidden, axis=1), mask=inside)


@triton.jit(do_not_specialize=["slot", "half", "first", "first_entry", "absent", "BEAMS", "N"])
def advance_stack(
    entries, top, words, scores, lengths, parts, score_bias, children, spans, heights, base,
    source_at, seen_at, free_at, action_at, parent_at, position_at, ids, keys,
    slot, half, first, first_entry, absent, BEAMS, N,
    K: tl.constexpr, PARTS: tl.constexpr, CONTINUATIONS: tl.constexpr,
):  # fmt: skip
    beam = tl.program_id(0)
    sample, k = beam // K, beam % K
    step = tl.load(base) + slot
    length = tl.load(lengths + sample)
    active = step < 2 * length - 3

    # Two continuations for each beam of the sample: reduce and shift.
    continuation = tl.arange(0, CONTINUATIONS)
    exists = continuation < 2 * K
    of_beam = sample * K + continuation // 2
    word = tl.load(words + half * BEAMS + of_beam, mask=exists, other=0)
    # The depth of a stack: the number of words shifted, less one for each reduce so far.
    can_reduce, can_shift = 2 * word - 2 - step > 1, word < length
    shift = continuation % 2 == SHIFT
    logit = tl.zeros((CONTINUATIONS,), dtype=tl.float32) + tl.load(score_bias)
    for part in tl.static_range(PARTS):
        logit += tl.load(parts + of_beam * PARTS + part, mask=exists, other=0.0)
    logit = tl.where(shift, -logit, logit)
    log_p = tl.minimum(logit, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(logit)))  # log σ
    log_p = tl.where(can_reduce & can_shift, log_p, 0.0)
    possible = tl.where(shift, can_shift, can_reduce)
    ranked = tl.load(scores + half * BEAMS + of_beam, mask=exists, other=NOTHING) + log_p
    ranked = tl.where(possible & (ranked == ranked), ranked, NOTHING)  # a search with NaN scores ends
    chosen = 0
    score = NOTHING
    for rank in tl.static_range(K):
        best, at = tl.max(ranked, axis=0, return_indices=True)  # the first in a tie
        chosen = tl.where(rank == k, at, chosen)
        score = tl.where(rank == k, best, score)
        ranked = tl.where(continuation == at, NOTHING, ranked)
    moving = active & (score > NOTHING)
    source = tl.where(active, chosen // 2, k)
    from_beam = half * BEAMS + sample * K + source
    shifts = moving & (chosen % 2 == SHIFT)
    reduces = moving & (chosen % 2 == REDUCE)
    tl.store(scores + (1 - half) * BEAMS + beam, tl.where(active, score, tl.load(scores + half * BEAMS + beam)))

    # The beam that it continues: its stack, and the next word of its queue.
    done = tl.load(words + from_beam)
    entry = tl.load(top + from_beam).to(tl.int64)
    s1, second = tl.load(entries + entry * 2), tl.load(entries + entry * 2 + 1)
    s2, third = tl.load(entries + second * 2), tl.load(entries + second * 2 + 1)
    q = sample.to(tl.int64) * N + tl.minimum(done, N - 1)
    depth = 2 * done - 2 - step
    record = (step * BEAMS + beam).to(tl.int64)
    new, new_entry = first + record, first_entry + record
    tl.store(entries + new_entry * 2, tl.where(shifts, q, new))
    tl.store(entries + new_entry * 2 + 1, tl.where(shifts, entry, third))
    tl.store(top + (1 - half) * BEAMS + beam, tl.where(moving, new_entry, entry).to(tl.int32))
    tl.store(words + (1 - half) * BEAMS + beam, done + shifts.to(tl.int32))

    tl.store(source_at + record, source)
    tl.store(seen_at + record * 3, s2)
    tl.store(seen_at + record * 3 + 1, s1)
    tl.store(seen_at + record * 3 + 2, q)
    tl.store(free_at + record, (moving & (depth > 1) & (done < length)).to(tl.int8))
    tl.store(action_at + record, chosen % 2)
    tl.store(parent_at + record, tl.where(reduces, new, absent))
    tl.store(position_at + record, depth - 2)

    # Also written for beams that shift, but not read.
    tl.store(children + new * 2, s2)
    tl.store(children + new * 2 + 1, s1)
    _place(spans, new, s2, s1)
    _grow(heights, new, s2, s1)
    tl.store(ids + beam, tl.where(reduces, new, -1))
    tl.store(keys + beam, _key(spans, s2, s1))
