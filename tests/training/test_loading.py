"""The data of a run: the same steps for any number of devices, and errors in the data."""

from pathlib import Path

import numpy as np
import pytest
import torch

from beamtree.data.batching import Batches, Buckets, Ragged
from beamtree.models.heads import TextClassifier
from beamtree.nn.encoders import encoder
from beamtree.runs.settings import DataSettings
from beamtree.training.loading import Loader, part_of, prepare
from toy_originals import ORIGINALS, write
from training.toy_runs import toy_settings, write_data


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BEAMTREE_DATA", raising=False)


def some_batches(count: int, longest: int = 5, pairs: bool = False) -> Batches:
    draw = np.random.default_rng(0)
    texts = [draw.integers(1, 9, draw.integers(1, longest + 1)).tolist() for _ in range(2 * count)]
    second = Ragged.from_sequences(texts[count:]) if pairs else None
    return Batches(Ragged.from_sequences(texts[:count]), draw.integers(0, 3, count), second)


def loaders(batches: Batches, micro_batch: int, accumulate: int, world_size: int) -> list[Loader]:
    return [
        Loader(batches, Buckets(batches.lengths, micro_batch, seed=1), accumulate, rank, world_size)
        for rank in range(world_size)
    ]


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize(("count", "micro_batch", "accumulate"), [(12, 4, 1), (23, 4, 3), (9, 8, 2), (13, 3, 2)])
def test_the_shares_of_all_devices_add_up_to_the_gradient_of_the_whole_step(count, micro_batch, accumulate, world_size):
    batches = some_batches(count)
    torch.manual_seed(0)
    model = TextClassifier(encoder("bt-grc", dim=4, stochastic=False), 9, classes=3).double()

    def gradient(indices, weight=1.0):
        batch = batches[indices]
        model.zero_grad()
        (weight * model.loss(model.read(batch).logits, batch.labels)).backward()
        return torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in model.parameters()])

    ranks = [list(loader.epoch(0)) for loader in loaders(batches, micro_batch, accumulate, world_size)]
    seen = 0
    for begin in range(0, len(ranks[0]), accumulate):
        shares = [share for rank in ranks for share in rank[begin : begin + accumulate]]
        step = np.concatenate([share.batch.indices.numpy() for share in shares if share.count])
        # As in training: each process sums over its micro-batches, then the processes are averaged.
        found = sum(gradient(share.batch.indices.numpy(), share.weight) for share in shares) / world_size
        assert [share.ends_step for share in ranks[0][begin : begin + accumulate]][-1]
        assert sum(share.ends_step for share in ranks[0][begin : begin + accumulate]) == 1
        torch.testing.assert_close(found, gradient(step))
        seen += len(set(step.tolist()))
    assert seen == count


def test_a_device_without_a_sample_gets_one_that_does_not_count():
    shares = [list(loader.epoch(0))[-1] for loader in loaders(some_batches(5), 2, 1, 3)]
    sizes = sorted((len(share.batch), share.count, share.weight) for share in shares)
    assert all(length == 1 for length, _, _ in sizes)
    assert [count for _, count, _ in sizes] in ([0, 0, 1], [0, 1, 1])
    assert all((weight == 0) == (count == 0) for _, count, weight in sizes)


def test_an_epoch_continues_where_it_was_left():
    loader = loaders(some_batches(23), 4, 2, 1)[0]
    expected = [each.batch.indices.tolist() for each in loader.epoch(3)]
    assert [each.batch.indices.tolist() for each in loader.epoch(3, start=4)] == expected[4:]
    assert [each.batch.indices.tolist() for each in loader.epoch(4)] != expected, "another epoch has another order"


@pytest.mark.parametrize("pairs", [False, True])
def test_the_parts_of_dev_are_all_of_it(pairs):
    batches = some_batches(7, pairs=pairs)
    parts = [part_of(batches, rank, 3) for rank in range(3)]
    assert [len(part) for part in parts] == [3, 2, 2]
    for index in range(7):
        part = parts[index % 3]
        for whole, side in ((batches.tokens, part.tokens), (batches.second, part.second)):
            assert (whole is None) == (side is None)
            if whole is not None:
                np.testing.assert_array_equal(whole[index], side[index // 3])
        assert batches.labels[index] == part.labels[index // 3]
    with pytest.raises(ValueError, match="7 samples cannot be divided among 8 devices"):
        part_of(batches, 0, 8)


def test_all_splits_but_train_and_dev_are_tests(tmp_path):
    data = write_data(tmp_path / "data", {"train": 9, "dev": 3, "test": 3, "hard": 3})
    assert prepare(toy_settings(data)).tests == ("hard", "test")
    materials = prepare(toy_settings(data, data__tests=("Test",)))
    assert materials.tests == ("test",)
    assert (materials.config.labels, materials.config.pair, materials.config.closed_vocabulary) == (
        ("a", "b", "c"),
        False,
        False,
    )
    assert (len(materials.train), len(materials.dev)) == (9, 3)
    with pytest.raises(ValueError, match=r"unknown split 'harder' .did you mean 'hard'"):
        prepare(toy_settings(data, data__tests=("harder",)))


@pytest.mark.parametrize("split", ["train", "dev"])
def test_without_train_or_dev_there_is_no_training(split, tmp_path):
    data = write_data(tmp_path / "data")
    (data / f"{split}.tsv").unlink()
    with pytest.raises(ValueError, match=rf"data has no split {split}, only .*test: training needs train and dev$"):
        prepare(toy_settings(data))


def test_a_test_that_is_missing_is_told_or_refused(tmp_path):
    write(tmp_path / "originals", ORIGINALS)
    messages: list[str] = []
    settings = toy_settings(tmp_path, data=DataSettings(task="mnli", options={}, vectors=None, tests=()))
    materials = prepare(settings, [tmp_path / "originals"], notify=messages.append)
    assert "m" in materials.tests
    assert "neg-mm" not in materials.tests
    assert materials.config.pair
    assert [text for text in messages if text.startswith("the test split neg-mm is left out: ")]
    asked = toy_settings(tmp_path, data=DataSettings(task="mnli", options={}, vectors=None, tests=("neg-mm",)))
    with pytest.raises(ValueError, match=r"^the test split neg-mm is not available: .*beamtree data get nli-stress"):
        prepare(asked, [tmp_path / "originals"])


def test_words_with_vectors_are_the_vocabulary(tmp_path):
    data = write_data(tmp_path / "data")
    rows = {"b": 2.0, "a": 1.0, "elsewhere": 3.0}
    (tmp_path / "glove.6B.50d.txt").write_text("".join(f"{word}{f' {value}' * 50}\n" for word, value in rows.items()))
    materials = prepare(toy_settings(data, data__vectors="glove-6b", model__dim=50), [tmp_path])
    assert sorted(materials.vocabulary.words()[3:]) == ["a", "b"]
    assert materials.vectors is not None
    place = materials.vocabulary.ids(["b"])[0]
    assert materials.vectors[place].tolist() == [2.0] * 50
