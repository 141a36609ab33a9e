"""How an easy-first encoder scored the merges it made: the score of each, and its probability at its step.

The engines keep neither. Both are recomputed from the states of the trees: at each step, every two neighbours could
have been merged, and a merge changes only the pairs around it. So a tree of N leaves has fewer than 3N such pairs,
which are scored in one batch.

Letters: B batch, K beams, M = N−1 merges.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.nn.beams import Beams

Score = Callable[[Tensor, Tensor], Tensor]  # (n, S), (n, S) → (n,)

_BATCH = 2**14  # pairs that are scored together
_CHUNK = 2**22  # elements of a mask of steps × pairs


class MergeScores(NamedTuple):
    """Scores of the merges of each beam, in merge order; 0 for padding and for beams that do not exist.

    Attributes:
        scores: score of each merge, (B, K, N−1).
        log_probs: log-softmax of the score over all merges that were possible at the same step, (B, K, N−1).

    Examples:
        >>> encoder = beamtree.encoder("bt-grc", dim=8, beam_size=2).eval()
        >>> beams = encoder(torch.randn(1, 4, 8)).beams
        >>> encoder.merge_scores(beams).log_probs.shape
        torch.Size([1, 2, 3])
    """

    scores: Float[Tensor, "B K M"]
    log_probs: Float[Tensor, "B K M"]


class Pairs(NamedTuple):
    """All neighbours of one tree's construction. A pair can be merged in the steps [added, removed)."""

    left: list[int]  # rows of the chart's store
    right: list[int]
    added: list[int]
    removed: list[int]
    merged: list[int]  # the pair that is merged at each step


def merge_scores(beams: Beams, score: Score) -> MergeScores:
    """The scores of the merges that built the trees. `score` maps the states of left and right children to scores."""
    chart, lengths = beams.chart, beams.lengths.tolist()
    N = chart.nodes.shape[2] + 1
    scores = chart.store.new_zeros(chart.nodes.shape)
    log_probs = scores.clone()
    actions, nodes, exists = chart.actions.tolist(), chart.nodes.tolist(), beams.log_probs.isfinite().tolist()
    built: dict[tuple[int, int], Pairs] = {}  # by sample and beam
    for b, length in enumerate(lengths):
        for k, real in enumerate(exists[b]):
            if real and length > 1:
                steps = slice(0, length - 1)
                built[b, k] = find_pairs(list(range(b * N, b * N + length)), actions[b][k][steps], nodes[b][k][steps])
    found = _score_all(list(built.values()), chart.store, score)
    for (b, k), pairs in built.items():
        own, found = found[: len(pairs.left)], found[len(pairs.left) :]
        steps = slice(0, len(pairs.merged))
        scores[b, k, steps] = own[pairs.merged]
        log_probs[b, k, steps] = own[pairs.merged] - _log_totals(own, pairs)
    return MergeScores(scores, log_probs)


def _score_all(built: list[Pairs], store: Float[Tensor, "rows S"], score: Score) -> Float[Tensor, "pairs"]:
    """The scores of the pairs of all trees, one tree after the other."""
    rows = torch.tensor(
        [[row for pairs in built for row in pairs.left], [row for pairs in built for row in pairs.right]],
        dtype=torch.long,
        device=store.device,
    )  # (2, pairs)
    parts = [score(*store[some].unbind(0)) for some in rows.split(_BATCH, dim=1) if some.numel()]
    return torch.cat(parts) if parts else store.new_zeros(0)


def find_pairs(rows: list[int], actions: list[int], nodes: list[int]) -> Pairs:
    """The neighbours at every step, where `actions` merge a sequence of leaves `rows` into `nodes`."""
    pairs = Pairs([], [], [], [], [])
    steps = len(actions)

    def add(left: int, right: int, step: int) -> int:
        for field, value in zip(pairs[:4], (left, right, step, steps), strict=True):
            field.append(value)
        return len(pairs.left) - 1

    present = [add(left, right, 0) for left, right in pairwise(rows)]
    for step, (action, node) in enumerate(zip(actions, nodes, strict=True)):
        pairs.merged.append(present[action])
        rows[action : action + 2] = [node]
        first, last = max(action - 1, 0), min(action + 2, len(present))  # the pairs that held one of the children
        for pair in present[first:last]:
            pairs.removed[pair] = step + 1
        starts = range(first, min(action + 1, len(rows) - 1))
        present[first:last] = [add(rows[start], rows[start + 1], step + 1) for start in starts]
    return pairs


def _log_totals(scores: Float[Tensor, "pairs"], pairs: Pairs) -> Float[Tensor, "M"]:
    """The log-sum-exp of the scores of all pairs that could be merged at each step."""
    added, removed = (torch.tensor(field, device=scores.device) for field in (pairs.added, pairs.removed))
    steps: Int[Tensor, "M 1"] = torch.arange(len(pairs.merged), device=scores.device).unsqueeze(1)
    totals = []
    for some in steps.split(max(1, _CHUNK // len(scores))):
        possible = (added <= some) & (some < removed)  # (some steps, pairs)
        totals.append(scores.expand_as(possible).masked_fill(~possible, -torch.inf).logsumexp(1))
    return torch.cat(totals)
