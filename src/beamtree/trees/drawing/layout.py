"""Positions of the nodes of a tree, for every painter that draws lines: in pixels, or in characters of a terminal.

The leaves are placed along one axis, in order. A constituent is centred over its two children, and its distance from
the leaves is its height. Its lines to the children turn at right angles; since everything between the children is
lower, no two lines cross. With vertical orientation the root is above the leaves, with horizontal orientation on their
left, one leaf per line. Nothing is recursive, so a chain of any length can be laid out.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

from beamtree.trees.tree import Span, Tree
from beamtree.utils.checks import check_choice

Orientation = Literal["auto", "vertical", "horizontal"]
ORIENTATIONS = ("auto", "vertical", "horizontal")


class PlacedNode(NamedTuple):
    """A node with its position along the leaves, and the indices of its children in the list of all nodes."""

    start: int
    end: int
    height: int
    place: float
    left: int = -1
    right: int = -1

    @property
    def span(self) -> Span:
        return self.start, self.end


class TreeLayout(NamedTuple):
    """All nodes of a tree, first the leaves, then the constituents, children before parents."""

    nodes: list[PlacedNode]
    size: float  # of the drawing along the leaves
    shifts: dict[Span, float]  # space added between the children of a constituent

    @property
    def height(self) -> int:
        return self.nodes[-1].height


def place_nodes(
    tree: Tree,
    sizes: Sequence[float],
    distances: Mapping[Span, float] | None = None,
    whole: bool = False,
) -> TreeLayout:
    """Lay out a tree along its leaves.

    Args:
        tree: the tree.
        sizes: sizes of the leaves, including the space between them. Each leaf is centred in its size.
        distances: minimum distance between the two children of a constituent, so its label fits between them.
        whole: whether to round positions down to integers, for drawings in characters.

    Returns:
        The layout.
    """
    least = distances or {}

    def middle(value: float) -> float:
        return float(math.floor(value)) if whole else value

    shifts: dict[Span, float] = {}
    before = [0.0] * len(tree)  # space added before each leaf
    # The place of a node is relative to the start of its first leaf; its extent reaches to the end of its last leaf.
    nodes = [PlacedNode(i, i + 1, 0, middle(size / 2)) for i, size in enumerate(sizes)]
    stack: list[tuple[int, float]] = []  # index and extent of each constituent without a parent so far
    for position, count in enumerate(tree.reduces):
        stack.append((position, sizes[position]))
        for _ in range(count):
            (right, right_extent), (left, left_extent) = stack.pop(), stack.pop()
            first, second = nodes[left], nodes[right]
            span = first.start, second.end
            shift = max(0.0, least.get(span, 0.0) - (left_extent + second.place - first.place))
            if shift:
                shifts[span] = before[second.start] = shift
            place = middle((first.place + left_extent + shift + second.place) / 2)
            height = 1 + max(first.height, second.height)
            stack.append((len(nodes), left_extent + shift + right_extent))
            nodes.append(PlacedNode(*span, height, place, left, right))
    ends = list(accumulate(size + shift for size, shift in zip(sizes, before, strict=True)))
    starts = [end - size for end, size in zip(ends, sizes, strict=True)]
    return TreeLayout([node._replace(place=starts[node.start] + node.place) for node in nodes], ends[-1], shifts)


def is_horizontal(orientation: str, fits: bool) -> bool:
    """Whether to draw horizontally: as requested or, with "auto", if a vertical drawing does not fit."""
    check_choice("orientation", orientation, ORIENTATIONS)
    return not fits if orientation == "auto" else orientation == "horizontal"
