"""The Triton kernels of a backward step of straight-through sampling: see `beamtree.nn.engine.straight_through.replay`.

    weigh               a program for some elements of a sequence: the row of candidates before the step, and the
                        products of the gradient G with P − r and r − l
    draw_gradient       a program for each sample: from these to the logits of its candidates
    sequence_gradient   a program for some elements: G before the step

Between the last two, the gradient of the parent is pulled back to its children. Steps run from the last to the
first. Each reads the rows and gradients after it from one half of their buffers, and writes those before it to the
other half. Step `slot` of a segment begins with `extent` − slot candidates in the longest row and ends with one fewer;
a sequence has one element more than its row. Past its end a row holds id 0, that of a leaf, which has no logit and
whose `Sides` are 0.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from beamtree.nn.engine.gpu.kernels.common import NOTHING


@triton.jit
def _candidates(extent, slot):
    """Candidates of the longest row before a step and after it: at least one; the last merge is not handled here."""
    before = tl.load(extent) - slot
    return tl.maximum(before, 1), tl.maximum(before - 1, 1)


@triton.jit(do_not_specialize=["slot", "half", "BEAMS", "M"])
def weigh(
    rows, gradient, above, actions, removed, rise_of, run_of, rises, runs, parents, extent,
    slot, half, BEAMS, M, S,
    ELEMENTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    beam = tl.program_id(0).to(tl.int64)
    before, after = _candidates(extent, slot)
    j = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    if tl.program_id(1) * ELEMENTS < before:
        inside = j < before
        record = slot * BEAMS + beam
        action = tl.load(actions + record)
        # The merge replaced three candidates by two new ones.
        source = tl.where(j > action, j - 1, j)
        node = tl.load(rows + (half * BEAMS + beam) * M + source, mask=inside & (source < after), other=0)
        node = tl.where(j == action - 1, tl.load(removed + record * 3), node)
        node = tl.where(j == action, tl.load(removed + record * 3 + 1), node)
        node = tl.where(j == action + 1, tl.load(removed + record * 3 + 2), node)
        tl.store(rows + ((1 - half) * BEAMS + beam) * M + j, node, mask=inside)

        made = j == action
        node = node.to(tl.int64)
        rise = tl.zeros((ELEMENTS,), dtype=tl.float32)
        run = tl.zeros((ELEMENTS,), dtype=tl.float32)
        for s0 in range(0, S, BLOCK):
            s = s0 + tl.arange(0, BLOCK)
            both = inside[:, None] & (s < S)[None, :]
            g = tl.load(
                gradient + ((half * BEAMS + beam) * (M + 1) + j)[:, None] * S + s[None, :], mask=both, other=0.0
            )
            own = tl.broadcast_to((record * S + s)[None, :], (ELEMENTS, BLOCK))
            g += tl.load(above + own, mask=both & made[:, None], other=0.0)
            tl.store(parents + own, g, mask=both & made[:, None])
            place = node[:, None] * S + s[None, :]
            rise += tl.sum(g * tl.load(rise_of + place, mask=both, other=0.0), axis=1)
            run += tl.sum(g * tl.load(run_of + place, mask=both, other=0.0), axis=1)
        tl.store(rises + beam * M + j, rise, mask=inside)
        tl.store(runs + beam * M + j, run, mask=inside)


@triton.jit(do_not_specialize=["slot", "half", "BEAMS", "M"])
def draw_gradient(
    rows, logits, noise, actions, score_gradient, rises, runs, found, logit_gradient, extent,
    slot, half, BEAMS, M,
    NOISY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Same as `beamtree.nn.engine.straight_through.replay.s_gradient` and `draw_gradient`."""
    beam = tl.program_id(0).to(tl.int64)
    before, _ = _candidates(extent, slot)
    record = slot * BEAMS + beam
    j = tl.arange(0, BLOCK)
    inside = j < before
    node = tl.load(rows + ((1 - half) * BEAMS + beam) * M + j, mask=inside, other=0)
    logit = tl.load(logits + node, mask=inside, other=NOTHING)
    p = _softmax(logit)
    y = p
    if NOISY:
        y = _softmax(logit + tl.load(noise + record * M + j, mask=inside, other=0.0))
    rise = tl.load(rises + beam * M + j, mask=inside, other=0.0)
    run = tl.load(runs + beam * M + j, mask=inside, other=0.0)
    s = rise + run - tl.cumsum(run, axis=0)

    action = tl.load(actions + record)
    merged = action < before
    g = tl.where(merged, tl.load(score_gradient + beam), 0.0)
    chosen = tl.max(tl.where(merged & (j != action), NOTHING, logit), axis=0)
    chosen = tl.where(chosen == NOTHING, 0.0, chosen)
    s += g * tl.exp(logit - chosen)
    value = y * (s - tl.sum(y * s, axis=0)) + g * (tl.where(j == action, 1.0, 0.0) - p)
    tl.store(found + beam * M + j, value, mask=inside)
    # Samples of one input share its first candidates.
    tl.atomic_add(logit_gradient + node, value, mask=inside & (logit > NOTHING))


@triton.jit
def _softmax(x):
    """Softmax; 0 where x is −inf."""
    largest = tl.max(x, axis=0)
    exponential = tl.exp(x - tl.where(largest == NOTHING, 0.0, largest))
    return exponential / tl.maximum(tl.sum(exponential, axis=0), 1.0)  # the largest is 1, unless all are 0


@triton.jit(do_not_specialize=["slot", "half", "BEAMS", "M"])
def sequence_gradient(
    rows, gradient, actions, down, found, left_of, right_of, extent,
    slot, half, BEAMS, M, S,
    ELEMENTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    beam = tl.program_id(0).to(tl.int64)
    before, after = _candidates(extent, slot)
    i = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    if tl.program_id(1) * ELEMENTS <= before:
        inside = i <= before
        action = tl.load(actions + slot * BEAMS + beam)
        # The children replace the parent, and elements to its right shift by one.
        child = inside & ((i == action) | (i == action + 1))
        source = tl.where(i > action, i - 1, i)
        stays = inside & (source <= after) & ((i < action) | (i > action + 1))
        # An element is the left child of one candidate and the right child of the one before.
        row = rows + ((1 - half) * BEAMS + beam) * M + i
        as_left, as_right = i < before, inside & (i > 0)
        left_parent = tl.load(row, mask=as_left, other=0).to(tl.int64)
        right_parent = tl.load(row - 1, mask=as_right, other=0).to(tl.int64)
        left_logit = tl.load(found + beam * M + i, mask=as_left, other=0.0)[:, None]
        right_logit = tl.load(found + beam * M + i - 1, mask=as_right, other=0.0)[:, None]
        for s0 in range(0, S, BLOCK):
            s = s0 + tl.arange(0, BLOCK)
            wide = (s < S)[None, :]
            first = (half * BEAMS + beam) * (M + 1)
            g = tl.load(gradient + (first + source)[:, None] * S + s[None, :], mask=stays[:, None] & wide, other=0.0)
            g += tl.load(
                down + (beam * 2 + i - action)[:, None] * S + s[None, :], mask=child[:, None] & wide, other=0.0
            )
            side = tl.load(left_of + left_parent[:, None] * S + s[None, :], mask=as_left[:, None] & wide, other=0.0)
            g += left_logit * side
            side = tl.load(right_of + right_parent[:, None] * S + s[None, :], mask=as_right[:, None] & wide, other=0.0)
            g += right_logit * side
            first = ((1 - half) * BEAMS + beam) * (M + 1)
            tl.store(gradient + (first + i)[:, None] * S + s[None, :], g, mask=inside[:, None] & wide)
