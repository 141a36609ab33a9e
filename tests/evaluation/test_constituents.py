"""Accuracy by constituent: heights, lengths and counts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beamtree.data.tasks.listops import depth, values
from beamtree.evaluation.constituents import ConstituentAccuracy, ConstituentCounts, heights, length_bin
from beamtree.trees import Tree


@st.composite
def merges(draw, most=12):
    """The actions that build a tree."""
    length = draw(st.integers(1, most))
    return [draw(st.integers(0, size - 2)) for size in range(length, 1, -1)]


@given(merges())
def test_where_all_constituents_are_labelled_heights_are_those_of_the_tree(actions):
    tree = Tree.from_actions(actions)
    assert heights(tree.spans()) == dict(zip(tree.spans(), tree.heights(), strict=True))


def test_the_height_of_a_list_is_its_depth():
    for example in EXPRESSIONS:
        tokens = example.split()
        found = heights(values(tokens))
        assert {span: depth(tokens[slice(*span)]) for span in found} == found


EXPRESSIONS = ["[MAX 2 9 [MIN 4 7 ] 0 ]", "[SM 1 2 ]", "[MED [MIN 1 ] [MAX 3 [SM 4 [MIN 5 ] ] 6 ] ]", "7"]


@pytest.mark.parametrize(("length", "bin"), [(1, (1, 1)), (2, (2, 3)), (3, (2, 3)), (4, (4, 7)), (1000, (512, 1023))])
def test_bins_of_lengths_are_powers_of_two(length, bin):
    assert length_bin(length) == bin


def test_constituents_are_counted_by_height_and_length():
    counts = ConstituentAccuracy()
    expected = {(0, 1): "a", (1, 2): "b", (0, 2): "a", (2, 3): "c", (0, 3): "c"}
    counts.add({(0, 1): "a", (1, 2): "x", (2, 3): "c", (1, 3): "c", (0, 3): "a"}, expected)
    assert counts.total == ConstituentCounts(expected=5, found=4, correct=2)
    assert counts.by_height == {
        0: ConstituentCounts(3, 3, 2),
        1: ConstituentCounts(1, 0, 0),
        2: ConstituentCounts(1, 1, 0),
    }
    assert counts.by_length == {(1, 1): ConstituentCounts(3, 3, 2), (2, 3): ConstituentCounts(2, 1, 0)}
    assert counts.total.accuracy == 0.5
    assert counts.total.recall == 0.8
    assert math.isnan(counts.by_height[1].accuracy)
    record = counts.to_dict()
    assert record["by_height"][1] == {
        **{"height": 1, "expected": 1, "found": 0, "correct": 0},
        **{"accuracy": None, "recall": 0.0},
    }
    assert [(each["first"], each["last"]) for each in record["by_length"]] == [(1, 1), (2, 3)]


@given(st.lists(merges(), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_totals_are_the_sums_of_their_parts(sentences, random):
    counts = ConstituentAccuracy()
    for tree in map(Tree.from_actions, sentences):
        counts.add({span: random.choice("ab") for span in tree.spans()}, dict.fromkeys(tree.spans(), "a"))
    for tallies in (counts.by_height, counts.by_length):
        for name in ("expected", "found", "correct"):
            assert sum(getattr(tally, name) for tally in tallies.values()) == getattr(counts.total, name)
