"""Which nodes show what: values of lists, colours of sentiment, or how probable a constituent is."""

from beamtree import Tree
from beamtree.trees.drawing.marks import Mark, node_marks, node_title
from beamtree.trees.parses import Node
from trees.drawing.parses import CATEGORIES, DIGITS, SENTIMENT, listops, nodes

TREE = Tree.parse("((a b) c)")


def test_only_lists_show_their_values_and_a_wrong_one_is_red_beside_the_expected_one():
    marks = node_marks(*listops())
    assert {span: mark.text for span, mark in marks.items() if mark.text} == {(2, 6): "4", (0, 7): "5≠4"}
    assert marks[2, 6] == Mark("ink", "4")
    assert marks[0, 7] == Mark("wrong", "5≠4", is_wrong=True)
    assert marks[0, 2] == Mark("heat-100")
    assert (0, 1) not in marks


def test_values_are_shown_everywhere_if_none_is_expected():
    marks = node_marks(TREE, nodes(TREE, "01234", DIGITS))
    assert {span: mark.text for span, mark in marks.items()} == {(0, 2): "3", (0, 3): "4"}


def test_sentiment_has_five_colours_at_leaves_too_and_a_sign():
    marks = node_marks(TREE, nodes(TREE, SENTIMENT, SENTIMENT))
    assert [mark.style for mark in marks.values()] == [f"sentiment-{grade}" for grade in (4, 5, 1, 2, 3)]
    assert [marks[span].sign for span in TREE.spans()] == ["−−", "−", "0", "+", "++"]
    assert not any(mark.text for mark in marks.values())


def test_categories_are_told_apart_by_three_letters_or_else_by_their_names():
    assert node_marks(TREE, nodes(TREE, ["news"] * 5, CATEGORIES))[0, 3] == Mark("category-3", sign="new")
    similar = ("interior", "international")
    assert node_marks(TREE, nodes(TREE, ["interior"] * 5, similar))[0, 3] == Mark("category-1", sign="interior")


def test_a_wrong_sentiment_has_both_signs():
    mark = node_marks(TREE, nodes(TREE, ["negative"] * 5, SENTIMENT, {(0, 3): "positive"}))[0, 3]
    assert mark == Mark("sentiment-2", sign="−≠+", is_wrong=True)


def test_constituents_without_labels_are_as_dark_as_they_are_probable():
    marks = node_marks(TREE, probabilities={(0, 2): 0.254})
    assert marks == {(0, 2): Mark("heat-25"), (0, 3): Mark("heat-0")}
    unlabelled = [Node(*span) for span in TREE.spans()]
    assert node_marks(TREE, unlabelled) == {(0, 2): Mark("heat-100"), (0, 3): Mark("heat-100")}


def test_titles_quote_the_text_and_cut_what_is_long():
    leaves = [f"w{position}" for position in range(30)]
    assert node_title((0, 2), ("so", "bad"), None, 0.25) == "[0, 2), probability 0.250: so bad"
    node = Node(0, 2, "5", {"5": 0.75, "4": 0.25}, expected="4")
    assert node_title((0, 2), ("so", "bad"), node) == "[0, 2), label 5 0.750, expected 4: so bad"
    assert node_title((0, 30), leaves) == f"[0, 30): {' '.join(leaves[:6])} … {' '.join(leaves[24:])}"
    assert node_title((0, 12), leaves) == f"[0, 12): {' '.join(leaves[:12])}"
