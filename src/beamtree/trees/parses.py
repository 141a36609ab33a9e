"""Parses: trees with their probabilities."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from beamtree.trees.tree import Span, Tree


class Node(NamedTuple):
    """A constituent of a tree, and what the model says of it."""

    start: int  # first token
    end: int  # after its last token
    label: str | None = None  # of the model's classifier for the node's state; None for models of pairs
    probabilities: Mapping[str, float] = {}  # of all labels; empty without a label
    score: float | None = None  # of the merge that made it; None for leaves and for encoders without scores
    step_probability: float | None = None  # of this merge among all that were possible at its step
    expected: str | None = None  # the label that the task assigns to it, as the value of a list; None if unknown

    @property
    def span(self) -> Span:
        return self.start, self.end

    @property
    def is_wrong(self) -> bool:
        """Whether the task assigns another label to it."""
        return self.expected is not None and self.label is not None and self.label != self.expected


class Parse(NamedTuple):
    """A tree found by one or more beams."""

    tree: Tree
    probability: float  # total of all beams that found it, in any merge order
    merges: tuple[Span, ...]  # [start, end) of its constituents, in the merge order of the best beam
    nodes: tuple[Node, ...] = ()  # with labels: of the best beam, first the leaves, then the merges in their order


class Parses(list[Parse]):
    """The distinct trees of one text, most probable first. Notebooks display them as drawings.

    offsets: for each token, its first character in the text and the one after its last; None if the text is not known.
    """

    def __init__(self, parses: Iterable[Parse] = (), offsets: Sequence[tuple[int, int]] | None = None) -> None:
        super().__init__(parses)
        self.offsets = None if offsets is None else tuple(offsets)

    def characters(self, span: Span) -> tuple[int, int]:
        """The characters of the text that a constituent covers, from the tokens [start, end)."""
        if self.offsets is None:
            raise ValueError("the parses have no offsets: they are of tokens, not of a text")
        start, end = span
        return self.offsets[start][0], self.offsets[end - 1][1]

    def _repr_html_(self) -> str:
        from beamtree.trees.drawing import draw_beams  # imported here: encoders do not need drawings

        return draw_beams(self)._repr_html_() if self else ""


def span_probabilities(parses: Iterable[Parse]) -> dict[Span, float]:
    """Probability of each constituent of two or more leaves, summed over the trees that contain it, shortest first."""
    total: dict[Span, float] = {}
    for parse in parses:
        for span in parse.merges:
            total[span] = total.get(span, 0.0) + parse.probability
    ordered = sorted(total, key=lambda span: (span[1] - span[0], span))
    return {span: min(total[span], 1.0) for span in ordered}  # rounding may make the sum over all beams exceed 1
