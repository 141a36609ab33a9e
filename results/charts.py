"""Line charts as scenes of `beamtree.trees.drawing`: SVG in the colours of the drawings, for light and dark pages."""

from collections.abc import Mapping, Sequence

from beamtree.trees.drawing.metrics import LINE_HEIGHT, text_width
from beamtree.trees.drawing.scene import Dot, Line, Scene, Shape, Text
from beamtree.utils.palette import CATEGORY

WIDTH, HEIGHT = 260.0, 220.0  # of the area that the lines are drawn in
LEFT, GAP = 34.0, 8.0  # space for the numbers of the vertical axis; between a line and its name


def line_chart(
    title: str, places: Sequence[str], lines: Mapping[str, Sequence[float | None]], bottom: float = 0.0
) -> Scene:
    """A chart of percentages. None is a missing value.

    Args:
        title: what the lines show.
        places: names on the horizontal axis.
        lines: the values of each line, one per place. Its name is written at its end.
        bottom: the lowest percentage of the vertical axis.
    """
    top = 2 * LINE_HEIGHT
    xs = [LEFT + WIDTH * (index + 0.5) / len(places) for index in range(len(places))]

    def y(value: float) -> float:
        return top + HEIGHT * (100 - value) / (100 - bottom)

    shapes: list[Shape] = [Text(0, LINE_HEIGHT / 2, title)]
    for step in range(5):
        value = bottom + (100 - bottom) * step / 4
        shapes.append(Line(((LEFT, y(value)), (LEFT + WIDTH, y(value))), "line"))
        shapes.append(Text(LEFT - 6 - text_width(f"{value:.0f}"), y(value), f"{value:.0f}", "faint"))
    for x, place in zip(xs, places, strict=True):
        shapes.append(Text(x, top + HEIGHT + LINE_HEIGHT, place, "faint", centred=True))
    ends: list[tuple[float, str, str]] = []
    for index, (name, values) in enumerate(lines.items()):
        style = f"category-{index % len(CATEGORY['paper']) + 1}"
        points = [(x, y(value)) for x, value in zip(xs, values, strict=True) if value is not None]
        if not points:
            continue
        shapes.append(Line(tuple(points), style))
        shapes += [Dot(*point, 3.0, style, style, f"{name}: {value:.2f}") for point, value in _marked(points, values)]
        ends.append((points[-1][1], name, style))
    names = _spread(ends, top, top + HEIGHT)
    width = LEFT + WIDTH + GAP + max((text_width(name) for _, name, _ in names), default=0.0)
    shapes += [Text(LEFT + WIDTH + GAP, at, name, style) for at, name, style in names]
    return Scene(width, top + HEIGHT + 2 * LINE_HEIGHT, tuple(shapes))


def _marked(
    points: Sequence[tuple[float, float]], values: Sequence[float | None]
) -> list[tuple[tuple[float, float], float]]:
    return list(zip(points, (value for value in values if value is not None), strict=True))


def _spread(ends: list[tuple[float, str, str]], top: float, bottom: float) -> list[tuple[float, str, str]]:
    """The names of the lines at their ends, moved apart where they would overlap."""
    placed: list[tuple[float, str, str]] = []
    below = top - LINE_HEIGHT
    for at, name, style in sorted(ends):
        below = max(at, below + LINE_HEIGHT)
        placed.append((below, name, style))
    excess = max(0.0, below - bottom)
    return [(at - excess, name, style) for at, name, style in placed]
