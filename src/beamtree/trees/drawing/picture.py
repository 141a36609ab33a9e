"""A drawing as one has it in hand: it shows itself in a notebook, and goes into a file."""

import os
from dataclasses import dataclass
from pathlib import Path

from beamtree.trees.drawing.png import to_png
from beamtree.trees.drawing.shapes import Scene
from beamtree.trees.drawing.svg import to_svg

# A drawing larger than the page scrolls by itself. The height leaves room for what is around it.
_BOX = "overflow: auto; max-width: 100%; max-height: 80vh"


@dataclass(frozen=True)
class Drawing:
    """A scene, and what it shows, in words."""

    scene: Scene
    about: str

    def svg(self) -> str:
        return to_svg(self.scene, self.about)

    def png(self) -> bytes:
        """Needs matplotlib."""
        return to_png(self.scene)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a .svg or a .png file."""
        ending = Path(path).suffix.lower()
        if ending not in (".svg", ".png"):
            raise ValueError(f"the drawing {str(path)!r} must end in .svg or .png")
        from beamtree.utils.files import write_atomically  # here: what it imports takes long

        write_atomically(path, self.svg() if ending == ".svg" else self.png())

    def _repr_svg_(self) -> str:
        return self.svg()

    def _repr_html_(self) -> str:
        return f'<div style="{_BOX}">{self.svg()}</div>'

    def __repr__(self) -> str:
        return f"<Drawing of {self.about}, {self.scene.width:.0f} × {self.scene.height:.0f} pixels>"
