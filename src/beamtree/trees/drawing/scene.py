"""Elements of drawings: cells, lines, dots and texts, in pixels from the top left corner.

`tree` and `chart` compute scenes; `svg`, `figure` (PNG and PDF) and `tikz` paint them. A shape's style is a name in
`beamtree.utils.palette`, so the theme is chosen when a scene is painted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from beamtree.trees.drawing.marks import MarkedTree
from beamtree.trees.drawing.metrics import LINE_HEIGHT, clip, text_width

PAGE_WIDTH = 960.0  # fits on a screen without scrolling
SPACE = 32.0  # between scenes
MARGIN = 10.0  # around a drawing
LINE_WIDTH = 1.0
OUTLINE_WIDTH = 0.75  # of dots and cells


class DrawingTooLarge(ValueError):
    """The scene does not fit into a file of this format."""


class Rectangle(NamedTuple):
    """A filled rectangle with its top left corner at (x, y)."""

    x: float
    y: float
    width: float
    height: float
    style: str
    title: str = ""  # tooltip


class Line(NamedTuple):
    points: tuple[tuple[float, float], ...]
    style: str = "faint"


class Dot(NamedTuple):
    """A filled circle around (x, y)."""

    x: float
    y: float
    radius: float
    style: str
    outline: str = "faint"
    title: str = ""


class Text(NamedTuple):
    """One line of text; y is its middle, x its start, or its middle if it is centred."""

    x: float
    y: float
    text: str
    style: str = "ink"
    centred: bool = False
    title: str = ""


Shape = Rectangle | Line | Dot | Text
_LAYERS = (Rectangle, Line, Dot, Text)  # painted in this order, so no line covers a dot or a text


@dataclass(frozen=True)
class Scene:
    """A part of a drawing: shapes, and other scenes with the positions of their top left corners.

    A scene of one tree has it as `tree`, for painters that lay out trees themselves.
    """

    width: float
    height: float
    shapes: tuple[Shape, ...] = ()
    parts: tuple[tuple[float, float, "Scene"], ...] = ()
    tree: MarkedTree | None = None

    def painting_order(self, x: float = MARGIN, y: float = MARGIN) -> list[Shape]:
        """All shapes of the scene and its parts, at their positions if its top left corner is at (x, y)."""
        return sorted(self._placed(x, y), key=lambda shape: _LAYERS.index(type(shape)))

    def _placed(self, x: float, y: float) -> Iterator[Shape]:
        for shape in self.shapes:
            if isinstance(shape, Line):
                yield shape._replace(points=tuple((x + left, y + top) for left, top in shape.points))
            else:
                yield shape._replace(x=x + shape.x, y=y + shape.y)
        for left, top, part in self.parts:
            yield from part._placed(x + left, y + top)


def beside(scenes: Sequence[Scene], page_width: float = PAGE_WIDTH) -> Scene:
    """Arrange scenes from left to right, in as many rows as the width of the page requires."""
    parts: list[tuple[float, float, Scene]] = []
    x = y = bottom = width = 0.0
    for scene in scenes:
        if parts and x + scene.width > page_width:
            x, y = 0.0, bottom + SPACE
        parts.append((x, y, scene))
        bottom, width = max(bottom, y + scene.height), max(width, x + scene.width)
        x += scene.width + SPACE
    return Scene(width, bottom, parts=tuple(parts))


def below(scenes: Sequence[Scene], space: float = SPACE) -> Scene:
    """Arrange scenes from top to bottom."""
    tops = [0.0, *accumulate(scene.height + space for scene in scenes)]
    parts = tuple((0.0, top, scene) for top, scene in zip(tops, scenes, strict=False))
    return Scene(max(scene.width for scene in scenes), tops[-1] - space, parts=parts)


def text_scene(text: str, style: str = "ink") -> Scene:
    """A scene of one line of text, clipped at the width of the page."""
    shown = clip(text, PAGE_WIDTH)
    return Scene(text_width(shown), LINE_HEIGHT, (Text(0.0, LINE_HEIGHT / 2, shown, style),))
