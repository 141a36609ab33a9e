"""Baselines: known shapes, and two random ones with the documented distributions."""

import time
from collections import Counter
from math import comb, factorial

import numpy as np
import pytest
import torch

import beamtree
from beamtree.trees import Tree
from beamtree.trees.baselines import BASELINES, balanced, easy_first, left, right, uniform
from support import action_sequences

LETTERS = tuple("abcdefg")
DRAWS = 5_000


@pytest.mark.parametrize("size", range(1, 8))
def test_left_and_right_are_chains(size: int) -> None:
    leaves = LETTERS[:size]
    assert left(leaves) == Tree.from_actions([0] * (size - 1), leaves)
    assert right(leaves) == Tree.from_actions(list(range(size - 2, -1, -1)), leaves)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7, 8, 13])
def test_balanced_is_the_tree_of_the_balanced_encoder(size: int) -> None:
    encoder = beamtree.encoder("balanced-tree-grc", dim=4)
    leaves = [str(position) for position in range(size)]
    beams = encoder(torch.randn(1, size, 4), torch.tensor([size])).beams
    assert balanced(leaves) == beams.trees()[0][0]


def drawn(baseline, size: int) -> Counter[Tree]:
    generator = np.random.default_rng(0)
    return Counter(baseline(LETTERS[:size], generator) for _ in range(DRAWS))


def near(found: Counter[Tree], expected: dict[Tree, float]) -> bool:
    """Whether Pearson's χ² is below the limit that one sample in a million exceeds (Wilson–Hilferty approximation)."""
    statistic = sum((found[tree] - DRAWS * p) ** 2 / (DRAWS * p) for tree, p in expected.items())
    freedom = len(expected) - 1
    return statistic < freedom * (1 - 2 / (9 * freedom) + 4.75 * (2 / (9 * freedom)) ** 0.5) ** 3


@pytest.mark.parametrize("size", [3, 4, 5, 6])
def test_uniform_draws_every_tree_equally_often(size: int) -> None:
    number = comb(2 * size - 2, size - 1) // size  # Catalan's
    found = drawn(uniform, size)
    assert len(found) == number
    assert near(found, dict.fromkeys(found, 1 / number))


@pytest.mark.parametrize("size", [3, 4, 5, 6])
def test_easy_first_draws_a_tree_as_often_as_it_has_orders_of_merges(size: int) -> None:
    orders = Counter(Tree.from_actions(actions, LETTERS[:size]) for actions in action_sequences(size))
    found = drawn(easy_first, size)
    assert set(found) == set(orders)
    assert near(found, {tree: number / factorial(size - 1) for tree, number in orders.items()})
    assert size == 3 or not near(drawn(uniform, size), {t: n / factorial(size - 1) for t, n in orders.items()})


@pytest.mark.parametrize("name", BASELINES)
def test_a_seed_decides_all(name: str) -> None:
    first, second = (BASELINES[name](LETTERS, 3) for _ in range(2))
    assert first == second
    generator = np.random.default_rng(3)
    assert BASELINES[name](LETTERS, generator) == first


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("size", [1, 2])
def test_one_and_two_leaves_have_one_tree(name: str, size: int) -> None:
    assert BASELINES[name](LETTERS[:size], 0) == left(LETTERS[:size])


@pytest.mark.parametrize("name", BASELINES)
def test_no_leaves_are_no_tree(name: str) -> None:
    with pytest.raises(ValueError, match="a tree needs at least one leaf"):
        BASELINES[name]((), 0)


@pytest.mark.parametrize("name", BASELINES)
def test_50_000_leaves_take_no_time(name: str) -> None:
    begin = time.perf_counter()
    tree = BASELINES[name](("a",) * 50_000, 0)
    assert len(tree) == 50_000
    assert time.perf_counter() - begin < 5
