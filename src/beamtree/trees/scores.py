"""Scores of trees: unlabelled span precision, recall and F1, per sentence and over a corpus.

    scores = score(predicted, gold)
    scores.corpus().f1, scores.sentence_f1(), scores.exact_match
    scores.sentence_f1("nontrivial")

A constituent is correct if the gold standard has one over the same leaves. Which constituents count is an option:

    "merged"      those of two or more leaves, including the whole sentence: N−1 in a binary tree. As in EVALB.
    "nontrivial"  without the whole sentence, which every tree has: N−2. Common in grammar induction.
    "all"         with single leaves, which every tree has: 2N−1.

With m matches among p predicted and g gold constituents, precision is m/p, recall m/g and F1 = 2m/(p+g). Over a corpus
m, p and g are summed first; sentence F1 is the mean of the F1 of the sentences. A sentence in which no constituent
counts (one leaf, or two leaves with "nontrivial") is left out of the mean. Undefined values are NaN.

The gold standard may be a `Bracketing` with fewer constituents than a binary tree. All constituents of the tree still
count, so no binary tree reaches a precision or an F1 of 1; the maximum is the score of the binarised gold standard.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from beamtree.trees.bracketing import Bracketing
from beamtree.trees.tree import Tree
from beamtree.utils.checks import check_choice

Counted = Literal["merged", "nontrivial", "all"]
COUNTED: tuple[Counted, ...] = get_args(Counted)
Gold = Tree | Bracketing


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of the constituents of one or more sentences. Counts can be added.

    Attributes:
        matched: predicted constituents that are in the gold standard; a float for an expected count.
        predicted: constituents of the predicted trees.
        gold: constituents of the gold standard.

    Examples:
        >>> from beamtree.trees.scores import Counts
        >>> counts = Counts(matched=1, predicted=2, gold=2) + Counts(matched=2, predicted=2, gold=2)
        >>> counts.precision, counts.recall, counts.f1
        (0.75, 0.75, 0.75)
    """

    matched: int | float = 0
    predicted: int = 0
    gold: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.matched + other.matched, self.predicted + other.predicted, self.gold + other.gold)

    @property
    def precision(self) -> float:
        """Matched constituents among the predicted ones; NaN if there are none."""
        return self.matched / self.predicted if self.predicted else float("nan")

    @property
    def recall(self) -> float:
        """Matched constituents among those of the gold standard; NaN if there are none."""
        return self.matched / self.gold if self.gold else float("nan")

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall; NaN if there are no constituents."""
        total = self.predicted + self.gold
        return 2 * self.matched / total if total else float("nan")

    def counting(self, counted: Counted, size: int) -> "Counts":
        """Convert the counts of a sentence's merged constituents to those with another option of what counts.

        Args:
            counted: "merged", "nontrivial" or "all"; see `beamtree.trees.scores`.
            size: number of leaves of the sentence.

        Returns:
            The counts. Trivial constituents always match.
        """
        if counted == "merged":
            return self
        trivial = size if counted == "all" else -(size > 1)
        return Counts(self.matched + trivial, self.predicted + trivial, self.gold + trivial)


class Scores:
    """The scores of a corpus, to which sentences are added one by one.

    Attributes:
        sentences: number of sentences.

    Examples:
        >>> from beamtree.trees.scores import Scores
        >>> scores = Scores()
        >>> scores.add(beamtree.Tree.parse("((a b) c)"), beamtree.Tree.parse("(a (b c))"))
        >>> scores.corpus().f1, scores.sentence_f1("nontrivial"), scores.exact_match
        (0.5, 0.0, 0.0)
    """

    def __init__(self) -> None:
        self.sentences = 0
        self._exact = 0
        self._corpus = dict.fromkeys(COUNTED, Counts())
        self._f1 = {counted: Mean() for counted in COUNTED}

    def add(self, predicted: Tree, gold: Gold) -> None:
        """Add a sentence.

        Args:
            predicted: its tree.
            gold: its gold tree or bracketing, over as many leaves.

        Raises:
            ValueError: if the numbers of leaves differ.
        """
        merged = count(predicted, gold)
        self.sentences += 1
        self._exact += merged.matched == merged.gold
        for counted in COUNTED:
            counts = merged.counting(counted, len(predicted))
            self._corpus[counted] += counts
            self._f1[counted].add(counts.f1)

    def corpus(self, counted: Counted = "merged") -> Counts:
        """Sum the counts of all sentences.

        Args:
            counted: which constituents count: "merged", "nontrivial" or "all".

        Returns:
            The counts of the corpus.
        """
        check_choice("counted", counted, COUNTED)
        return self._corpus[counted]

    def sentence_f1(self, counted: Counted = "merged") -> float:
        """Average the F1 of the sentences.

        Args:
            counted: which constituents count: "merged", "nontrivial" or "all".

        Returns:
            The mean over the sentences that have a constituent that counts; NaN if there are none.
        """
        check_choice("counted", counted, COUNTED)
        return self._f1[counted].value

    @property
    def exact_match(self) -> float:
        """The share of sentences whose tree has every gold constituent; if gold trees are binary, the same tree."""
        return self._exact / self.sentences if self.sentences else float("nan")


class Mean:
    """A running mean without NaN, the value of a sentence for which it is not defined."""

    def __init__(self) -> None:
        self.number, self._sum = 0, 0.0

    def add(self, value: int | float) -> None:
        if value == value:
            self.number += 1
            self._sum += value

    @property
    def value(self) -> float:
        return self._sum / self.number if self.number else float("nan")


def score(predicted: Iterable[Tree], gold: Iterable[Gold]) -> Scores:
    """Score trees against gold trees.

    Args:
        predicted: one tree for each sentence.
        gold: one gold tree or bracketing for each sentence.

    Returns:
        The scores of the corpus.

    Raises:
        ValueError: if the numbers of sentences, or of leaves, differ.

    Examples:
        >>> from beamtree.trees import scores
        >>> trees = [beamtree.Tree.parse("((a b) c)")]
        >>> scores.score(trees, trees).sentence_f1()
        1.0
    """
    scores = Scores()
    for tree, standard in zip(predicted, gold, strict=True):
        scores.add(tree, standard)
    return scores


def count(predicted: Gold, gold: Gold) -> Counts:
    """Count the merged constituents of a sentence: matches, predicted and gold."""
    check_size(predicted, gold)
    ours, theirs = constituents(predicted), constituents(gold)
    return Counts(len(ours & theirs), len(ours), len(theirs))


def check_size(predicted: Gold, gold: Gold) -> None:
    if len(predicted) != len(gold):
        raise ValueError(f"a tree of {len(predicted)} leaves and one of {len(gold)} cannot be compared")


def constituents(tree: Gold) -> set[int]:
    """The merged constituents, each encoded as one integer: comparing sets of pairs would take twice the time."""
    size = len(tree)
    if isinstance(tree, Bracketing):
        return {(end - 1) * size + start for start, end in tree.spans}
    found: set[int] = set()
    starts: list[int] = []  # of the constituents on the parser's stack
    for position, ended in enumerate(tree.reduces):
        starts.append(position)
        if ended:
            del starts[-1]
            row = position * size
            found.update([row + start for start in starts[-ended:]])
            del starts[len(starts) - ended + 1 :]
    return found
