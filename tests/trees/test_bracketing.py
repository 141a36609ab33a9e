"""Bracketings: spans that do not cross, from brackets, tokens and trees, and the binary trees that hold them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beamtree.data.tasks import listops, logic
from beamtree.trees import Bracketing, Tree
from beamtree.trees.baselines import uniform

LONG = 50_000


@given(st.integers(1, 12), st.integers(0, 99))
def test_a_binary_bracketing_is_its_tree(size: int, seed: int) -> None:
    tree = uniform(["a"] * size, seed)
    for same in (Bracketing.from_tree(tree), Bracketing.parse(str(tree))):
        assert same.binarised() == tree
        assert set(same.spans) == set(tree.spans(leaves=False))


@pytest.mark.parametrize(
    ("tokens", "gold"),
    [
        ("[MAX 2 9 [MIN 4 7 ] 0 ]", listops.gold_tree),
        ("[SM [MED [MIN 1 2 3 ] 4 ] [MAX 5 ] ]", listops.gold_tree),
        ("7", listops.gold_tree),
        ("( a ( or ( not b ) ) )", logic.gold_tree),
    ],
)
def test_the_gold_tree_of_a_formal_language_is_its_lists_binarised(tokens, gold) -> None:
    assert Bracketing.from_tokens(tokens.split()).binarised() == gold(tokens.split())


def test_a_list_is_one_span_however_long() -> None:
    assert Bracketing.from_tokens(["[MAX", "2", "9", "[MIN", "4", "7", "]", "0", "]"]).spans == ((3, 7), (0, 9))


def test_the_whole_is_always_a_span_and_leaves_and_repeats_are_none() -> None:
    assert Bracketing(("a", "b", "c"), ((0, 1), (1, 3), (1, 3))).spans == ((1, 3), (0, 3))
    assert Bracketing.parse("((a) ((b c)))").spans == ((1, 3), (0, 3))
    assert Bracketing.parse("a").spans == ()


def test_the_parts_of_a_bracket_are_joined_from_the_left() -> None:
    assert str(Bracketing.parse("(a (b c d) e)").binarised()) == "((a ((b c) d)) e)"


def test_escapes_stand_for_brackets() -> None:
    assert Bracketing.parse("(-LRB- a -RRB-)").leaves == ("(", "a", ")")


@pytest.mark.parametrize("text", ["(" * LONG + "a" + " b)" * LONG, "(a " * LONG + "b" + ")" * LONG])
def test_a_chain_of_50_000_leaves_is_no_trouble(text: str) -> None:
    bracketing = Bracketing.parse(text)
    assert len(bracketing.spans) == LONG
    assert bracketing.binarised() == Tree.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(a b", "the '(' at character 0 is never closed"),
        ("(a b) c", "complete before 'c' at character 6"),
        ("a)", "complete before ')' at character 1"),
        (")", "the ')' at character 0 closes no '('"),
        ("(a ())", "the bracket from character 3 to 4 is empty"),
        ("()", "the bracket from character 0 to 1 is empty"),
        ("", "a bracketing needs at least one leaf"),
    ],
)
def test_broken_brackets_are_told(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Bracketing.parse(text)


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        (((0, 2), (1, 3)), "span (1, 3) crosses another one, which ends at 2"),
        (((0, 5),), "span (0, 5) is out of range for 4 leaves"),
        (((2, 2),), "span (2, 2) is out of range for 4 leaves"),
        (((-1, 2),), "span (-1, 2) is out of range for 4 leaves"),
    ],
)
def test_spans_that_are_no_bracketing_are_told(spans, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Bracketing(("a", "b", "c", "d"), spans)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [("[MAX 2", "the '[MAX' at token 0 is never closed"), ("2 ]", "the ']' at token 1 closes no list")],
)
def test_unbalanced_tokens_are_told(tokens: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Bracketing.from_tokens(tokens.split())
