"""Outputs of `beamtree parse`: standard output, files with drawings, and a page."""

import json
import sys
import warnings
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast

import typer
from rich.console import Console
from rich.text import Text

from beamtree.utils.checks import check_choice
from beamtree.utils.extras import require
from beamtree.utils.files import write_atomically, writing
from beamtree.utils.palette import THEMES, Theme
from beamtree.web import export

if TYPE_CHECKING:
    import beamtree.models.answers
    import beamtree.trees.drawing
    import beamtree.trees.drawing.layout
    import beamtree.trees.drawing.svg

View = Literal["drawing", "ascii", "brackets", "json", "ptb"]
T = TypeVar("T")

_MAX_PAGE_TEXTS = 1000  # more would be too slow in a browser


class DrawingOptions(NamedTuple):
    """How trees are drawn, in the terminal and in files."""

    top: int
    orientation: "beamtree.trees.drawing.layout.Orientation"
    theme: Theme
    fonts: "beamtree.trees.drawing.svg.Fonts"
    tree_only: bool

    @classmethod
    def checked(cls, top: int, orientation: str, theme: str, fonts: str, tree_only: bool) -> "DrawingOptions":
        """Create options from the command line. Raises a `ValueError` if one is invalid."""
        from beamtree.trees.drawing.layout import ORIENTATIONS
        from beamtree.trees.drawing.svg import FONTS

        check_choice("orientation", orientation, ORIENTATIONS)
        check_choice("theme", theme, tuple(THEMES))
        check_choice("fonts", fonts, FONTS)
        return cls(top, cast(Any, orientation), cast(Any, theme), cast(Any, fonts), tree_only)


class Printer:
    """Prints answers to standard output."""

    def __init__(self, model: str, view: View, options: DrawingOptions) -> None:
        self.model, self.view, self.options = model, view, options
        self.stream = sys.stdout  # stored now, since a progress bar replaces it
        self.encoding = self.stream.encoding or "utf-8"
        self.console = Console(file=self.stream, highlight=False)
        if view == "drawing" and not self.encoding.lower().startswith("utf"):
            self.view = "ascii"

    def add(self, answer: "beamtree.models.answers.Answer", number: int) -> None:
        match self.view:
            case "json":
                text = self._json(answer)
            case "ptb":
                text = self._ptb(answer)
            case "brackets":
                text = self._brackets(answer)
            case "drawing" | "ascii":
                text = self._drawing(answer)
        if number > 1 and self.view not in ("json", "ptb"):
            text = f"\n\n{text}"
        # Escape bytes of an argument that are not UTF-8, and characters that the terminal cannot encode.
        typer.echo(text.encode(self.encoding, "backslashreplace").decode(self.encoding), file=self.stream)

    def _json(self, answer: "beamtree.models.answers.Answer") -> str:
        from beamtree.models.answers import as_json

        # The escapes of `add` for other encodings would not be valid JSON.
        ensure_ascii = not self.encoding.lower().startswith("utf")
        return json.dumps(as_json(answer, self.model, self.options.top), ensure_ascii=ensure_ascii)

    def _ptb(self, answer: "beamtree.models.answers.Answer") -> str:
        from beamtree.trees.drawing import penn_tree

        return "\n".join(penn_tree(parse.tree) for side in answer.sides for parse in side.parses[: self.options.top])

    def _brackets(self, answer: "beamtree.models.answers.Answer") -> str:
        blocks = ["\n".join(_summary(answer))]
        for side in answer.sides:
            shown = side.parses[: self.options.top]
            blocks.append("\n".join(f"{parse.probability:.3f}  {parse.tree}" for parse in shown))
        return "\n\n".join(blocks)

    def _drawing(self, answer: "beamtree.models.answers.Answer") -> str:
        """Draw the trees, in colour if standard output is a terminal."""
        from beamtree.trees.drawing import rich_beams

        top, orientation, _, _, tree_only = self.options
        blocks = [] if tree_only else [Text("\n".join(_summary(answer)))]
        for side in answer.sides:
            drawn = rich_beams(
                *(side.parses, top),
                orientation=orientation,
                width=self.console.width,
                ascii=self.view == "ascii",
                headings=not tree_only,
            )
            blocks.append(drawn)
        with self.console.capture() as captured:
            self.console.print(Text("\n\n").join(blocks), soft_wrap=True, end="")
        return captured.get()


class DrawingFiles:
    """Writes a drawing of each answer: to a file for a single answer, or to a folder."""

    def __init__(self, out: Path, ending: str, options: DrawingOptions) -> None:
        self.out, self.ending, self.options, self.count = out, ending, options, 0
        self.is_single = out.suffix.lower() == ending and not out.is_dir()
        if ending in (".png", ".pdf"):
            require("plot", f"--{ending[1:]}")
        if ending == ".svg" and options.fonts == "outlines":
            require("plot", "--fonts outlines")
        if self.is_single:
            _check_parent(out)
        elif out.suffix and not out.is_dir():
            raise ValueError(f"{str(out)!r} must end in {ending}, or be a folder")

    def check(self, lines: Iterator[T]) -> Iterator[T]:
        """Return the same lines. Raises a `ValueError` if there are several lines but only one file."""
        if not self.is_single:
            with writing(self.out):
                self.out.mkdir(parents=True, exist_ok=True)
            return lines
        first = list(islice(lines, 2))
        if len(first) > 1:
            raise ValueError(
                f"{str(self.out)!r} is a single file, but there are several texts: give the name of a folder"
            )
        return chain(first, lines)

    def add(self, answer: "beamtree.models.answers.Answer", number: int) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._drawing(answer).save(self._path(number), self.options.fonts)
        for warning in caught:
            typer.echo(f"warning: {warning.message}", err=True)
        self.count = number

    def report(self) -> None:
        """Print to standard error which files were written."""
        first, last = self._path(1), self._path(self.count)
        if self.count:
            typer.echo(f"wrote {first}" if first == last else f"wrote {first} to {last.name}", err=True)

    def _path(self, number: int) -> Path:
        return self.out if self.is_single else self.out / f"{number:06}{self.ending}"

    def _drawing(self, answer: "beamtree.models.answers.Answer") -> "beamtree.trees.drawing.Drawing":
        from beamtree.trees.drawing import Drawing, draw_beams, draw_chart
        from beamtree.trees.drawing.metrics import clip
        from beamtree.trees.drawing.scene import below, text_scene

        top, orientation, theme, _, tree_only = self.options
        scenes = [] if tree_only else [text_scene(line) for line in _label(answer)]
        for side in answer.sides:
            scenes.append(draw_beams(side.parses, top, orientation=orientation, headings=not tree_only).scene)
            if len(side.tokens) > 1 and not tree_only:
                scenes.append(draw_chart(side.tokens, side.parses, orientation=orientation).scene)
        about = f"the trees{'' if tree_only else ' and the beam chart'} of {clip(answer.text)}"
        return Drawing(below(scenes), about, theme)


class Page:
    """Writes one page with all answers."""

    def __init__(self, out: Path, model: str, top: int) -> None:
        self.out, self.model, self.top = out, model, top
        self.documents: list[dict[str, Any]] = []
        if out.suffix.lower() != ".html":
            raise ValueError(f"the page {str(out)!r} must end in .html")
        _check_parent(out)

    def add(self, answer: "beamtree.models.answers.Answer", number: int) -> None:
        from beamtree.models.answers import as_json

        if number > _MAX_PAGE_TEXTS:
            raise ValueError(f"--html takes at most {_MAX_PAGE_TEXTS:,} texts: use fewer, or --svg with a folder")
        self.documents.append(as_json(answer, self.model, self.top))

    def write(self) -> None:
        """Write the page, and print its path to standard error."""
        write_atomically(self.out, export.page(self.documents))
        typer.echo(f"wrote {self.out}", err=True)


def _summary(answer: "beamtree.models.answers.Answer") -> list[str]:
    """The texts, their label, and the words that are not in the vocabulary."""
    lines = [*(side.text for side in answer.sides), *_label(answer)]
    if answer.unknown:
        lines.append(f"not in the vocabulary, all read as the unknown word: {', '.join(answer.unknown)}")
    return lines


def _label(answer: "beamtree.models.answers.Answer") -> list[str]:
    """A line with the label; empty for one side of a pair, which has no label."""
    if answer.label is None:
        return []
    return [f"label {answer.label}, probability {answer.probabilities[answer.label]:.3f}"]


def _check_parent(file: Path) -> None:
    """Raise a `ValueError` if the folder of a file does not exist."""
    if not file.absolute().parent.is_dir():
        raise ValueError(f"{str(file)!r} is in a folder that does not exist: create it first")
