"""Scenes as PNG, painted with matplotlib, which is optional, as on a light page."""

import importlib
import importlib.util
import io
import math
import re
import warnings
from typing import Any

from beamtree.trees.drawing.shapes import DOT, FONT_SIZE, MARGIN, Cell, Dot, Line, Scene, Shape, Words, clean

_SCALE = 2.0  # pixels for one of the scene's, so that print is sharp; large scenes get fewer
_LEAST_SCALE = 0.5  # below it, nobody can read the text
_SIDE = 30_000  # pixels: what painting and viewers bear
_PIXELS = 60_000_000
_DPI = 100
_POINT = 72 / _DPI  # a pixel in typographic points
_INK, _NOTE, _RAIL, _HEAT, _PAPER = "#1a1a1a", "#595959", "#767676", "#08519c", "#ffffff"  # those of the SVG
_LOOKS = {"leaf": _INK, "heading": _INK, "note": _NOTE, "dark": _PAPER}


def check_png() -> None:
    """Whether PNG can be painted here."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("a PNG needs matplotlib, which is not installed: pip install matplotlib, or write an SVG")


def to_png(scene: Scene) -> bytes:
    """The content of a PNG file; too large a scene is an error."""
    check_png()
    width, height = scene.width + 2 * MARGIN, scene.height + 2 * MARGIN
    scale = min(_SCALE, _SIDE / max(width, height), math.sqrt(_PIXELS / (width * height)))
    if scale < _LEAST_SCALE:
        raise ValueError(f"a picture of {width:.0f} × {height:.0f} pixels is too large for a PNG: write an SVG")
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI)
    figure.set_facecolor(_PAPER)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    _add(axes, scene, MARGIN, MARGIN)
    content = io.BytesIO()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(content, format="png", dpi=scale * _DPI)
    _tell(caught)
    return content.getvalue()


def _add(axes: Any, scene: Scene, x: float, y: float) -> None:
    for mark in scene.marks:
        for shape in mark.shapes:
            _paint(axes, shape, x, y)
    for left, top, part in scene.parts:
        _add(axes, part, x + left, y + top)


def _paint(axes: Any, shape: Shape, x: float, y: float) -> None:
    match shape:
        case Line(points):
            axes.plot([x + left for left, _ in points], [y + top for _, top in points], color=_RAIL, lw=1.5 * _POINT)
        case Dot(left, top, strength):
            edge = {"markeredgecolor": _RAIL, "markeredgewidth": _POINT}
            face = {"markerfacecolor": (_HEAT, strength), "markersize": 2 * DOT * _POINT}
            axes.plot([x + left], [y + top], "o", zorder=3, **edge, **face)
        case Cell(left, top, width, height, strength):
            patches = importlib.import_module("matplotlib.patches")
            look = {"facecolor": (_HEAT, strength), "edgecolor": _RAIL, "linewidth": 0.5 * _POINT}
            axes.add_patch(patches.Rectangle((x + left, y + top), width, height, **look))
        case Words(left, top, text, centred, kind):
            axes.text(
                *(x + left, y + top, clean(text)),
                family="monospace",
                size=FONT_SIZE * _POINT,
                weight="bold" if kind == "heading" else "normal",
                color=_LOOKS[kind],
                ha="center" if centred else "left",
                va="center_baseline",
                parse_math=False,  # a dollar is a dollar
                zorder=4,
            )


def _tell(caught: list[warnings.WarningMessage]) -> None:
    """One warning for all signs that no font has; the others as they came."""
    signs = []
    for warning in caught:
        missing = re.match(r"Glyph (\d+) .* missing from", str(warning.message))
        if missing is None:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        else:
            signs.append(chr(int(missing.group(1))))
    if signs:
        shown = " ".join(dict.fromkeys(signs))
        warnings.warn(f"the PNG has boxes for {shown}, which its font lacks: an SVG shows them", RuntimeWarning, 3)
