"""Beams that have built the same thing in another order.

Easy-first merges of independent parts commute, so different action sequences can end in one tree, and copies then
fill the beam. A forest of binary trees is known by the set of its spans; the sum of a hash of each span names that
set, costs one addition a merge, and does not depend on the order.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.nn.engine.dropout import mix
from beamtree.nn.engine.request import Duplicates


def span_hash(start: Int[Tensor, "*nodes"], end: Int[Tensor, "*nodes"]) -> Int[Tensor, "*nodes"]:
    """64 well-mixed bits for a span; sums of them wrap around without harm."""
    low = mix(mix(start.int() + 1) + end.int())
    high = mix(mix(end.int() + 0x5BD1E995) + start.int())
    return high.long() << 32 ^ low


def resolve(scores: Float[Tensor, "B m"], forests: Int[Tensor, "B m"], duplicates: Duplicates) -> Float[Tensor, "B m"]:
    """Scores of m continuations with duplicate forests resolved. "drop": the best copy stays, the others go to −inf.
    "merge": it also takes over their probability, so that a score is the log-probability of all action orders found.
    """
    if duplicates == "keep":
        return scores
    same = forests.unsqueeze(1) == forests.unsqueeze(2)  # (B, m, m)
    with torch.no_grad():
        row, column = scores.unsqueeze(2), scores.unsqueeze(1)
        index = torch.arange(scores.shape[1], device=scores.device)
        ahead = (column > row) | ((column == row) & (index < index.unsqueeze(1)))
        beaten = (same & ahead).any(2)  # (B, m)
        beaten |= scores.isneginf()
    if duplicates == "merge":
        # Finite stand-ins keep the gradient of rows that are thrown away below free of NaN.
        present = same & ~scores.isneginf().unsqueeze(1)
        shares = torch.where(beaten.unsqueeze(2), 0, scores.unsqueeze(1).masked_fill(~present, -torch.inf))
        scores = shares.logsumexp(2)
    return scores.masked_fill(beaten, -torch.inf)
