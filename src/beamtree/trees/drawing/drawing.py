"""A drawing, which notebooks display, and which can be saved as SVG, PNG, PDF or LaTeX."""

import os
from dataclasses import dataclass
from pathlib import Path

from beamtree.trees.drawing.figure import to_pdf, to_png
from beamtree.trees.drawing.scene import Scene
from beamtree.trees.drawing.svg import Fonts, to_svg
from beamtree.trees.drawing.tikz import to_tikz
from beamtree.utils.palette import Theme

ENDINGS = (".svg", ".png", ".pdf", ".tex")
_SCROLLING = "overflow: auto; max-width: 100%; max-height: 80vh"  # leaves room for the rest of the page


@dataclass(frozen=True)
class Drawing:
    """A drawing of trees, which notebooks display.

    Attributes:
        scene: the shapes.
        about: a description of what the drawing shows.
        theme: "paper" or "dark"; None is "paper" in files, and follows the colour scheme of the reader in notebooks.

    Examples:
        >>> from beamtree.trees.drawing import draw_tree
        >>> draw_tree(beamtree.Tree.parse("(a b)")).save("tree.pdf")  # doctest: +SKIP
    """

    scene: Scene
    about: str
    theme: Theme | None = None

    def svg(self, fonts: Fonts = "text") -> str:
        """Convert to SVG.

        Args:
            fonts: "text" keeps text as text, in a font of the viewer; "outlines" draws the glyphs of DejaVu Sans as
                paths, which look the same everywhere but cannot be searched or edited; requires matplotlib.

        Returns:
            An `<svg>` element, which is also a complete file.
        """
        return to_svg(self.scene, self.about, self.theme or "paper", fonts=fonts)

    def png(self) -> bytes:
        """Convert to PNG. Requires matplotlib.

        Returns:
            The content of a file.

        Raises:
            ValueError: if matplotlib is not installed, or the drawing is too large.
        """
        return to_png(self.scene, self.theme or "paper")

    def pdf(self) -> bytes:
        """Convert to PDF, with embedded fonts and text that can be searched. Requires matplotlib.

        Returns:
            The content of a file.

        Raises:
            ValueError: if matplotlib is not installed.
        """
        return to_pdf(self.scene, self.about, self.theme or "paper")

    def tikz(self) -> str:
        """Convert to LaTeX, with the trees in the notation of the package forest.

        Returns:
            A complete document.

        Raises:
            ValueError: if the drawing is too large for LaTeX.
        """
        return to_tikz(self.scene, self.theme or "paper")

    def save(self, path: str | os.PathLike[str], fonts: Fonts = "text") -> None:
        """Write a file.

        Args:
            path: its extension determines the format: .svg, .png, .pdf or .tex.
            fonts: for SVG; see `svg`.

        Raises:
            ValueError: if the extension is another one, or the file cannot be written.
        """
        from beamtree.utils.files import write_atomically  # imported here to keep the import of drawings fast

        write_atomically(path, self._content(path, fonts))

    def _content(self, path: str | os.PathLike[str], fonts: Fonts) -> str | bytes:
        match Path(path).suffix.lower():
            case ".svg":
                return self.svg(fonts)
            case ".png":
                return self.png()
            case ".pdf":
                return self.pdf()
            case ".tex":
                return self.tikz()
        raise ValueError(f"the drawing {str(path)!r} must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")

    def _repr_svg_(self) -> str:
        return to_svg(self.scene, self.about, self.theme)

    def _repr_html_(self) -> str:
        return f'<div style="{_SCROLLING}">{self._repr_svg_()}</div>'

    def __repr__(self) -> str:
        return f"<Drawing of {self.about}, {self.scene.width:.0f} × {self.scene.height:.0f} pixels>"
