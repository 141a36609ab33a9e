"""Duplicate beams: beams that have built the same forest in a different order.

Easy-first merges of independent parts commute, so different action sequences can build the same tree, and copies then
fill the beam. The set of its spans determines a forest of binary trees. The sum of the spans' hashes identifies this
set, costs one addition per merge, and does not depend on the order.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.nn.engine.dropout import mix
from beamtree.nn.engine.request import Duplicates


def span_hash(start: Int[Tensor, "*nodes"], end: Int[Tensor, "*nodes"]) -> Int[Tensor, "*nodes"]:
    """A 64-bit hash of a span. Sums of hashes may wrap around."""
    low = mix(mix(start.int() + 1) + end.int())
    high = mix(mix(end.int() + 0x5BD1E995) + start.int())
    return high.long() << 32 ^ low


def resolve(scores: Float[Tensor, "B m"], forests: Int[Tensor, "B m"], duplicates: Duplicates) -> Float[Tensor, "B m"]:
    """Scores of m continuations with duplicate forests resolved.

    "drop": the best copy stays, the others get −inf. "merge": it also takes over their probability, so that a score is
    the log-probability of all action orders found.
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
        # Finite placeholders keep the gradient of rows that are discarded below free of NaN.
        present = same & ~scores.isneginf().unsqueeze(1)
        shares = torch.where(beaten.unsqueeze(2), 0, scores.unsqueeze(1).masked_fill(~present, -torch.inf))
        scores = shares.logsumexp(2)
    return scores.masked_fill(beaten, -torch.inf)
