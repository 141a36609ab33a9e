"""Scenes as SVG.

Colours are attributes of the elements, which every viewer understands, Inkscape and LaTeX's converters included. A
drawing that follows the colour scheme of its reader has style rules for the dark one in addition.
"""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Literal

from beamtree.trees.drawing.figure import outlines
from beamtree.trees.drawing.metrics import BASELINE, FONT_SIZE, clean, text_width
from beamtree.trees.drawing.scene import LINE_WIDTH, MARGIN, OUTLINE_WIDTH, Dot, Line, Rectangle, Scene, Shape, Text
from beamtree.utils.checks import check_choice
from beamtree.utils.palette import Theme, color

Fonts = Literal["text", "outlines"]
FONTS = ("text", "outlines")
_FAMILY = "'DejaVu Sans', Verdana, sans-serif"


def to_svg(scene: Scene, about: str, theme: Theme | None = None, fonts: Fonts = "text") -> str:
    """Convert a scene to an <svg> element, which is also a complete file.

    Args:
        scene: the scene.
        about: a description for readers who cannot see it.
        theme: the theme; None follows the colour scheme of the reader.
        fonts: whether text stays text, or is drawn as outlines.

    Returns:
        The element.
    """
    check_choice("fonts", fonts, FONTS)
    shapes = scene.painting_order()
    texts = {clean(shape.text) for shape in shapes if isinstance(shape, Text)}
    painter = _SvgPainter(theme, outlines(texts) if fonts == "outlines" else {})
    width, height = (_number(size + 2 * MARGIN) for size in (scene.width, scene.height))
    ground = f'<rect width="{width}" height="{height}" {painter.paint(fill="ground")}/>'
    elements = [painter.element(shape) for shape in shapes]
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="beamtree" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="{_text(about)}" '
        f'font-family="{_FAMILY}" font-size="{_number(FONT_SIZE)}">'
    )
    return "\n".join((opening, *painter.dark_rules(), ground, *elements, "</svg>"))


class _SvgPainter:
    """Converts shapes to elements. `outlines` has the paths of texts that are not kept as text."""

    def __init__(self, theme: Theme | None, outlines: Mapping[str, str]) -> None:
        self.theme, self.outlines = theme, outlines
        self.used: dict[tuple[str, str], None] = {}  # pairs of an attribute and a style, in order

    def element(self, shape: Shape) -> str:
        match shape:
            case Rectangle(x, y, width, height, style):
                box = f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
                drawn = f'<rect {box} {self.paint(fill=style, stroke="line")} stroke-width="{OUTLINE_WIDTH}"/>'
            case Line(points, style):
                path = " L".join(f"{_number(x)} {_number(y)}" for x, y in points)
                return f'<path d="M{path}" fill="none" {self.paint(stroke=style)} stroke-width="{LINE_WIDTH}"/>'
            case Dot(x, y, radius, style, outline):
                center = f'cx="{_number(x)}" cy="{_number(y)}" r="{_number(radius)}"'
                drawn = f'<circle {center} {self.paint(fill=style, stroke=outline)} stroke-width="{OUTLINE_WIDTH}"/>'
            case Text():
                drawn = self.text(shape)
        return f"<g><title>{_text(shape.title)}</title>{drawn}</g>" if shape.title else drawn

    def text(self, shape: Text) -> str:
        fill, y, text = self.paint(fill=shape.style), _number(shape.y + BASELINE), clean(shape.text)
        if text in self.outlines:
            left = shape.x - text_width(text) / 2 if shape.centred else shape.x
            return f'<path d="{self.outlines[text]}" transform="translate({_number(left)} {y})" {fill}/>'
        anchor = ' text-anchor="middle"' if shape.centred else ""
        return f'<text x="{_number(shape.x)}" y="{y}"{anchor} {fill}>{escape(text)}</text>'

    def paint(self, **styles: str) -> str:
        """Attributes for the styles, and the classes of `dark_rules` if there are such rules."""
        attributes = [f'{key}="{color(style, self.theme or "paper")}"' for key, style in styles.items()]
        if self.theme is None:
            self.used |= dict.fromkeys(styles.items())
            attributes.append(f'class="{" ".join(f"{key}-{style}" for key, style in styles.items())}"')
        return " ".join(attributes)

    def dark_rules(self) -> Iterator[str]:
        """Rules for readers with a dark colour scheme, for the styles used so far.

        They apply to drawings only, not to the page around them.
        """
        if self.theme is None:
            yield "<style>@media (prefers-color-scheme: dark) {"
            for key, style in self.used:
                yield f"svg.beamtree .{key}-{style} {{ {key}: {color(style, 'dark')}; }}"
            yield "}</style>"


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _text(text: str) -> str:
    return escape(clean(text))
