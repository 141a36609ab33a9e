"""Batches by length: every sample once, within the limits, and the same for the same seed."""

import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from beamtree.data.batching import Batch, Batches, Buckets, Ragged, collate

LENGTHS = st.lists(st.integers(1, 40), min_size=4, max_size=60)
LIMITS = st.fixed_dictionaries(
    {
        "max_samples": st.integers(1, 9),
        "max_tokens_squared": st.none() | st.integers(1, 4000),
        "bucket_factor": st.integers(1, 4),
        "shuffle": st.booleans(),
        "seed": st.integers(0, 5),
    }
)


def skewed(count, seed=0, longest=1000):
    """Lengths as in ListOps: half of them below 16, and a long tail."""
    draws = np.random.default_rng(seed).lognormal(np.log(16), 1.3, count)
    return np.clip(draws.astype(int), 1, longest)


def ranks(lengths, world_size, epoch=0, **options):
    """The batches of each rank as lists."""
    samplers = [Buckets(lengths, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    assert [len(sampler) for sampler in samplers] == [len(list(sampler)) for sampler in samplers]
    return [[batch.tolist() for batch in sampler] for sampler in samplers]


def batches_of(lengths, **options):
    return ranks(lengths, 1, **options)[0]


def samples(shares):
    return sorted(index for share in shares for batch in share for index in batch)


def within_limits(batch, lengths, max_samples, max_tokens_squared=None, **_):
    cost = len(batch) * max(lengths[i] for i in batch) ** 2
    return len(batch) <= max_samples and (len(batch) == 1 or max_tokens_squared is None or cost <= max_tokens_squared)


def padded_tokens(batches, lengths):
    return sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)


def store(lengths, seed=0, dtype=np.int32):
    """Random ids, none of which is the padding's 0."""
    rng = np.random.default_rng(seed)
    return Ragged.from_sequences([rng.integers(1, 100, n).tolist() for n in lengths], dtype)


def assert_equal(a, b):
    for name in ("tokens", "lengths", "labels", "indices", "second_tokens", "second_lengths"):
        left, right = getattr(a, name), getattr(b, name)
        assert (left is None) == (right is None), name
        assert left is None or torch.equal(left, right), name


@given(LENGTHS, LIMITS, st.integers(1, 4), st.integers(0, 3))
@settings(max_examples=300)
def test_every_sample_once_an_epoch_and_ranks_in_step(lengths, limits, world_size, epoch):
    shares = ranks(lengths, world_size, epoch, **limits)
    assert samples(shares) == list(range(len(lengths)))
    assert len({len(share) for share in shares}) == 1
    assert all(batch for share in shares for batch in share)


@given(LENGTHS, LIMITS, st.integers(1, 4))
@settings(max_examples=300)
def test_limits_hold_unless_too_few_samples_remain_to_split(lengths, limits, world_size):
    alone = len(batches_of(lengths, **limits))
    shares = ranks(lengths, world_size, **limits)
    over = [batch for share in shares for batch in share if not within_limits(batch, lengths, **limits)]
    possible = -(-alone // world_size) * world_size <= len(lengths)
    assert len(over) == 0 if possible else len(over) < world_size


@given(LENGTHS, LIMITS)
@settings(max_examples=200)
def test_batches_are_greedy_cuts_of_sorted_buckets(lengths, limits):
    """Compared with an implementation with lists."""
    limits = limits | {"shuffle": False}
    expected, size = [], limits["bucket_factor"] * limits["max_samples"]
    for begin in range(0, len(lengths), size):
        bucket = sorted(range(begin, min(begin + size, len(lengths))), key=lambda i: lengths[i])
        batch = []
        for index in bucket:
            if batch and not within_limits([*batch, index], lengths, **limits):
                expected.append(batch)
                batch = []
            batch = [*batch, index]
        expected.append(batch)
    assert batches_of(lengths, **limits) == expected


def test_shuffling_moves_samples_between_buckets_and_batches_between_places():
    lengths = skewed(400)
    batches = batches_of(lengths, max_samples=8, bucket_factor=5)
    assert any(max(batch) - min(batch) >= 2 * 40 for batch in batches)  # of one bucket, but far apart in the data
    longest = [max(lengths[batch]) for batch in batches]
    assert any(a > b for i in range(0, 50, 5) for a, b in zip(longest[i : i + 4], longest[i + 1 : i + 5], strict=True))


def test_seed_and_epoch_decide_everything():
    lengths = skewed(300)

    def run(seed, epoch):
        np.random.seed(np.random.default_rng().integers(2**31))  # global random state has no effect
        torch.rand(1)
        return batches_of(lengths, max_samples=8, max_tokens_squared=20_000, seed=seed, epoch=epoch)

    assert run(0, 0) == run(0, 0)
    assert run(3, 7) == run(3, 7)
    different = [run(0, 0), run(0, 1), run(1, 0), run(1, 1)]
    sets = [{frozenset(batch) for batch in batches} for batches in different]
    for i in range(4):
        for j in range(i):
            assert len(sets[i] & sets[j]) < 0.5 * len(sets[i])  # not merely the same batches in another order


def test_an_epoch_can_be_gone_through_again():
    sampler = Buckets(skewed(100), max_samples=8)
    sampler.set_epoch(2)
    first = [batch.tolist() for batch in sampler]
    sampler.set_epoch(3)
    assert [batch.tolist() for batch in sampler] != first
    sampler.set_epoch(2)
    assert [batch.tolist() for batch in sampler] == first == [batch.tolist() for batch in sampler]


def test_length_is_exact_in_every_epoch():
    sampler = Buckets(skewed(500), max_samples=16, max_tokens_squared=10_000)
    counts = []
    for epoch in range(6):
        sampler.set_epoch(epoch)
        counts.append(len(sampler))
        assert counts[-1] == len(list(sampler))
    assert len(set(counts)) > 1  # otherwise this would test little


def test_without_shuffling_every_epoch_is_the_same():
    lengths = skewed(100)
    assert batches_of(lengths, max_samples=8, shuffle=False) == batches_of(
        lengths, max_samples=8, shuffle=False, seed=1, epoch=1
    )


def test_splitting_changes_only_what_it_must():
    shares = ranks([3] * 10, 4, max_samples=4, shuffle=False)  # batches of 4, 4 and 2 for four ranks
    assert shares == [[[0, 1]], [[2, 3]], [[4, 5, 6, 7]], [[8, 9]]]


def test_the_shortest_are_joined_where_nothing_can_be_split():
    lengths = [9, 2, 2, 9, 5]
    shares = ranks(lengths, 2, max_samples=1)
    assert samples(shares) == list(range(5))
    assert sorted(len(batch) for share in shares for batch in share) == [1, 1, 1, 2]
    in_one_bucket = ranks(lengths, 2, max_samples=9, max_tokens_squared=1, shuffle=False)
    assert in_one_bucket == [[[1, 2], [0]], [[4], [3]]]
    in_five = ranks([9, 2, 5, 5, 8], 2, max_samples=1, bucket_factor=1, shuffle=False)
    assert in_five == [[[0], [3]], [[1, 2], [4]]]


def test_an_over_long_sample_is_a_batch_of_its_own():
    lengths = [2, 50, 2, 2]  # 12 is just enough for the short ones
    assert batches_of(lengths, max_samples=4, max_tokens_squared=12, shuffle=False) == [[0, 2, 3], [1]]
    assert batches_of(lengths, max_samples=4, max_tokens_squared=11, shuffle=False) == [[0, 2], [3], [1]]


def test_long_samples_make_small_batches():
    lengths = skewed(2000)
    batches = batches_of(lengths, max_samples=64, max_tokens_squared=64 * 32**2)
    sizes = np.array([len(batch) for batch in batches])
    longest = np.array([lengths[batch].max() for batch in batches])
    assert sizes[longest > 256].max() == 1
    assert sizes[longest <= 32].mean() > 32


@given(LENGTHS, LIMITS, st.integers(1, 4), st.integers(0, 3))
def test_drop_last_leaves_out_less_than_one_batch_a_rank(lengths, limits, world_size, epoch):
    limits = limits | {"max_samples": min(limits["max_samples"], len(lengths) // world_size)}
    shares = ranks(lengths, world_size, epoch, drop_last=True, **limits)
    kept = samples(shares)
    full = limits["max_samples"] * world_size
    assert len(kept) == len(set(kept)) == len(lengths) // full * full
    assert len({len(share) for share in shares}) == 1
    if limits["max_tokens_squared"] is None:
        assert {len(batch) for share in shares for batch in share} == {limits["max_samples"]}


def test_drop_last_drops_others_each_epoch():
    dropped = [
        set(range(17)) - set(samples([batches_of([5] * 17, max_samples=8, drop_last=True, epoch=epoch)]))
        for epoch in range(20)
    ]
    assert len(set.union(*dropped)) > 1


@pytest.mark.parametrize("world_size", [1, 3])
def test_little_is_padded(world_size):
    """Sorting all samples at once would need the least padding. Buckets of 50 batches come close, even those of 5."""
    lengths = skewed(20_000, longest=100)

    def padding(**options):
        batches = [batch for share in ranks(lengths, world_size, max_samples=64, **options) for batch in share]
        return padded_tokens(batches, lengths) / lengths.sum()

    best = padding(bucket_factor=1000, shuffle=False)
    assert best < 1.01
    assert padding(bucket_factor=50) < 1.05 * best
    assert padding(bucket_factor=5) < 1.5 * best
    assert padding(bucket_factor=1) > 3 * best  # the padding that buckets save


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    data=st.data(),
    pad=st.sampled_from([0, 7, -1]),
    dtype=st.sampled_from([np.uint8, np.uint16, np.int32, np.int64]),
    pairs=st.booleans(),
    mapped=st.booleans(),
)
def test_a_batch_is_what_a_loop_would_pad(lengths, data, pad, dtype, pairs, mapped):
    def on_disk(ragged):
        if not mapped:
            return ragged
        with tempfile.TemporaryDirectory() as folder:
            arrays = []
            for name in ("flat", "offsets"):
                np.save(Path(folder) / name, getattr(ragged, name).astype(np.uint64 if name == "offsets" else dtype))
                arrays.append(np.load(Path(folder) / f"{name}.npy", mmap_mode="r"))
            return Ragged(*arrays)

    first = on_disk(store(lengths, dtype=dtype))
    second = on_disk(store(lengths[::-1], seed=1, dtype=dtype)) if pairs else None
    labels = np.arange(len(lengths), dtype=np.int8)
    indices = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=8))
    batch = collate(first, indices, pad, labels=labels, second=second)

    sides = [side for side in (first, second) if side is not None]
    width = max(len(side[i]) for side in sides for i in indices)
    loop = [[side[i].tolist() + [pad] * (width - len(side[i])) for i in indices] for side in sides]
    assert batch.tokens.dtype == batch.lengths.dtype == batch.labels.dtype == batch.indices.dtype == torch.int64
    assert batch.tokens.tolist() == loop[0]
    assert batch.lengths.tolist() == [len(first[i]) for i in indices]
    assert batch.labels.tolist() == batch.indices.tolist() == indices
    assert len(batch) == len(indices)
    if pairs:
        assert batch.second_tokens.tolist() == loop[1]
        assert batch.second_lengths.tolist() == [len(second[i]) for i in indices]
        assert batch.second_tokens.shape == batch.tokens.shape
    else:
        assert batch.second_tokens is None
        assert batch.second_lengths is None


@given(st.lists(st.lists(st.integers(0, 255), max_size=5), max_size=8), st.sampled_from([np.uint8, np.int32]))
def test_a_store_gives_back_its_sequences(sequences, dtype):
    ragged = Ragged.from_sequences(sequences, dtype)
    assert [row.tolist() for row in ragged] == sequences
    assert [ragged[i - len(ragged)].tolist() for i in range(len(ragged))] == sequences
    assert ragged.lengths.tolist() == [len(row) for row in sequences]
    assert ragged.flat.dtype == dtype


def test_changing_a_batch_changes_neither_data_nor_sampler():
    ragged, sampler = store([3, 3, 3]), Buckets([3, 3, 3], max_samples=3)
    flat, labels, before = ragged.flat.copy(), np.arange(3), [batch.tolist() for batch in sampler]
    batch = Batches(ragged, labels)[next(iter(sampler))]
    for tensor in (batch.tokens, batch.lengths, batch.labels, batch.indices):
        tensor.fill_(9)
    assert (ragged.flat == flat).all()
    assert ragged.lengths.tolist() == [3, 3, 3]
    assert labels.tolist() == [0, 1, 2]
    assert [batch.tolist() for batch in sampler] == before


def test_lengths_of_pairs_count_both_sides_and_a_separator():
    assert Batches(store([2, 5])).lengths.tolist() == [2, 5]
    assert Batches(store([2, 5]), second=store([1, 4])).lengths.tolist() == [4, 10]


TENSORS = {"tokens", "lengths", "labels", "indices", "second_tokens", "second_lengths"}


@pytest.mark.parametrize("pairs", [False, True])
def test_a_batch_moves_as_a_whole(pairs):
    batch = collate(store([2, 3]), [0, 1], labels=np.arange(2), second=store([4, 1]) if pairs else None).to("meta")
    present = {name for name in TENSORS if getattr(batch, name) is not None}
    assert present == (TENSORS if pairs else TENSORS - {"second_tokens", "second_lengths"})
    assert all(getattr(batch, name).is_meta for name in present)


def test_pinning_pins_every_tensor(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: -tensor)  # the real one needs an accelerator
    batch = collate(store([2, 3]), [1, 0], labels=np.arange(2), second=store([4, 1]))
    pinned = batch.pin_memory()
    assert all(torch.equal(getattr(pinned, name), -getattr(batch, name)) for name in TENSORS)


@pytest.mark.gpu
def test_a_loader_pins_batches():
    batches = Batches(store([2, 3]), np.arange(2), second=store([4, 1]))
    (batch,) = DataLoader(batches, batch_size=None, sampler=Buckets(batches.lengths, 2), pin_memory=True)
    assert isinstance(batch, Batch)
    assert all(getattr(batch, name).is_pinned() for name in TENSORS)


# Newer versions of Python warn about fork, and torch about more workers than cores: neither matters here.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("pairs", [False, True])
def test_the_number_of_workers_changes_nothing(pairs):
    lengths = skewed(120, longest=60)
    batches = Batches(store(lengths), np.arange(120) % 10, store(lengths[::-1], seed=1) if pairs else None)

    def epochs(workers):
        sampler = Buckets(batches.lengths, max_samples=8, max_tokens_squared=20_000, seed=3)
        loader = DataLoader(batches, batch_size=None, sampler=sampler, num_workers=workers)
        found = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            found.append(list(loader))
            assert len(found[-1]) == len(loader) == len(sampler)
        return found

    alone = epochs(0)
    for epoch, found in enumerate(alone):
        expected = batches_of(batches.lengths, max_samples=8, max_tokens_squared=20_000, seed=3, epoch=epoch)
        assert [batch.indices.tolist() for batch in found] == expected
    for workers in (1, 2):
        for found, expected in zip(epochs(workers), alone, strict=True):
            assert len(found) == len(expected)
            for a, b in zip(found, expected, strict=True):
                assert_equal(a, b)


TWO = Ragged(np.arange(4), np.array([0, 1, 4]))
MISTAKES = [
    (lambda: Buckets([], 1), "lengths is empty: there are no samples to batch"),
    (lambda: Buckets([3, 0], 1), "lengths[1] is 0: every sample needs at least one token"),
    (lambda: Buckets([1.5], 1), "lengths is float64 of shape (1,): it must be a 1-D array of integers"),
    (lambda: Buckets([[1]], 1), "lengths is int64 of shape (1, 1): it must be a 1-D array of integers"),
    (lambda: Buckets([1], 0), "max_samples is 0: it must be an integer of at least 1"),
    (lambda: Buckets([1], 1, 0), "max_tokens_squared is 0: it must be an integer of at least 1"),
    (lambda: Buckets([1], 1, bucket_factor=0), "bucket_factor is 0: it must be an integer of at least 1"),
    (lambda: Buckets([1], 1, shuffle=1), "shuffle is 1: it must be True or False"),
    (lambda: Buckets([1], 1, drop_last=0), "drop_last is 0: it must be True or False"),
    (lambda: Buckets([1], 1, seed=-1), "seed is -1: it must be an integer of at least 0"),
    (lambda: Buckets([1], 1, world_size=0), "world_size is 0: it must be an integer of at least 1"),
    (lambda: Buckets([1], 1, rank=-1), "rank is -1: it must be an integer of at least 0"),
    (lambda: Buckets([1], 1, rank=1), "rank is 1: it must be less than world_size, which is 1"),
    (lambda: Buckets([1], 1).set_epoch(-1), "epoch is -1: it must be an integer of at least 0"),
    (
        lambda: Buckets([1, 2, 3], 1, world_size=4),
        "3 samples for world_size 4: every rank needs at least one sample",
    ),
    (
        lambda: Buckets([1] * 15, 8, world_size=2, drop_last=True),
        "drop_last would drop all 15 samples, fewer than max_samples × world_size = 16: "
        "use smaller batches, or drop_last=False",
    ),
    (
        lambda: Ragged(np.arange(3.0), np.array([0, 3])),
        "flat is float64 of shape (3,): it must be a 1-D array of integers",
    ),
    (
        lambda: Ragged(np.arange(3), np.array([])),
        "offsets is float64 of shape (0,): it must be a 1-D array of integers",
    ),
    (lambda: Ragged(np.arange(3), np.array([0, 2])), "offsets must run from 0 to 3, the length of flat"),
    (lambda: Ragged(np.arange(3), np.array([1, 3])), "offsets must run from 0 to 3, the length of flat"),
    (
        lambda: Ragged(np.arange(3), np.array([0, 2, 1, 3], dtype=np.uint32)),
        "sample 1 ends before it begins: offsets must not decrease",
    ),
    (lambda: Batches(TWO, second=store([1])), "second has 1 samples and tokens has 2: they must be equal"),
    (lambda: Batches(store([1, 0])), "sample 1 of tokens is empty: it must have at least one token"),
    (lambda: Batches(TWO, second=store([0, 1])), "sample 0 of second is empty: it must have at least one token"),
    (
        lambda: Batches(TWO, np.arange(3)),
        "labels is int64 of shape (3,): it must be 2 integers, one for each sample",
    ),
    (
        lambda: Batches(TWO, [0.5, 1.0]),
        "labels is float64 of shape (2,): it must be 2 integers, one for each sample",
    ),
    (lambda: collate(TWO, []), "indices is []: it must be a non-empty list or array of sample indices"),
    (lambda: collate(TWO, 1), "indices is 1: it must be a non-empty list or array of sample indices"),
]


@pytest.mark.usefixtures("shape_checks_off")
@pytest.mark.parametrize(("mistake", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_mistakes_are_explained(mistake, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        mistake()


@pytest.mark.parametrize("wrong", [-1, 2])
def test_samples_that_do_not_exist(wrong):
    with pytest.raises(IndexError, match=f"^sample {wrong} of 2: indices must be between 0 and 1$"):
        collate(TWO, [0, wrong])


@pytest.mark.parametrize("wrong", [-3, 2])
def test_sequences_that_do_not_exist(wrong):
    with pytest.raises(IndexError, match=f"^index {wrong} is out of range for 2 samples$"):
        TWO[wrong]
