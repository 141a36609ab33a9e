"""The worked example of docs/concepts/beam-tree-cell.md: the search of the Beam Tree Cell, one candidate at a time, and
its tables in Markdown. `python docs/images/figures.py` writes the tables into the page.
"""

import re
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import beamtree
from beamtree import Tree
from beamtree.models.pretrained import Pretrained

PAGE = Path(__file__).parents[1] / "concepts" / "beam-tree-cell.md"
TABLE = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

MODEL, BEAM_SIZE = "listops-bt-grc", 3
EXAMPLE = "[MED 4 7 2 5 ]"


class Element(NamedTuple):
    """An element of a beam's sequence."""

    tree: Tree
    state: Tensor


class Beam(NamedTuple):
    elements: list[Element]
    score: float


class Continuation(NamedTuple):
    """A candidate that the first top-k keeps. `rank` is its place among the kept beams, or None if it is pruned."""

    beam: int
    place: int
    score: float
    rank: int | None


class Step(NamedTuple):
    """A step of the search: the beams before it, and for each of them logits and log-probabilities of the candidates.
    Continuations are sorted by score."""

    beams: list[Beam]
    logits: list[Tensor]
    log_probs: list[Tensor]
    continuations: list[Continuation]


class Search(NamedTuple):
    steps: list[Step]
    beams: list[Beam]  # one element each, best first

    @property
    def weights(self) -> list[float]:
        return torch.tensor([beam.score for beam in self.beams]).softmax(0).tolist()


@cache
def shipped(name: str, beam_size: int = 5) -> Pretrained:
    model = beamtree.load(name, device="cpu")
    model.model.encoder.beam_size = beam_size
    return model


@cache
@torch.no_grad()
def search() -> Search:
    model, tokens = shipped(MODEL, BEAM_SIZE), EXAMPLE.split()
    encoder = model.model.encoder
    leaves = encoder.leaf(model.model.embedding(torch.tensor([model.vocabulary.ids(tokens)])))[0]  # (N, D)
    beams = [Beam([Element(Tree.parse(token), leaf) for token, leaf in zip(tokens, leaves, strict=True)], 0.0)]
    steps = []
    while len(beams[0].elements) > 2:
        step = continue_all(encoder, beams)
        steps.append(step)
        kept = (one for one in step.continuations if one.rank is not None)
        beams = [Beam(merged(encoder, beams[one.beam].elements, one.place), one.score) for one in kept]
    return Search(steps, [Beam(merged(encoder, beam.elements, 0), beam.score) for beam in beams])


def continue_all(encoder: beamtree.BeamTree, beams: list[Beam]) -> Step:
    logits, log_probs, continuations = [], [], []
    for index, beam in enumerate(beams):
        states = torch.stack([element.state for element in beam.elements])
        logits.append(encoder.scorer(encoder.cell(states[:-1], states[1:])).squeeze(-1))
        log_probs.append(logits[-1].log_softmax(0))
        best = log_probs[-1].topk(min(BEAM_SIZE, len(states) - 1))
        for log_prob, place in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            continuations.append(Continuation(index, place, beam.score + log_prob, None))
    continuations.sort(key=lambda one: -one.score)
    ranked = [one._replace(rank=rank if rank < BEAM_SIZE else None) for rank, one in enumerate(continuations)]
    return Step(beams, logits, log_probs, ranked)


def merged(encoder: beamtree.BeamTree, elements: list[Element], place: int) -> list[Element]:
    left, right = elements[place : place + 2]
    parent = Element(joined(left.tree, right.tree), encoder.cell(left.state[None], right.state[None])[0])
    return [*elements[:place], parent, *elements[place + 2 :]]


def joined(left: Tree, right: Tree) -> Tree:
    return Tree.parse(f"({left} {right})")


def tables() -> dict[str, str]:
    found: dict[str, str] = {}
    for number, step in enumerate(search().steps, start=1):
        found[f"step-{number}"] = candidate_table(step)
        found[f"top-{number}"] = continuation_table(step)
    found["result"] = result_table()
    return found


def candidate_table(step: Step) -> str:
    rows = []
    for index, beam in enumerate(step.beams):
        for place, (left, right) in enumerate(pairwise(beam.elements)):
            first = [one for one in step.continuations if (one.beam, one.place) == (index, place)]
            logit, log_prob = step.logits[index][place].item(), step.log_probs[index][place].item()
            rows.append(
                [
                    str(index + 1) if place == 0 else "",
                    f"`{left.tree} + {right.tree}`",
                    shown(logit, 2),
                    shown(log_prob, 2),
                    f"{step.log_probs[index][place].exp().item():.3f}",
                    "yes" if first else "",
                ]
            )
    return markdown(("beam", "candidate", "score", "log p", "p", "in the beam's top 3"), rows, "r l r r r c")


def continuation_table(step: Step) -> str:
    rows = []
    for one in step.continuations:
        beam = step.beams[one.beam]
        left, right = beam.elements[one.place : one.place + 2]
        log_prob = step.log_probs[one.beam][one.place].item()
        total = f"{shown(beam.score, 2)} {'+' if log_prob >= 0 else '−'} {abs(log_prob):.2f}"
        kept = "pruned" if one.rank is None else f"becomes beam {one.rank + 1}"
        rows.append([str(one.beam + 1), f"`{joined(left.tree, right.tree)}`", f"{total} = {shown(one.score, 2)}", kept])
    return markdown(("beam", "new constituent", "a", ""), rows, "r l r l")


def result_table() -> str:
    rows = [
        [str(index), f"`{beam.elements[0].tree}`", shown(beam.score, 3), f"{weight:.3f}"]
        for index, (beam, weight) in enumerate(zip(search().beams, search().weights, strict=True), start=1)
    ]
    return markdown(("beam", "tree", "a", "softmax(a)"), rows, "r l r r")


def shown(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", "−")


def markdown(heading: Iterable[str], rows: Iterable[Iterable[str]], alignment: str) -> str:
    rule = ({"l": "---", "r": "---:", "c": ":---:"}[letter] for letter in alignment.split())
    return "".join(f"| {' | '.join(row)} |\n" for row in (heading, rule, *rows))


def with_tables(page: str) -> str:
    found = tables()
    return TABLE.sub(lambda block: f"{block[1]}{found[block[2]]}{block[4]}", page)
