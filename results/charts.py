"""Line charts as scenes of `beamtree.trees.drawing`: SVG in the colours of the drawings, for light and dark pages."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from beamtree.trees.drawing.metrics import LINE_HEIGHT, text_width
from beamtree.trees.drawing.scene import Dot, Line, Scene, Shape, Text
from beamtree.utils.palette import CATEGORY

WIDTH, HEIGHT = 260.0, 220.0  # of the area that the lines are drawn in; it is higher if the names need more
GAP = 6.0  # between the numbers of an axis and the area
LEADER = 18.0  # from the end of a line to the dot before its name
RADIUS = 3.0  # of dots


@dataclass(frozen=True)
class Axis:
    """A vertical axis. Its first and last tick are the ends of the chart.

    ticks: labels by value, increasing.
    is_log: logarithmic.
    """

    ticks: Mapping[float, str]
    is_log: bool = False

    def height(self, value: float) -> float:
        """The place of a value between the lowest tick, 0, and the highest, 1."""
        scale = math.log if self.is_log else float
        low, high = scale(min(self.ticks)), scale(max(self.ticks))
        return (scale(value) - low) / (high - low)


PERCENT = Axis({float(value): str(value) for value in (0, 25, 50, 75, 100)})


def line_chart(
    title: str, places: Sequence[str], lines: Mapping[str, Sequence[float | None]], axis: Axis = PERCENT
) -> Scene:
    """A chart of one or more lines. None is a missing value.

    Args:
        title: what the lines show.
        places: names on the horizontal axis.
        lines: the values of each line, one per place. Its name is written beside its end.
        axis: the vertical axis.
    """
    lines = {name: values for name, values in lines.items() if any(value is not None for value in values)}
    top, height = 2 * LINE_HEIGHT, max(HEIGHT, LINE_HEIGHT * (len(lines) - 1))
    left = GAP + max(map(text_width, axis.ticks.values()))
    xs = [left + WIDTH * (index + 0.5) / len(places) for index in range(len(places))]

    def y(value: float) -> float:
        return top + height * (1 - axis.height(value))

    shapes: list[Shape] = [Text(0, LINE_HEIGHT / 2, title)]
    for value, label in axis.ticks.items():
        shapes.append(Line(((left, y(value)), (left + WIDTH, y(value))), "line"))
        shapes.append(Text(left - GAP - text_width(label), y(value), label, "faint"))
    for x, place in zip(xs, places, strict=True):
        shapes.append(Text(x, top + height + LINE_HEIGHT, place, "faint", centred=True))
    ends: list[tuple[float, float, str, str, str]] = []
    for index, (name, values) in enumerate(lines.items()):
        cycle, colour = divmod(index, len(CATEGORY["paper"]))
        style = f"category-{colour + 1}"
        filling = (style, "ground", "line")[cycle]  # colours repeat, with open and then with grey circles
        known = [(x, value) for x, value in zip(xs, values, strict=True) if value is not None]
        points = [(x, y(value)) for x, value in known]
        shapes.append(Line(tuple(points), style))
        for (_, value), point in zip(known, points, strict=True):
            shapes.append(Dot(*point, RADIUS, filling, style, f"{name}: {value:.2f}"))
        ends.append((points[-1][1], points[-1][0], name, style, filling))
    right = left + WIDTH + LEADER
    for (end, x, name, style, filling), at in _spread(ends, top, top + height):
        shapes.append(Line(((x, end), (right - RADIUS - 1, at)), "line"))
        shapes.append(Dot(right, at, RADIUS, filling, style))
        shapes.append(Text(right + 2 * RADIUS, at, name, style))
    width = right + 2 * RADIUS + max(map(text_width, lines), default=0.0)
    return Scene(width, top + height + 2 * LINE_HEIGHT, tuple(shapes))


def _spread(
    ends: list[tuple[float, float, str, str, str]], top: float, bottom: float
) -> list[tuple[tuple[float, float, str, str, str], float]]:
    """The ends of the lines from top to bottom, with the places of their names, which do not overlap."""
    ends = sorted(ends)
    places: list[float] = []
    for height, *_ in ends:
        places.append(max(height, places[-1] + LINE_HEIGHT if places else top))
    below = bottom
    for index in reversed(range(len(places))):  # what was moved below the chart moves up again
        places[index] = below = min(places[index], below)
        below -= LINE_HEIGHT
    return list(zip(ends, places, strict=True))
