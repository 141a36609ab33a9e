"""Trees in text: what is drawn is the tree, and nothing else."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beamtree import Tree
from beamtree.trees.drawing import penn_tree, text_tree


@st.composite
def shapes(draw):
    """Leaves, and the merges that build a tree over them."""
    leaves = draw(st.lists(st.sampled_from(["a", "[MAX", "]", "├", "─"]), min_size=1, max_size=12))
    return leaves, [draw(st.integers(0, left - 2)) for left in range(len(leaves), 1, -1)]


def read(drawing, size):
    """The tree of a drawing, found by following its rails; all its leaves stand in one column."""
    lines = drawing.split("\n")
    assert len(lines) == size
    if size == 1:
        return Tree((lines[0],), (0,))
    column = lines[0].index(" ")
    grid, leaves = [line[:column] for line in lines], [line[column + 1 :] for line in lines]
    assert all(line[column] == " " for line in lines)
    spans = []
    for start, row in enumerate(grid):
        for place, sign in enumerate(row):
            if sign == "┬":
                split = next(line for line in range(start + 1, size) if grid[line][place] == "└")
                assert all(grid[line][place] == "│" for line in range(start + 1, split))
                # The constituent ends where a line begins further left.
                left = [line for line in range(split + 1, size) if "└" in grid[line][:place]]
                spans.append((start, min(left, default=size)))
    signs = "".join(grid)
    assert signs.count("┬") == signs.count("└") == size - 1
    return Tree.from_spans(spans, leaves)


@given(shapes())
def test_the_tree_can_be_read_back_from_its_drawing(shape):
    leaves, actions = shape
    tree = Tree.from_actions(actions, leaves)
    assert read(text_tree(tree), len(tree)) == tree


@given(shapes())
def test_plain_characters_draw_the_same(shape):
    leaves, actions = shape
    tree = Tree.from_actions(actions, leaves).with_leaves(["x"] * len(leaves))
    same = text_tree(tree).translate(str.maketrans("┬└│─", "+`|-"))
    assert text_tree(tree, ascii=True) == same
    assert same.isascii()


@given(shapes())
def test_penn_treebank_brackets_hold_the_tree(shape):
    leaves, actions = shape
    tree = Tree.from_actions(actions, leaves)
    # A bracket with a word in it is a leaf, one with two brackets a parent.
    inner = re.sub(r"\(X ([^() ]+)\)", r"\1", penn_tree(tree))
    assert Tree.parse(inner.replace("(X ", "(")) == tree


def test_brackets_in_words_are_escaped():
    assert penn_tree(Tree(("(", "a)"), (0, 1))) == "(X (X -LRB-) (X a-RRB-))"
    assert penn_tree(Tree.parse("a")) == "(X a)"


def test_a_constituent_is_as_far_from_the_leaves_as_it_is_high():
    assert text_tree(Tree.parse("((a b) (c (d e)))")).split("\n") == [
        "┬───┬─ a",
        "│   └─ b",
        "└─┬─── c",
        "  └─┬─ d",
        "    └─ e",
    ]


@pytest.mark.parametrize("first", [0, None])
def test_a_chain_of_5000_leaves_is_drawn(first):
    actions = [0] * 4999 if first == 0 else list(range(4998, -1, -1))
    drawn = text_tree(Tree.from_actions(actions)).split("\n")
    assert len(drawn) == 5000
    assert drawn[0].endswith(" 0")
    assert drawn[-1].endswith(" 4999")
