"""Trees as text: what is drawn is the tree, with its labels, and nothing else."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from rich.cells import cell_len

from beamtree import Tree
from beamtree.trees.drawing import penn_tree, rich_beams, rich_tree, text_tree
from beamtree.trees.drawing.layout import place_nodes
from beamtree.utils.palette import SENTIMENT as COLORS
from trees.drawing.parses import SENTIMENT, WORDS, chain, labelled, listops, make_labelled, make_parses, nodes, shapes

SIGNS = ("a", "[MAX", "]", "├", "─")


def read(drawing, size):
    """The tree of a horizontal drawing, found by following its lines; all its leaves begin in one column."""
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


@given(shapes(SIGNS, 12))
def test_the_tree_can_be_read_back_from_its_horizontal_drawing(shape):
    tree = Tree.from_actions(*shape)
    assert read(text_tree(tree), len(tree)) == tree


@given(labelled(words=("a", "Film", "not"), max_size=12))
def test_labels_change_no_line_of_a_horizontal_drawing(drawn):
    """Every fork and turn is still there, in the same order."""
    tree, found = make_labelled(drawn)
    lines = text_tree(tree, found).split("\n")
    for plain, line in zip(text_tree(tree).split("\n"), lines, strict=True):
        assert re.sub("[^┬└│]", "", line) == re.sub("[^┬└│]", "", plain)
        assert line.endswith(plain.split(" ")[-1])
    assert len({len(line) - len(leaf) for line, leaf in zip(lines, tree.leaves, strict=True)}) == 1
    for above, line in pairwise(lines):
        assert all(above[column] in "┬│" for column, sign in enumerate(line) if sign in "│└")


def read_vertical(drawing, tree):
    """The spans of a vertical drawing: each bracket reaches from the middle of its left to that of its right child."""
    layout = place_nodes(tree, [cell_len(leaf) + 2.0 for leaf in tree.leaves], whole=True)
    lines = drawing.split("\n")
    ends = {(tree.height - node.height, round(node.place) - 1): node.span for node in layout.nodes}
    spans = []
    for row, line in enumerate(lines[:-1]):
        for bracket in re.finditer("┌─*┴─*┐", line):
            children = []
            for column in (bracket.start(), bracket.end() - 1):
                below = row + 1
                while lines[below][column : column + 1] == "│":
                    below += 1
                children.append(ends[below, column])
            assert children[0][1] == children[1][0]
            assert abs(bracket[0].index("┴") - (len(bracket[0]) - 1) / 2) < 1
            spans.append((children[0][0], children[1][1]))
    return spans


@given(shapes(("a", "Film", "[MAX"), 9))
def test_the_tree_can_be_read_back_from_its_vertical_drawing(shape):
    tree = Tree.from_actions(*shape)
    drawing = text_tree(tree, orientation="vertical")
    assert len(drawing.split("\n")) == tree.height + 1
    assert sorted(read_vertical(drawing, tree)) == sorted(tree.spans(leaves=False))
    assert drawing.split("\n")[-1].split() == list(tree.leaves)


@given(labelled(words=("a", "Film", "שלום"), max_size=9))
def test_labels_of_a_vertical_drawing_are_between_the_children(drawn):
    tree, found = make_labelled(drawn)
    drawing = text_tree(tree, found, orientation="vertical")
    *brackets, leaves = drawing.split("\n")
    assert leaves.split() == list(tree.leaves)
    for line in brackets:
        assert line.count("┌") == line.count("┐")
        for bracket in re.findall("┌[^┌┐]*┐", line):
            assert re.fullmatch("┌─*(?:┴| [^ ┴─│]+ )─*┐", bracket)
    assert sum(line.count("┌") for line in brackets) == len(tree) - 1
    # Below both corners there is a line, or the middle of a bracket, a label or a leaf.
    for line, below in pairwise((*brackets, leaves)):
        assert all(below[column] not in " ─┌┐" for column, sign in enumerate(line) if sign in "┌┐│")


@given(labelled(words=("x",)))
def test_ascii_characters_draw_the_same(drawn):
    tree, found = make_labelled(drawn)
    for orientation in ("vertical", "horizontal"):
        drawn = text_tree(tree, found, orientation=orientation, ascii=True)
        assert drawn.isascii()
        if not any(node.is_wrong for node in found):  # != is wider than ≠
            same = text_tree(tree, found, orientation=orientation).translate(str.maketrans("┬└│─┌┐┴−", "+`|-+++-"))
            assert drawn == same


@given(shapes(SIGNS, 12))
def test_penn_treebank_brackets_hold_the_tree(shape):
    tree = Tree.from_actions(*shape)
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


def test_values_of_lists_are_at_their_brackets_and_a_wrong_one_is_red():
    tree, found = listops()
    assert text_tree(tree, found, orientation="vertical").split("\n") == [
        "           ┌─── 5≠4 ────┐",
        "    ┌──────┴──────┐     │",
        "    │          ┌─ 4 ─┐  │",
        "    │        ┌─┴──┐  │  │",
        "  ┌─┴─┐    ┌─┴─┐  │  │  │",
        "[MAX  2  [MIN  4  7  ]  ]",
    ]
    assert text_tree(tree, found).split("\n") == [
        " 5≠4 ┬─┬────────┬─ [MAX",
        "     │ │        └─ 2",
        "     │ └─ 4 ┬─┬─┬─ [MIN",
        "     │      │ │ └─ 4",
        "     │      │ └─── 7",
        "     │      └───── ]",
        "     └──────────── ]",
    ]
    drawn = rich_tree(tree, found)
    styles = {drawn.plain[span.start : span.end]: span.style for span in drawn.spans}
    assert styles[" 5≠4 "] == "bold red"
    assert styles[" 4 "] == "bold default"
    assert text_tree(tree, found, ascii=True).startswith(" 5!=4 +-")


def test_sentiment_is_a_sign_on_the_colour_of_the_palette():
    tree = Tree.parse("((a b) c)")
    for orientation in ("vertical", "horizontal"):
        drawn = rich_tree(tree, nodes(tree, SENTIMENT, SENTIMENT), orientation=orientation)
        styles = {drawn.plain[span.start : span.end]: span.style for span in drawn.spans}
        assert styles[" ++ "].endswith(f"on {COLORS['paper'][4]}")
        assert styles[" + "].endswith(f"on {COLORS['paper'][3]}")
        assert styles["a"].endswith(f"on {COLORS['paper'][0]}")
        assert styles["c"] == "default"  # neutral


def test_a_drawing_that_is_too_wide_is_horizontal():
    tree = chain(12, "film")
    wide = text_tree(tree, orientation="vertical")
    columns = max(map(len, wide.split("\n")))
    assert text_tree(tree, orientation="auto", width=columns) == wide
    assert text_tree(tree, orientation="auto", width=columns - 1) == text_tree(tree, orientation="horizontal")


def test_characters_take_the_columns_that_terminals_give_them():
    leaves = ("中文", "e\u0301", "🌲", "\u0302", "a")
    tree = Tree(leaves, (0, 1, 1, 1, 1))
    *brackets, words = text_tree(tree, orientation="vertical").split("\n")
    assert words.split() == list(leaves)
    # The right corner of a bracket is over the middle of its leaf.
    corners = [bracket.index("┐") for bracket in reversed(brackets)]
    starts = [cell_len(words[: words.index(leaf)]) for leaf in leaves[1:]]
    assert corners == [starts[0], starts[1] + 1, starts[2], starts[3]]


def test_control_characters_do_not_reach_the_terminal():
    drawn = text_tree(Tree(("\x1b[31mred", "\x07"), (0, 1)))
    assert "\x1b" not in drawn
    assert "\x07" not in drawn
    assert "\ufffd[31mred" in drawn


def test_beams_are_side_by_side_as_far_as_they_fit():
    parses = make_parses("abcd", count=3)
    first, *_ = rich_beams(parses, width=80).plain.split("\n")
    assert first == "tree 1, probability 0.571    tree 2, probability 0.286"
    narrow = rich_beams(parses, width=40).plain.split("\n\n")
    assert [block.split("\n")[0] for block in narrow] == [
        f"tree {number}, probability {parse.probability:.3f}" for number, parse in enumerate(parses, start=1)
    ]
    for block, parse in zip(narrow, parses, strict=True):
        assert block.split("\n", 1)[1] == text_tree(parse.tree, orientation="vertical")
    alone = rich_beams(parses, top=1, headings=False).plain
    assert alone == text_tree(parses[0].tree, orientation="vertical")


def test_leaves_of_all_kinds_are_drawn():
    tree = Tree(WORDS, (0, *[1] * (len(WORDS) - 1)))
    for orientation in ("vertical", "horizontal"):
        assert "&%$#_{}~^\\" in text_tree(tree, orientation=orientation)
    assert text_tree(Tree.parse("film")) == text_tree(Tree.parse("film"), orientation="vertical") == "film"


@pytest.mark.parametrize("first", [0, None])
def test_a_chain_of_2000_leaves_is_drawn(first):
    actions = [0] * 1999 if first == 0 else list(range(1998, -1, -1))
    drawn = text_tree(Tree.from_actions(actions)).split("\n")
    assert len(drawn) == 2000
    assert drawn[0].endswith(" 0")
    assert drawn[-1].endswith(" 1999")
