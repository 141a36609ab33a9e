"""Accuracy by constituent: the labels that a model predicts for the constituents of a text, against the expected ones.

SST has a label for every phrase; in ListOps every list has a value. A model predicts labels for the constituents of its
own tree only, so there are two figures: the share of the labelled constituents that are in the tree, and the share of
these with the correct label. Both are given by height and by length. The height of a constituent is the number of
levels of labelled constituents inside it: 0 for a token, 1 for a list without inner lists.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from beamtree.trees.tree import Span


@dataclass
class ConstituentCounts:
    """Counts of labelled constituents."""

    expected: int = 0  # constituents with an expected label
    found: int = 0  # those of them that are in the model's tree
    correct: int = 0  # those of the found ones whose label is correct

    @property
    def accuracy(self) -> float:
        return self.correct / self.found if self.found else float("nan")

    @property
    def recall(self) -> float:
        return self.found / self.expected if self.expected else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON types, with None for NaN."""
        counts = {"expected": self.expected, "found": self.found, "correct": self.correct}
        shares = {"accuracy": self.accuracy, "recall": self.recall}
        return {**counts, **{name: share if share == share else None for name, share in shares.items()}}


@dataclass
class ConstituentAccuracy:
    """Running counts of one model."""

    total: ConstituentCounts = field(default_factory=ConstituentCounts)
    by_height: dict[int, ConstituentCounts] = field(default_factory=dict)
    by_length: dict[tuple[int, int], ConstituentCounts] = field(default_factory=dict)  # first and last length of a bin

    def add(self, found: Mapping[Span, str], expected: Mapping[Span, str]) -> None:
        """Add a text: the labels that the model predicts for the constituents of its tree, and the expected labels."""
        for span, height in heights(expected).items():
            bins = length_bin(span[1] - span[0])
            all_counts = (self.total, _counts_of(self.by_height, height), _counts_of(self.by_length, bins))
            for counts in all_counts:
                counts.expected += 1
                counts.found += span in found
                counts.correct += found.get(span) == expected[span]

    def to_dict(self) -> dict[str, Any]:
        heights = ({"height": height, **counts.to_dict()} for height, counts in sorted(self.by_height.items()))
        lengths = (
            {"first": first, "last": last, **counts.to_dict()}
            for (first, last), counts in sorted(self.by_length.items())
        )
        return {**self.total.to_dict(), "by_height": list(heights), "by_length": list(lengths)}


def heights(spans: Iterable[Span]) -> dict[Span, int]:
    """Compute the height of each constituent. The constituents must not cross.

    The height is 0 for a single token, otherwise one more than the largest height inside it, and at least 1.
    """
    found: dict[Span, int] = {}
    nested: list[Span] = []  # constituents that are not inside another one so far
    for span in sorted(spans, key=lambda span: (span[1], -span[0])):
        height = 0 if span[1] - span[0] == 1 else 1
        while nested and nested[-1][0] >= span[0]:
            height = max(height, found[nested.pop()] + 1)
        found[span] = height
        nested.append(span)
    return found


def length_bin(length: int) -> tuple[int, int]:
    """The first and the last length of the bin of this length. Bins start at powers of two: 5 → (4, 7)."""
    first = 1 << (length.bit_length() - 1)
    return first, 2 * first - 1


def _counts_of(table: dict[Any, ConstituentCounts], key: Any) -> ConstituentCounts:
    return table.setdefault(key, ConstituentCounts())
