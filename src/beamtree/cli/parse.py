"""`beamtree parse`: the label and the trees of a text, in the terminal and in files."""

# ruff: noqa: B006 (typer takes the default of a repeatable argument as a list, which is never modified)

# PyTorch and NumPy are imported inside functions, so that help is fast.
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.progress import Task, TextColumn

from beamtree.cli.parse_outputs import DrawingFiles, DrawingOptions, Page, Printer, View
from beamtree.utils.checks import check_integer
from beamtree.utils.devices import find_device
from beamtree.utils.terminal import progress_bar

if TYPE_CHECKING:
    import beamtree.models.answers
    import beamtree.models.pretrained

EXAMPLE = (
    "Examples: one expression; a figure of a tree; the lines of a file as JSON; drawings and a page of all lines\n\n"
    '  beamtree parse listops-bt-grc "[MAX 2 9 [MIN 4 7 ] 0 ]"\n\n'
    '  beamtree parse sst5-bt-grc "not a bad film" --top 1 --tree-only --pdf tree.pdf\n\n'
    "  beamtree parse runs/sst5/bt-grc-seed0 --file sentences.txt --top 1 --json > trees.jsonl\n\n"
    "  beamtree parse runs/sst5/bt-grc-seed0 --svg drawings --html page.html < sentences.txt"
)
_AT_ONCE = 64  # lines per batch
_TOP = 5  # the paper's beam size


def _file_option(help_text: str, metavar: str = "FILE|FOLDER") -> typer.models.OptionInfo:
    return typer.Option(metavar=metavar, help=help_text, show_default=False)


def parse_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The folder of a run, a shipped model, or a hub id.")],
    texts: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT", help="Texts to parse; -: standard input.", show_default="the lines of standard input"
        ),
    ] = [],
    file: Annotated[Path | None, _file_option("Read the lines of this file; -: standard input.", "FILE")] = None,
    top: Annotated[
        int | None,
        typer.Option(metavar="COUNT", help="Maximum number of trees to show.", show_default=f"{_TOP}; with --ptb 1"),
    ] = None,
    brackets: Annotated[bool, typer.Option("--brackets", help="Print trees in brackets, one per line.")] = False,
    ascii: Annotated[bool, typer.Option("--ascii", help="Draw in the terminal with ASCII characters.")] = False,
    json_lines: Annotated[bool, typer.Option("--json", help="Print JSON Lines and nothing else.")] = False,
    ptb: Annotated[bool, typer.Option("--ptb", help="Print Penn Treebank brackets, one tree per line.")] = False,
    svg: Annotated[Path | None, _file_option("Draw to an .svg file, or to a folder for several texts.")] = None,
    png: Annotated[Path | None, _file_option("Draw to a .png file.")] = None,
    pdf: Annotated[Path | None, _file_option("Draw to a .pdf file.")] = None,
    tikz: Annotated[Path | None, _file_option("Write a .tex file for LaTeX with the package forest.")] = None,
    html: Annotated[Path | None, _file_option("Write a page with all texts to this .html file.", "FILE")] = None,
    tree_only: Annotated[bool, typer.Option("--tree-only", help="Draw trees without headings and chart.")] = False,
    orientation: Annotated[
        str, typer.Option(metavar="auto|vertical|horizontal", help="Root above the leaves, or on their left.")
    ] = "auto",
    theme: Annotated[str, typer.Option(metavar="paper|dark", help="Colours of the drawings in files.")] = "paper",
    fonts: Annotated[
        str, typer.Option(metavar="text|outlines", help="Keep text in .svg files as text, or draw its outlines.")
    ] = "text",
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to run the model.")] = "auto",
) -> None:
    """Print the label and the trees that a model predicts for a text.

    Each tree is drawn below its probability, with the labels of its constituents: values of lists, with wrong values in
    red next to the expected ones, or colours for sentiment. Beams with the same tree are combined. A tree that is wider
    than the terminal is drawn horizontally, one token per line. For a model of pairs, a text is both sides with a tab
    between them, or only one side, which has trees but no label.

    Any number of lines can be read; blank lines are skipped. With --json, one JSON document per text is printed, each
    on its own line. Drawings and the page are written in addition to the printed output. A drawing shows the trees and
    the chart of all spans; in a folder, it is named after the number of its text, as in 000001.svg.
    """
    views: dict[View, bool] = {"json": json_lines, "ptb": ptb, "brackets": brackets, "ascii": ascii}
    chosen: list[View] = [view for view, wanted in views.items() if wanted] or ["drawing"]
    if len(chosen) > 1:
        raise ValueError("--json, --ptb, --brackets and --ascii are mutually exclusive: choose one")
    top = (1 if ptb else _TOP) if top is None else top
    check_integer("top", top, at_least=1)
    options = DrawingOptions.checked(top, orientation, theme, fonts, tree_only)
    place = find_device(device)
    requested = ((svg, ".svg"), (png, ".png"), (pdf, ".pdf"), (tikz, ".tex"))
    drawings = [DrawingFiles(out, ending, options) for out, ending in requested if out is not None]
    pages = [] if html is None else [Page(html, model, top)]
    lines, size, at_once = _lines(texts, file)
    for each in drawings:
        lines = each.check(lines)
    from beamtree.models import pretrained

    printer = Printer(model, chosen[0], options)
    outputs: list[Printer | DrawingFiles | Page] = [printer, *drawings, *pages]
    # Computing labels of constituents takes time, and brackets do not show them.
    labels = chosen[0] not in ("ptb", "brackets") or len(outputs) > 1
    trained = pretrained.load(model, place)
    count = 0
    try:
        # On a terminal, the printed answers show the progress.
        with progress_bar(TextColumn("{task.fields[texts]} texts"), line=_line, hidden=sys.stdout.isatty()) as bar:
            task = bar.add_task("parse", total=size, texts=0)
            for line, answer in _answered(trained, lines, at_once, labels):
                count += 1
                for output in outputs:
                    output.add(answer, count)
                bar.update(task, completed=line.read, texts=count)
    finally:
        for each in drawings:
            each.report()
    if not count:
        raise ValueError("there is no text: give one after the model, use --file, or write lines to standard input")
    for page in pages:
        page.write()


def _line(task: Task) -> str:
    """Format the progress as 'parse: 1,200 texts, 45 %'. The total is in bytes for a file."""
    read = f", {100 * task.completed / task.total:.0f} %" if task.total else ""
    return f"{task.description}: {task.fields['texts']:,} texts{read}"


class InputLine(NamedTuple):
    """A text, its location for error messages, and the progress so far: number of arguments, or bytes of a file."""

    text: str
    where: str
    read: int


def _lines(texts: list[str], file: Path | None) -> tuple[Iterator[InputLine], int | None, int]:
    """The texts; the total amount to read, or None if unknown; and the number of lines per batch."""
    if texts and file is not None:
        raise ValueError(f"both texts and the file {str(file)!r} are given: give one or the other")
    if texts and texts != ["-"]:
        return (InputLine(text, "", number) for number, text in enumerate(texts, start=1)), len(texts), _AT_ONCE
    if file is None or str(file) == "-":
        # In a terminal, each line is answered before the next one is read.
        return _read(sys.stdin.buffer, "standard input"), None, 1 if sys.stdin.isatty() else _AT_ONCE
    with _reading(file):
        return _read_file(file), file.stat().st_size or None, _AT_ONCE  # a pipe has no size


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Convert an `OSError` in the block to a `ValueError` that names the file and the reason."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{file}: it cannot be read ({error.strerror})") from None


def _read_file(file: Path) -> Iterator[InputLine]:
    with _reading(file), open(file, "rb") as stream:
        yield from _read(stream, str(file))


def _read(stream: Iterable[bytes], name: str) -> Iterator[InputLine]:
    read = 0
    for number, raw in enumerate(stream, start=1):
        read += len(raw)
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise ValueError(f"{name}, line {number}: it is not valid UTF-8: convert the file") from None
        if text.strip():
            yield InputLine(text, f"{name}, line {number}: ", read)


def _answered(
    trained: "beamtree.models.pretrained.Pretrained", lines: Iterator[InputLine], at_once: int, labels: bool
) -> "Iterator[tuple[InputLine, beamtree.models.answers.Answer]]":
    """Yield each line with its answer. If a line is invalid, the lines before it are still answered."""
    from beamtree.models.answers import answers

    while batch := list(islice(lines, at_once)):
        try:
            found = list(answers(trained, [line.text for line in batch], labels=labels))
        except ValueError:
            for line in batch:
                try:
                    yield line, next(answers(trained, [line.text], labels=labels))
                except ValueError as error:
                    raise ValueError(f"{line.where}{error}") from None
            raise
        yield from zip(batch, found, strict=True)
