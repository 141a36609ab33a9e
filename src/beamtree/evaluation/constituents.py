"""Accuracy by constituent: what a model's classifier says of the parts of a text, against the labels they should have.

SST has a label for every phrase; in ListOps every list has a value. Labels exist for the constituents of a model's own
tree only, so there are two figures: how many of the labelled constituents the tree has, and how many of these are
labelled correctly; both by height and by length. The height of a constituent counts the labelled ones nested in it:
a word has height 0, a list without lists in it 1.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from beamtree.trees.tree import Span


@dataclass
class Tally:
    """Counts of labelled constituents."""

    expected: int = 0  # constituents that have a label
    found: int = 0  # of these, constituents of the model's tree
    correct: int = 0  # of these, constituents with the right label

    @property
    def accuracy(self) -> float:
        return self.correct / self.found if self.found else float("nan")

    @property
    def recall(self) -> float:
        return self.found / self.expected if self.expected else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """In types of JSON; None where nothing was counted."""
        counts = {"expected": self.expected, "found": self.found, "correct": self.correct}
        shares = {"accuracy": self.accuracy, "recall": self.recall}
        return {**counts, **{name: share if share == share else None for name, share in shares.items()}}


@dataclass
class ConstituentAccuracy:
    """The tallies of one model, so far."""

    total: Tally = field(default_factory=Tally)
    by_height: dict[int, Tally] = field(default_factory=dict)
    by_length: dict[tuple[int, int], Tally] = field(default_factory=dict)  # first and last length of a bin

    def add(self, found: Mapping[Span, str], expected: Mapping[Span, str]) -> None:
        """Add a text: the labels of the constituents of the model's tree, and those that constituents should have."""
        for span, height in heights(expected).items():
            bins = length_bin(span[1] - span[0])
            tallies = (self.total, _of(self.by_height, height), _of(self.by_length, bins))
            for tally in tallies:
                tally.expected += 1
                tally.found += span in found
                tally.correct += found.get(span) == expected[span]

    def to_dict(self) -> dict[str, Any]:
        heights = ({"height": height, **tally.to_dict()} for height, tally in sorted(self.by_height.items()))
        lengths = (
            {"first": first, "last": last, **tally.to_dict()} for (first, last), tally in sorted(self.by_length.items())
        )
        return {**self.total.to_dict(), "by_height": list(heights), "by_length": list(lengths)}


def heights(spans: Iterable[Span]) -> dict[Span, int]:
    """The height of each of these constituents, none of which overlap.

    It is 0 for single tokens, otherwise one more than that of the highest inside it, and at least 1.
    """
    found: dict[Span, int] = {}
    nested: list[Span] = []  # those that are not yet inside another one
    for span in sorted(spans, key=lambda span: (span[1], -span[0])):
        height = 0 if span[1] - span[0] == 1 else 1
        while nested and nested[-1][0] >= span[0]:
            height = max(height, found[nested.pop()] + 1)
        found[span] = height
        nested.append(span)
    return found


def length_bin(length: int) -> tuple[int, int]:
    """The first and the last length of a bin, from one power of two to before the next: 5 → (4, 7)."""
    first = 1 << (length.bit_length() - 1)
    return first, 2 * first - 1


def _of(tallies: dict[Any, Tally], key: Any) -> Tally:
    return tallies.setdefault(key, Tally())
