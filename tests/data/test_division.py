"""Divide samples into splits: nothing is lost, labels are in proportion, and the order of the rows does not matter."""

import random
import re
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from math import ceil, floor

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from beamtree.data.division import Division, divide

SHARES = st.sampled_from([0, 0.05, 0.1, 0.3, 0.7, 1, 2, 5])
# Samples by label; keys may be equal, as texts may be.
LABELS = st.lists(st.sampled_from("aaaaaabbbcd"), min_size=2, max_size=80)


def keyed(labels: list[str], seed: int) -> list[str]:
    draw = random.Random(seed)
    return [f"text {draw.randrange(2 * len(labels))}" for _ in labels]


def feasible(labels: list[str], shares: Mapping[str, float | int]) -> bool:
    sizes = [share if isinstance(share, int) else max(1, round(share * len(labels))) for share in shares.values()]
    return sum(sizes) < len(labels)


def divided(labels: list[str], keys: list[str], shares: Mapping[str, float | int], seed: int) -> dict[str, list[int]]:
    assume(feasible(labels, shares))
    try:
        return divide(labels, keys, shares, seed)
    except ValueError as error:
        assume("no sample can be held out" not in str(error))
        raise


@given(LABELS, SHARES, SHARES, st.integers(0, 9))
def test_every_sample_is_in_exactly_one_split(labels: list[str], dev: float, test: float, seed: int) -> None:
    found = divided(labels, keyed(labels, seed), {"dev": dev, "test": test}, seed)
    assert list(found) == ["train", *(["dev"] if dev else []), *(["test"] if test else [])]
    assert sorted(place for places in found.values() for place in places) == list(range(len(labels)))
    assert all(places and places == sorted(places) for places in found.values())


@given(LABELS, SHARES.filter(bool), SHARES.filter(bool), st.integers(0, 9))
def test_a_label_with_three_samples_is_everywhere_and_every_label_in_train(
    labels: list[str], dev: float, test: float, seed: int
) -> None:
    found = divided(labels, keyed(labels, seed), {"dev": dev, "test": test}, seed)
    for label, count in Counter(labels).items():
        there = [split for split, places in found.items() if label in {labels[place] for place in places}]
        assert "train" in there
        assert count < 3 or there == ["train", "dev", "test"]


@given(LABELS, SHARES, SHARES, st.integers(0, 9))
def test_each_label_has_its_share_rounded(labels: list[str], dev: float, test: float, seed: int) -> None:
    shares = {"dev": dev, "test": test}
    found = divided(labels, keyed(labels, seed), shares, seed)
    for split, share in shares.items():
        size = share if isinstance(share, int) else max(1, round(share * len(labels)))
        counts = Counter(labels[place] for place in found.get(split, []))
        for label, total in Counter(labels).items():
            exact = Fraction(total * size, len(labels))
            assert counts[label] <= max(ceil(exact), 1), "rounded up at most, or the one that every split has"
            # One less if the label would otherwise be missing in another split.
            assert counts[label] >= floor(exact) - (total <= 3 or dev + test > 0.5)


@given(LABELS, SHARES, SHARES, st.integers(0, 9), st.randoms())
def test_the_order_of_the_rows_does_not_matter(
    labels: list[str], dev: float, test: float, seed: int, shuffled: random.Random
) -> None:
    keys = keyed(labels, seed)
    order = sorted(range(len(labels)), key=lambda _: shuffled.random())
    first = divided(labels, keys, {"dev": dev, "test": test}, seed)
    again = divide(
        [labels[place] for place in order], [keys[place] for place in order], {"dev": dev, "test": test}, seed
    )
    for split, places in first.items():
        rows = Counter((labels[place], keys[place]) for place in places)
        assert rows == Counter((labels[order[place]], keys[order[place]]) for place in again[split])


def rows(count: int = 1000) -> tuple[list[str], list[str]]:
    return [f"label {number % 5 if number % 2 else 0}" for number in range(count)], [f"text {n}" for n in range(count)]


def test_sizes_are_exact_where_labels_are_frequent() -> None:
    labels, keys = rows()
    sizes = {split: len(places) for split, places in divide(labels, keys, {"dev": 0.1, "test": 0.1}, 0).items()}
    assert sizes == {"train": 800, "dev": 100, "test": 100}
    sizes = {split: len(places) for split, places in divide(labels, keys, {"dev": 77, "test": 0.123}, 0).items()}
    assert sizes == {"train": 800, "dev": 77, "test": 123}


def test_the_same_seed_draws_the_same_samples_on_any_machine() -> None:
    labels, keys = ["x"] * 6 + ["y"] * 6, [f"text {number}" for number in range(12)]
    expected = {"train": [0, 1, 2, 5, 8, 9, 10, 11], "dev": [3, 6], "test": [4, 7]}
    assert divide(labels, keys, {"dev": 0.2, "test": 0.2}, 3) == expected
    assert divide(labels, keys, {"dev": 0.2, "test": 0.2}, 4) != expected


def test_the_test_split_does_not_depend_on_the_size_of_dev() -> None:
    labels, keys = rows()
    assert divide(labels, keys, {"dev": 0.3, "test": 0.1}, 0)["test"] == divide(labels, keys, {"test": 0.1}, 0)["test"]


def test_a_row_that_is_added_leaves_the_others_where_they_are() -> None:
    labels, keys = rows()
    before = divide(labels, keys, {"dev": 0.1, "test": 0.1}, 0)
    after = divide(["label 1", *labels], ["new", *keys], {"dev": 0.1, "test": 0.1}, 0)
    moved = sum(len({place + 1 for place in before[split]} - set(after[split])) for split in before)
    assert moved <= 2


def test_equal_texts_stay_together() -> None:
    """Therefore few texts are both in train and in test: only those at the border between two splits."""
    keys = [f"text {number // 10}" for number in range(1000)]
    found = divide(["x"] * 1000, keys, {"dev": 0.1, "test": 0.1}, 0)
    texts = {split: {keys[place] for place in places} for split, places in found.items()}
    assert len(texts["train"] & texts["test"]) + len(texts["train"] & texts["dev"]) <= 2


@pytest.mark.parametrize(
    ("count", "shares", "complaint"),
    [
        (10, {"dev": 0.6, "test": 0.5}, "10 samples cannot be divided into dev 6 and test 5: none would be left for"),
        (
            2,
            {"dev": 0.1, "test": 0.1},
            "2 samples cannot be divided into dev 1 and test 1: none would be left for train",
        ),
        (10, {"dev": 10}, "10 samples cannot be divided into dev 10: none would be left for train"),
        (10, {"dev": -0.1}, "dev is -0.1: it must be a fraction below 1, such as 0.1, or a number of samples"),
        (10, {"dev": -1}, "dev is -1: it must be a fraction below 1"),
        (10, {"test": 1.0}, "test is 1.0: it must be a fraction below 1"),
        (10, {"test": 2.5}, "test is 2.5: it must be a fraction below 1"),
        (10, {"test": float("nan")}, "test is nan: it must be a fraction below 1"),
    ],
)
def test_shares_that_leave_nothing_are_refused(count: int, shares: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}"):
        divide(["x"] * count, [str(number) for number in range(count)], shares, 0)


def test_labels_that_occur_once_take_nothing_from_the_others() -> None:
    """A split becomes smaller rather than over-representing another label."""
    found = divide([*"aaaaaaaaaa", *"bcdef"], [str(number) for number in range(15)], {"dev": 3}, 0)
    assert (len(found["dev"]), max(found["dev"]) < 10) == (2, True)


def test_a_rare_label_is_everywhere_even_if_the_shares_are_large() -> None:
    labels = ["x"] * 97 + ["y"] * 3
    found = divide(labels, [str(number) for number in range(100)], {"dev": 0.8, "test": 0.15}, 0)
    assert [sum(labels[place] == "y" for place in places) for places in found.values()] == [1, 1, 1]


def test_labels_that_occur_once_cannot_be_held_out() -> None:
    with pytest.raises(
        ValueError, match=r"^no sample can be held out for dev: every label must keep one sample in train$"
    ):
        divide(list("abcdef"), list("uvwxyz"), {"dev": 2}, 0)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seed is -1: it must be an integer of at least 0"):
        divide(["x"] * 9, ["y"] * 9, {"dev": 1}, -1)


def test_a_division_is_described_with_the_labels_that_a_split_lacks() -> None:
    counts = {
        "train": {"a": 800, "b": 1, "c": 1},
        "dev": {"a": 100, "b": 1, "c": 0},
        "test": {"a": 100, "b": 0, "c": 0},
    }
    assert Division("reviews.tsv", ("train", "dev", "test"), 7).describe(counts) == [
        "reviews.tsv: 1,003 samples divided by label with seed 7: train 802, dev 101, test 100",
        "reviews.tsv: 1 label has too few samples to be in dev: 'c'",
        "reviews.tsv: 2 labels have too few samples to be in test: 'b', 'c'",
    ]
