"""Parses: trees with their probabilities."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from beamtree.trees.tree import Span, Tree


class Node(NamedTuple):
    """A constituent of a tree, with its label and the score of its merge.

    Attributes:
        start: first token.
        end: the position after its last token.
        label: the label that the classifier predicts from the node's state; None for models of pairs.
        probabilities: probabilities of all labels; empty without a label.
        score: score of the merge that created it; None for leaves and for encoders without scores.
        step_probability: probability of this merge among all that were possible at its step.
        expected: the label that the task assigns to it, such as the value of a list; None if unknown.

    Examples:
        >>> model = beamtree.load("listops-bt-grc")
        >>> node = model.parse("[MAX 2 9 ]", labels=True)[0].nodes[-1]
        >>> node.span, node.label, node.expected, node.is_wrong
        ((0, 4), '9', '9', False)
    """

    start: int
    end: int
    label: str | None = None
    probabilities: Mapping[str, float] = {}
    score: float | None = None
    step_probability: float | None = None
    expected: str | None = None

    @property
    def span(self) -> Span:
        """(start, end)."""
        return self.start, self.end

    @property
    def is_wrong(self) -> bool:
        """Whether the task assigns another label to it."""
        return self.expected is not None and self.label is not None and self.label != self.expected


class Parse(NamedTuple):
    """A tree found by one or more beams.

    Attributes:
        tree: the tree.
        probability: sum of the probabilities of all beams that found it, in any merge order.
        merges: [start, end) of its constituents, in the merge order of the best beam.
        nodes: its constituents with their labels, for the best beam: first the leaves, then the merges in their order.
            Empty if labels were not requested.

    Examples:
        >>> parse = beamtree.load("listops-bt-grc").parse("[MAX 2 9 ]")[0]
        >>> parse.tree, parse.merges
        (Tree.parse('((([MAX 2) 9) ])'), ((0, 2), (0, 3), (0, 4)))
    """

    tree: Tree
    probability: float
    merges: tuple[Span, ...]
    nodes: tuple[Node, ...] = ()


class Parses(list[Parse]):
    """The distinct trees of one text, most probable first; a list of `Parse`.

    Notebooks display it as drawings.

    Args:
        parses: the trees.
        offsets: for each token, its first character in the text and the one after its last; None if the text is not
            known.

    Examples:
        >>> parses = beamtree.load("listops-bt-grc").parse("[MAX 2 9 ]")
        >>> parses[0].tree, parses.offsets
        (Tree.parse('((([MAX 2) 9) ])'), ((0, 4), (5, 6), (7, 8), (9, 10)))
        >>> parses.characters((1, 3))
        (5, 8)
    """

    def __init__(self, parses: Iterable[Parse] = (), offsets: Sequence[tuple[int, int]] | None = None) -> None:
        super().__init__(parses)
        self.offsets = None if offsets is None else tuple(offsets)

    def characters(self, span: Span) -> tuple[int, int]:
        """Locate a constituent in the text.

        Args:
            span: its tokens, [start, end).

        Returns:
            The characters that it covers, [start, end).

        Raises:
            ValueError: if the text is not known.
        """
        if self.offsets is None:
            raise ValueError("the parses have no offsets: they are parses of tokens, not of a text")
        start, end = span
        return self.offsets[start][0], self.offsets[end - 1][1]

    def _repr_html_(self) -> str:
        from beamtree.trees.drawing import draw_beams  # imported here: encoders do not need drawings

        return draw_beams(self)._repr_html_() if self else ""


def span_probabilities(parses: Iterable[Parse]) -> dict[Span, float]:
    """Sum the probabilities of the trees that contain each constituent.

    Args:
        parses: all trees of one text.

    Returns:
        The probability of each constituent of two or more leaves by its span, shortest first.

    Examples:
        >>> from beamtree.trees.parses import span_probabilities
        >>> parses = beamtree.load("listops-bt-grc").parse("[MAX 2 9 ]")
        >>> list(span_probabilities(parses))[-1]
        (0, 4)
    """
    total: dict[Span, float] = {}
    for parse in parses:
        for span in parse.merges:
            total[span] = total.get(span, 0.0) + parse.probability
    ordered = sorted(total, key=lambda span: (span[1] - span[0], span))
    return {span: min(total[span], 1.0) for span in ordered}  # with rounding errors the sum over all beams may exceed 1
