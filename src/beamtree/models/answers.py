"""Answers: the label and the parses of a text in one record, for the terminal, the web page and files.

for answer in answers(model, ["[MAX 2 9 ]", "[MIN 4 7 ]"], labels=True):
    answer.label, answer.sides[0].parses[0].tree, answer.sides[0].parses[0].nodes
    json.dumps(as_json(answer, "listops-bt-grc", top=5))
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from beamtree.trees.parses import Node, Parse, Parses, span_probabilities
from beamtree.utils.checks import check_integer
from beamtree.utils.palette import label_styles

if TYPE_CHECKING:
    import beamtree.models.pretrained  # slow to import, and needed for annotations only

_DIGITS = 4  # decimals of the label probabilities, of which a document has many

__all__ = ["Answer", "Side", "answers", "as_json", "span_probabilities"]


class Side(NamedTuple):
    """One of the two texts of a pair, or the only text, with its parses, most probable first."""

    text: str
    tokens: tuple[str, ...]
    parses: Parses


class Answer(NamedTuple):
    """The label and the parses of a text, or of a pair of texts. One side of a pair alone has parses but no label."""

    text: str  # as given; a tab separates the sides of a pair
    label: str | None
    probabilities: dict[str, float]  # of all labels
    unknown: tuple[str, ...]  # words that are not in the vocabulary; all are encoded as one unknown word
    sides: list[Side]
    labels: tuple[str, ...]  # all labels of the model, in order


def answers(
    model: "beamtree.models.pretrained.Pretrained", texts: Sequence[str], labels: bool = False
) -> Iterator[Answer]:
    """Yield the answer for each text, in order; texts of similar length are encoded together.

    Args:
        model: the model, as `beamtree.load` returns it.
        texts: strings. For a model of pairs, each has both sides with a tab between them, or one side alone.
        labels: whether the parses have a label for every constituent; see `Pretrained.parse`.

    Yields:
        One answer for each text.
    """
    all_sides = [_sides(text, model.config.pair) for text in texts]
    complete = [(each[0], each[1]) if model.config.pair else each[0] for each in all_sides if _is_complete(each, model)]
    readings = iter(model(complete, labels=labels))
    alone = iter(model.parse_all([sides[0] for sides in all_sides if not _is_complete(sides, model)], labels))
    for text, sides in zip(texts, all_sides, strict=True):
        if _is_complete(sides, model):
            (label, probabilities, unknown), parses, _ = next(readings)
            if not parses:
                raise model.no_trees()
        else:
            label, probabilities, unknown, parses = None, {}, (), (next(alone),)
        read = [Side(side, trees[0].tree.leaves, trees) for side, trees in zip(sides, parses, strict=True)]
        yield Answer(text, label, probabilities, unknown, read, model.labels)


def as_json(answer: Answer, model_name: str, top: int | None = None) -> dict[str, Any]:
    """Convert an answer to a document for JSON, with the `top` best beams. The chart always covers all beams.

    The constituents of a beam are its leaves, then its merges in merge order. Without labels, they have spans only.
    """
    if top is not None:
        check_integer("top", top, at_least=1)
    return {
        "model": model_name,
        "text": answer.text,
        "label": answer.label,
        "probabilities": dict(answer.probabilities),
        "unknown": list(answer.unknown),
        "labels": list(answer.labels),
        "label_styles": list(label_styles(answer.labels)),
        "sides": [_side(side, top) for side in answer.sides],
    }


def _side(side: Side, top: int | None) -> dict[str, Any]:
    return {
        "text": side.text,
        "tokens": list(side.tokens),
        "offsets": None if side.parses.offsets is None else [list(each) for each in side.parses.offsets],
        "beams": [
            {
                "probability": parse.probability,
                "tree": str(parse.tree),
                "constituents": [_constituent(node) for node in parse.nodes or _without_labels(parse)],
            }
            for parse in side.parses[:top]
        ],
        "chart": [[start, end, value] for (start, end), value in span_probabilities(side.parses).items()],
    }


def _constituent(node: Node) -> dict[str, Any]:
    probabilities = [round(value, _DIGITS) for value in node.probabilities.values()] or None
    found = {"start": node.start, "end": node.end, "label": node.label, "probabilities": probabilities}
    return {**found, "score": node.score, "step_probability": node.step_probability, "expected": node.expected}


def _without_labels(parse: Parse) -> list[Node]:
    leaves = [Node(place, place + 1) for place in range(len(parse.tree))]
    return [*leaves, *(Node(*span) for span in parse.merges)]


def _sides(text: str, pair: bool) -> tuple[str, ...]:
    sides = tuple(text.split("\t")) if pair else (text,)
    if len(sides) > 2:
        raise ValueError(
            f"{text!r} has {len(sides) - 1} tabs: the model takes pairs of texts, with one tab between them"
        )
    return sides


def _is_complete(sides: tuple[str, ...], model: "beamtree.models.pretrained.Pretrained") -> bool:
    """Whether the text can have a label, for which a model of pairs needs both sides."""
    return len(sides) == (2 if model.config.pair else 1)
