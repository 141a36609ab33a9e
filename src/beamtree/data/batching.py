"""Batches of samples of similar length: compact storage of token ids, a sampler that buckets by length, and padding.

    batches = Batches(tokens, labels)
    buckets = Buckets(batches.lengths, max_samples=128, seed=0)
    loader = DataLoader(batches, batch_size=None, sampler=buckets)

The sampler alone determines the batches, and it runs in the main process, so they do not depend on the number of
workers. Workers are not needed: sending a batch between processes takes longer than padding it. Call
`buckets.set_epoch(epoch)` before each epoch.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Integer
from numpy.typing import DTypeLike
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from beamtree.trees import Tree
from beamtree.utils.checks import check_flag, check_integer


@dataclass(frozen=True, eq=False)
class Ragged:
    """Sequences of token ids, concatenated in one array: sample i is `flat[offsets[i]:offsets[i + 1]]`.

    Both arrays may be memory-mapped: a batch then reads only its own samples from disk.

    Attributes:
        flat: token ids of all samples, (T,).
        offsets: start of each sample, and the end of the last one, (S + 1,).

    Examples:
        >>> texts = beamtree.data.Ragged.from_sequences([[3, 4, 5], [6, 7]])
        >>> len(texts), texts.lengths.tolist(), texts[1].tolist()
        (2, [3, 2], [6, 7])
    """

    flat: Integer[np.ndarray, "T"]
    offsets: Integer[np.ndarray, "S_plus_1"]

    def __post_init__(self) -> None:
        for name, array in (("flat", self.flat), ("offsets", self.offsets)):
            if array.ndim != 1 or array.dtype.kind not in "iu":
                raise ValueError(f"{name} is {array.dtype} of shape {array.shape}: it must be a 1-D array of integers")
        if not len(self.offsets) or self.offsets[0] != 0 or self.offsets[-1] != len(self.flat):
            raise ValueError(f"offsets must run from 0 to {len(self.flat)}, the length of flat")
        if (self.lengths < 0).any():
            sample = int((self.lengths < 0).argmax())
            raise ValueError(f"sample {sample} ends before it begins: offsets must not decrease")

    @classmethod
    def from_sequences(cls, sequences: Iterable[Sequence[int]], dtype: DTypeLike = np.int32) -> "Ragged":
        """Create an instance from sequences of ids.

        Args:
            sequences: the ids of each sample.
            dtype: dtype of `flat`.

        Returns:
            The sequences in one array.
        """
        rows = list(sequences)
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return cls(np.fromiter(itertools.chain.from_iterable(rows), dtype, count=int(offsets[-1])), offsets)

    @cached_property
    def lengths(self) -> Int[np.ndarray, "S"]:
        """The length of each sample, (S,)."""
        return np.diff(np.asarray(self.offsets, dtype=np.int64))  # signed: unsigned differences would wrap

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Integer[np.ndarray, "N"]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} samples")
        index %= len(self)
        return self.flat[self.offsets[index] : self.offsets[index + 1]]


@dataclass(frozen=True, eq=False)
class Batch:
    """Samples padded on the right. Both sides of pairs have the same width, so they can be encoded as one batch of 2B.

    Attributes:
        tokens: token ids, (B, N).
        lengths: lengths of the texts, (B,).
        labels: indices of the labels, (B,), or None.
        indices: indices of the samples in the data, (B,).
        second_tokens: token ids of the second texts of pairs, (B, N), or None.
        second_lengths: their lengths, (B,), or None.
        trees: gold trees, if requested; for pairs, those of all first texts, then those of all second texts.

    Examples:
        >>> texts = beamtree.data.Ragged.from_sequences([[3, 4, 5], [6, 7]])
        >>> batch = beamtree.data.Batches(texts, labels=[0, 1])[[0, 1]]
        >>> batch.tokens
        tensor([[3, 4, 5],
                [6, 7, 0]])
    """

    tokens: Int[Tensor, "B N"]
    lengths: Int[Tensor, "B"]
    labels: Int[Tensor, "B"] | None
    indices: Int[Tensor, "B"]
    second_tokens: Int[Tensor, "B N"] | None = None
    second_lengths: Int[Tensor, "B"] | None = None
    trees: tuple[Tree, ...] | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> "Batch":
        """Copy the tensors to a device.

        Args:
            device: the device.
            non_blocking: as for `torch.Tensor.to`.

        Returns:
            A new batch.
        """
        return replace(self, **{name: t.to(device, non_blocking=non_blocking) for name, t in self._tensors()})

    def pin_memory(self) -> "Batch":
        """Copy the tensors to pinned memory.

        Returns:
            A new batch.
        """
        return replace(self, **{name: tensor.pin_memory() for name, tensor in self._tensors()})

    def _tensors(self) -> list[tuple[str, Any]]:
        named = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return [(name, value) for name, value in named if isinstance(value, Tensor)]


class Buckets(Sampler[np.ndarray]):
    """Sampler of batches, each an array of indices of samples of similar length.

    The samples are shuffled and divided into buckets of `bucket_factor` × `max_samples`. Each bucket is sorted by
    length and divided into batches of at most `max_samples` samples. With `max_tokens_squared`, batch size × longest²
    does not exceed that value either; a single sample that exceeds it is a batch by itself. Finally, the order of the
    batches is shuffled. For pairs, use the lengths of `Batches.lengths`.

    The batches depend only on `seed` and the epoch. They are distributed over `world_size` ranks: every sample is in
    one batch of one rank, and all ranks have the same number of batches, so collective operations stay in step. If the
    number of batches is not divisible by `world_size`, the largest are halved. If there are too few samples for that,
    because nearly every batch is a single sample, the shortest neighbours are joined instead. This is the only case in
    which a batch can exceed a limit.

    With `max_tokens_squared`, `len()` may differ between epochs.

    Args:
        lengths: length of each sample, (S,).
        max_samples: maximum number of samples in a batch.
        max_tokens_squared: maximum of batch size × longest²; None: no limit.
        bucket_factor: size of a bucket in batches.
        shuffle: whether to shuffle samples and batches.
        seed: seed of the order.
        rank: index of this process.
        world_size: number of processes that share the batches.
        drop_last: whether to drop the samples that would not fill a batch of `max_samples` on every rank; with
            `shuffle`, different ones in each epoch.

    Examples:
        >>> buckets = beamtree.data.Buckets([3, 9, 4, 8], max_samples=2, shuffle=False)
        >>> [batch.tolist() for batch in buckets]
        [[0, 2], [3, 1]]
    """

    def __init__(
        self,
        lengths: Sequence[int] | Integer[np.ndarray, "S"],
        max_samples: int,
        max_tokens_squared: int | None = None,
        bucket_factor: int = 5,
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
    ) -> None:
        check_integer("max_samples", max_samples, at_least=1)
        if max_tokens_squared is not None:
            check_integer("max_tokens_squared", max_tokens_squared, at_least=1)
        check_integer("bucket_factor", bucket_factor, at_least=1)
        check_flag("shuffle", shuffle)
        check_integer("seed", seed, at_least=0)
        check_integer("world_size", world_size, at_least=1)
        check_integer("rank", rank, at_least=0)
        check_flag("drop_last", drop_last)
        if rank >= world_size:
            raise ValueError(f"rank is {rank}: it must be less than world_size, which is {world_size}")
        self.lengths = _checked_lengths(np.asarray(lengths))
        count = len(self.lengths)
        if count < world_size:
            raise ValueError(f"{count} samples for world_size {world_size}: every rank needs at least one sample")
        if drop_last and count < max_samples * world_size:
            raise ValueError(
                f"drop_last would drop all {count} samples, fewer than max_samples × world_size = "
                f"{max_samples * world_size}: use smaller batches, or drop_last=False"
            )
        self.max_samples = max_samples
        self.max_tokens_squared = max_tokens_squared
        self.bucket_size = bucket_factor * max_samples
        self.shuffle = shuffle
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.drop_last = drop_last
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the order. Call this before each epoch.

        Args:
            epoch: index of the epoch.
        """
        check_integer("epoch", epoch, at_least=0)
        self._epoch = epoch
        self._batches: list[np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self._plan())

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(self._plan())

    def _plan(self) -> list[np.ndarray]:
        """The batches of this rank in this epoch, cached because `len()` needs them too."""
        if self._batches is None:
            rng = np.random.default_rng((self.seed, self._epoch))
            count = len(self.lengths)
            order = rng.permutation(count) if self.shuffle else np.arange(count)
            if self.drop_last:
                order = order[: count - count % (self.max_samples * self.world_size)]
            bucket = np.arange(len(order)) // self.bucket_size
            order = order[np.lexsort((self.lengths[order], bucket))]
            lengths = self.lengths[order]
            cuts = self._divisible(self._cut(lengths), lengths)
            batch_order = rng.permutation(len(cuts) - 1) if self.shuffle else np.arange(len(cuts) - 1)
            assigned = batch_order[self.rank :: self.world_size]
            begin, end = cuts[assigned].tolist(), cuts[assigned + 1].tolist()
            self._batches = [order[b:e] for b, e in zip(begin, end, strict=True)]
        return self._batches

    def _cut(self, lengths: Int[np.ndarray, "S"]) -> Int[np.ndarray, "cuts"]:
        """The boundaries of the batches: [0, …, S]."""
        budget = float("inf") if self.max_tokens_squared is None else self.max_tokens_squared
        cuts, begin = [0], 0
        # Python integers do not overflow, and the loop takes only 10 ms for 80,000 samples.
        for position, length in enumerate(lengths.tolist()):
            size = position + 1 - begin  # with this sample, the longest so far
            full = size > self.max_samples or size * length * length > budget or position % self.bucket_size == 0
            if full and size > 1:
                cuts.append(position)
                begin = position
        return np.array([*cuts, len(lengths)])

    def _divisible(self, cuts: Int[np.ndarray, "cuts"], lengths: Int[np.ndarray, "S"]) -> Int[np.ndarray, "new_cuts"]:
        """Add cuts until `world_size` divides the number of batches, or remove some if there are too few samples."""
        wanted = -(-(len(cuts) - 1) // self.world_size) * self.world_size
        if wanted > len(lengths):
            wanted = len(lengths) // self.world_size * self.world_size
        while len(cuts) - 1 < wanted:
            sizes = np.diff(cuts)
            largest = sizes.argmax()
            cuts = np.insert(cuts, largest + 1, cuts[largest] + sizes[largest] // 2)
        while len(cuts) - 1 > wanted:
            longest = np.maximum.reduceat(lengths, cuts[:-1])
            cost = (cuts[2:] - cuts[:-2]) * np.maximum(longest[1:], longest[:-1]) ** 2  # of joining two neighbours
            cuts = np.delete(cuts, cost.argmin() + 1)
        return cuts


class Batches(Dataset[Batch]):
    """Samples, or pairs of them, with labels: `batches[indices]` is the padded batch of these samples.

    Args:
        tokens: token ids of the texts.
        labels: index of the label of each sample, (S,), or None.
        second: token ids of the second texts of pairs, or None.
        pad: id of padding.
        trees: function from the index of a sample to its gold trees, one for each side; None: batches have no trees.

    Examples:
        >>> texts = beamtree.data.Ragged.from_sequences([[3, 4, 5], [6, 7]])
        >>> beamtree.data.Batches(texts, labels=[0, 1])[[1]].tokens
        tensor([[6, 7]])
    """

    def __init__(
        self,
        tokens: Ragged,
        labels: Sequence[int] | Integer[np.ndarray, "S"] | None = None,
        second: Ragged | None = None,
        pad: int = 0,
        trees: Callable[[int], tuple[Tree, ...]] | None = None,
    ) -> None:
        for name, side in (("tokens", tokens), ("second", second)):
            if side is not None and len(side) != len(tokens):
                raise ValueError(f"{name} has {len(side)} samples and tokens has {len(tokens)}: they must be equal")
            if side is not None and not side.lengths.all():
                raise ValueError(
                    f"sample {int(side.lengths.argmin())} of {name} is empty: it must have at least one token"
                )
        self.labels = None if labels is None else np.asarray(labels)
        if self.labels is not None and (self.labels.shape != (len(tokens),) or self.labels.dtype.kind not in "iu"):
            raise ValueError(
                f"labels is {self.labels.dtype} of shape {self.labels.shape}: it must be {len(tokens)} integers, "
                "one for each sample"
            )
        self.tokens, self.second, self.pad, self.trees = tokens, second, pad, trees

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def lengths(self) -> Int[np.ndarray, "S"]:
        """The lengths that `Buckets` sorts by: numbers of tokens; for pairs, of both sides and a separator."""
        return self.tokens.lengths if self.second is None else self.tokens.lengths + self.second.lengths + 1

    def __getitem__(self, indices: Sequence[int] | Integer[np.ndarray, "B"]) -> Batch:
        batch = collate(self.tokens, indices, self.pad, labels=self.labels, second=self.second)
        if self.trees is None:
            return batch
        sides = zip(*map(self.trees, batch.indices.tolist()), strict=True)
        return replace(batch, trees=tuple(tree for side in sides for tree in side))


def collate(
    tokens: Ragged,
    indices: Sequence[int] | Integer[np.ndarray, "B"],
    pad: int = 0,
    *,
    labels: Integer[np.ndarray, "S"] | None = None,
    second: Ragged | None = None,
) -> Batch:
    """The samples at these indices, padded on the right with `pad` to the longest of them."""
    rows = np.array(indices)  # a copy: the batch may be modified, but the sampler's array must not be
    if rows.ndim != 1 or not rows.size or rows.dtype.kind not in "iu":
        raise ValueError(f"indices is {indices!r}: it must be a non-empty list or array of sample indices")
    if rows.min() < 0 or rows.max() >= len(tokens):
        wrong = rows[(rows < 0) | (rows >= len(tokens))][0]
        raise IndexError(f"sample {wrong} of {len(tokens)}: indices must be between 0 and {len(tokens) - 1}")
    rows = rows.astype(np.int64, copy=False)
    sides = [tokens] if second is None else [tokens, second]
    lengths = [side.lengths[rows] for side in sides]
    width = int(max(each.max() for each in lengths))
    padded = [_padded(side, rows, each, width, pad) for side, each in zip(sides, lengths, strict=True)]
    return Batch(
        tokens=padded[0],
        lengths=torch.from_numpy(lengths[0]),
        labels=None if labels is None else torch.from_numpy(labels[rows].astype(np.int64)),
        indices=torch.from_numpy(rows),
        second_tokens=None if second is None else padded[1],
        second_lengths=None if second is None else torch.from_numpy(lengths[1]),
    )


def _padded(
    side: Ragged, rows: Int[np.ndarray, "B"], lengths: Int[np.ndarray, "B"], width: int, pad: int
) -> Int[Tensor, "B N"]:
    position = np.arange(width)
    inside = position < lengths[:, None]  # (B, N)
    place = side.offsets[rows].astype(np.int64)[:, None] + position  # (B, N)
    padded = np.full(inside.shape, pad, dtype=np.int64)
    padded[inside] = side.flat[place[inside]]
    return torch.from_numpy(padded)


def _checked_lengths(lengths: np.ndarray) -> np.ndarray:
    if lengths.size == 0:
        raise ValueError("lengths is empty: there are no samples to batch")
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
        raise ValueError(f"lengths is {lengths.dtype} of shape {lengths.shape}: it must be a 1-D array of integers")
    if lengths.min() < 1:
        raise ValueError(f"lengths[{lengths.argmin()}] is {lengths.min()}: every sample needs at least one token")
    return lengths.astype(np.int64)
