"""Scenes as SVG: text stays text, constituents have titles, and dark pages get light signs."""

from html import escape

from beamtree.trees.drawing.shapes import DOT, FONT_SIZE, MARGIN, Cell, Dot, Line, Scene, Shape, Words, clean

# Inside HTML a style reaches the whole page: every rule is for drawings of this class only.
_STYLE = f"""
svg.beamtree {{ font: {FONT_SIZE:g}px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }}
svg.beamtree .paper {{ fill: #ffffff; }}
svg.beamtree text {{ fill: #1a1a1a; dominant-baseline: central; white-space: pre; }}
svg.beamtree .heading {{ font-weight: bold; }}
svg.beamtree .note {{ fill: #595959; }}
svg.beamtree .dark {{ fill: #ffffff; }}
svg.beamtree .centred {{ text-anchor: middle; }}
svg.beamtree path {{ fill: none; stroke: #767676; stroke-width: 1.5; }}
svg.beamtree .cell, svg.beamtree circle {{ fill: #08519c; stroke: #767676; stroke-width: 0.5; }}
svg.beamtree circle {{ stroke-width: 1; }}
svg.beamtree g.mark:hover path, svg.beamtree g.mark:hover .cell {{ stroke: #d55e00; stroke-width: 2.5; }}
@media (prefers-color-scheme: dark) {{
svg.beamtree .paper {{ fill: #14171a; }}
svg.beamtree text {{ fill: #e8e8e8; }}
svg.beamtree .note {{ fill: #b0b0b0; }}
svg.beamtree .dark {{ fill: #14171a; }}
svg.beamtree path {{ stroke: #8a8f94; }}
svg.beamtree .cell, svg.beamtree circle {{ fill: #6baed6; stroke: #8a8f94; }}
}}
"""


def to_svg(scene: Scene, about: str) -> str:
    """An <svg> element, which is a file of its own too; `about` tells what it shows to those who cannot see it."""
    width, height = (_number(size + 2 * MARGIN) for size in (scene.width, scene.height))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="beamtree" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="{_text(about)}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
    ]
    _add(lines, scene, MARGIN, MARGIN)
    return "\n".join((*lines, "</svg>"))


def _add(lines: list[str], scene: Scene, x: float, y: float) -> None:
    lines.append(f'<g transform="translate({_number(x)} {_number(y)})">')
    for title, shapes in scene.marks:
        drawn = "".join(map(_shape, shapes))
        lines.append(f'<g class="mark"><title>{_text(title)}</title>{drawn}</g>' if title else drawn)
    for left, top, part in scene.parts:
        _add(lines, part, left, top)
    lines.append("</g>")


def _shape(shape: Shape) -> str:
    match shape:
        case Line(points):
            way = " L".join(f"{_number(x)} {_number(y)}" for x, y in points)
            return f'<path d="M{way}"/>'
        case Dot(x, y, strength):
            return f'<circle cx="{_number(x)}" cy="{_number(y)}" r="{DOT}" fill-opacity="{_number(strength)}"/>'
        case Cell(x, y, width, height, strength):
            size = f'width="{_number(width)}" height="{_number(height)}"'
            where = f'x="{_number(x)}" y="{_number(y)}"'
            return f'<rect class="cell" {where} {size} fill-opacity="{_number(strength)}"/>'
        case Words(x, y, text, centred, kind):
            look = f"{kind} centred" if centred else kind
            return f'<text class="{look}" x="{_number(x)}" y="{_number(y)}">{_text(text)}</text>'


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _text(text: str) -> str:
    return escape(clean(text))
