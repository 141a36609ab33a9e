"""Entropy, expectations over beams, and agreement, against their definitions."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beamtree.trees import Bracketing, Tree
from beamtree.trees.baselines import easy_first, left, right, uniform
from beamtree.trees.measures import agreement, entropy, expected_f1
from beamtree.trees.parses import Parse
from beamtree.trees.scores import COUNTED, Counted, score


@st.composite
def beams(draw: st.DrawFn) -> tuple[int, list[tuple[int, float]]]:
    """A size, and for each beam the seed of its tree and its probability."""
    weights = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    seeds = [draw(st.integers(0, 99)) for _ in weights]
    return draw(st.integers(2, 9)), [(seed, w / sum(weights)) for seed, w in zip(seeds, weights, strict=True)]


def built(size: int, drawn: list[tuple[int, float]]) -> list[tuple[Tree, float]]:
    return [(uniform(["a"] * size, seed), probability) for seed, probability in drawn]


def f1(first: Tree, second: Tree | Bracketing, counted: Counted) -> float:
    return score([first], [second]).sentence_f1(counted)


def test_entropy_is_that_of_the_distribution() -> None:
    assert entropy([1.0]) == 0
    assert entropy([0.25] * 4) == pytest.approx(math.log(4))
    assert entropy([0.5, 0.5, 0.0]) == pytest.approx(math.log(2))


@pytest.mark.parametrize("given", [[], [0.5, 0.4], [1.5, -0.5]])
def test_entropy_wants_a_distribution(given: list[float]) -> None:
    with pytest.raises(ValueError, match="are not a distribution"):
        entropy(given)


@pytest.mark.parametrize("counted", COUNTED)
@given(beams())
def test_expected_f1_is_the_mean_over_the_beams(counted: Counted, drawn: tuple[int, list[tuple[int, float]]]) -> None:
    ours = built(*drawn)
    leaves = ["a"] * drawn[0]
    tree = easy_first(leaves, 1)
    lists = Bracketing(tree.leaves, tuple(tree.spans(leaves=False)[1:]))
    for gold in (tree, lists):
        expected = sum(probability * f1(each, gold, counted) for each, probability in ours)
        assert expected_f1(ours, gold, counted) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("counted", COUNTED)
@given(beams(), beams())
def test_expected_agreement_is_the_mean_over_pairs_of_beams(counted: Counted, first, second) -> None:
    ours, theirs = built(*first), built(first[0], second[1])
    expected = sum(p * q * f1(a, b, counted) for a, p in ours for b, q in theirs)
    assert expected_f1(ours, theirs, counted) == pytest.approx(expected, nan_ok=True)


def test_parses_of_a_model_are_beams_too() -> None:
    first, second = Tree.parse("((a b) c)"), Tree.parse("(a (b c))")
    parses = [Parse(first, 0.75, ((0, 2), (0, 3))), Parse(second, 0.25, ((1, 3), (0, 3)))]
    assert expected_f1(parses, first) == 0.75 + 0.25 / 2
    assert expected_f1(parses, parses, "nontrivial") == 0.75**2 + 0.25**2


def test_probabilities_are_relative_so_that_the_best_beams_alone_will_do() -> None:
    first, second = Tree.parse("((a b) c)"), Tree.parse("(a (b c))")
    some = [(first, 0.3), (second, 0.1)]
    assert expected_f1(some, first) == pytest.approx(0.75 + 0.25 / 2)
    assert expected_f1([(first, 1.0)], some) == pytest.approx(0.75 + 0.25 / 2)


def test_one_leaf_has_nothing_to_expect() -> None:
    leaf = Tree.parse("a")
    assert math.isnan(expected_f1([(leaf, 1.0)], leaf))


def test_beams_of_another_size_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="a tree of 2 leaves and one of 3 cannot be compared"):
        expected_f1([(Tree.parse("(a b)"), 1.0)], Tree.parse("((a b) c)"))


def test_agreement_is_the_mean_over_pairs_of_models() -> None:
    leaves = ["a", "b", "c", "d"]
    chain = [left(leaves), left(["a", "b", "c"])]
    other = [right(leaves), left(["a", "b", "c"])]
    assert agreement([chain, chain]) == 1
    assert agreement([chain, other]) == (1 / 3 + 1) / 2
    assert agreement([chain, chain, other]) == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)
    assert agreement([chain, other], "nontrivial") == 1 / 2


def test_agreement_takes_two() -> None:
    with pytest.raises(ValueError, match="agreement needs the trees of at least two models, got 1"):
        agreement([[Tree.parse("(a b)")]])
