"""Gold trees of formal languages."""

import pytest

from beamtree.data.gold import left_branching


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("1", "1"),
        ("[ 1 ]", "(([ 1) ])"),
        ("[ 1 [ 2 3 ] 4 ]", "(((([ 1) ((([ 2) 3) ])) 4) ])"),
        ("[ [ 1 ] ]", "(([ (([ 1) ])) ])"),
    ],
)
def test_lists_are_constituents_and_branch_to_the_left(text, tree):
    assert str(left_branching(text.split(), "[", "]")) == tree


def test_depth_costs_nothing():
    depth = 20_000
    tree = left_branching([*["["] * depth, "1", *["]"] * depth], "[", "]")
    assert tree.height == 2 * depth
