"""Measures of distributions over trees: entropy, expected F1, and the agreement between models.

The beams of a sentence are distinct trees over its leaves with their probabilities, as `Beams.distinct` and
`Pretrained.parse` return them.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import combinations

from beamtree.trees.bracketing import Bracketing
from beamtree.trees.parses import Parse
from beamtree.trees.scores import COUNTED, Counted, Counts, Gold, Mean, check_size, constituents, score
from beamtree.trees.tree import Tree
from beamtree.utils.checks import check_choice

Weighted = Sequence[tuple[Tree, float] | Parse]


def entropy(probabilities: Iterable[float]) -> float:
    """Compute the entropy of a distribution over trees.

    Args:
        probabilities: probabilities of the trees, which sum to 1.

    Returns:
        The entropy in nats: 0 for one tree, log K for K equally probable ones.

    Raises:
        ValueError: if the probabilities are not a distribution.

    Examples:
        >>> from beamtree.trees import measures
        >>> round(measures.entropy([0.5, 0.5]), 4)
        0.6931
    """
    given = list(probabilities)
    if not given or min(given) < 0 or not math.isclose(sum(given), 1, abs_tol=1e-4):  # a sum of float32 values
        raise ValueError(f"the probabilities {given} are not a distribution: they must be non-negative and sum to 1")
    return max(-sum(p * math.log(p) for p in given if p > 0), 0.0)


def expected_f1(beams: Weighted, other: Weighted | Gold, counted: Counted = "merged") -> float:
    """Compute the expected F1 of a tree sampled from the beams.

    All trees over N leaves have N−1 merged constituents, so F1 is linear in the number of matches, whose expectation is
    the sum of the constituents' probabilities.

    Args:
        beams: trees of one sentence with their probabilities, which need not sum to 1: the best beams are sufficient.
        other: the gold standard, or another model's beams, from which the other tree is sampled.
        counted: which constituents count; see `beamtree.trees.scores`.

    Returns:
        The expected F1; NaN if no constituent counts.

    Examples:
        >>> from beamtree.trees import measures
        >>> gold, other = (beamtree.Tree.parse(text) for text in ("((a b) c)", "(a (b c))"))
        >>> measures.expected_f1([(gold, 0.75), (other, 0.25)], gold)
        0.875
    """
    check_choice("counted", counted, COUNTED)
    against: list[tuple[Gold, float]] = [(other, 1.0)] if isinstance(other, Tree | Bracketing) else [*_pairs(other)]
    ours: dict[int, float] = {}
    for tree, probability in _pairs(beams):
        for constituent in constituents(tree):
            ours[constituent] = ours.get(constituent, 0.0) + probability
    total = sum(probability for _, probability in _pairs(beams))
    size = len(beams[0][0])
    expected = 0.0
    for standard, probability in against:
        check_size(beams[0][0], standard)
        theirs = constituents(standard)
        matched = sum(ours.get(constituent, 0.0) for constituent in theirs) / total
        expected += probability * Counts(matched, size - 1, len(theirs)).counting(counted, size).f1
    return expected / sum(probability for _, probability in against)


def agreement(models: Sequence[Sequence[Tree]], counted: Counted = "merged") -> float:
    """Compute the sentence F1 between the trees of two models, averaged over all pairs of models.

    Args:
        models: for each model, its best tree of every sentence. The models may differ in their seed, for example.
        counted: which constituents count; see `beamtree.trees.scores`.

    Returns:
        The mean F1.

    Raises:
        ValueError: if there are fewer than two models.

    Examples:
        >>> from beamtree.trees import measures
        >>> left, right = (beamtree.Tree.parse(text) for text in ("((a b) c)", "(a (b c))"))
        >>> measures.agreement([[left], [right]])
        0.5
    """
    if len(models) < 2:
        raise ValueError(f"agreement needs the trees of at least two models, got {len(models)}")
    between = Mean()
    for first, second in combinations(models, 2):
        between.add(score(first, second).sentence_f1(counted))
    return between.value


def _pairs(beams: Weighted) -> Iterable[tuple[Tree, float]]:
    return ((beam[0], beam[1]) for beam in beams)
