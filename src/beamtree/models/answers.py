"""What a model says of texts: the label, and the beams with their trees; for the terminal, the page and files alike.

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
    import beamtree.models.pretrained  # takes long, and whoever has a model has imported it

_DIGITS = 4  # of the probabilities of a constituent's labels: there are many of them

__all__ = ["Answer", "Side", "answers", "as_json", "span_probabilities"]


class Side(NamedTuple):
    """One of the two texts of a pair, or the only one, and the trees that the model reads in it, best first."""

    text: str
    tokens: tuple[str, ...]
    parses: Parses


class Answer(NamedTuple):
    """What a model says of a text. One side of a pair alone has trees but no label."""

    text: str  # as it was given: a pair has a tab in it
    label: str | None
    probabilities: dict[str, float]  # of all labels
    unknown: tuple[str, ...]  # words that the model does not know: it reads them all as one
    sides: list[Side]
    labels: tuple[str, ...]  # all labels of the model, in order


def answers(
    model: "beamtree.models.pretrained.Pretrained", texts: Sequence[str], labels: bool = False
) -> Iterator[Answer]:
    """What the model says of each text, in order; texts of similar length are encoded together.

    For a model of pairs, a text is both sides with a tab between them, or one side alone.

    labels: whether the parses have a label for every constituent; see `Pretrained.parse`.
    """
    split = [_sides(text, model.config.pair) for text in texts]
    whole = [(each[0], each[1]) if model.config.pair else each[0] for each in split if _is_whole(each, model)]
    readings = iter(model(whole, labels=labels))
    alone = iter(model.parse_all([sides[0] for sides in split if not _is_whole(sides, model)], labels))
    for text, sides in zip(texts, split, strict=True):
        if _is_whole(sides, model):
            (label, probabilities, strange), parses, _ = next(readings)
            if not parses:
                raise model.no_trees()
        else:
            label, probabilities, strange, parses = None, {}, (), (next(alone),)
        read = [Side(side, trees[0].tree.leaves, trees) for side, trees in zip(sides, parses, strict=True)]
        yield Answer(text, label, probabilities, strange, read, model.labels)


def as_json(answer: Answer, model_name: str, top: int | None = None) -> dict[str, Any]:
    """The answer as a document for JSON. It has the `top` best beams; its chart is always that of all beams.

    The constituents of a beam are first its leaves, then its merges in their order. Those of answers without labels
    have spans only.
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


def _is_whole(sides: tuple[str, ...], model: "beamtree.models.pretrained.Pretrained") -> bool:
    """Whether it can have a label."""
    return len(sides) == (2 if model.config.pair else 1)
