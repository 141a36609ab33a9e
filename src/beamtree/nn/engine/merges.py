"""Fixed trees, as merges in post-order: children before parents, left before right.

All tensors here are integers on the host. In post-order, a merge is determined by its index and its span: before merge
m of span [start, end), `end` leaves have been shifted and m merges done, so that end − m elements are left, and it
joins the last two.

Letters: B batch, N length, M = N−1 merges.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from beamtree.trees import Tree


class Merges(NamedTuple):
    """The trees of a batch, on the host: merges in post-order, of which the first n−1 belong to a sample of n leaves.

    The others join the padding one by one, so that every row is a tree over N leaves.
    """

    spans: Int[Tensor, "B M 2"]  # [start, end)
    splits: Int[Tensor, "B M"]  # where the right child begins

    @property
    def actions(self) -> Int[Tensor, "B M"]:
        """Action j joins elements j and j+1 of the sequence at that time."""
        return self.spans[..., 1] - torch.arange(self.splits.shape[1]) - 2

    @property
    def children(self) -> Int[Tensor, "B M 2"]:
        """Indices of the children: 0 to N−1 are the leaves, N + m is merge m."""
        M, (start, end) = self.splits.shape[1], self.spans.unbind(2)
        last = torch.arange(M) + M  # the index of the previous merge, which is the right child unless that is a leaf
        left = start.where(self.splits - start == 1, last + 1 - (end - self.splits))
        return torch.stack((left, self.splits.where(end - self.splits == 1, last)), dim=2)

    @property
    def heights(self) -> Int[Tensor, "B M"]:
        B, M = self.splits.shape
        # NumPy is faster for small steps. The samples are the last dimension, so a step reads and writes whole rows.
        children = (self.children.permute(1, 2, 0) * B + torch.arange(B)).numpy()  # (M, 2, B), into `flat`
        heights = np.zeros((2 * M + 1, B), dtype=np.int64)
        flat = heights.reshape(-1)
        for merge, row in enumerate(heights[M + 1 :]):
            left, right = flat.take(children[merge])
            np.maximum(left, right, out=row)
            row += 1
        return torch.from_numpy(heights[M + 1 :].T)


def from_spans(spans: Int[Tensor, "B M 2"]) -> Merges:
    """Merges from the spans of all constituents except leaves, in any order."""
    start, end = spans.unbind(2)
    order = (end * (spans.shape[1] + 2) - start).argsort(dim=1)  # post-order: by the end, then the shortest first
    return _in_post_order(start.gather(1, order), end.gather(1, order))


def from_trees(trees: Sequence[Tree], length: int) -> Merges:
    """Merges from trees with up to `length` leaves, without a loop over their constituents.

    A tree holds the number of reduces after each leaf. A leaf is shifted to a position of the stack, on which it begins
    an element until the next leaf is shifted to the same position. So the start of a merge is the last leaf before its
    end that was shifted to the position of the merge.
    """
    reduces = _padded_reduces(trees, length)  # (B, N)
    leaf, merge = torch.arange(length), torch.arange(length - 1)
    position = leaf - (reduces.cumsum(1) - reduces)  # to which each leaf is shifted
    end = (leaf + 1).repeat(len(trees)).repeat_interleave(reduces.flatten()).view(len(trees), length - 1)
    shifts = (position * length + leaf).sort(dim=1).values  # by their position, then by the leaf
    place = (end - merge - 2) * length  # the position of each merge
    found = torch.searchsorted(shifts, place + end - 1, right=True) - 1
    return _in_post_order(shifts.gather(1, found) - place, end)


def _padded_reduces(trees: Sequence[Tree], length: int) -> Int[Tensor, "B N"]:
    """The number of reduces after each leaf; after each leaf of the padding, one."""
    counts = [tree.reduces for tree in trees]
    sizes = [len(count) for count in counts]
    padded = np.ones((len(trees), length), dtype=np.int64)
    padded[np.arange(length) < np.array(sizes)[:, None]] = np.fromiter(chain(*counts), np.int64, count=sum(sizes))
    return torch.from_numpy(padded)


def _in_post_order(start: Int[Tensor, "B M"], end: Int[Tensor, "B M"]) -> Merges:
    # The right child is the previous merge if that has the same end, else a leaf.
    before, same = start.roll(1, dims=1), end == end.roll(1, dims=1)
    same[:, :1] = False
    return Merges(torch.stack((start, end), dim=2), before.where(same, end - 1))


def from_actions(actions: Int[Tensor, "B M"], lengths: Int[Tensor, "B"]) -> Merges:
    """Merges from actions in any valid order. Actions beyond a sample's length are ignored."""
    B, M = actions.shape
    actions = actions.where(torch.arange(M) < lengths.unsqueeze(1) - 1, 0)
    starts = torch.arange(M + 2).expand(B, -1)  # of the elements, and the end of the last
    spans = []
    for action in actions.unsqueeze(2).unbind(1):  # (B, 1)
        spans.append(starts.gather(1, action + torch.tensor([0, 2])))
        keep = torch.arange(starts.shape[1] - 1)
        starts = starts.gather(1, keep + (keep > action))  # without the right child's
    return from_spans(torch.stack(spans, dim=1) if spans else actions.unsqueeze(2).expand(-1, -1, 2))


def from_times(times: Int[Tensor, "B M"] | Float[Tensor, "B M"], lengths: Int[Tensor, "B"]) -> Merges:
    """Merges from the times at which neighbours are joined.

    times[:, i] is that of the leaves i and i+1, or of the constituents that contain them. Among equal times the
    leftmost is first. The constituent made at a time extends to the nearest later times on either side.
    """
    M = times.shape[1]
    places = torch.arange(M)
    rank = times.argsort(dim=1, stable=True).argsort(dim=1)
    rank = rank.where(places < lengths.unsqueeze(1) - 1, M + places)  # padding is joined last, from left to right
    start, end = M - _later(rank.flip(1)).flip(1), _later(rank) + 1
    return from_spans(torch.stack((start, end), dim=2))


def _later(rank: Int[Tensor, "B M"]) -> Int[Tensor, "B M"]:
    """The nearest position on the right with a higher rank, M if there is none; by binary search."""
    M = rank.shape[1]
    end = 2 * M  # higher than all
    highest = [pad(rank, (0, M + 1), value=end)]  # highest[k][:, i]: of the 2^k ranks from i on
    while 2 ** len(highest) <= M:
        half = 2 ** (len(highest) - 1)
        highest.append(torch.maximum(highest[-1], pad(highest[-1][:, half:], (0, half), value=end)))
    position = torch.arange(1, M + 1).expand_as(rank)
    for k in reversed(range(len(highest))):
        position = position + 2**k * (highest[k].gather(1, position) < rank)
    return position
