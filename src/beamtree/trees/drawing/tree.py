"""Trees drawn: one, or the trees of all beams beside each other with their probabilities.

A constituent stands as many steps from the leaves as it is high. Its line joins its two children, and since all that
lies between them is lower, no two lines cross. Few leaves stand beside each other under the root; many are lines below
each other, with the root on the left. Nothing recurses, so that depth costs only room.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import NamedTuple

from beamtree.trees import Tree
from beamtree.trees.drawing.picture import Drawing
from beamtree.trees.drawing.shapes import (
    CHARACTER,
    LINE,
    PAGE,
    Dot,
    Layout,
    Line,
    Mark,
    Scene,
    Words,
    below,
    beside,
    clipped,
    is_rows,
    text_width,
    title,
    words_scene,
)
from beamtree.trees.parses import Parse, span_probabilities
from beamtree.utils.checks import check_integer

_HEIGHT = 240.0  # of the lines above leaves in columns, if the tree is high; else
_STEP = 26.0  # for each step
_DEPTH = 240.0  # and the same beside leaves in rows
_LEAST = 1.0  # however high a tree is


class DrawnConstituent(NamedTuple):
    """A constituent and its place along the leaves."""

    start: int
    end: int
    height: int
    place: float


def draw_tree(
    tree: Tree, probabilities: Mapping[tuple[int, int], float] | None = None, layout: Layout = "auto"
) -> Drawing:
    """One tree. `probabilities` are of its constituents' spans, where they are known.

    layout: "columns": the leaves stand beside each other, under the root. "rows": below each other, the root on their
    left. "auto": in columns if they fit on a page.
    """
    return Drawing(_scene(tree, probabilities, layout), f"a tree over {len(tree)} leaves")


def draw_beams(parses: Sequence[Parse], top: int | None = 5, layout: Layout = "auto") -> Drawing:
    """The `top` best trees beside each other, each under its probability; None: all. How probable a constituent is,
    over all beams, is the strength of its dot."""
    if top is not None:
        check_integer("top", top, at_least=1)
    if not parses:
        raise ValueError("there are no parses to draw: give those of a text, as model.parse(text) gives them")
    probabilities = span_probabilities(parses)
    scenes = []
    for number, parse in enumerate(parses[:top], start=1):
        heading = words_scene(f"{number}: probability {parse.probability:.3f}", "heading")
        scenes.append(below([heading, _scene(parse.tree, probabilities, layout)], gap=LINE / 2))
    # Trees in rows are compared line by line, so they stay beside each other however many they are.
    shown = beside(scenes, page=inf if is_rows(layout, sum(_widths(parses[0].tree))) else PAGE)
    if others := parses[len(scenes) :]:
        rest = f"not drawn: {len(others)} more, probability {sum(other.probability for other in others):.3f}"
        shown = below([shown, words_scene(rest, "note")])
    return Drawing(shown, f"the {len(scenes)} most probable trees over {len(parses[0].tree)} leaves")


def tree_svg(tree: Tree, probabilities: Mapping[tuple[int, int], float] | None = None, layout: Layout = "auto") -> str:
    """`draw_tree` as SVG."""
    return draw_tree(tree, probabilities, layout).svg()


def beams_svg(parses: Sequence[Parse], top: int | None = 5, layout: Layout = "auto") -> str:
    """`draw_beams` as SVG."""
    return draw_beams(parses, top, layout).svg()


def _scene(tree: Tree, probabilities: Mapping[tuple[int, int], float] | None, layout: Layout) -> Scene:
    widths = _widths(tree)
    rows = is_rows(layout, sum(widths))
    ends = [LINE * position for position in range(1, len(tree) + 1)] if rows else [*accumulate(widths)]
    places = [(before + end) / 2 for before, end in zip([0.0, *ends], ends, strict=False)]
    height = tree.height
    step = max(_LEAST, min(_STEP, (_DEPTH if rows else _HEIGHT) / max(height, 1)))
    far = step * height + (CHARACTER if rows else LINE / 2)  # from the root's side to the leaves'

    def at(place: float, high: int) -> tuple[float, float]:
        away = step * (height - high) + CHARACTER / 2
        return (away, place) if rows else (place, away)

    marks = []
    for whole, left, right in _constituents(tree, places):
        span = (whole.start, whole.end)
        known = None if probabilities is None else probabilities.get(span, 0.0)
        corners = ((left.place, left.height), (left.place, whole.height), (right.place, whole.height))
        way = tuple(at(place, high) for place, high in (*corners, (right.place, right.height)))
        dot = Dot(*at(whole.place, whole.height), 1.0 if known is None else known)
        marks.append(Mark(title(*span, tree.leaves, known), (Line(way), dot)))
    for position, (leaf, place) in enumerate(zip(tree.leaves, places, strict=True)):
        shown = clipped(leaf)
        words = Words(far, place, shown) if rows else Words(place, far + LINE / 2, shown, centred=True)
        marks.append(Mark(title(position, position + 1, tree.leaves), (words,)))
    if rows:
        return Scene(far + max(widths), ends[-1], tuple(marks))
    return Scene(ends[-1], far + LINE, tuple(marks))


def _widths(tree: Tree) -> list[float]:
    """Of the leaves, with room between them."""
    return [text_width(clipped(leaf)) + 2 * CHARACTER for leaf in tree.leaves]


def _constituents(
    tree: Tree, places: Sequence[float]
) -> Iterator[tuple[DrawnConstituent, DrawnConstituent, DrawnConstituent]]:
    """Every constituent of two or more leaves with its children, children first. It stands in their middle."""
    stack: list[DrawnConstituent] = []
    for position, count in enumerate(tree.reduces):
        stack.append(DrawnConstituent(position, position + 1, 0, places[position]))
        for _ in range(count):
            right, left = stack.pop(), stack.pop()
            height = 1 + max(left.height, right.height)
            stack.append(DrawnConstituent(left.start, right.end, height, (left.place + right.place) / 2))
            yield stack[-1], left, right
