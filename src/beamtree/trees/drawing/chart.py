"""The beam chart: the probability of every span as a constituent, over all beams, as a triangular heat map.

The leaves are the base of the triangle. The cell of a span is centred over its leaves, and farther from them the longer
the span is, so the cell of the whole text is the tip. Long charts are drawn horizontally, as trees are, with the base
on the right. There the distance from the base is logarithmic, since most constituents are short.
"""

import math
from collections.abc import Sequence

from beamtree.trees.drawing.drawing import Drawing
from beamtree.trees.drawing.layout import Orientation, is_horizontal
from beamtree.trees.drawing.marks import node_title
from beamtree.trees.drawing.metrics import LINE_HEIGHT, clip, text_width
from beamtree.trees.drawing.scene import PAGE_WIDTH, Line, Rectangle, Scene, Shape, Text, below
from beamtree.trees.parses import Parse, span_probabilities
from beamtree.trees.tree import Span
from beamtree.utils.palette import Theme

_SPACE = 6.0  # between leaves, and between the base and the leaves
_MIN_COLUMN, _MAX_COLUMN = 40.0, 96.0  # widths in vertical orientation; longer leaves are clipped
_ROW = 26.0  # height of a cell in vertical orientation
_DEPTH = 720.0  # of the triangle in horizontal orientation
_MIN_DEPTH = 2.0  # of a cell
_DARK_CELL = 65  # percent from which light text is easier to read than dark text
_LEGEND_CELLS = 6


def draw_chart(
    tokens: Sequence[str],
    parses: Sequence[Parse],
    *,
    orientation: Orientation = "auto",
    theme: Theme | None = None,
) -> Drawing:
    """Draw the chart of a text: the probability of every span as a constituent.

    Args:
        tokens: the tokens of the text.
        parses: all its parses, since the probability of a span is the sum over all of them.
        orientation: as for `draw_tree`. With vertical orientation every span has a cell, with horizontal orientation
            only those that are in some beam.
        theme: as for `draw_tree`.

    Returns:
        The drawing.

    Raises:
        ValueError: if there are no parses, or their numbers of leaves differ from that of the tokens.

    Examples:
        >>> from beamtree.trees.drawing import draw_chart
        >>> parses = beamtree.load("listops-bt-grc").parse("[MAX 2 9 ]")
        >>> draw_chart(parses[0].tree.leaves, parses)
        <Drawing of the beam chart of 4 leaves, ... pixels>
    """
    leaves = tuple(tokens)
    if not parses or any(len(parse.tree) != len(leaves) for parse in parses):
        found = ", ".join(str(len(parse.tree)) for parse in parses) or "none"
        raise ValueError(f"the chart of {len(leaves)} tokens needs parses with as many leaves, got {found}")
    column = min(_MAX_COLUMN, max(_MIN_COLUMN, *(text_width(leaf) + _SPACE for leaf in leaves)))
    horizontal = is_horizontal(orientation, column * len(leaves) <= PAGE_WIDTH)
    chart = _chart_scene(leaves, span_probabilities(parses), column, horizontal)
    scene = below([_legend(), chart], space=LINE_HEIGHT)
    return Drawing(scene, f"the beam chart of {len(leaves)} leaves", theme)


def _chart_scene(leaves: tuple[str, ...], probabilities: dict[Span, float], column: float, horizontal: bool) -> Scene:
    size = len(leaves)
    unit, base = (LINE_HEIGHT, _DEPTH) if horizontal else (column, _ROW * (size - 1))  # of a leaf; depth of the base

    def depth(length: int) -> float:
        """Distance from the tip to the far side of the cells of this length."""
        return base * (1 - math.log(length) / math.log(max(size, 2))) if horizontal else _ROW * (size - length)

    def at(place: float, depth: float) -> tuple[float, float]:
        return (depth, place) if horizontal else (place, depth)

    side = [(unit * (length - 1) / 2, depth(length)) for length in range(1, size + 1)]
    side += [(unit * size - place, far) for place, far in reversed(side)]
    shapes: list[Shape] = [Line(tuple(at(*corner) for corner in (*side, side[0])), "line")]
    spans = sorted(probabilities) if horizontal else [(a, b) for a in range(size) for b in range(a + 2, size + 1)]
    for start, end in spans:
        probability = probabilities.get((start, end), 0.0)
        far = depth(end - start)
        extent = max(_MIN_DEPTH, depth(end - start - 1) - far)
        corner = at(unit * (start + end - 1) / 2, far)
        shapes += _cell(*corner, *at(unit, extent), probability, node_title((start, end), leaves, None, probability))
    for position, leaf in enumerate(leaves):
        middle, title = unit * (position + 0.5), node_title((position, position + 1), leaves)
        word = clip(leaf) if horizontal else clip(leaf, unit - _SPACE)
        beyond = base + (_SPACE if horizontal else LINE_HEIGHT / 2)
        shapes.append(Text(*at(middle, beyond), word, centred=not horizontal, title=title))
    words = _SPACE + max(text_width(clip(leaf)) for leaf in leaves) if horizontal else LINE_HEIGHT
    return Scene(*at(unit * size, base + words), tuple(shapes))


def _cell(x: float, y: float, width: float, height: float, probability: float, title: str) -> list[Shape]:
    """A cell with its probability, if there is room for it and it is not zero."""
    percent = round(100 * probability)
    cell = Rectangle(x, y, width, height, f"heat-{percent}", title)
    shown = f"{probability:.2f}"
    if probability == 0 or text_width(shown) > width:
        return [cell]
    style = "on-heat" if percent > _DARK_CELL else "ink"
    return [cell, Text(x + width / 2, y + height / 2, shown, style, centred=True, title=title)]


def _legend() -> Scene:
    """A scale of the colours."""
    name, high = "probability of a constituent: 0", "1"
    start = text_width(name) + _SPACE
    end = start + LINE_HEIGHT * _LEGEND_CELLS
    cells = (
        Rectangle(start + LINE_HEIGHT * i, 0.0, LINE_HEIGHT, LINE_HEIGHT, f"heat-{100 * i // (_LEGEND_CELLS - 1)}")
        for i in range(_LEGEND_CELLS)
    )
    middle = LINE_HEIGHT / 2
    texts = (Text(0.0, middle, name, "faint"), Text(end + _SPACE, middle, high, "faint"))
    return Scene(end + _SPACE + text_width(high), LINE_HEIGHT, (*cells, *texts))
