"""Scenes as PNG and PDF, and text as outlines, with matplotlib, an optional package."""

import importlib
import io
import math
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from beamtree.trees.drawing.metrics import BASELINE, FONT_SIZE, clean
from beamtree.trees.drawing.scene import (
    LINE_WIDTH,
    MARGIN,
    OUTLINE_WIDTH,
    Dot,
    DrawingTooLarge,
    Line,
    Rectangle,
    Scene,
    Text,
)
from beamtree.utils.extras import require
from beamtree.utils.palette import Theme, color

_FAMILY = "DejaVu Sans"  # is part of matplotlib, and the font of `metrics`
_DPI = 100
_POINT = 72 / _DPI  # one pixel in points
_SCALE = 3.0  # pixels of a PNG per pixel of the scene, sharp in print; fewer for large scenes
_MIN_SCALE = 0.5  # text is not legible below
_MAX_SIDE, _MAX_PIXELS = 30_000, 60_000_000  # of a PNG: limits of matplotlib and of viewers


def to_png(scene: Scene, theme: Theme = "paper") -> bytes:
    """The content of a PNG file. Raises `DrawingTooLarge` if the scene is too large."""
    require("plot", "a PNG file")
    width, height = scene.width + 2 * MARGIN, scene.height + 2 * MARGIN
    scale = min(_SCALE, _MAX_SIDE / max(width, height), math.sqrt(_MAX_PIXELS / (width * height)))
    if scale < _MIN_SCALE:
        size = f"{width:.0f} × {height:.0f} pixels"
        raise DrawingTooLarge(f"a drawing of {size} is too large for a PNG file: write an SVG")
    return _painted(scene, theme, format="png", dpi=scale * _DPI)


def to_pdf(scene: Scene, about: str, theme: Theme = "paper") -> bytes:
    """The content of a PDF file. Equal scenes have equal files."""
    require("plot", "a PDF file")
    metadata = {"Title": about, "Creator": "beamtree", "CreationDate": None}
    with importlib.import_module("matplotlib").rc_context({"pdf.fonttype": 42}):  # TrueType: text stays text
        return _painted(scene, theme, format="pdf", metadata=metadata)


def outlines(texts: Iterable[str]) -> dict[str, str]:
    """The data of an SVG path for each text, which starts at the left end of its baseline."""
    require("plot", "SVG with outlines")
    fonts = importlib.import_module("matplotlib.font_manager")
    font = fonts.FontProperties(family=_FAMILY)
    to_path = importlib.import_module("matplotlib.textpath").TextToPath()
    scale = FONT_SIZE / to_path.FONT_SCALE
    paths = {text: to_path.get_text_path(font, text) for text in sorted(texts)}
    known = fonts.get_font(fonts.findfont(font)).get_charmap()
    _warn_missing(character for text in paths for character in text if ord(character) not in known)
    return {text: _path_data(vertices, codes, scale) for text, (vertices, codes) in paths.items()}


def _path_data(vertices: Any, codes: Any, scale: float) -> str:
    """Vertices and codes of matplotlib's `Path` in the notation of SVG, whose y axis points down."""
    path = importlib.import_module("matplotlib.path").Path
    letters = {path.MOVETO: "M", path.LINETO: "L", path.CURVE3: "Q", path.CURVE4: "C", path.CLOSEPOLY: "Z"}
    found = []
    if len(codes):  # spaces have no outline
        for points, code in path(vertices, codes).iter_segments(simplify=False):
            pairs = [] if code == path.CLOSEPOLY else points.reshape(-1, 2)
            found.append(letters[code] + " ".join(f"{scale * x:.2f} {-scale * y:.2f}" for x, y in pairs))
    return "".join(found)


def _painted(scene: Scene, theme: Theme, **settings: Any) -> bytes:
    width, height = scene.width + 2 * MARGIN, scene.height + 2 * MARGIN
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI)
    figure.set_facecolor(color("ground", theme))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    _add_shapes(axes, scene, theme)
    content = io.BytesIO()
    with _missing_glyphs_in_one_warning():
        figure.savefig(content, **settings)
    return content.getvalue()


def _add_shapes(axes: Any, scene: Scene, theme: Theme) -> None:
    collections = importlib.import_module("matplotlib.collections")
    patches = importlib.import_module("matplotlib.patches")
    lines: list[Line] = []
    for shape in scene.painting_order():
        look = {"facecolor": color(shape.style, theme), "linewidth": OUTLINE_WIDTH * _POINT}
        match shape:
            case Rectangle(x, y, width, height):
                edge = color("line", theme)
                axes.add_patch(patches.Rectangle((x, y), width, height, edgecolor=edge, zorder=1, **look))
            case Line():
                lines.append(shape)
            case Dot(x, y, radius, _, outline):
                edge = color(outline, theme)
                axes.add_patch(patches.Circle((x, y), radius, edgecolor=edge, zorder=3, **look))
            case Text(x, y, text, style, centred):
                place = {"ha": "center" if centred else "left", "va": "baseline", "zorder": 4}
                font = {"family": _FAMILY, "size": FONT_SIZE * _POINT, "color": color(style, theme)}
                axes.text(x, y + BASELINE, clean(text), parse_math=False, **place, **font)
    paths, colors = [line.points for line in lines], [color(line.style, theme) for line in lines]
    axes.add_collection(collections.LineCollection(paths, colors=colors, linewidths=LINE_WIDTH * _POINT, zorder=2))


@contextmanager
def _missing_glyphs_in_one_warning() -> Iterator[None]:
    """Replace the warnings about missing glyphs inside the block by a single one that names them all."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    missing = []
    for warning in caught:
        found = re.match(r"Glyph (\d+) .* missing from", str(warning.message))
        if found is None:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        else:
            missing.append(chr(int(found[1])))
    _warn_missing(missing)


def _warn_missing(characters: Iterable[str]) -> None:
    if shown := " ".join(dict.fromkeys(characters)):
        warnings.warn(f"DejaVu Sans has no glyphs for {shown}: drawn as boxes; use SVG", RuntimeWarning, stacklevel=2)
