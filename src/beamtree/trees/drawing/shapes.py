"""What drawings are made of: lines, dots, cells and words on a plane, in pixels from the top left corner.

A layout (`tree`, `chart`) makes a `Scene`; `svg` and `png` paint one. A shape is coloured by its strength, a
probability from 0 to 1: one hue, the darker the stronger, which readers with any colour vision tell apart.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

from beamtree.utils.checks import check_choice

Layout = Literal["auto", "columns", "rows"]
LAYOUTS = ("auto", "columns", "rows")
FONT_SIZE = 13.0
CHARACTER = 7.83  # the width of one, which is 0.602 of the size in the usual monospaced fonts
LINE = 18.0  # the height of a line of text
PAGE = 960.0  # the width that a screen shows without scrolling
GAP = 32.0  # between scenes
DOT = 3.5  # the radius of one
MARGIN = 12.0  # around a whole drawing
_CLIPPED = 32  # characters of a leaf that are drawn; the title has all
_QUOTED = 6  # leaves at both ends of a constituent that its title quotes


class Line(NamedTuple):
    points: tuple[tuple[float, float], ...]


class Dot(NamedTuple):
    x: float
    y: float
    strength: float


class Cell(NamedTuple):
    x: float
    y: float
    width: float
    height: float
    strength: float


class Words(NamedTuple):
    """One line of text; y is its middle, x its start, or its middle if it is centred."""

    x: float
    y: float
    text: str
    centred: bool = False
    kind: Literal["leaf", "heading", "note", "dark"] = "leaf"  # dark: on a cell so strong that the text must be light


Shape = Line | Dot | Cell | Words


class Mark(NamedTuple):
    """Shapes that belong together, and what is shown when a reader points at them."""

    title: str
    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class Scene:
    """A part of a drawing: marks, and other scenes at their places."""

    width: float
    height: float
    marks: tuple[Mark, ...]
    parts: tuple[tuple[float, float, "Scene"], ...] = ()


def beside(scenes: Sequence[Scene], page: float = PAGE) -> Scene:
    """Scenes from left to right; where the page ends, the next ones go below."""
    parts: list[tuple[float, float, Scene]] = []
    x = y = bottom = width = 0.0
    for scene in scenes:
        if parts and x + scene.width > page:
            x, y = 0.0, bottom + GAP
        parts.append((x, y, scene))
        bottom, width = max(bottom, y + scene.height), max(width, x + scene.width)
        x += scene.width + GAP
    return Scene(width, bottom, (), tuple(parts))


def below(scenes: Sequence[Scene], gap: float = GAP) -> Scene:
    """Scenes from top to bottom."""
    tops = [0.0, *accumulate(scene.height + gap for scene in scenes)]
    parts = tuple((0.0, top, scene) for top, scene in zip(tops, scenes, strict=False))
    return Scene(max(scene.width for scene in scenes), tops[-1] - gap, (), parts)


def words_scene(text: str, kind: Literal["heading", "note"]) -> Scene:
    """A line of text alone."""
    return Scene(text_width(text), LINE, (Mark("", (Words(0.0, LINE / 2, text, kind=kind),)),))


def text_width(text: str) -> float:
    """About how wide a text is: Chinese signs take two places, accents that combine none."""
    return CHARACTER * sum(map(_places, text))


def clipped(text: str, width: float = _CLIPPED * CHARACTER) -> str:
    """As much of a text as fits."""
    if text_width(text) <= width:
        return text
    room, kept = width / CHARACTER - 1, 0
    for sign in text:
        room -= _places(sign)
        if room < 0:
            break
        kept += 1
    return f"{text[:kept]}…"


def title(start: int, end: int, leaves: Sequence[str], probability: float | None = None) -> str:
    """What a constituent is called: its span, its probability where it has one, and its text."""
    words = leaves[start:end]
    if len(words) > 2 * _QUOTED:
        words = (*words[:_QUOTED], "…", *words[-_QUOTED:])
    known = "" if probability is None else f", probability {probability:.3f}"
    return f"[{start}, {end}){known}: {' '.join(words)}"


def is_rows(layout: str, width: float) -> bool:
    """Whether leaves are lines below each other, with the root on the left: as asked for, or where a page is too
    narrow for leaves beside each other."""
    check_choice("layout", layout, LAYOUTS)
    return width > PAGE if layout == "auto" else layout == "rows"


def clean(text: str) -> str:
    """With a replacement character for each sign that XML 1.0 cannot hold, and no tabs or line breaks."""
    return "".join(sign if _is_allowed(ord(sign)) else "\ufffd" for sign in text)


def _is_allowed(code: int) -> bool:
    return 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code >= 0x10000


def _places(sign: str) -> int:
    if unicodedata.category(sign) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in ("W", "F") else 1
