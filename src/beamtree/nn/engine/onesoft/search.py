"""OneSoft's search: K−1 hard beams, which hold node ids as in `beamtree.nn.engine.beam.search`, and one soft beam.

The soft beam's sequence is the average of the sequences of all continuations that are not kept as hard beams, weighted
by v, the softmax of their scores. Continuations of one beam q share its states, so the sum over up to K² sequences is
a sum over the K beams. With H_q the states, P_q the candidate parents, s_q[i] the weight v of q's continuation that
merges at i, cum its running sum and V_q its total,

    new[i] = Σ_q  s_q[i] · P_q[i] + (V_q − cum_q[i]) · H_q[i] + (cum_q[i] − s_q[i]) · H_q[i+1] .

The soft beam's states, and the candidates composed from them, are ordinary nodes of the pool, so a hard beam that
continues the soft beam holds node ids again.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.nn.engine.beam.search import first_rows, propose, roots, shift_rows, stack
from beamtree.nn.engine.noise import Noise
from beamtree.nn.engine.pool import Pool, take
from beamtree.nn.engine.request import Mix, Request
from beamtree.nn.topk import operators as topk


class SoftStep(NamedTuple):
    """The action of each step in each kept beam; that of the last, the soft beam, is its heaviest continuation's."""

    source: Int[Tensor, "T B K"]
    action: Int[Tensor, "T B K"]
    node: Int[Tensor, "T B K"]  # what the action made


class StepRecord(NamedTuple):
    """What the backward pass needs of a step."""

    rows: Int[Tensor, "B K W"]  # the candidates it chose from
    sequences: Int[Tensor, "B K n"]  # the states that they join
    columns: Int[Tensor, "B K J"]
    continuations: Float[Tensor, "B KJ"]  # their scores
    weights: Float[Tensor, "B KJ"]  # their weights in the mixture
    order: Int[Tensor, "B K"]
    scores: Float[Tensor, "B K"]  # before the step
    forests: Int[Tensor, "B KJ"] | None


class Block(NamedTuple):
    """Where the nodes of a step begin in the pool."""

    composed: int  # the new candidates of all beams
    elements: int  # the soft beam's new states


class SoftTrace(NamedTuple):
    pool: Pool
    steps: SoftStep
    records: list[StepRecord]
    blocks: list[Block]
    scores: Float[Tensor, "B K"]
    roots: Int[Tensor, "B K"]


def search(request: Request) -> SoftTrace:
    B, N, _ = request.leaves.shape
    K = request.beam_size
    # A step that starts from m candidates adds m soft states, their m − 1 candidates, and two for each hard beam.
    composed = request.candidates + sum(m - 1 + 2 * (K - 1) for m in range(2, N))
    elements = sum(range(2, N))
    return run(Pool(request, size=B * (N + composed + elements)), B * (N + composed))


@torch.inference_mode()
def run(pool: Pool, first: int) -> SoftTrace:
    """The search itself; see `beamtree.nn.engine.beam.search.run`. The soft states begin at `first`."""
    request, K = pool.request, pool.request.beam_size
    B, N, _ = request.leaves.shape
    rows = first_rows(pool)  # (B, K, m+2)
    scores, forests = request.start_scores(), None
    noise, all_active = Noise(request), request.active
    present = torch.arange(N, device=rows.device) < request.lengths.unsqueeze(1) - 1  # (B, N)
    records, blocks = [], []
    sources, actions, chosen, made = [], [], [], []
    for step in range(request.steps):
        active = all_active[:, step, None]  # (B, 1)
        proposal = propose(pool, rows, scores, forests, noise.at(step)[0])
        best = topk.onesoft_topk(proposal.scores, K)
        # For the soft beam this is the heaviest continuation it mixes, of which only the spans are used.
        shift = shift_rows(pool, rows, proposal, best.indices, active)
        m = rows.shape[2] - 2
        action = shift.action[:, -1:].clamp(max=m - 1)  # (B, 1)

        H = sequences(pool.children, rows)  # (B, K, m+1)
        path = path_spans(pool, H, shift.source[:, -1:], action, shift.removed[:, -1, 1:2])  # (B, m, 3)
        weights = mixture(best.weights, proposal.columns, m, request.soft)
        elements = pool.put(first, average(pool, rows, H, weights), path)  # (B, m)
        there = present[:, step + 1 : step + m]  # (B, m−1)
        blocks.append(Block(pool.used, first))
        first += elements.numel()

        # One call of the cell for the new candidates of all beams.
        pairs = 2 * (K - 1)
        new = pool.compose(
            torch.cat((shift.pairs[:, :-1].flatten(1, 2), elements.unfold(1, 2, 1)), dim=1),
            torch.cat((shift.present[:, :-1].flatten(1), there), dim=1),
        )  # (B, 2(K−1) + m−1)
        records.append(
            StepRecord(rows, H, proposal.columns, proposal.scores, best.weights, best.indices, scores, proposal.forests)
        )
        shift.rows[:, :-1].scatter_(2, shift.columns[:, :-1], new[:, :pairs].view(B, K - 1, 2))
        soft = shift.rows[:, -1, 1:m]  # (B, m−1)
        soft.copy_(new[:, pairs:].where(active, soft))
        shift.rows[:, -1, m].fill_(pool.absent)  # after the last candidate
        rows = shift.rows[..., :-1]  # (B, K, m+1)
        sources.append(shift.source)
        actions.append(shift.action)
        chosen.append(shift.removed[:, :-1, 1])
        made.append(elements.gather(1, action))
        forests = proposal.keep_forests(best.indices, active, forests)
        scores = best.scores.where(active, scores)
    last = roots(pool, rows)
    node = torch.cat((stack(chosen, last[:, :-1]), stack(made, last[:, -1:])), dim=2)
    return SoftTrace(pool, SoftStep(stack(sources, last), stack(actions, last), node), records, blocks, scores, last)


class Mixture(NamedTuple):
    """The weights in the formula above."""

    parents: Float[Tensor, "B K E"]  # of P[i], for E columns i + 1 of each beam; 0 for the others
    columns: Int[Tensor, "B K E"]
    left: Float[Tensor, "B K m"]  # of H[i]
    right: Float[Tensor, "B K m"]  # of H[i+1]

    def positions(self) -> Int[Tensor, "BKE"]:
        """Where each parent is added, as an index into the new states of all samples, (B·m).

        Padding columns of absent continuations have weight 0, so their position does not matter.
        """
        B, _, m = self.left.shape
        offset = torch.arange(-1, B * m - 1, m, device=self.columns.device).view(B, 1, 1)
        return self.columns.clamp(1, m).add_(offset).flatten()


def mixture(v: Float[Tensor, "B KJ"], columns: Int[Tensor, "B K J"], m: int, mix: Mix | None) -> Mixture:
    v = v.view_as(columns)  # (B, K, J)
    s = v.new_zeros(*columns.shape[:2], m + 2).scatter_(2, columns, v)[..., 1:-1]  # (B, K, m)
    total = v.sum(2, keepdim=True)  # (B, K, 1)
    if mix == "paper":
        cum = s.cumsum(2)
        return Mixture(v, columns, total - cum, cum - s)
    # The published code averages choices, parents and old states separately: the same sum with other weights.
    s = s.sum(1, keepdim=True)  # (B, 1, m)
    cum = s.cumsum(2)
    every = torch.arange(1, m + 1, device=v.device).expand(*columns.shape[:2], m)
    return Mixture(s * total, every, (1 - cum) * total, (cum - s) * total)


def sequences(children: Int[Tensor, "P 2"], rows: Int[Tensor, "B K W"]) -> Int[Tensor, "B K n"]:
    """H[0 … m] of every beam: the first candidate's left child, and every candidate's right one."""
    pairs = take(children, rows[..., 1:-1])  # (B, K, m, 2)
    return torch.cat((pairs[:, :, :1, 0], pairs[..., 1]), dim=2)


def average(
    pool: Pool, rows: Int[Tensor, "B K W"], ids: Int[Tensor, "B K n"], weights: Mixture
) -> Float[Tensor, "B m S"]:
    """The soft beam's new states, from candidates and sequences."""
    H = take(pool.states, ids)  # (B, K, m+1, S)
    left, right, parents = (w.unsqueeze(3).to(H.dtype) for w in (weights.left, weights.right, weights.parents))
    states = (left * H[:, :, :-1]).addcmul_(right, H[:, :, 1:]).sum(1)  # (B, m, S)
    parents = parents * take(pool.states, rows.gather(2, weights.columns))  # (B, K, E, S)
    # The only scatter-add of PyTorch that is deterministic on a GPU.
    states.flatten(0, 1).index_put_((weights.positions(),), parents.flatten(0, 2), accumulate=True)
    return states


def path_spans(
    pool: Pool,
    ids: Int[Tensor, "B K n"],
    source: Int[Tensor, "B 1"],
    action: Int[Tensor, "B 1"],
    parent: Int[Tensor, "B 1"],
) -> Int[Tensor, "B m 3"]:
    """The spans of the sequence of one beam after one merge."""
    n = ids.shape[2]
    here = pool.ids[: n - 1]
    old = here + (here > action) + n * source  # (B, m), without the right child; the parent replaces the left one
    return take(pool.spans, ids.flatten(1).gather(1, old).scatter_(1, action, parent))
