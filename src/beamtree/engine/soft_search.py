"""OneSoft's search: K−1 beams of integers, as in `search`, and one soft beam that is dense.

The soft beam's sequence is the average of the sequences of all continuations that fall out, under v = softmax of
their scores. Continuations that come from one beam q share its states, so the sum over up to K² sequences is one over
the K beams. With H_q the states, P_q the candidate parents, s_q[i] the weight v of q's continuation that merges at i,
cum its running sum and V_q its total,

    new[i] = Σ_q  s_q[i] · P_q[i] + (V_q − cum_q[i]) · H_q[i] + cum_q[i−1] · H_q[i+1] .

Its states, and the candidates composed from them, are nodes of the pool like any other, so a hard beam that continues
the soft one is integers again. A step from m candidates a beam adds to the pool

    the soft beam's new states (B·m) | two new candidates for each hard beam, and all of the soft beam's (B·(2K + m−3))
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from beamtree import topk
from beamtree.engine.base import Mix, Noise, Request
from beamtree.engine.pool import END, Pool, take
from beamtree.engine.search import first_rows, propose, roots, shift_rows, stack


class SoftStep(NamedTuple):
    """What a step did in each beam it kept; the soft beam, the last, stands for the heaviest it mixes."""

    source: Int[Tensor, "*T B K"]
    action: Int[Tensor, "*T B K"]
    node: Int[Tensor, "*T B K"]  # what the action made


class Undo(NamedTuple):
    """What is needed to go back over a step, or over the T steps of a stretch."""

    rows: Int[Tensor, "*T B K W"]  # the candidates it chose from
    columns: Int[Tensor, "*T B K J"]
    continuations: Float[Tensor, "*T B KJ"]  # their scores
    weights: Float[Tensor, "*T B KJ"]  # their parts in the mixture
    order: Int[Tensor, "*T B K"]
    scores: Float[Tensor, "*T B K"] | None  # before the step, where duplicates are not kept …
    forests: Int[Tensor, "*T B KJ"] | None  # … and what the continuations have built


class SoftTrace(NamedTuple):
    pool: Pool
    steps: SoftStep  # of all steps
    undo: list[Undo]
    # Where in the pool each step's nodes begin: the soft beam's new states, and behind them the new candidates.
    blocks: list[tuple[int, int]]
    soft: Int[Tensor, "T B"]  # the number of the first of these states, for each sample
    scores: Float[Tensor, "B K"]
    roots: Int[Tensor, "B K"]


def search(request: Request) -> SoftTrace:
    B, N, _ = request.leaves.shape
    grown = sum(m + 2 * request.beam_size + m - 3 for m in range(2, N))
    return run(Pool(request, size=B * (N + request.candidates + grown)))


@torch.inference_mode()
def run(pool: Pool) -> SoftTrace:
    """The search itself; see `beamtree.engine.search.run`."""
    request, K = pool.request, pool.request.beam_size
    B, N, _ = request.leaves.shape
    rows = first_rows(pool)  # (B, K, M+2)
    scores, forests = request.start_scores(), None
    noise, all_active = Noise(request), request.active.unsqueeze(1).unbind(2)
    present = pool.numbers[:N] < request.lengths.unsqueeze(1) - 1  # (B, N)
    # Right of a merge everything moves up; the merged node has its left child's start, but its right child's end.
    moves = pool.numbers[:N].unsqueeze(1) + (pool.numbers[: END + 1] == END)  # (N, 3)
    pairs = 2 * (K - 1)
    steps, undo, blocks, soft_states = [], [], [], []
    for number, active in enumerate(all_active):  # (B, 1)
        m = request.candidates - number
        proposal = propose(pool, rows, scores, forests, noise.at(number)[0])
        best = topk.onesoft_topk(proposal.scores, K)
        shift = shift_rows(pool, rows, proposal, best.indices, active)

        H = sequences(pool.children, rows)  # (B, K, m+1)
        weights = mixture(best.weights.view_as(proposal.columns), proposal.columns, m, request.soft)
        # `narrow` and `select` do what brackets do, in less time, which counts here.
        heaviest, action = shift.source.narrow(1, K - 1, 1), shift.action.narrow(1, K - 1, 1)  # (B, 1)
        path = merged_spans(pool, H, heaviest, moves.narrow(0, 0, m) > action.unsqueeze(2))  # (B, m, 3)
        first = pool.used
        elements = pool.add(average(pool, rows, H, weights), path)  # (B, m)

        # One call of the cell for the new candidates of all beams.
        blocks.append((first, pool.used))
        hard_pairs, hard_present = (field.narrow(1, 0, K - 1) for field in (shift.pairs, shift.present))
        new = pool.compose(
            torch.cat((hard_pairs.flatten(1, 2), elements.unfold(1, 2, 1)), dim=1),
            torch.cat((hard_present.flatten(1), present.narrow(1, number + 1, m - 1)), dim=1),
        )  # (B, 2(K−1) + m−1)
        of_hard, of_soft = new.split((pairs, m - 1), dim=1)

        duplicates = (scores, proposal.forests) if proposal.forests is not None else (None, None)
        undo.append(Undo(rows, proposal.columns, proposal.scores, best.weights, best.indices, *duplicates))
        soft_states.append(elements.select(1, 0))
        steps.append(SoftStep(shift.source, shift.action, shift.dead.select(2, 1)))
        shift.rows.narrow(1, 0, K - 1).scatter_(2, shift.columns.narrow(1, 0, K - 1), of_hard.view(B, K - 1, 2))
        rows = shift.rows.narrow(2, 0, m + 1)  # (B, K, m+1)
        soft = rows.select(1, K - 1)
        torch.where(active, pool.row(of_soft), soft, out=soft)
        forests = proposal.keep_forests(best.indices, active, forests)
        scores = best.scores.where(active, scores)
    last = roots(pool, rows)
    records = SoftStep(*(stack([step[field] for step in steps], last) for field in range(3)))
    soft_first = stack(soft_states, last[:, 0])  # (T, B)
    heaviest = records.node[..., -1]
    heaviest.copy_((soft_first + records.action[..., -1]).where(heaviest != pool.absent, pool.absent))
    return SoftTrace(pool, records, undo, blocks, soft_first, scores, last)


class Mixture(NamedTuple):
    """The weights in the formula above."""

    parents: Float[Tensor, "*T B K E"]  # of P[i] for E columns i + 1 of each beam, the others having none
    columns: Int[Tensor, "*T B K E"]
    left: Float[Tensor, "*T B K m"]  # of H[i]
    right: Float[Tensor, "*T B K m"]  # of H[i+1]


def mixture(v: Float[Tensor, "*T B K J"], columns: Int[Tensor, "*T B K J"], m: int, mix: Mix | None) -> Mixture:
    s = v.new_zeros(*v.shape[:-1], m + 1).scatter_(-1, columns, v)  # (…, K, m+1): by columns, the first is empty
    if mix == "paper":
        cum = s.cumsum(-1)
        return Mixture(v, columns, cum[..., -1:] - cum[..., 1:], cum[..., :-1])
    # The published code averages choices, parents and old states apart: the same sum with other weights.
    total = v.sum(-1, keepdim=True)  # (…, K, 1)
    s = s.sum(-2, keepdim=True)  # (…, 1, m+1)
    cum = s.cumsum(-1)
    every = torch.arange(1, m + 1, device=v.device).expand(*v.shape[:-1], m)
    return Mixture(s[..., 1:] * total, every, (1 - cum[..., 1:]) * total, cum[..., :-1] * total)


def sequences(children: Int[Tensor, "P 2"], rows: Int[Tensor, "*T B K W"]) -> Int[Tensor, "*T B K n"]:
    """H[0 … m] of every beam: the first candidate's left child, and every candidate's right one."""
    pairs = take(children, rows[..., 1:-1])  # (…, m, 2)
    return torch.cat((pairs[..., :1, 0], pairs[..., 1]), dim=-1)


def average(
    pool: Pool, rows: Int[Tensor, "B K W"], numbers: Int[Tensor, "B K n"], weights: Mixture
) -> Float[Tensor, "B m S"]:
    """The soft beam's new states, from candidates and sequences."""
    B, m = len(rows), numbers.shape[2] - 1
    H = take(pool.states, numbers)  # (B, K, m+1, S)
    left, right = weights.left.unsqueeze(3) * H.narrow(2, 0, m), weights.right.unsqueeze(3)  # (B, K, m, …)
    states = left.addcmul_(right, H.narrow(2, 1, m)).sum(1)  # (B, m, S)
    parents = take(pool.states, rows.gather(2, weights.columns)).mul_(weights.parents.unsqueeze(3))  # (B, K, E, S)
    where = pool.numbers[:B].unsqueeze(1), weights.columns.flatten(1) - 1  # (B, 1), (B, K·E)
    # Of PyTorch's scattered sums the one that is the same each time on a GPU.
    return states.index_put_(where, parents.flatten(1, 2), accumulate=True)


def merged_spans(
    pool: Pool, numbers: Int[Tensor, "B K n"], beam: Int[Tensor, "B 1"], moved: Bool[Tensor, "B m 3"]
) -> Int[Tensor, "B m 3"]:
    """The spans of the sequence of one beam after a merge that has moved these."""
    sequence = numbers.gather(1, beam.unsqueeze(2).expand(-1, -1, numbers.shape[2])).squeeze(1)  # (B, m+1)
    spans = take(pool.spans, sequence)  # (B, m+1, 3)
    m = moved.shape[1]
    return spans.narrow(1, 1, m).where(moved, spans.narrow(1, 0, m))
