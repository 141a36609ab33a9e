"""The Triton kernels of a step with OneSoft, forward and backward.

They do what `beamtree.nn.engine.onesoft.search` and `beamtree.nn.engine.onesoft.replay` do in three hundred operations.

Forward, between `search.propose` and the composition of all new candidates:

    choose    a program for each beam: hard beams as in `search.advance`; for the soft one the weights of its mixture
    average   a program for each new state of the soft beam, and for the candidate that begins with it

Backward, after the gradients of a step's candidates were propagated to their children:

    average_gradient   a program for each state of the soft beam: to the states that it averages, and to their weights
    mixture_gradient   a program for each beam: from these weights to v, those of the continuations
    choice_gradient    a program for each beam: from v and the scores to its logits, and to its score before the step

Step t begins with m candidates in each row. All records of a search have a row for each step, for the backward pass.
Kernels are not specialised for sizes that change from search to search, so each is compiled only once.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from beamtree.nn.engine.gpu.kernels.common import NOTHING, _key, _place


@triton.jit(do_not_specialize=["t", "m", "composed", "elements", "absent", "B", "W"])
def choose(
    rows, scores, lengths, children, spans, columns, log_p,
    columns_at, continuations_at, weights_at, order_at, source_at, action_at, node_at, keys, present,
    t, m, composed, elements, absent, B, W,
    K: tl.constexpr, J: tl.constexpr, BLOCK: tl.constexpr, CONTINUATIONS: tl.constexpr,
):  # fmt: skip
    beam = tl.program_id(0)
    sample, k = beam // K, beam % K
    beams = B * K
    length = tl.load(lengths + sample)
    active = t < length - 2
    record = t.to(tl.int64) * beams + beam

    continuation = tl.arange(0, CONTINUATIONS)
    exists = continuation < K * J
    where = sample * K * J + continuation
    before = tl.load(scores + (t * beams + sample * K) + continuation // J, mask=exists, other=NOTHING)
    total = before + tl.load(log_p + where, mask=exists, other=NOTHING)
    rest = total
    own = 0
    score = NOTHING
    for rank in tl.static_range(K - 1):
        best, at = tl.max(rest, axis=0, return_indices=True)
        own = tl.where(rank == k, at, own)
        score = tl.where(rank == k, best, score)
        rest = tl.where(continuation == at, NOTHING, rest)
    largest, heaviest = tl.max(rest, axis=0, return_indices=True)
    is_soft = k == K - 1
    own = tl.where(is_soft, heaviest, own)

    # The mixture of all remaining continuations.
    anchor = tl.where(largest == NOTHING, 0.0, largest)
    v = tl.where(rest == NOTHING, 0.0, tl.exp(rest - anchor))
    v = v / tl.maximum(tl.sum(v, axis=0), 1.0)  # the largest is 1, unless nothing is left
    mixed = tl.sum(v * tl.where(rest == NOTHING, 0.0, rest), axis=0)
    score = tl.where(is_soft, tl.where(largest == NOTHING, NOTHING, mixed), score)
    unchanged = tl.load(scores + t * beams + beam)
    tl.store(scores + (t + 1) * beams + beam, tl.where(active, score, unchanged))

    source = tl.where(active, own // J, k)
    tl.store(source_at + record, source)
    tl.store(order_at + record, own)
    for j in tl.static_range(J):
        tl.store(columns_at + record * J + j, tl.load(columns + beam * J + j))
    kept = exists & (continuation // J == k)
    tl.store(continuations_at + t.to(tl.int64) * beams * J + where, total, mask=kept)
    tl.store(weights_at + t.to(tl.int64) * beams * J + where, v, mask=kept)

    from_beam = sample * K + source
    chosen_column = tl.load(columns + (sample * K + own // J) * J + own % J)
    place = tl.arange(0, BLOCK)
    inside = place < W
    old = rows + (t.to(tl.int64) * beams + from_beam) * W
    new_row = rows + ((t + 1).to(tl.int64) * beams + beam) * W
    here = tl.load(old + place, mask=inside, other=0)
    after = tl.load(old + place + 1, mask=place < W - 1, other=0)
    pairs = 2 * (K - 1) + m - 1  # composed for each sample: those of the hard beams first
    if is_soft:
        action = tl.minimum(tl.maximum(chosen_column - 1, 0), m - 1)
        tl.store(action_at + record, action)
        tl.store(node_at + record, elements + sample * m + action)
        candidate = composed + sample * pairs + 2 * (K - 1) + place - 1
        there = (place > 0) & (place < m) & (place - 1 < length - 2 - t)
        tl.store(new_row + place, tl.where(active, tl.where(there, candidate, absent), here), mask=inside)
    else:
        moving = active & (score > NOTHING)
        column = tl.where(moving, chosen_column, W)
        left_one = tl.load(old + column - 1, mask=moving, other=absent)
        chosen = tl.load(old + column, mask=moving, other=absent)
        right_one = tl.load(old + column + 1, mask=moving, other=absent)
        left = tl.load(children + left_one.to(tl.int64) * 2)
        right = tl.load(children + right_one.to(tl.int64) * 2 + 1)
        pair = sample * pairs + 2 * k
        new = (composed + pair).to(tl.int64)
        row = tl.where((place > column) & (place < W - 1), after, here)
        row = tl.where(moving & (place == column - 1), tl.where(left_one == absent, absent, new), row)
        row = tl.where(moving & (place == column), tl.where(right_one == absent, absent, new + 1), row)
        tl.store(new_row + place, row, mask=inside)
        tl.store(action_at + record, column - 1)
        tl.store(node_at + record, chosen)
        tl.store(children + new * 2, left)
        tl.store(children + new * 2 + 1, chosen)
        tl.store(children + new * 2 + 2, chosen)
        tl.store(children + new * 2 + 3, right)
        tl.store(present + pair, left_one != absent)
        tl.store(present + pair + 1, right_one != absent)
        _place(spans, new, left, chosen)
        _place(spans, new + 1, chosen, right)
        tl.store(keys + pair, _key(spans, left, chosen))
        tl.store(keys + pair + 1, _key(spans, chosen, right))


@triton.jit
def _parts(weights_at, columns_at, first, i, q, K: tl.constexpr, J: tl.constexpr, OFFICIAL: tl.constexpr):
    """The weights of P[i], H[i] and H[i+1] of beam q in the mixture; see `onesoft.search.mixture`."""
    here = 0.0
    upto = 0.0
    total = 0.0
    if OFFICIAL:
        for j in tl.static_range(K * J):
            v = tl.load(weights_at + first + j)
            position = tl.load(columns_at + first + j) - 1
            here += tl.where(position == i, v, 0.0)
            upto += tl.where(position <= i, v, 0.0)
            total += tl.where(j // J == q, v, 0.0)
        return here * total, (1.0 - upto) * total, (upto - here) * total
    for j in tl.static_range(J):
        v = tl.load(weights_at + first + q * J + j)
        position = tl.load(columns_at + first + q * J + j) - 1
        here += tl.where(position == i, v, 0.0)
        upto += tl.where(position <= i, v, 0.0)
        total += v
    return here, total - upto, upto - here


@triton.jit
def _on_path(row, children, i, action):
    """The node at i after a beam of this row has merged at `action`."""
    parent = tl.load(row + 1 + i).to(tl.int64)
    left, right = tl.load(children + parent * 2), tl.load(children + parent * 2 + 1)
    return tl.where(i == action, parent, tl.where(i < action, left, right))


@triton.jit(do_not_specialize=["t", "m", "composed", "elements", "B", "W"])
def average(
    rows, states, children, spans, lengths, columns_at, weights_at, source_at, action_at, keys, present,
    t, m, composed, elements, B, W, D,
    K: tl.constexpr, J: tl.constexpr, OFFICIAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    sample, i = tl.program_id(0) // m, tl.program_id(0) % m
    step = t.to(tl.int64) * B + sample
    d = tl.arange(0, BLOCK)
    inside = d < D
    state = tl.zeros((BLOCK,), dtype=tl.float32)
    for q in range(K):
        node = tl.load(rows + (step * K + q) * W + 1 + i).to(tl.int64)
        left, right = tl.load(children + node * 2), tl.load(children + node * 2 + 1)
        parent_part, left_part, right_part = _parts(weights_at, columns_at, step * K * J, i, q, K, J, OFFICIAL)
        state += left_part * tl.load(states + left * D + d, mask=inside, other=0.0)
        state += right_part * tl.load(states + right * D + d, mask=inside, other=0.0)
        if parent_part != 0.0:
            state += parent_part * tl.load(states + node * D + d, mask=inside, other=0.0)
    element = (elements + sample * m + i).to(tl.int64)
    tl.store(states + element * D + d, state, mask=inside)

    # Its span is that of the heaviest continuation it averages.
    row = rows + (step * K + tl.load(source_at + step * K + K - 1)) * W
    action = tl.load(action_at + step * K + K - 1)
    on_path = _on_path(row, children, i, action)
    for field in tl.static_range(3):
        tl.store(spans + element * 3 + field, tl.load(spans + on_path * 3 + field))
    if i < m - 1:
        pair = sample * (2 * (K - 1) + m - 1) + 2 * (K - 1) + i
        new = (composed + pair).to(tl.int64)
        tl.store(children + new * 2, element)
        tl.store(children + new * 2 + 1, element + 1)
        tl.store(present + pair, i < tl.load(lengths + sample) - 2 - t)
        right = _on_path(row, children, i + 1, action)
        _place(spans, new, on_path, right)
        tl.store(keys + pair, _key(spans, on_path, right))


@triton.jit
def _share(states, gradient, at, above, part, inside):
    """Add the gradient of the average, times `part`, to that of a state; returns the gradient of `part`."""
    if part != 0.0:
        tl.atomic_add(gradient + at, part * above, mask=inside)
    return tl.sum(above * tl.load(states + at, mask=inside, other=0.0), axis=0)


@triton.jit(do_not_specialize=["t", "m", "elements", "absent", "B", "M", "W"])
def average_gradient(
    rows, states, children, gradient, columns_at, weights_at, lengths, parents, lefts, rights,
    t, m, elements, absent, B, M, W, D,
    K: tl.constexpr, J: tl.constexpr, OFFICIAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    sample, i = tl.program_id(0) // m, tl.program_id(0) % m
    if t < tl.load(lengths + sample) - 2:
        step = t.to(tl.int64) * B + sample
        d = tl.arange(0, BLOCK)
        inside = d < D
        element = (elements + sample * m + i).to(tl.int64)
        above = tl.load(gradient + element * D + d, mask=inside, other=0.0)
        for q in range(K):
            node = tl.load(rows + (step * K + q) * W + 1 + i).to(tl.int64)
            place = (sample * K + q) * M + i
            if node != absent:
                left, right = tl.load(children + node * 2), tl.load(children + node * 2 + 1)
                parent_part, left_part, right_part = _parts(weights_at, columns_at, step * K * J, i, q, K, J, OFFICIAL)
                tl.store(parents + place, _share(states, gradient, node * D + d, above, parent_part, inside))
                tl.store(lefts + place, _share(states, gradient, left * D + d, above, left_part, inside))
                tl.store(rights + place, _share(states, gradient, right * D + d, above, right_part, inside))
            else:
                tl.store(parents + place, 0.0)
                tl.store(lefts + place, 0.0)
                tl.store(rights + place, 0.0)


@triton.jit(do_not_specialize=["t", "m", "B", "M"])
def mixture_gradient(
    columns_at, weights_at, parents, lefts, rights, v_gradient,
    t, m, B, M,
    K: tl.constexpr, J: tl.constexpr, OFFICIAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    beam = tl.program_id(0)
    sample, q = beam // K, beam % K
    first = (t.to(tl.int64) * B + sample) * K * J
    i = tl.arange(0, BLOCK)
    inside = i < m
    if OFFICIAL:
        parent = tl.zeros((BLOCK,), dtype=tl.float32)
        left = tl.zeros((BLOCK,), dtype=tl.float32)
        right = tl.zeros((BLOCK,), dtype=tl.float32)
        here = tl.zeros((BLOCK,), dtype=tl.float32)
        upto = tl.zeros((BLOCK,), dtype=tl.float32)
        for other in tl.static_range(K):
            share = 0.0
            for j in tl.static_range(J):
                v = tl.load(weights_at + first + other * J + j)
                position = tl.load(columns_at + first + other * J + j) - 1
                here += tl.where(position == i, v, 0.0)
                upto += tl.where(position <= i, v, 0.0)
                share += v
            place = (sample * K + other) * M + i
            parent += share * tl.load(parents + place, mask=inside, other=0.0)
            left += share * tl.load(lefts + place, mask=inside, other=0.0)
            right += share * tl.load(rights + place, mask=inside, other=0.0)
        own = (sample * K + q) * M + i
        total = tl.sum(tl.load(parents + own, mask=inside, other=0.0) * here, axis=0)
        total += tl.sum(tl.load(lefts + own, mask=inside, other=0.0) * (1.0 - upto), axis=0)
        total += tl.sum(tl.load(rights + own, mask=inside, other=0.0) * (upto - here), axis=0)
    else:
        own = (sample * K + q) * M + i
        parent = tl.load(parents + own, mask=inside, other=0.0)
        left = tl.load(lefts + own, mask=inside, other=0.0)
        right = tl.load(rights + own, mask=inside, other=0.0)
        total = tl.sum(left, axis=0)
    for j in tl.static_range(J):
        # v is part of the running sums at its own position and all later ones.
        position = tl.load(columns_at + first + q * J + j) - 1
        found = tl.where(i == position, parent - left, 0.0) + tl.where(i > position, right - left, 0.0)
        tl.store(v_gradient + beam * J + j, total + tl.sum(found, axis=0))


@triton.jit(do_not_specialize=["t", "m", "B", "W"])
def choice_gradient(
    rows, logits, lengths, columns_at, continuations_at, weights_at, order_at, v_gradient,
    score_gradient, logit_gradient,
    t, m, B, W,
    K: tl.constexpr, J: tl.constexpr, BLOCK: tl.constexpr, CONTINUATIONS: tl.constexpr,
):  # fmt: skip
    beam = tl.program_id(0)
    sample, q = beam // K, beam % K
    beams = B * K
    above = score_gradient + (t + 1) * beams + sample * K
    below = score_gradient + t * beams + beam
    if t < tl.load(lengths + sample) - 2:
        continuation = tl.arange(0, CONTINUATIONS)
        exists = continuation < K * J
        where = t.to(tl.int64) * beams * J + sample * K * J + continuation
        v = tl.load(weights_at + where, mask=exists, other=0.0)
        score = tl.load(continuations_at + where, mask=exists & (v > 0), other=0.0)
        soft = tl.load(above + K - 1)
        total = tl.load(v_gradient + sample * K * J + continuation, mask=exists, other=0.0) + soft * score
        found = v * (total - tl.sum(v * total, axis=0) + soft)  # (KJ,): of the scores of the continuations
        for rank in tl.static_range(K - 1):
            at = tl.load(order_at + (t.to(tl.int64) * B + sample) * K + rank)
            found += tl.where(continuation == at, tl.load(above + rank), 0.0)
        own = continuation // J == q
        before = tl.sum(tl.where(own & exists, found, 0.0), axis=0)
        tl.store(below, before)

        place = tl.arange(0, BLOCK)
        inside = place < m
        node = tl.load(rows + (t.to(tl.int64) * beams + beam) * W + 1 + place, mask=inside, other=0)
        logit = tl.load(logits + node, mask=inside, other=NOTHING)
        largest = tl.max(logit, axis=0)
        largest = tl.where(largest == NOTHING, 0.0, largest)
        p = tl.exp(logit - largest)
        p = p / tl.maximum(tl.sum(p, axis=0), 1.0)
        row_gradient = -before * p
        for j in tl.static_range(J):
            column = tl.load(columns_at + (t.to(tl.int64) * beams + beam) * J + j)
            part = tl.sum(tl.where(continuation == q * J + j, found, 0.0), axis=0)
            row_gradient += tl.where(place == column - 1, part, 0.0)
        tl.atomic_add(logit_gradient + node, row_gradient, mask=inside & (logit > NOTHING))
    else:
        tl.store(below, tl.load(above + q))
