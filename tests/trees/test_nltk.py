"""Trees of NLTK, both ways."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beamtree import Tree
from beamtree.trees.baselines import uniform

nltk = pytest.importorskip("nltk")


@given(st.integers(1, 12), st.integers(0, 99))
def test_there_and_back(size, seed):
    tree = uniform([f"w{position}" for position in range(size)], seed=seed)
    there = tree.to_nltk("X")
    assert there.leaves() == list(tree.leaves)
    assert all(node.label() == "X" for node in there.subtrees())
    assert Tree.from_nltk(there) == tree


def test_labels_and_unary_nodes_are_dropped():
    tree = nltk.Tree.fromstring("(S (NP (D the) (N cat)) (VP (V sat)))")
    assert Tree.from_nltk(tree) == Tree.parse("((the cat) sat)")


def test_more_children_than_two_are_refused_with_what_to_do():
    tree = nltk.Tree.fromstring("(S a b c)")
    with pytest.raises(ValueError, match=r"a node has 3 children: binarise the tree first, .*chomsky_normal_form"):
        Tree.from_nltk(tree)
    tree.chomsky_normal_form()
    assert Tree.from_nltk(tree) == Tree.parse("(a (b c))")


def test_a_deep_tree_is_no_problem():
    tree = Tree.from_actions([0] * 5000)
    assert Tree.from_nltk(tree.to_nltk()) == tree


def test_without_nltk_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "nltk", None)
    with pytest.raises(ValueError, match="to_nltk needs nltk, which is not installed: pip install nltk"):
        Tree.parse("(a b)").to_nltk()
