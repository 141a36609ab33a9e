"""Trees from boundaries between leaves, for models that do not merge neighbours one at a time.

Each boundary closes once.

Letters: B batch, N length, M = N−1 boundaries, D width of a state.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.nn.beams import Beams
from beamtree.nn.engine.chart import Chart


class BoundaryMerges(NamedTuple):
    """A tree, as the order in which the M = N−1 boundaries between leaves close. Padding comes last."""

    boundaries: Int[Tensor, "B M"]  # boundary i is the one before leaf i+1
    actions: Int[Tensor, "B M"]
    spans: Int[Tensor, "B M 2"]  # [start, end) of each merge's result; within the sample for padding too


def close(heights: Float[Tensor, "B M"] | Int[Tensor, "B M"], lengths: Int[Tensor, "B"]) -> BoundaryMerges:
    """Close the boundaries from the lowest to the highest, ties from left to right.

    Closing a boundary merges the constituents on either side.
    """
    B, M = heights.shape
    if M == 0:
        return BoundaryMerges(lengths.new_zeros(B, 0), lengths.new_zeros(B, 0), lengths.new_zeros(B, 0, 2))
    position = torch.arange(M, device=heights.device)
    padding = position >= lengths.unsqueeze(1) - 1  # (B, M)
    order = heights.argsort(dim=1, stable=True)
    order = order.gather(1, padding.gather(1, order).to(torch.uint8).argsort(dim=1, stable=True))  # padding last
    rank = torch.zeros_like(order).scatter_(1, order, position.expand(B, M))
    # Whether boundary j is still open when boundary i closes.
    stays = (rank.unsqueeze(1) > rank.unsqueeze(2)) & ~padding.unsqueeze(1)  # (B, i, j)
    left, right = stays.tril(-1), stays.triu(1)
    actions = left.sum(2)  # (B, M)
    column = position.int()
    starts = (column.add(1) * left).amax(2)  # (B, M)
    ends = lengths.unsqueeze(1) - ((lengths.view(B, 1, 1).int() - column - 1) * right).amax(2)
    spans = torch.stack((starts, ends), dim=-1).long()  # (B, M, 2)
    index = order.unsqueeze(-1).expand(B, M, 2)
    return BoundaryMerges(order, actions.gather(1, order), spans.gather(1, index))


def one_beam(
    leaves: Float[Tensor, "B N D"], merges: BoundaryMerges, states: Float[Tensor, "B M D"], lengths: Int[Tensor, "B"]
) -> Beams:
    """The one tree of each sample, with a state for each of its merges."""
    B, N, D = leaves.shape
    store = torch.cat((leaves.flatten(0, 1), states.flatten(0, 1)))
    rows = torch.arange(B * N, len(store), device=leaves.device).view(B, 1, N - 1)
    scores = leaves.new_zeros(B, 1)
    chart = Chart(store, scores, merges.actions.unsqueeze(1), rows, merges.spans.unsqueeze(1))
    return Beams(scores, chart, lengths, D)
