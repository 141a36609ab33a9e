"""SST: trees with a label at every node, read as sentences or as all their phrases, and the real counts."""

import re
from collections import Counter
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import real_files
from beamtree.data.samples import Sample
from beamtree.data.tasks import sst
from beamtree.trees import Tree

# A node is (label, word) or (label, left, right).
Node = tuple[str, str] | tuple[str, "Node", "Node"]
DIGITS = st.sampled_from("01234")
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"], exclude_characters="()\\"), min_size=1)
NODES: st.SearchStrategy[Node] = st.recursive(
    st.tuples(DIGITS, WORDS), lambda nodes: st.tuples(DIGITS, nodes, nodes), max_leaves=12
)

# Run-time type checks make reading several times slower, and there are no shapes to check here.
FULL_SPEED = pytest.mark.usefixtures("shape_checks_off")


def written(node: Node) -> str:
    label, *rest = node
    return f"({label} {' '.join(part if isinstance(part, str) else written(part) for part in rest)})"


def bracketed(node: Node) -> str:
    """The tree without labels, as `Tree.parse` takes it."""
    _, *rest = node
    return rest[0] if isinstance(rest[0], str) else f"({bracketed(rest[0])} {bracketed(rest[1])})"


def below(node: Node) -> list[Node]:
    """The node and all nodes below it, each before its children."""
    _, *rest = node
    return [node] if isinstance(rest[0], str) else [node, *below(rest[0]), *below(rest[1])]


def samples_of(nodes: list[Node]) -> list[Sample]:
    trees = [Tree.parse(bracketed(node)) for node in nodes]
    return [Sample(tree.leaves, sst.LABELS_5[int(node[0])], tree=tree) for node, tree in zip(nodes, trees, strict=True)]


def labels_of(node: Node, start: int = 0) -> dict[tuple[int, int], str]:
    """The labels of a node and of all below it, by their tokens."""
    label, *rest = node
    tokens = len(Tree.parse(bracketed(node)))
    found = {(start, start + tokens): sst.LABELS_5[int(label)]}
    if not isinstance(rest[0], str):
        left, right = rest
        found |= labels_of(left, start) | labels_of(right, start + len(Tree.parse(bracketed(left))))
    return found


@given(NODES)
def test_a_sentence_comes_with_its_label_its_tree_and_the_labels_of_its_phrases(node: Node) -> None:
    (sample,) = sst.read([written(node)], "dev", lower=False)
    assert sample._replace(constituents=None) == samples_of([node])[0]
    assert sample.constituents == labels_of(node)


def test_phrases_that_are_neutral_have_no_label_in_two_classes() -> None:
    (sample,) = sst.read(["(3 (2 It) (4 (4 works) (1 not)))"], "dev", classes=2)
    assert sample.constituents == {
        (0, 3): "positive",
        (1, 3): "positive",
        (1, 2): "positive",
        (2, 3): "negative",
    }


@given(NODES)
def test_the_phrases_are_all_the_nodes_with_their_own_trees(node: Node) -> None:
    assert list(sst.read([written(node)], "train", phrases=True, lower=False)) == samples_of(below(node))


@given(NODES)
def test_two_classes_are_the_five_without_neutral(node: Node) -> None:
    five = sst.read([written(node)], "train", phrases=True)
    two = sst.read([written(node)], "train", phrases=True, classes=2)
    kept = [sample for sample in five if sample.label != "neutral"]
    assert [sample._replace(label=sample.label.removeprefix("very ")) for sample in kept] == list(two)


@given(NODES, st.data())
def test_a_tree_without_one_of_its_brackets_is_refused(node: Node, data: st.DataObject) -> None:
    text = written(node)
    position = data.draw(st.sampled_from([place for place, character in enumerate(text) if character in "()"]))
    with pytest.raises(ValueError, match=r"dev, line 1: .*character"):
        list(sst.read([text[:position] + text[position + 1 :]], "dev"))


def test_words_are_lower_cased_and_their_escapes_undone() -> None:
    [sample] = sst.read([r"(3 (2 (2 -LRB-) (2 And\/Or)) (4 (3 \*\*) (2 -RRB-)))"], "dev")
    assert sample.tokens == ("(", "and/or", "**", ")")
    assert sample.tree == Tree(sample.tokens, (0, 1, 0, 2))
    [sample] = sst.read(["(3 Good)"], "dev", lower=False)
    assert sample.tokens == ("Good",)


def test_a_word_with_no_break_spaces_is_one_phrase_of_several_tokens() -> None:
    samples = list(sst.read(["(3 (2 about) (4 8\xa01\\/2\xa0hours))"], "train", phrases=True))
    assert [(sample.label, str(sample.tree)) for sample in samples] == [
        ("positive", "(about ((8 1/2) hours))"),
        ("neutral", "about"),
        ("very positive", "((8 1/2) hours)"),
    ]


def test_a_phrase_that_occurs_twice_is_there_twice() -> None:
    samples = sst.read(["(3 (2 so) (2 so))"], "train", phrases=True)
    assert [sample.tokens for sample in samples] == [("so", "so"), ("so",), ("so",)]


def test_nesting_of_any_depth_is_no_problem() -> None:
    [sample] = sst.read(["(2 (1 a) " * 5000 + "(1 a)" + ")" * 5000], "train")
    assert sample.tree is not None
    assert sample.tree.height == 5000


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("", "the line is empty"),
        ("(2 a", "unbalanced brackets: the '(' at character 0 is never closed"),
        ("(2 (2 a) (3 b)", "unbalanced brackets: the '(' at character 0 is never closed"),
        ("(2 a))", "unbalanced brackets: the ')' at character 5 closes no '('"),
        (")", "unbalanced brackets: the ')' at character 0 closes no '('"),
        ("(5 a)", "the label at character 1 is '5': it must be 0, 1, 2, 3 or 4"),
        ("(2 (12 a) (3 b))", "the label at character 4 is '12': it must be 0, 1, 2, 3 or 4"),
        ("((2 a) (2 b))", "the label at character 1 is '': it must be 0, 1, 2, 3 or 4"),
        ("(2 (3 a))", "the node from character 0 to 8 must have one word or two nodes"),
        ("(2 (1 a) (1 b) (1 c))", "the node from character 0 to 20 must have one word or two nodes"),
        ("(2)", "the node from character 0 to 2 must have one word or two nodes"),
        ("(3 (2 a b) (2 c))", "the node from character 3 must have one word or two nodes"),
        ("(2 (3 a) b)", "the text at character 9 is not a node"),
        ("good film", "the text at character 0 is not a node"),
        ("(2 a) (3 b)", "the tree is complete before character 6: there must be one tree per line"),
        ("(2 \xa0)", "the word at character 3 is blank"),
    ],
)
def test_a_bad_line_is_refused_with_its_place(line: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"dev.txt, line 2: {complaint}")):
        list(sst.read(["(2 fine)", line], "dev.txt"))


def test_an_empty_file_is_refused() -> None:
    with pytest.raises(ValueError, match=r"dev\.txt, line 1: the file is empty: each line should be a tree"):
        list(sst.read([], "dev.txt"))


@pytest.mark.usefixtures("shape_checks_off")
def test_a_wrong_option_is_named() -> None:
    with pytest.raises(ValueError, match="classes is 3: it must be 5, for SST-5, or 2, for SST-2"):
        list(sst.read(["(2 fine)"], "dev", classes=3))
    with pytest.raises(ValueError, match="phrases is 'yes': it must be True or False"):
        list(sst.read(["(2 fine)"], "dev", phrases="yes"))


def count(lines: list[str], classes: Literal[5, 2], phrases: bool) -> int:
    return sum(1 for _ in sst.read(lines, "trees", classes=classes, phrases=phrases))


@FULL_SPEED
def test_the_real_files_have_the_published_counts_and_no_escapes() -> None:
    train, dev, test = real_files.lines("sst/trees.tar.xz", "train.txt", "dev.txt", "test.txt")
    sentences = [list(sst.read(lines, "trees")) for lines in (train, dev, test)]
    assert [len(part) for part in sentences] == [8544, 1101, 2210]
    assert [count(lines, 2, False) for lines in (train, dev, test)] == [6920, 872, 1821]
    phrases = Counter(sample.label for sample in sst.read(train, "train", phrases=True))
    assert [phrases[label] for label in sst.LABELS_5] == [8_245, 34_362, 219_788, 44_194, 11_993]
    assert phrases.total() == 318_582
    assert [count(lines, 5, True) for lines in (dev, test)] == [41_447, 82_600]
    tokens = {token for part in sentences for sample in part for token in sample.tokens}
    assert {"(", ")", "and/or", "***", "1/2"} <= tokens
    assert not [token for token in tokens if "\\" in token or token in ("-lrb-", "-rrb-") or token != token.lower()]
