"""`beamtree parse`: what a model says of a text, and the trees it reads in it."""

# ruff: noqa: B006 (a list is how typer is told the default of a repeatable argument; nothing changes it)

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated, Any, NamedTuple

import typer

from beamtree.bench import find_device
from beamtree.checks import check_integer
from beamtree.drawing import text_tree
from beamtree.trees import Tree

EXAMPLE = (
    "Examples: one expression; the lines of a file, for a program to read\n\n"
    '  beamtree parse listops-bt-grc "[MAX 2 9 [MIN 4 7 ] 0 ]"\n\n'
    "  beamtree parse runs/sst5/bt-grc-seed0 --beams 1 --json < sentences.txt"
)
_AT_ONCE = 64  # lines of standard input that are read before they are answered


class Answer(NamedTuple):
    """What a model says of a text, or of the two of a pair. One side of a pair alone has no label."""

    texts: tuple[str, ...]
    label: str | None
    probabilities: dict[str, float]
    unknown: tuple[str, ...]
    trees: list[list[tuple[Tree, float]]]  # of each text, with their probabilities


def parse_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run's folder, a shipped model, or a hub id.")],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT", help="Without any, the lines of standard input.")] = [],
    beams: Annotated[int, typer.Option(help="How many trees to show at most.")] = 5,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Show the label that a model gives a text, and the trees it reads in it.

    The best tree is drawn, the others are written with brackets, each behind its probability. For a model of pairs, a
    text is both sides with a tab between them, or one side alone, which has trees but no label.
    """
    check_integer("beams", beams, at_least=1)
    place = find_device(device)
    from beamtree import pretrained  # here: what it imports takes long

    trained = pretrained.load(model, place)
    rows: list[dict[str, Any]] = []
    count = 0
    for some in _chunks(texts):
        for answer in _answers(trained, some):
            if as_json:
                rows.append(_row(answer, beams))
            else:
                typer.echo(("\n\n" if count else "") + _shown(answer, beams))
            count += 1
    if not count:
        raise ValueError("there is no text: give one after the model, or lines on standard input")
    if as_json:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))


def _chunks(texts: Sequence[str]) -> Iterator[list[str]]:
    """The texts given; else the lines of standard input, blank ones left out: one at a time where somebody types."""
    if texts:
        yield list(texts)
        return
    lines = (line.rstrip("\r\n") for line in sys.stdin if line.strip())
    while some := list(islice(lines, 1 if sys.stdin.isatty() else _AT_ONCE)):
        yield some


def _answers(trained: Any, texts: Sequence[str]) -> Iterator[Answer]:
    """What a `Pretrained` says of each text; texts of like length are encoded together."""
    pair = trained.config.pair
    sides = [tuple(text.split("\t")) if pair else (text,) for text in texts]
    whole = [each if pair else each[0] for each in sides if len(each) > 1 or not pair]
    predictions = iter(trained.predict(whole))
    trees = iter(trained.parse_all([side for each in sides for side in each]))
    for each in sides:
        label, probabilities, strange = (None, {}, ()) if pair and len(each) == 1 else next(predictions)
        yield Answer(each, label, probabilities, strange, [next(trees) for _ in each])


def _row(answer: Answer, beams: int) -> dict[str, Any]:
    """For JSON; "second" and "second_trees" are those of a pair's second side."""
    said = {"label": answer.label, "probabilities": answer.probabilities, "unknown": answer.unknown}
    row: dict[str, Any] = {**dict(zip(("text", "second"), answer.texts, strict=False)), **said}
    for key, trees in zip(("trees", "second_trees"), answer.trees, strict=False):
        row[key] = [{"tree": str(tree), "probability": probability} for tree, probability in trees[:beams]]
    return row


def _shown(answer: Answer, beams: int) -> str:
    """For people: the texts and their label, then the trees of each."""
    lines = list(answer.texts)
    if answer.label is not None:
        lines.append(f"label {answer.label}, probability {answer.probabilities[answer.label]:.3f}")
    if answer.unknown:
        lines.append(f"unknown to the model, which reads them all as one word: {', '.join(answer.unknown)}")
    for trees in answer.trees:
        (best, probability), *others = trees[:beams]
        lines += ["", f"tree, probability {probability:.3f}", text_tree(best)]
        lines += ["", *(f"{probability:.3f}  {tree}" for tree, probability in others)] if others else []
    return "\n".join(lines)
