r"""Scenes as LaTeX documents: trees in the notation of the package forest, everything else as TikZ pictures.

forest lays out the trees itself, so they adapt to the fonts of a document and can be edited by hand:

    [{4}, value=ink [{[MAX}] [{}, dot=heat-100 [{2}] [{4}]]]

The documents compile with pdflatex, lualatex and xelatex. The packages are in TeX Live's collections pictures and
latexextra.
"""

import re
import unicodedata
from collections.abc import Iterator
from itertools import groupby

from beamtree.trees.drawing.layout import place_nodes
from beamtree.trees.drawing.marks import Mark, MarkedTree
from beamtree.trees.drawing.metrics import BASELINE, FONT_SIZE, clean, clip, text_width
from beamtree.trees.drawing.scene import Dot, DrawingTooLarge, Line, Rectangle, Scene, Shape, Text
from beamtree.trees.tree import Span
from beamtree.utils.palette import Theme, color, text_on

_PREAMBLE = r"""\documentclass[border=6pt]{standalone}
\usepackage{iftex}
\ifPDFTeX\usepackage[T1]{fontenc}\fi
\usepackage{lmodern}
\usepackage{forest}"""
# fit=band gives the children separate bands, as the layout of the other formats does. It also keeps forest fast and
# exact for large trees.
_STYLES = r"""\forestset{
  beamtree/.style={
    baseline,
    for tree={fit=band, calign=midpoint, font=\sffamily\small, text=ink, edge=faint, inner sep=2pt, l sep=0pt},
    where n children=0{tier=leaf, text height=1.6ex, text depth=0.4ex}{},
  },
  vertical/.style={
    for tree={l=#1, s sep=6pt, child anchor=north,
      if n=1{edge path'={(!u.west) -| (.child anchor)}}{edge path'={(!u.east) -| (.child anchor)}}},
  },
  horizontal/.style={
    for tree={grow'=east, l=#1, s sep=2pt, child anchor=west,
      if n=1{edge path'={(!u.north) |- (.child anchor)}}{edge path'={(!u.south) |- (.child anchor)}}},
    where n children=0{anchor=west}{},
  },
  dot/.style={circle, draw=faint, fill=#1, inner sep=1.3pt},
  value/.style={text=#1},
  colored/.style 2 args={circle, draw=faint, fill=#1, text=#2, font=\sffamily\tiny, inner sep=0.3pt, minimum size=9pt},
  wrong/.style={draw=wrong, thick},
  underlined/.style={tikz+={\draw[#1, line width=1.5pt] (.south west) -- (.south east);}},
}"""
# Characters that pdflatex has no definition for are replaced by their code in a box.
_UNDEFINED = r"""\ifPDFTeX
\newcommand\codebox[2]{\ifcsname u8:\detokenize{#1}\endcsname\else
  \DeclareUnicodeCharacter{#2}{\fbox{\tiny #2}}\fi}"""
_POINTS = 9 / FONT_SIZE  # points per pixel: text is \small, which is 9 points
_STEP = 18.0  # points between the heights of a parent and its highest child; more for wide texts, less for high trees
_MAX_HEIGHT = 5000.0  # points of all steps together
_MAX_SIZE = 13_000.0  # points; TeX has no lengths above 16,383
_MAX_INDENT = 40
_SPACE = 6.0  # pixels on both sides of leaves and texts

_SPECIAL = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    '"': r"\textquotedbl{}",
    "…": r"\ldots{}",
    "−": r"\textendash\kern0.4pt{}",
    "≠": r"$\neq$",
    "\ufffd": "?",
}
_LIGATURES = re.compile(r"([-'`,<>!?])(?=[-'`,<>])")  # pairs such as -- and <<, which TeX would replace by a ligature


def to_tikz(scene: Scene, theme: Theme = "paper") -> str:
    """A LaTeX document. Raises `DrawingTooLarge` if the scene is too large."""
    size = max(scene.width, scene.height) * _POINTS
    if size > _MAX_SIZE:
        raise DrawingTooLarge(f"a drawing of {size:.0f} points is too large for LaTeX: write a PDF or an SVG")
    body = _block(scene, theme)
    return "\n".join((_PREAMBLE, *_definitions(scene, body, theme), r"\begin{document}", body, r"\end{document}", ""))


def escape(text: str) -> str:
    """The text with commands for the special characters of LaTeX."""
    composed = unicodedata.normalize("NFC", clean(text))
    parts = _LIGATURES.sub("\\1\0", composed)
    return "".join("{}" if character == "\0" else _SPECIAL.get(character, character) for character in parts)


def _definitions(scene: Scene, body: str, theme: Theme) -> Iterator[str]:
    """The end of the preamble: colours, styles, and replacements of undefined characters."""
    for style in sorted({"ink", "faint", "line", "wrong", *(shape.style for shape in scene.painting_order())}):
        yield rf"\definecolor{{{style}}}{{HTML}}{{{color(style, theme)[1:].upper()}}}"
    if theme == "dark":
        yield rf"\definecolor{{ground}}{{HTML}}{{{color('ground', theme)[1:].upper()}}}\pagecolor{{ground}}"
    yield _STYLES
    if beyond_ascii := sorted({character for character in body if character > "~"}):
        yield _UNDEFINED
        yield from (rf"\codebox{{{character}}}{{{ord(character):04X}}}" for character in beyond_ascii)
        yield r"\fi"


def _block(scene: Scene, theme: Theme) -> str:
    """A scene as a box: a tree, a line of text, a picture, or a table of other boxes."""
    if scene.tree is not None:
        return _forest(scene.tree, theme)
    if not scene.parts:
        return _picture(scene)
    lines: list[str] = []
    bottom = 0.0
    for top, row in groupby(scene.parts, key=lambda part: part[1]):
        parts = [part for _, _, part in row]
        if lines:
            lines.append(rf"\\\noalign{{\vskip {(top - bottom) * _POINTS:.1f}pt}}")
        lines.append("\n\\qquad\n".join(_block(part, theme) for part in parts))
        bottom = top + max(part.height for part in parts)
    return "\n".join(lines if len(lines) == 1 else (r"\begin{tabular}[t]{@{}l@{}}", *lines, r"\end{tabular}"))


def _forest(drawn: MarkedTree, theme: Theme) -> str:
    tree, marks, is_horizontal = drawn
    starting: list[list[str]] = [[] for _ in tree.leaves]  # constituents by their first leaf
    spaces = {} if is_horizontal else _spaces(drawn)
    for span in reversed(tree.spans(leaves=False)):  # parents before children
        starting[span[0]].append(_node(marks[span], theme) + spaces.get(span, ""))
    lines = [rf"\begin{{forest}} beamtree, {'horizontal' if is_horizontal else 'vertical'}={_step(drawn):.1f}pt"]
    depth = 0
    for position, (leaf, closing) in enumerate(zip(tree.leaves, tree.reduces, strict=True)):
        for node in starting[position]:
            lines.append(f"{' ' * min(depth, _MAX_INDENT)}[{node}")
            depth += 1
        mark = marks.get((position, position + 1))
        underline = f", underlined={mark.style}" if mark is not None else ""
        lines.append(f"{' ' * min(depth, _MAX_INDENT)}[{{{escape(clip(leaf))}}}{underline}]{']' * closing}")
        depth -= closing
    return "\n".join((*lines, r"\end{forest}"))


def _node(mark: Mark, theme: Theme) -> str:
    """Content and options of a constituent."""
    if mark.text:
        return f"{{{escape(mark.text)}}}, value={mark.style}"
    if not mark.sign:
        return f"{{}}, dot={mark.style}"
    ink = "white" if text_on(color(mark.style, theme)) == "#ffffff" else "black"
    return f"{{{escape(mark.sign)}}}, colored={{{mark.style}}}{{{ink}}}{', wrong' if mark.is_wrong else ''}"


def _step(drawn: MarkedTree) -> float:
    """Points between the heights of a parent and its highest child."""
    texts = [text_width(mark.text) * _POINTS for mark in drawn.marks.values()] if drawn.is_horizontal else []
    step = max(_STEP, max(texts, default=0.0) + _STEP / 2)
    return min(step, _MAX_HEIGHT / max(drawn.tree.height, 1))


def _spaces(drawn: MarkedTree) -> dict[Span, str]:
    """Options that separate the children of a constituent whose text needs more space than they leave."""
    widths = {span: text_width(mark.text) + 2 * _SPACE for span, mark in drawn.marks.items() if mark.text}
    layout = place_nodes(drawn.tree, [text_width(clip(leaf)) + 2 * _SPACE for leaf in drawn.tree.leaves], widths)
    return {span: f", s sep={6 + shift * _POINTS:.1f}pt" for span, shift in layout.shifts.items()}


def _picture(scene: Scene) -> str:
    if len(scene.shapes) == 1 and isinstance(scene.shapes[0], Text):
        return _colored(scene.shapes[0])
    # Coordinates are pixels from the top left corner.
    lines = [rf"\begin{{tikzpicture}}[x={_POINTS:.4f}pt, y=-{_POINTS:.4f}pt, baseline=(current bounding box.north)]"]
    lines += [_shape(shape) for shape in scene.painting_order(0.0, 0.0)]
    return "\n".join((*lines, r"\end{tikzpicture}"))


def _shape(shape: Shape) -> str:
    match shape:
        case Rectangle(x, y, width, height, style):
            return rf"\filldraw[fill={style}, draw=line] ({x:.2f}, {y:.2f}) rectangle +({width:.2f}, {height:.2f});"
        case Line(points, style):
            return rf"\draw[{style}] " + " -- ".join(f"({x:.2f}, {y:.2f})" for x, y in points) + ";"
        case Dot(x, y, radius, style, outline):
            return (
                rf"\filldraw[fill={style}, draw={outline}] ({x:.2f}, {y:.2f}) circle[radius={radius * _POINTS:.2f}pt];"
            )
        case Text(x, y):
            anchor = "base" if shape.centred else "base west"
            return rf"\node[anchor={anchor}, inner sep=0pt] at ({x:.2f}, {y + BASELINE:.2f}) {{{_colored(shape)}}};"


def _colored(text: Text) -> str:
    return rf"\textcolor{{{text.style}}}{{\sffamily\small {escape(text.text)}}}"
