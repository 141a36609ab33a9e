"""Our stress tests: a tautology in one side; the other side and the label are unchanged."""

from collections.abc import Callable, Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beamtree.data.samples import Sample
from beamtree.data.tasks import stress
from beamtree.trees import Tree

SIDES = st.lists(st.sampled_from(["it", "rains", ".", "!", "?"]), min_size=1).map(tuple)


def only(samples: Iterator[Sample]) -> Sample:
    [sample] = samples
    return sample


@given(SIDES, st.sampled_from(["entailment", "neutral", "contradiction"]), SIDES)
def test_taking_the_tautology_out_gives_the_pair_back(
    premise: tuple[str, ...], label: str, hypothesis: tuple[str, ...]
) -> None:
    pair = Sample(premise, label, hypothesis)
    longer = only(stress.length([pair]))
    text = " ".join(longer.tokens)
    assert text.count("and true is true") == 5
    assert tuple(text.replace("and true is true", "").split()) == premise
    assert (longer.label, longer.second) == (label, hypothesis)
    negated = only(stress.negation([pair]))
    assert negated.second is not None
    text = " ".join(negated.second)
    assert text.count("and false is not true") == 1
    assert tuple(text.replace("and false is not true", "").split()) == hypothesis
    assert (negated.label, negated.tokens) == (label, premise)


def test_the_tautology_stands_before_the_mark_that_ends_the_sentence() -> None:
    pair = Sample(("it", "rains", "."), "neutral", ("does", "it", "?", "!"))
    assert only(stress.length([pair])).tokens == ("it", "rains", *["and", "true", "is", "true"] * 5, ".")
    negated = only(stress.negation([pair]))
    assert negated.second == ("does", "it", "and", "false", "is", "not", "true", "?", "!")


def test_a_side_of_one_word_or_of_one_mark_begins_as_it_did() -> None:
    pair = Sample(("?",), "neutral", ("wet", "!"))
    assert only(stress.length([pair])).tokens == ("?", *["and", "true", "is", "true"] * 5)
    assert only(stress.negation([pair])).second == ("wet", "and", "false", "is", "not", "true", "!")


def test_a_side_without_a_mark_gets_it_at_its_end_and_keeps_all_its_sentences() -> None:
    pair = Sample(("it", "rains", ".", "so", "what"), "neutral", ("wet",))
    assert only(stress.length([pair])).tokens[:6] == ("it", "rains", ".", "so", "what", "and")
    assert only(stress.negation([pair])).second == ("wet", "and", "false", "is", "not", "true")


def test_a_gold_tree_of_the_premise_does_not_outlive_the_premise() -> None:
    pair = Sample(("it", "rains"), "neutral", ("wet",), tree=Tree.parse("(it rains)"))
    assert only(stress.length([pair])).tree is None
    assert only(stress.negation([pair])).tree == pair.tree


@pytest.mark.parametrize("make", [stress.length, stress.negation])
def test_a_single_text_is_refused(make: Callable[[Iterable[Sample]], Iterator[Sample]]) -> None:
    with pytest.raises(ValueError, match="sample 2 is a single text: stress tests need pairs"):
        list(make([Sample(("a",), "neutral", ("b",)), Sample(("a",), "neutral")]))
