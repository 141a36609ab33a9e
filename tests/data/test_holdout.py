"""Holding out: nothing is lost, the share is right, and a seed means the same everywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beamtree.data import holdout
from beamtree.data.samples import Sample


def numbered(count: int) -> list[Sample]:
    return [Sample((str(number),), "x") for number in range(count)]


@given(st.integers(2, 300), st.integers(1, 40), st.integers(0, 5))
def test_every_sample_is_in_one_part_and_keeps_its_order(size: int, count: int, seed: int) -> None:
    train, dev = ([int(sample.tokens[0]) for sample in part] for part in holdout.at_random(numbered(size), count, seed))
    assert sorted(train + dev) == list(range(size))
    assert (train, dev) == (sorted(train), sorted(dev))
    assert len(dev) == (count if size >= 10 * count else max(1, size // 10))


def test_every_sample_is_held_out_equally_often() -> None:
    held = [0] * 40
    for seed in range(2000):
        for sample in holdout.at_random(numbered(40), 4, seed)[1]:
            held[int(sample.tokens[0])] += 1
    # Each count is binomial with mean 200 and a standard deviation of 13.4: five of them are allowed.
    assert sum(held) == 8000
    assert all(abs(count - 200) < 68 for count in held)


def test_a_seed_draws_the_same_on_any_machine() -> None:
    dev = [sample.tokens[0] for sample in holdout.at_random(numbered(1000), 5, 101)[1]]
    assert dev == ["195", "469", "581", "924", "965"]
    assert dev != [sample.tokens[0] for sample in holdout.at_random(numbered(1000), 5, 102)[1]]


@pytest.mark.parametrize("size", [0, 1])
def test_too_few_samples_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"{size} samples cannot be divided"):
        holdout.at_random(numbered(size), 10, 0)


@pytest.mark.usefixtures("shape_checks_off")
@pytest.mark.parametrize("option", [{"count": 0}, {"count": 2.5}, {"seed": -1}])
def test_a_wrong_option_is_named(option: dict[str, float]) -> None:
    [name] = option
    with pytest.raises(ValueError, match=f"{name} is {option[name]}: it must be an integer"):
        holdout.at_random(numbered(5), **{"count": 1, "seed": 0, **option})
