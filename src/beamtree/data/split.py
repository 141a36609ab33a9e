"""A split of a data set: its samples in a few arrays, which may be memory-mapped.

    split = load("sst5", "iid")
    split[0]                                   # a Sample: tokens, label, gold tree
    split.batches(vocabulary)[[0, 1, 2]]       # the padded Batch of three of them

Texts are stored as indices into a list of all words, so the vocabulary can be chosen later: it maps these indices to
its ids.
"""

import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import numpy as np
from jaxtyping import Integer

from beamtree.data.batching import Batches, Ragged
from beamtree.data.samples import Sample
from beamtree.data.vocabulary import Vocabulary
from beamtree.trees.tree import Span, Tree
from beamtree.utils.checks import unknown
from beamtree.utils.digests import sha256

GoldTreeFunction = Callable[[Sequence[str]], Tree]
ConstituentLabels = Callable[[Sequence[str]], Mapping[Span, str]]


_RAGGED = ("tokens", "second", "constituents")  # names of arrays that have offsets


@dataclass(frozen=True, eq=False)
class Split:
    """Labelled texts, or pairs of them, in a few arrays.

    `split[i]` is a `Sample`, `len(split)` the number of samples.

    Attributes:
        words: the distinct words.
        tokens: the texts, as indices into `words`.
        labels: the label of each sample, as an index into `label_names`, (S,).
        label_names: names of the labels.
        second: the second texts of pairs, or None.
        reduces: for each token, the number of constituents of the gold tree that end after it, or None.
        gold: derives the gold trees from the tokens, if `reduces` is None.
        second_reduces: as `reduces`, for the second texts.
        constituents: for each text start, end and label of each labelled constituent, flattened, or None.
        values: derives the labels of constituents from the tokens, if `constituents` is None.

    Examples:
        >>> data = beamtree.data.Data.from_samples(["a fine film", "a dull film"] * 10, ["yes", "no"] * 10)
        >>> train = data["train"]
        >>> len(train), train.label_counts()
        (16, {'no': 8, 'yes': 8})
        >>> batch = train.batches(data.vocabulary())[[0, 1]]
        >>> batch.tokens.shape
        torch.Size([2, 3])
    """

    words: tuple[str, ...]
    tokens: Ragged
    labels: Integer[np.ndarray, "S"]
    label_names: tuple[str, ...]
    second: Ragged | None = None
    reduces: Integer[np.ndarray, "T"] | None = None
    gold: GoldTreeFunction | None = None
    second_reduces: Integer[np.ndarray, "T2"] | None = None
    constituents: Ragged | None = None
    values: ConstituentLabels | None = None

    @classmethod
    def from_samples(
        cls,
        samples: Iterable[Sample],
        label_names: Sequence[str],
        gold: GoldTreeFunction | None = None,
        values: ConstituentLabels | None = None,
    ) -> "Split":
        """Create a split from samples.

        Args:
            samples: the samples. All or none must have a second text, a gold tree, or labels of constituents.
            label_names: names of the labels.
            gold: derives gold trees from tokens.
            values: derives the labels of constituents from tokens.

        Returns:
            The split.

        Raises:
            ValueError: if a label is unknown, or if only some samples have a second text, a tree or constituents.
        """
        indices = _WordIndices()
        label_indices = {name: index for index, name in enumerate(label_names)}
        labels, sides, constituents = array("i"), (_Side(indices), _Side(indices)), _Constituents(label_indices)
        for sample in samples:
            label = label_indices.get(sample.label)
            if label is None:
                raise ValueError(unknown("label", sample.label, label_indices))
            labels.append(label)
            sides[0].append(sample.tokens, sample.tree)
            if sample.constituents is not None:
                constituents.append(sample.constituents)
            if sample.second is not None:
                sides[1].append(sample.second, sample.second_tree)
        for count, what in (
            (sides[1].texts, "a second text"),
            (sides[0].trees, "a gold tree"),
            (sides[1].trees, "a gold tree of the second text"),
            (constituents.texts, "labels of constituents"),
        ):
            if count not in (0, len(labels)):
                raise ValueError(f"{count} of {len(labels)} samples have {what}: all must have one, or none")
        return cls(
            words=tuple(indices),
            tokens=sides[0].ragged(),
            labels=_compact(labels),
            label_names=tuple(label_names),
            second=sides[1].ragged() if sides[1].texts else None,
            reduces=_compact(sides[0].reduces) if sides[0].trees else None,
            gold=gold,
            second_reduces=_compact(sides[1].reduces) if sides[1].trees else None,
            constituents=constituents.ragged() if constituents.texts else None,
            values=values,
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Sample:
        tokens = self._text(self.tokens, index)
        second = None if self.second is None else self._text(self.second, index)
        trees = self.tree(index), self.second_tree(index)
        constituents = None if self.constituents is None else self.constituent_labels(index)
        return Sample(tokens, self.label_names[self.labels[index]], second, *trees, constituents)

    def __iter__(self) -> Iterator[Sample]:
        return (self[index] for index in range(len(self)))

    def texts(self) -> list[tuple[str, ...]]:
        """List the tokens of all texts.

        Returns:
            The tokens of each text; for pairs those of all first texts, then those of all second ones.
        """
        return [self._text(side, index) for side in self._sides() for index in range(len(side))]

    def with_trees(self, trees: Sequence[Tree]) -> "Split":
        """Replace the gold trees.

        Args:
            trees: a tree for each text, in the order of `texts`.

        Returns:
            The split with these trees.
        """
        count = len(self)
        first, second = (
            _compact(array("i", chain.from_iterable(tree.reduces for tree in part)))
            for part in (trees[:count], trees[count:])
        )
        return replace(self, gold=None, reduces=first, second_reduces=None if self.second is None else second)

    def tree(self, index: int) -> Tree | None:
        """Look up the gold tree of a sample's text.

        Args:
            index: index of the sample.

        Returns:
            The tree, or None if there is none.
        """
        return self._tree(self.tokens, self.reduces, index)

    def second_tree(self, index: int) -> Tree | None:
        """Look up the gold tree of a pair's second text.

        Args:
            index: index of the sample.

        Returns:
            The tree, or None if there is none.
        """
        return None if self.second is None else self._tree(self.second, self.second_reduces, index)

    def constituent_labels(self, index: int) -> Mapping[Span, str] | None:
        """Look up the labels of the constituents of a sample's text.

        Args:
            index: index of the sample.

        Returns:
            Labels by span, or None if neither the data nor the task has them.
        """
        if self.constituents is not None:
            triples = self.constituents[index].reshape(-1, 3).tolist()
            return {(start, end): self.label_names[label] for start, end, label in triples}
        return None if self.values is None else self.values(self._text(self.tokens, index))

    def _tree(self, side: Ragged, reduces: Integer[np.ndarray, "T"] | None, index: int) -> Tree | None:
        if reduces is not None:
            text = self._text(side, index)  # raises IndexError if there is no such sample
            index %= len(self)
            start, end = side.offsets[index : index + 2]
            return Tree(text, tuple(reduces[start:end].tolist()))
        return None if self.gold is None else self.gold(self._text(side, index))

    @cached_property
    def lengths(self) -> Integer[np.ndarray, "S"]:
        """The number of tokens of each sample; for pairs, of the longer side."""
        return self.tokens.lengths if self.second is None else np.maximum(self.tokens.lengths, self.second.lengths)

    def label_counts(self) -> dict[str, int]:
        """Count the samples of each label.

        Returns:
            The number of samples of each label.
        """
        counts = np.bincount(self.labels, minlength=len(self.label_names)).tolist()
        return dict(zip(self.label_names, counts, strict=True))

    def word_counts(self) -> Counter[str]:
        """Count how often each word occurs, in both sides of pairs.

        Returns:
            The number of occurrences of each word.
        """
        counts = sum(np.bincount(side.flat, minlength=len(self.words)) for side in self._sides())
        return Counter(dict(zip(self.words, np.asarray(counts).tolist(), strict=True)))

    def unknown_share(self, vocabulary: Vocabulary) -> float:
        """Compute the share of tokens that are not in a vocabulary.

        Args:
            vocabulary: the vocabulary.

        Returns:
            A number between 0 and 1.
        """
        counts = self.word_counts()
        return sum(n for word, n in counts.items() if word not in vocabulary) / max(counts.total(), 1)

    def batches(self, vocabulary: Vocabulary, trees: bool = False) -> Batches:
        """Convert the split to ids of a vocabulary, for `Buckets` and a DataLoader.

        Args:
            vocabulary: the vocabulary.
            trees: whether to include the gold trees in batches.

        Returns:
            The samples; `batches[indices]` is a padded `Batch`.
        """
        ids = vocabulary.lookup(self.words)
        first, second = (None if side is None else Ragged(ids[side.flat], side.offsets) for side in self._both())
        assert first is not None
        return Batches(first, self.labels, second, pad=vocabulary.PAD, trees=self._trees if trees else None)

    def _trees(self, index: int) -> tuple[Tree, ...]:
        trees = (self.tree(index),) if self.second is None else (self.tree(index), self.second_tree(index))
        found = tuple(tree for tree in trees if tree is not None)
        if len(found) < len(trees):
            raise ValueError("the data has no gold trees: use an encoder that does not need them")
        return found

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the samples in their order, and of the names of the labels, in hexadecimal digits."""
        return sha256(self.arrays(), json.dumps(self.label_names))

    def arrays(self) -> dict[str, np.ndarray]:
        """Convert everything except the names of the labels to arrays, for the cache; see `from_arrays`."""
        text = "\n".join(self.words).encode("utf-8", "surrogatepass")
        found = {"words": np.frombuffer(text, dtype=np.uint8), "labels": self.labels}
        for name, part in zip(_RAGGED, (self.tokens, self.second, self.constituents), strict=True):
            if part is not None:
                found |= {name: part.flat, f"{name}-offsets": part.offsets}
        trees = {"reduces": self.reduces, "second-reduces": self.second_reduces}
        return found | {name: reduces for name, reduces in trees.items() if reduces is not None}

    @classmethod
    def from_arrays(
        cls,
        arrays: dict[str, np.ndarray],
        label_names: Sequence[str],
        gold: GoldTreeFunction | None = None,
        values: ConstituentLabels | None = None,
    ) -> "Split":
        text = arrays["words"].tobytes().decode("utf-8", "surrogatepass")
        tokens, second, constituents = (
            Ragged(arrays[name], arrays[f"{name}-offsets"]) if name in arrays else None for name in _RAGGED
        )
        assert tokens is not None
        return cls(
            words=tuple(text.split("\n")) if text else (),
            tokens=tokens,
            labels=arrays["labels"],
            label_names=tuple(label_names),
            second=second,
            reduces=arrays.get("reduces"),
            gold=gold,
            second_reduces=arrays.get("second-reduces"),
            constituents=constituents,
            values=values,
        )

    def _text(self, side: Ragged, index: int) -> tuple[str, ...]:
        return tuple(self.words[word] for word in side[index].tolist())

    def _both(self) -> tuple[Ragged | None, Ragged | None]:
        return self.tokens, self.second

    def _sides(self) -> list[Ragged]:
        return [side for side in self._both() if side is not None]


class _WordIndices(dict[str, int]):
    """The index of each word; a new word gets the next free one."""

    def __missing__(self, word: str) -> int:
        index = self[word] = len(self)
        return index


class _Constituents:
    """Collects the labelled constituents of texts."""

    def __init__(self, label_indices: Mapping[str, int]) -> None:
        self.label_indices, self.flat, self.offsets = label_indices, array("i"), array("q", [0])

    @property
    def texts(self) -> int:
        return len(self.offsets) - 1

    def append(self, constituents: Mapping[Span, str]) -> None:
        for (start, end), label in constituents.items():
            index = self.label_indices.get(label)
            if index is None:
                raise ValueError(unknown("label", label, self.label_indices))
            self.flat.extend((start, end, index))
        self.offsets.append(len(self.flat))

    def ragged(self) -> Ragged:
        return Ragged(_compact(self.flat), np.frombuffer(self.offsets, dtype=np.int64))


class _Side:
    """Collects texts and their gold trees."""

    def __init__(self, word_indices: _WordIndices) -> None:
        self.word_indices, self.flat, self.offsets = word_indices, array("i"), array("q", [0])
        self.reduces, self.trees = array("i"), 0

    @property
    def texts(self) -> int:
        return len(self.offsets) - 1

    def append(self, tokens: Sequence[str], tree: Tree | None) -> None:
        self.flat.extend(map(self.word_indices.__getitem__, tokens))
        self.offsets.append(len(self.flat))
        if tree is not None:
            self.reduces.extend(tree.reduces)
            self.trees += 1

    def ragged(self) -> Ragged:
        return Ragged(_compact(self.flat), np.frombuffer(self.offsets, dtype=np.int64))


def _compact(values: "array[int]") -> Integer[np.ndarray, "T"]:
    """Convert to an array of the smallest unsigned type that fits all values."""
    full = np.array(values, dtype=np.int32)
    return full.astype(np.min_scalar_type(int(full.max(initial=0))))
