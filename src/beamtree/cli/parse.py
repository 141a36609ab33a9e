"""`beamtree parse`: what a model says of a text, and the trees it reads in it."""

# ruff: noqa: B006 (a list is how typer is told the default of a repeatable argument; nothing changes it)

# Imports of PyTorch and NumPy are inside functions: help must not wait for them.
import json
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.progress import Task, TextColumn

from beamtree.utils.checks import check_integer
from beamtree.utils.devices import find_device
from beamtree.utils.files import write_atomically, writing
from beamtree.utils.terminal import progress_bar
from beamtree.web import export

if TYPE_CHECKING:
    import beamtree.models.answers
    import beamtree.models.pretrained
    import beamtree.trees.drawing

EXAMPLE = (
    "Examples: one expression; its trees drawn; the lines of a file, for a program to read; a picture of each\n\n"
    '  beamtree parse listops-bt-grc "[MAX 2 9 [MIN 4 7 ] 0 ]"\n\n'
    '  beamtree parse listops-bt-grc "[MAX 2 9 [MIN 4 7 ] 0 ]" --ascii --svg trees.svg\n\n'
    "  beamtree parse runs/sst5/bt-grc-seed0 --file sentences.txt --top 1 --json > trees.jsonl\n\n"
    "  beamtree parse runs/sst5/bt-grc-seed0 --svg pictures --html page.html < sentences.txt"
)
_AT_ONCE = 64  # lines, which are read and then answered together
_PAGE_TEXTS = 1000  # that a page in a browser bears
_TOP = 5  # as many as the paper's beams


def parse_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run's folder, a shipped model, or a hub id.")],
    texts: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT", help="Texts to parse; -: standard input.", show_default="the lines of standard input"
        ),
    ] = [],
    file: Annotated[
        Path | None, typer.Option(help="Read the lines of this file; -: standard input.", show_default=False)
    ] = None,
    top: Annotated[
        int | None, typer.Option(help="Maximum number of trees to show.", show_default=f"{_TOP}; with --ptb 1")
    ] = None,
    json_lines: Annotated[bool, typer.Option("--json", help="Print JSON Lines and nothing else.")] = False,
    ptb: Annotated[bool, typer.Option("--ptb", help="Print Penn Treebank brackets, one tree per line.")] = False,
    ascii: Annotated[bool, typer.Option("--ascii", help="Draw the trees with plain characters.")] = False,
    svg: Annotated[
        Path | None, typer.Option(help="Draw into this .svg file; a folder for several texts.", show_default=False)
    ] = None,
    png: Annotated[
        Path | None, typer.Option(help="Draw into this .png file; a folder for several texts.", show_default=False)
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with all texts into this .html file.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to run the model.")] = "auto",
) -> None:
    """Show the label that a model gives a text, and the trees it reads in it.

    Each tree is printed after its probability; beams that found the same tree are combined. For a model of pairs, a
    text is both sides with a tab between them, or one side alone, which has trees but no label.

    Any number of lines can be read; blank ones are skipped. With --json, each text is one line with a document of its
    own. Pictures and the page are written in addition to what is printed. A picture shows the trees and the chart of
    all spans; in a folder, it is named by the number of its text, as 000001.svg.
    """
    if json_lines + ptb + ascii > 1:
        raise ValueError("--json, --ptb and --ascii are three ways to print an answer: choose one of them")
    top = (1 if ptb else _TOP) if top is None else top
    check_integer("top", top, at_least=1)
    place = find_device(device)
    pictures = [Pictures(out, ending, top) for out, ending in ((svg, ".svg"), (png, ".png")) if out is not None]
    page = None if html is None else Page(html, model, top)
    lines, size, at_once = _lines(texts, file)
    for each in pictures:
        lines = each.check(lines)
    from beamtree.models import pretrained

    printer = Printer(model, top, "json" if json_lines else "ptb" if ptb else "ascii" if ascii else "brackets")
    trained = pretrained.load(model, place)
    outputs: list[Printer | Pictures | Page] = [printer, *pictures, *([] if page is None else [page])]
    count = 0
    # On a terminal, the answers themselves show the progress.
    with progress_bar(TextColumn("{task.fields[texts]} texts"), line=_line, hidden=sys.stdout.isatty()) as bar:
        task = bar.add_task("parse", total=size, texts=0)
        for line, answer in _answered(trained, lines, at_once):
            count += 1
            for output in outputs:
                output.add(answer, count)
            bar.update(task, completed=line.read, texts=count)
    if not count:
        raise ValueError("there is no text: give one after the model, or a --file, or lines on standard input")
    if page is not None:
        page.write()


def _line(task: Task) -> str:
    """'parse: 1,200 texts, 45 %'; the bar counts bytes of a file."""
    read = f", {100 * task.completed / task.total:.0f} %" if task.total else ""
    return f"{task.description}: {task.fields['texts']:,} texts{read}"


class Line(NamedTuple):
    """A text, where it stands, and how much is read with it: of the arguments, or of the bytes of a file."""

    text: str
    where: str
    read: int


def _lines(texts: list[str], file: Path | None) -> tuple[Iterator[Line], int | None, int]:
    """All texts, one after the other; how much there is to read in all, if that is known; and how many lines to read
    before they are answered."""
    if texts and file is not None:
        raise ValueError(f"there are texts and the file {str(file)!r}: give one or the other")
    if texts and texts != ["-"]:
        return (Line(text, "", number) for number, text in enumerate(texts, start=1)), len(texts), _AT_ONCE
    if file is None or str(file) == "-":
        # Where somebody types, a line is answered before the next is read.
        return _read(sys.stdin.buffer, "standard input"), None, 1 if sys.stdin.isatty() else _AT_ONCE
    with _reading(file):
        return _read_file(file), file.stat().st_size or None, _AT_ONCE  # a pipe has no size


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Within it, what the disk refuses is an error in one line."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{file}: it cannot be read ({error.strerror})") from None


def _read_file(file: Path) -> Iterator[Line]:
    with _reading(file), open(file, "rb") as stream:
        yield from _read(stream, str(file))


def _read(stream: Iterable[bytes], name: str) -> Iterator[Line]:
    read = 0
    for number, raw in enumerate(stream, start=1):
        read += len(raw)
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise ValueError(f"{name}, line {number}: it is no UTF-8, which texts must be in") from None
        if text.strip():
            yield Line(text, f"{name}, line {number}: ", read)


def _answered(
    trained: "beamtree.models.pretrained.Pretrained", lines: Iterator[Line], at_once: int
) -> "Iterator[tuple[Line, beamtree.models.answers.Answer]]":
    """Each line with what the `Pretrained` says of it; where one is wrong, those before it are answered."""
    from beamtree.models.answers import answers

    while some := list(islice(lines, at_once)):
        try:
            found = list(answers(trained, [line.text for line in some]))
        except ValueError:
            for line in some:
                try:
                    yield line, next(answers(trained, [line.text]))
                except ValueError as error:
                    raise ValueError(f"{line.where}{error}") from None
            raise
        yield from zip(some, found, strict=True)


class Printer:
    """Answers on standard output."""

    def __init__(self, model: str, top: int, view: str) -> None:
        self.model, self.top, self.view = model, top, view
        self.stream = sys.stdout  # as it is now: a progress bar takes its place, and has another goal
        self.encoding = self.stream.encoding or "utf-8"

    def add(self, answer: "beamtree.models.answers.Answer", number: int) -> None:
        text = getattr(self, f"_{self.view}")(answer)
        if number > 1 and self.view in ("ascii", "brackets"):
            text = f"\n\n{text}"
        # A byte of an argument that is no UTF-8, or a sign that the terminal lacks: its escape.
        typer.echo(text.encode(self.encoding, "backslashreplace").decode(self.encoding), file=self.stream)

    def _json(self, answer: "beamtree.models.answers.Answer") -> str:
        from beamtree.models.answers import as_json

        # Escapes of other encodings would be none of JSON's.
        return json.dumps(as_json(answer, self.model, self.top), ensure_ascii=not self.encoding.startswith("utf"))

    def _ptb(self, answer: "beamtree.models.answers.Answer") -> str:
        from beamtree.trees.drawing import penn_tree

        return "\n".join(penn_tree(parse.tree) for side in answer.sides for parse in side.parses[: self.top])

    def _ascii(self, answer: "beamtree.models.answers.Answer") -> str:
        from beamtree.trees.drawing import text_tree

        blocks = [_said(answer)]
        for parse in (parse for side in answer.sides for parse in side.parses[: self.top]):
            blocks.append(f"tree, probability {parse.probability:.3f}\n{text_tree(parse.tree, ascii=True)}")
        return "\n\n".join(blocks)

    def _brackets(self, answer: "beamtree.models.answers.Answer") -> str:
        blocks = [_said(answer)]
        for side in answer.sides:
            blocks.append("\n".join(f"{parse.probability:.3f}  {parse.tree}" for parse in side.parses[: self.top]))
        return "\n\n".join(blocks)


class Pictures:
    """A picture of each answer: in a file for one, in a folder for any number."""

    def __init__(self, out: Path, ending: str, top: int) -> None:
        self.out, self.ending, self.top = out, ending, top
        self.single = out.suffix.lower() == ending and not out.is_dir()
        if ending == ".png":
            from beamtree.trees.drawing.png import check_png

            check_png()
        if self.single:
            _check_parent(out)
        elif out.suffix and not out.is_dir():
            raise ValueError(f"{str(out)!r} must end in {ending}, or be a folder")

    def check(self, lines: Iterator[Line]) -> Iterator[Line]:
        """The same lines, if there is place for all their pictures."""
        if not self.single:
            with writing(self.out):
                self.out.mkdir(parents=True, exist_ok=True)
            return lines
        first = list(islice(lines, 2))
        if len(first) > 1:
            raise ValueError(f"{str(self.out)!r} is one file and there are several texts: give the name of a folder")
        return chain(first, lines)

    def add(self, answer: "beamtree.models.answers.Answer", number: int) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._drawing(answer).save(self.out if self.single else self.out / f"{number:06}{self.ending}")
        for warning in caught:
            typer.echo(f"warning: {warning.message}", err=True)

    def _drawing(self, answer: "beamtree.models.answers.Answer") -> "beamtree.trees.drawing.Drawing":
        from beamtree.trees.drawing import Drawing, draw_beams, draw_chart
        from beamtree.trees.drawing.shapes import below, clipped, words_scene

        scenes = [words_scene(line, "heading") for line in _label(answer)]
        for side in answer.sides:
            scenes.append(draw_beams(side.parses, self.top).scene)
            if len(side.tokens) > 1:
                scenes.append(draw_chart(side.tokens, side.parses).scene)
        return Drawing(below(scenes), f"the trees and the beam chart of {clipped(answer.text)}")


class Page:
    """One page with all answers."""

    def __init__(self, out: Path, model: str, top: int) -> None:
        self.out, self.model, self.top = out, model, top
        self.documents: list[dict[str, Any]] = []
        if out.suffix.lower() != ".html":
            raise ValueError(f"the page {str(out)!r} must end in .html")
        _check_parent(out)

    def add(self, answer: "beamtree.models.answers.Answer", number: int) -> None:
        from beamtree.models.answers import as_json

        if number > _PAGE_TEXTS:
            raise ValueError(f"--html takes at most {_PAGE_TEXTS:,} texts, since one page holds them all")
        self.documents.append(as_json(answer, self.model, self.top))

    def write(self) -> None:
        write_atomically(self.out, export.page(self.documents))


def _said(answer: "beamtree.models.answers.Answer") -> str:
    """The texts, their label, and the words that the model does not know."""
    lines = [*(side.text for side in answer.sides), *_label(answer)]
    if answer.unknown:
        lines.append(f"unknown to the model, which reads them all as one word: {', '.join(answer.unknown)}")
    return "\n".join(lines)


def _label(answer: "beamtree.models.answers.Answer") -> list[str]:
    """A line, unless it is one side of a pair."""
    if answer.label is None:
        return []
    return [f"label {answer.label}, probability {answer.probabilities[answer.label]:.3f}"]


def _check_parent(file: Path) -> None:
    """Said before the work is done: whether a file has a folder to go into."""
    if not file.absolute().parent.is_dir():
        raise ValueError(f"{str(file)!r} is to go into a folder that does not exist: make it first")
