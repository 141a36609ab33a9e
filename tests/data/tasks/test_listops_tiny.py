"""The small task: the contents of its splits, which are disjoint and determined by the seed."""

from pathlib import Path

import pytest

from beamtree.data import Data, load
from beamtree.data.tasks.listops import depth, evaluate

# Run-time type checks make sampling ten times slower, and there are no shapes to check here.
pytestmark = pytest.mark.usefixtures("shape_checks_off")

SIZES = {"train": 30_000, "dev": 1_000, "test": 1_000, "longer": 1_000}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def data(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Data:
    monkeypatch.setenv("BEAMTREE_CACHE", str(cache))
    return load("listops-tiny")


def expressions(data: Data, split: str) -> list[str]:
    return [" ".join(sample.tokens) for sample in data[split]]


def test_every_expression_is_in_one_split_once(data: Data) -> None:
    found = {split: expressions(data, split) for split in data}
    assert {split: len(each) for split, each in found.items()} == SIZES
    assert len(set().union(*found.values())) == sum(SIZES.values())


def test_labels_are_the_values_and_all_operators_occur(data: Data) -> None:
    for split in ("dev", "test", "longer"):
        for sample in data[split]:
            assert sample.label == str(evaluate(sample.tokens))
        assert set(data[split].words) == set(data.task.words or ())
        assert min(data[split].label_counts().values()) > 50


def test_the_longer_ones_are_longer_and_deeper_than_any_other(data: Data) -> None:
    for split in ("train", "dev", "test"):
        assert data[split].lengths.max() == 14
    assert (data["longer"].lengths.min(), data["longer"].lengths.max()) == (15, 40)
    deepest = {split: max(depth(sample.tokens) for sample in data[split]) for split in ("dev", "longer")}
    assert deepest == {"dev": 3, "longer": 5}


def test_another_seed_draws_other_expressions(data: Data) -> None:
    other = load("listops-tiny", seed=1)
    for split in ("test", "longer"):
        assert expressions(other, split) != expressions(data, split)
        assert len(other[split]) == SIZES[split]
