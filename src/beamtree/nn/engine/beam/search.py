"""Search: beam search over easy-first composition, without gradients.

A merge changes only the two candidates next to the new node. So every node is composed once and kept in an append-only
pool, and a beam is a row of integers: the ids of the candidates it may choose from. The pool holds

    B·N leaves | B·(N−1) first candidates | for each step, two new candidates for each beam (B·K·2) | the absent node

A step ranks the candidates, keeps the best continuations, shifts the rows of ids and composes the two new candidates of
each kept beam: N−1 + 2K(N−2) cells per sample in total. Every step has the same shapes, and none synchronises with the
host.

If the scorer reads children, new candidates are only scored. A step then composes the chosen candidate of each kept
beam, unless another beam has chosen it before: at most K(N−1) cells per sample.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from beamtree.nn.engine.duplicates import resolve, span_hash
from beamtree.nn.engine.noise import Noise
from beamtree.nn.engine.pool import END, START, Pool, take
from beamtree.nn.engine.request import Request


class Step(NamedTuple):
    """What a step did in each beam it kept."""

    source: Int[Tensor, "*T B K"]  # the beam it continues
    action: Int[Tensor, "*T B K"]  # the position of the merge
    removed: Int[Tensor, "*T B K 3"]  # removed candidates: left neighbour, the chosen one, right neighbour
    added: Int[Tensor, "*T B K 2"]  # the new candidates left and right of the new node
    normaliser: Float[Tensor, "*T B K"]  # log Σ exp over the candidates it chose from; +inf if nothing changed


class Choice(NamedTuple):
    """The alternatives of a step and its choice, which suffice to recompute its scores."""

    rows: Int[Tensor, "B K W"]
    columns: Int[Tensor, "B K J"]
    forests: Int[Tensor, "B KJ"] | None
    order: Int[Tensor, "B K"]


class Trace(NamedTuple):
    """A finished search."""

    pool: Pool
    steps: Step  # all steps: every field has a leading axis T
    choices: list[Choice]  # only if duplicates are merged
    scores: Float[Tensor, "B K"]
    roots: Int[Tensor, "B K"]  # ids of the last nodes


def search(request: Request) -> Trace:
    B, N, _ = request.leaves.shape
    return run(Pool(request, size=B * (N + request.candidates + 2 * request.beam_size * request.steps)))


@torch.inference_mode()
def run(pool: Pool) -> Trace:
    """The search itself.

    Operations are an eighth faster in inference mode. Results saved for the backward pass must be in the pool, which is
    allocated outside, or be copied.
    """
    request, K = pool.request, pool.request.beam_size
    rows = first_rows(pool)  # (B, K, M+2)
    scores, forests = request.start_scores(), None
    noise, all_active = Noise(request), request.active.unsqueeze(1).unbind(2)
    steps, choices = [], []
    log_ps, moving = [], []  # of all steps; the normalisers are computed from them in one batch
    for step, active in enumerate(all_active):  # (B, 1)
        candidate_noise, beam_noise = noise.at(step)
        proposal = propose(pool, rows, scores, forests, candidate_noise)
        order = request.choose(proposal.scores, K, None if beam_noise is None else beam_noise.flatten(1))  # (B, K)
        if request.duplicates == "merge":
            choices.append(Choice(rows, proposal.columns, proposal.forests, order))
        shift = shift_rows(pool, rows, proposal, order, active)
        pool.compose_chosen(shift.removed.select(2, 1))
        added = pool.compose(shift.pairs, shift.present)  # (B, K, 2)
        rows = shift.rows.scatter_(2, shift.columns, added)
        steps.append((shift.source, shift.action, shift.removed, added))
        log_ps.append(proposal.log_p.flatten(1).gather(1, order))
        moving.append(shift.moving)
        scores = shift.scores.where(active, scores)
        forests = proposal.keep_forests(order, active, forests)
    pool.compose_chosen(rows[..., 1])  # the only candidates left
    last = roots(pool, rows)
    triple = last.unsqueeze(2).expand(-1, -1, 3)
    shapes = (last, last, triple, triple[..., :2])
    source, action, removed, added = (stack([step[field] for step in steps], like) for field, like in enumerate(shapes))
    normaliser = pool.logits.take(removed[..., 1]) - stack(log_ps, scores)  # (T, B, K)
    normaliser = normaliser.where(stack(moving, scores.isfinite()), torch.inf)
    return Trace(pool, Step(source, action, removed, added, normaliser), choices, scores, last)


def stack(values: list[Tensor], like: Shaped[Tensor, "B *rest"]) -> Shaped[Tensor, "T B *rest"]:
    """Stack the values of all steps. `like` has the shape of one step, in case there is none."""
    return torch.stack(values) if values else like.unsqueeze(0)[:0]


def copies(steps: Iterable[Iterable[Tensor | None]]) -> list[Tensor | None]:
    """All fields of all steps; inference tensors are cloned, so that they can be saved for the backward pass."""
    return [field.clone() if field is not None and field.is_inference() else field for step in steps for field in step]


def first_rows(pool: Pool) -> Int[Tensor, "B K W"]:
    """The initial row of every beam: the candidates over the leaves."""
    B, N, _ = pool.request.leaves.shape
    leaves = torch.arange(B * N, device=pool.states.device).view(B, N)
    # A sample of one leaf gets a candidate that is never chosen, so that no row is empty.
    present = leaves[:, :-1] % N < (pool.request.lengths.unsqueeze(1) - 1).clamp(min=1)
    row = pool.compose(torch.stack((leaves[:, :-1], leaves[:, 1:]), dim=2), present)  # (B, M)
    return pool.row(row).unsqueeze(1).expand(-1, pool.request.beam_size, -1)


def roots(pool: Pool, rows: Int[Tensor, "B K W"]) -> Int[Tensor, "B K"]:
    """The only candidate left, or the only leaf."""
    B, N, _ = pool.request.leaves.shape
    leaf = torch.arange(0, B * N, N, device=rows.device).unsqueeze(1).expand(rows.shape[:2])
    return rows[:, :, 1].where(pool.request.lengths.unsqueeze(1) > 1, leaf)


class Proposal(NamedTuple):
    """The continuations of all beams: J for each."""

    columns: Int[Tensor, "B K J"]  # where in its row each beam may merge
    log_p: Float[Tensor, "B K J"]
    scores: Float[Tensor, "B KJ"]
    forests: Int[Tensor, "B KJ"] | None  # hash of what each would build, see duplicates.py; None if not needed

    def keep_forests(
        self, order: Int[Tensor, "B K"], active: Bool[Tensor, "B 1"], forests: Int[Tensor, "B K"] | None
    ) -> Int[Tensor, "B K"] | None:
        """The forests of the beams after keeping these continuations."""
        if self.forests is None:
            return None
        new = self.forests.gather(1, order)
        return new if forests is None else new.where(active, forests)


def propose(
    pool: Pool,
    rows: Int[Tensor, "B K W"],
    scores: Float[Tensor, "B K"],
    forests: Int[Tensor, "B K"] | None,
    noise: Float[Tensor, "B K M"] | None,
) -> Proposal:
    """The first operator: each beam's best candidates."""
    request = pool.request
    log_p = pool.logits.take(rows).log_softmax(-1)  # (B, K, W)
    J = min(request.beam_size, rows.shape[2] - 2)
    columns = request.choose(log_p[..., 1:-1], J, noise) + 1  # (B, K, J)
    log_p = log_p.gather(2, columns)  # (B, K, J)
    new_scores, new_forests = (scores.unsqueeze(2) + log_p).flatten(1), None
    if request.duplicates != "keep":
        spans = take(pool.spans, rows.gather(2, columns).flatten(1))  # (B, K·J, 3)
        new_forests = span_hash(spans[..., START], spans[..., END])
        if forests is not None:
            new_forests = new_forests + forests.repeat_interleave(J, dim=1)
        new_scores = resolve(new_scores, new_forests, request.duplicates)
    return Proposal(columns, log_p, new_scores, new_forests)


class Shift(NamedTuple):
    """Kept continuations in progress: rows without the removed candidates, and the pairs to compose."""

    source: Int[Tensor, "B k"]
    action: Int[Tensor, "B k"]
    removed: Int[Tensor, "B k 3"]
    scores: Float[Tensor, "B k"]
    moving: Bool[Tensor, "B k"]
    rows: Int[Tensor, "B k W"]
    columns: Int[Tensor, "B k 2"]  # where the new candidates go
    pairs: Int[Tensor, "B k 2 2"]  # their children
    present: Bool[Tensor, "B k 2"]


def shift_rows(
    pool: Pool,
    rows: Int[Tensor, "B K W"],
    proposal: Proposal,
    order: Int[Tensor, "B k"],
    active: Bool[Tensor, "B 1"],
) -> Shift:
    """Apply the kept continuations. Finished samples and empty beams do not change."""
    W, J = rows.shape[2], proposal.columns.shape[2]
    scores = proposal.scores.gather(1, order)  # (B, k)
    moving = active & (scores > -torch.inf)
    source = (order // J).where(active, pool.ids[: order.shape[1]])
    column = proposal.columns.flatten(1).gather(1, order).where(moving, W).unsqueeze(2)  # W: right of everything
    rows = rows.gather(1, source.unsqueeze(2).expand(-1, -1, W))  # (B, k, W)
    # `narrow` and `select` are faster than indexing, which matters here.
    action, here = column - 1, pool.ids.narrow(0, 0, W - 1)
    around = (action + here.narrow(0, 0, 3)).clamp_(max=W - 1)  # (B, k, 3)
    removed = rows.gather(2, around)
    chosen, children = removed.select(2, 1), take(pool.children, removed).flatten(2)  # (B, k), (B, k, 3·2)
    left, right = rows.narrow(2, 0, W - 1), rows.narrow(2, 1, W - 1)
    left.copy_(right.where(here > column, left))
    pairs = torch.stack((children.select(2, 0), chosen, chosen, children.select(2, 5)), dim=2)  # (B, k, 2·2)
    return Shift(
        source,
        action.squeeze(2),
        removed,
        scores,
        moving,
        rows,
        around.narrow(2, 0, 2),
        pairs.unflatten(2, (2, 2)),
        removed[..., ::2] != pool.absent,
    )
