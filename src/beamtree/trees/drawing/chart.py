"""The beam chart: how probable every span is as a constituent, over all beams, as a triangular heat map.

The leaves are the base. A span's cell stands over the middle of its leaves, the farther away the longer the span is, so
that the whole text is the tip. As trees are, long charts are turned, with the base on the right. There the way from the
base is logarithmic: most constituents are short, and need the room.
"""

import math
from collections.abc import Sequence

from beamtree.trees.drawing.picture import Drawing
from beamtree.trees.drawing.shapes import (
    CHARACTER,
    LINE,
    Cell,
    Layout,
    Line,
    Mark,
    Scene,
    Shape,
    Words,
    below,
    clipped,
    is_rows,
    text_width,
    title,
)
from beamtree.trees.parses import Parse, span_probabilities

_NARROWEST, _WIDEST = 40.0, 96.0  # columns; a longer token is cut
_STEP = 26.0  # the height of a cell in columns
_DEPTH = 720.0  # of a chart in rows
_LEAST = 2.0  # the width of a cell, however long its span is
_DARK = 0.65  # from this strength on, light text is read more easily than dark text
_RAMP = 6  # cells of the legend


def draw_chart(tokens: Sequence[str], parses: Sequence[Parse], layout: Layout = "auto") -> Drawing:
    """The chart of a text's parses: all of them, since a part has not all of a span's probability.

    layout: as `draw_tree` has it. In columns every span has a cell; in rows only those that some beam holds.
    """
    leaves = tuple(tokens)
    if not parses or any(len(parse.tree) != len(leaves) for parse in parses):
        found = ", ".join(str(len(parse.tree)) for parse in parses) or "none"
        raise ValueError(f"the chart of {len(leaves)} tokens needs parses of as many leaves, got {found}")
    unit = min(_WIDEST, max(_NARROWEST, *(text_width(leaf) + CHARACTER for leaf in leaves)))
    rows = is_rows(layout, unit * len(leaves))
    chart = _scene(leaves, span_probabilities(parses), unit, rows)
    return Drawing(below([_legend(), chart], gap=LINE), f"the beam chart of {len(leaves)} leaves")


def chart_svg(tokens: Sequence[str], parses: Sequence[Parse], layout: Layout = "auto") -> str:
    """`draw_chart` as SVG."""
    return draw_chart(tokens, parses, layout).svg()


def _scene(leaves: tuple[str, ...], probabilities: dict[tuple[int, int], float], unit: float, rows: bool) -> Scene:
    size = len(leaves)
    along, base = (LINE, _DEPTH) if rows else (unit, _STEP * (size - 1))

    def away(length: int) -> float:
        """From the tip to the far side of the cells of this length."""
        return base * (1 - math.log(length) / math.log(max(size, 2))) if rows else _STEP * (size - length)

    rim = [(away(length), along * (length - 1) / 2) for length in range(1, size + 1)]
    rim += [(far, along * size - place) for far, place in reversed(rim)]
    frame = Line(tuple((far, place) if rows else (place, far) for far, place in (*rim, rim[0])))
    marks = [Mark("", (frame,))]
    spans = sorted(probabilities) if rows else [(a, b) for a in range(size) for b in range(a + 2, size + 1)]
    for start, end in spans:
        probability = probabilities.get((start, end), 0.0)
        far, place = away(end - start), along * (start + end - 1) / 2
        deep = max(_LEAST, away(end - start - 1) - far)
        box = (far, place, deep, along) if rows else (place, far, along, deep)
        marks.append(Mark(title(start, end, leaves, probability), _cell(box, probability)))
    for position, leaf in enumerate(leaves):
        middle = along * (position + 0.5)
        words = (
            Words(base + CHARACTER, middle, clipped(leaf))
            if rows
            else Words(middle, base + LINE / 2, clipped(leaf, along - CHARACTER / 2), centred=True)
        )
        marks.append(Mark(title(position, position + 1, leaves), (words,)))
    if rows:
        return Scene(base + CHARACTER + max(text_width(clipped(leaf)) for leaf in leaves), along * size, tuple(marks))
    return Scene(along * size, base + LINE, tuple(marks))


def _cell(box: tuple[float, float, float, float], probability: float) -> tuple[Shape, ...]:
    """A cell with its number, where there is room for one and something to say."""
    x, y, width, height = box
    cell = Cell(x, y, width, height, probability)
    number = f"{probability:.2f}"
    if probability == 0 or text_width(number) > width:
        return (cell,)
    words = Words(x + width / 2, y + height / 2, number, centred=True, kind="dark" if probability > _DARK else "leaf")
    return cell, words


def _legend() -> Scene:
    """What the colours mean."""
    low, high = "probability of a constituent: 0 ", " 1"
    start = text_width(low)
    end = start + LINE * _RAMP
    cells = tuple(Cell(start + LINE * number, 0.0, LINE, LINE, number / (_RAMP - 1)) for number in range(_RAMP))
    words = (Words(0.0, LINE / 2, low, kind="note"), Words(end, LINE / 2, high, kind="note"))
    return Scene(end + text_width(high), LINE, (Mark("", (*words, *cells)),))
