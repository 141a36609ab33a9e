"""Search: shift-reduce parsing with a beam, without gradients.

A beam consists of the top of its stack, the number of words that have left the queue, and a score. A stack is a linked
list of entries, each a node and the entry below it. Beams with a common history share entries, so that a step copies
nothing. Every node is composed once and kept in a pool, which holds

    B·N leaves | for each step, a parent for each beam (B·K), whether it reduces or not | the absent node

Every step has the same shapes, and none synchronises with the host.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from beamtree.nn.engine.beam.search import stack
from beamtree.nn.engine.pool import Pool, take
from beamtree.nn.engine.request import Request
from beamtree.nn.engine.shift_reduce.request import ParserRequest, log_probabilities
from beamtree.nn.topk.operators import rank


class ParserStep(NamedTuple):
    """What each step did in the beams it kept."""

    source: Int[Tensor, "T B K"]  # the beam it continues
    seen: Int[Tensor, "T B K 3"]  # the nodes that the decision read: s₂, s₁ and q
    free: Bool[Tensor, "T B K"]  # whether both actions were possible; otherwise the decision has probability 1
    action: Int[Tensor, "T B K"]  # REDUCE or SHIFT
    parent: Int[Tensor, "T B K"]  # the node that a reduce created; else the absent node
    position: Int[Tensor, "T B K"]  # of that node on the stack, and thus in the sequence


class ParserTrace(NamedTuple):
    """A finished search."""

    pool: Pool
    steps: ParserStep
    scores: Float[Tensor, "B K"]  # best first; −inf: no such beam


class StackEntries:
    """The stacks of all beams. The top entry identifies a stack. The last entry of the table is the bottom of all."""

    def __init__(self, request: Request, steps: int, table: Int[Tensor, "E 2"] | None = None) -> None:
        """Push the first two words, or the only one, on each sample's stack; in this table, or a new one if None."""
        B, N, _ = request.leaves.shape
        device = request.leaves.device
        self.table = new_entries(B, request.beam_size, steps, device) if table is None else table  # node, entry below
        self.used = 0
        leaf = torch.arange(0, B * N, N, device=device).unsqueeze(1)  # (B, 1)
        lowest = self.push(leaf, torch.full_like(leaf, len(self.table) - 1))
        second = self.push(leaf + min(N - 1, 1), lowest)
        self.top = second.where(request.lengths.unsqueeze(1) > 1, lowest)  # (B, 1)

    def push(self, node: Int[Tensor, "B k"], below: Int[Tensor, "B k"]) -> Int[Tensor, "B k"]:
        """Append entries, and return their indices."""
        first = self.used
        self.used += node.numel()
        torch.stack((node.flatten(), below.flatten()), dim=1, out=self.table[first : self.used])
        return torch.arange(first, self.used, device=node.device).view(node.shape)


def new_entries(samples: int, beams: int, steps: int, device: torch.device) -> Int[Tensor, "E 2"]:
    """The table of all stack entries of a search. The bottom entry refers to the first leaf, which is never used."""
    size = samples * (2 + beams * steps)
    return torch.tensor([0, size], device=device).repeat(size + 1, 1)


def search(request: ParserRequest) -> ParserTrace:
    """The final beams, and what each of them did."""
    B, N, _ = request.leaves.shape
    return run(request, Pool(request, size=B * (N + request.beam_size * request.steps)))


@torch.inference_mode()
def run(request: ParserRequest, pool: Pool) -> ParserTrace:
    """The search itself. Results that are saved for the backward pass must be copied."""
    (B, N, _), K, device = request.leaves.shape, request.beam_size, request.leaves.device
    entries, length = StackEntries(request, request.steps), request.lengths.unsqueeze(1)  # (B, 1)
    first = torch.arange(0, B * N, N, device=device).unsqueeze(1)  # (B, 1): the leaf of the first word
    here, offsets = torch.arange(K, device=device), torch.arange(0, B * K, K, device=device).unsqueeze(1)
    top, words = entries.top.expand(B, K), torch.full((B, K), 2, device=device)  # words that have left the queue
    scores = request.start_scores()
    steps = []
    for step, active in enumerate(request.active.unsqueeze(1).unbind(2)):  # (B, 1)
        s1, second = take(entries.table, top).unbind(2)  # (B, K)
        s2, third = take(entries.table, second).unbind(2)
        word = first + words.clamp(max=N - 1)
        depth = 2 * words - (2 + step)  # of the stack: the number of words minus the number of reduces so far
        impossible = torch.stack((depth < 2, words >= length), dim=2)  # (B, K, 2)
        ids = torch.stack((s2, s1, word, top, third, words, depth), dim=2)

        logits = request.decision.logits(take(pool.states, ids[..., :3]).flatten(2))  # (B, K)
        log_p = log_probabilities(logits, impossible).to(scores.dtype)
        new_scores = (scores.unsqueeze(2) + log_p).flatten(1)  # (B, 2K)
        order = rank(new_scores, K)  # (B, K)
        scores = new_scores.gather(1, order).where(active, scores)
        source, shifts = (order >> 1).where(active, here), (order & 1).bool()
        moving = active & (scores > -torch.inf)

        # Select everything about the continued beams in one operation.
        kept = torch.cat((ids, impossible), dim=2).flatten(0, 1)
        kept = take(kept, source + offsets)  # (B, K, 9)
        _, _, word, top, third, words, depth, _, _ = kept.unbind(2)
        parent = pool.compose(kept[..., :2], moving & ~shifts)  # (B, K); the absent node where a beam does not reduce
        pushed = entries.push(word.where(shifts, parent), top.where(shifts, third))
        top, words = pushed.where(moving, top), words + (shifts & moving)
        steps.append((source, kept, shifts, parent))
    source, kept, shifts, parent = (
        stack([step[field] for step in steps], like)
        for field, like in enumerate((top, top.unsqueeze(2).expand(-1, -1, 9), top.bool(), top))
    )
    free = (kept[..., 7:] == 0).all(3)
    return ParserTrace(pool, ParserStep(source, kept[..., :3], free, shifts.long(), parent, kept[..., 6] - 2), scores)
