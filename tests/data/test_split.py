"""A split: lossless conversion of samples to arrays and back, gold trees, counts, and batches for any vocabulary."""

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beamtree.data.samples import Sample
from beamtree.data.split import Split
from beamtree.data.vocabulary import Vocabulary
from beamtree.trees import Tree

LABELS = ("no", "maybe", "yes")

# All characters, including unpaired surrogates, which JSON may contain.
WORDS = st.text(st.characters(), min_size=1, max_size=3).filter(lambda word: word.split() == [word])
TEXTS = st.lists(WORDS, min_size=1, max_size=6).map(tuple)
# A text, a label, a second text, and the seed of a tree's shape.
ROWS = st.lists(st.tuples(TEXTS, st.sampled_from(LABELS), TEXTS, st.integers(0, 999)), max_size=8)

Row = tuple[tuple[str, ...], str, tuple[str, ...], int]


def shaped(tokens: tuple[str, ...], seed: int) -> Tree:
    draw = random.Random(seed).randrange
    return Tree.from_actions([draw(left) for left in range(len(tokens) - 1, 0, -1)], tokens)


def build(rows: list[Row], pairs: bool, trees: bool) -> list[Sample]:
    return [
        Sample(
            tokens,
            label,
            second if pairs else None,
            shaped(tokens, seed) if trees else None,
            shaped(second, seed + 1) if pairs and trees else None,
        )
        for tokens, label, second, seed in rows
    ]


def left_branching(tokens: Sequence[str]) -> Tree:
    return Tree.from_actions([0] * (len(tokens) - 1), tokens)


def texts(*lines: str) -> list[Sample]:
    """A sample for each line, its label the last word."""
    return [Sample(tuple(line.split()[:-1]), line.split()[-1]) for line in lines]


@given(ROWS, st.booleans(), st.booleans())
def test_samples_come_back_as_they_went_in(rows: list[Row], pairs: bool, trees: bool) -> None:
    samples = build(rows, pairs, trees)
    split = Split.from_samples(iter(samples), LABELS)
    again = Split.from_arrays(split.arrays(), LABELS)
    for made in (split, again):
        assert len(made) == len(samples)
        assert list(made) == samples
        assert made.label_names == LABELS
    assert again.words == split.words


@given(ROWS.filter(bool), st.booleans(), st.booleans())
def test_an_index_counts_from_either_end(rows: list[Row], pairs: bool, trees: bool) -> None:
    samples = build(rows, pairs, trees)
    split = Split.from_samples(samples, LABELS)
    size = len(samples)
    for index in range(-size, size):
        assert split[index] == samples[index]
        assert split.tree(index) == samples[index].tree
        assert split.second_tree(index) == samples[index].second_tree
    for index in (size, -size - 1):
        for read in (split.__getitem__, split.tree) if trees else (split.__getitem__,):
            with pytest.raises(IndexError):
                read(index)


def test_arrays_are_those_given_so_that_they_can_stay_on_the_disk() -> None:
    arrays = Split.from_samples(build([(("a", "b"), "yes", ("c",), 0)], True, True), LABELS).arrays()
    assert sorted(arrays) == [
        *("labels", "reduces", "second", "second-offsets", "second-reduces", "tokens", "tokens-offsets", "words")
    ]
    again = Split.from_arrays(arrays, LABELS)
    assert again.second is not None
    for name, array in (("tokens", again.tokens.flat), ("second", again.second.flat), ("labels", again.labels)):
        assert array is arrays[name]
    assert again.reduces is arrays["reduces"]
    assert again.second_reduces is arrays["second-reduces"]


@pytest.mark.parametrize(("count", "kind"), [(1, "uint8"), (256, "uint8"), (257, "uint16"), (70_000, "uint32")])
def test_numbers_take_the_smallest_type_that_holds_them(count: int, kind: str) -> None:
    split = Split.from_samples([Sample(tuple(map(str, range(count))), "yes")], LABELS)
    assert (split.tokens.flat.dtype, split.labels.dtype) == (np.dtype(kind), np.dtype("uint8"))
    assert split[0].tokens[-1] == str(count - 1)


def test_an_empty_split_has_nothing_and_breaks_nothing() -> None:
    split = Split.from_arrays(Split.from_samples([], LABELS).arrays(), LABELS)
    assert (len(split), list(split), split.words) == (0, [], ())
    assert (split.label_counts(), split.word_counts()) == (dict.fromkeys(LABELS, 0), Counter())
    assert (split.lengths.tolist(), split.unknown_share(Vocabulary(["a"]))) == ([], 0.0)
    with pytest.raises(IndexError):
        split[0]


def test_an_unknown_label_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown label 'yess' \(did you mean 'yes'\?\); known: no, maybe, yes"):
        Split.from_samples(texts("a no", "a yess"), LABELS)


@pytest.mark.parametrize("without_first", [True, False])
def test_all_samples_have_a_second_text_or_none(without_first: bool) -> None:
    samples = [Sample(("a",), "no"), Sample(("a",), "no", ("b",)), Sample(("a",), "no", ("c",))]
    with pytest.raises(ValueError, match="2 of 3 samples have a second text: all must have one, or none"):
        Split.from_samples(samples if without_first else samples[::-1], LABELS)


@pytest.mark.parametrize("without_first", [True, False])
def test_all_samples_have_a_gold_tree_or_none(without_first: bool) -> None:
    samples = [Sample(("a",), "no"), Sample(("a",), "no", tree=Tree.parse("a"))]
    with pytest.raises(ValueError, match="1 of 2 samples have a gold tree: all must have one, or none"):
        Split.from_samples(samples if without_first else samples[::-1], LABELS)


def test_all_second_texts_have_a_gold_tree_or_none() -> None:
    samples = [Sample(("a",), "no", ("b",)), Sample(("a",), "no", ("b",), second_tree=Tree.parse("b"))]
    with pytest.raises(
        ValueError, match="1 of 2 samples have a gold tree of the second text: all must have one, or none"
    ):
        Split.from_samples(samples, LABELS)


def test_a_rule_makes_the_gold_trees_of_both_sides_where_the_arrays_have_none() -> None:
    samples = [Sample(("a", "b", "c"), "no", ("d", "e")), Sample(("a",), "no", ("f",))]
    arrays = Split.from_samples(samples, LABELS).arrays()
    split = Split.from_arrays(arrays, LABELS, left_branching)
    assert [split.tree(0), split.tree(-1)] == [Tree.parse("((a b) c)"), Tree.parse("a")]
    assert [split.second_tree(0), split.second_tree(-1)] == [Tree.parse("(d e)"), Tree.parse("f")]
    assert split[0] == samples[0]._replace(tree=Tree.parse("((a b) c)"), second_tree=Tree.parse("(d e)"))
    without = Split.from_arrays(arrays, LABELS)
    assert (without.tree(0), without.second_tree(0)) == (None, None)
    assert Split.from_samples(texts("a b no"), LABELS, left_branching).second_tree(0) is None


def test_the_trees_of_the_arrays_go_before_the_rule() -> None:
    sample = Sample(("a", "b", "c"), "no", tree=Tree.parse("(a (b c))"))
    assert Split.from_samples([sample], LABELS, left_branching).tree(0) == sample.tree


@given(ROWS, st.booleans())
def test_counts_are_those_of_counting(rows: list[Row], pairs: bool) -> None:
    samples = build(rows, pairs, False)
    split = Split.from_samples(samples, LABELS)
    labels = Counter(sample.label for sample in samples)
    assert split.label_counts() == {label: labels[label] for label in LABELS}
    assert split.word_counts() == Counter(
        word for sample in samples for side in (sample.tokens, sample.second or ()) for word in side
    )
    lengths = [max(len(sample.tokens), len(sample.second or ())) for sample in samples]
    assert split.lengths.tolist() == lengths


def test_the_share_of_unknown_words_counts_tokens_not_words() -> None:
    split = Split.from_samples(texts("a a a b no", "c a <unk> d no"), LABELS)
    assert split.unknown_share(Vocabulary(["a", "c"])) == 3 / 8
    assert split.unknown_share(Vocabulary(["z"])) == 1


@given(ROWS.filter(bool), st.booleans(), st.sets(WORDS, max_size=5), st.data())
def test_a_batch_has_the_vocabulary_s_ids(rows: list[Row], pairs: bool, others: set[str], data: st.DataObject) -> None:
    samples = build(rows, pairs, False)
    split = Split.from_arrays(Split.from_samples(samples, LABELS).arrays(), LABELS)
    known = data.draw(st.sets(st.sampled_from(split.words)))
    vocabulary = Vocabulary(sorted(others | known))
    indices = data.draw(st.lists(st.integers(0, len(samples) - 1), min_size=1, max_size=6))
    batch = split.batches(vocabulary)[indices]
    chosen = [samples[index] for index in indices]
    assert batch.labels is not None
    assert batch.labels.tolist() == [LABELS.index(sample.label) for sample in chosen]
    sides = [(batch.tokens, batch.lengths, [sample.tokens for sample in chosen])]
    if pairs:
        assert batch.second_tokens is not None
        assert batch.second_lengths is not None
        sides.append((batch.second_tokens, batch.second_lengths, [sample.second or () for sample in chosen]))
    for tokens, lengths, expected in sides:
        for row, length, words in zip(tokens.tolist(), lengths.tolist(), expected, strict=True):
            assert row[:length] == vocabulary.ids(words)
            assert set(row[length:]) <= {vocabulary.PAD}
            assert [place == vocabulary.UNK for place in row[:length]] == [word not in vocabulary for word in words]


def test_a_closed_vocabulary_refuses_a_split_with_other_words() -> None:
    split = Split.from_samples(texts("[MAX 1 2 ] no"), LABELS)
    with pytest.raises(ValueError, match=r"unknown token '2'; known: \[MAX, \], 1"):
        split.batches(Vocabulary(["[MAX", "]", "1"], closed=True))
