"""The words of a model and their ids, without which its weights cannot be used.

    vocabulary = Vocabulary.build(Counter(tokens), min_count=5, max_size=50_000, known=vectors)
    vocabulary.ids(["the", "film"])     # [3, 17]; a word that is not in it is UNK

The first three ids are for padding, for unknown words and for the separator of a pair. They are not words: if a text
contains "<pad>", "<unk>" or "<sep>", these are unknown words.
"""

import hashlib
import json
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from beamtree.utils.checks import check_flag, check_integer, unknown
from beamtree.utils.files import encode, open_atomically

_SPECIAL = ("<pad>", "<unk>", "<sep>")


class Vocabulary:
    """An immutable list of words with their ids.

    The ids 0, 1 and 2 are for padding, unknown words and the separator of a pair. `len(vocabulary)` is the number of
    ids, and `word in vocabulary` says whether a word is known.

    Args:
        words: the words, which get the ids from 3 on in this order.
        closed: whether unknown words are an error, as in a formal language.

    Examples:
        >>> vocabulary = beamtree.data.Vocabulary(["a", "film"])
        >>> vocabulary.ids(["a", "new", "film"])
        [3, 1, 4]
        >>> vocabulary.words([3, 1, 4])
        ['a', '<unk>', 'film']
    """

    PAD: ClassVar[int] = 0
    UNK: ClassVar[int] = 1
    SEP: ClassVar[int] = 2

    __slots__ = ("_closed", "_ids", "_words")

    def __init__(self, words: Iterable[str], closed: bool = False) -> None:
        check_flag("closed", closed)
        self._words = (*_SPECIAL, *words)
        self._closed = closed
        self._ids: dict[str, int] = {}
        for index, word in enumerate(self._words[len(_SPECIAL) :], start=len(_SPECIAL)):
            if not isinstance(word, str) or word.split() != [word]:
                raise ValueError(f"word {index} is {word!r}: a word must be a non-empty string without whitespace")
            if word in _SPECIAL:
                raise ValueError(f"word {index} is {word!r}, which is reserved: remove it")
            if self._ids.setdefault(word, index) != index:
                raise ValueError(f"word {index} is {word!r}, and so is word {self._ids[word]}: remove one of them")

    @classmethod
    def build(
        cls,
        counts: Mapping[str, int],
        min_count: int = 1,
        max_size: int | None = None,
        known: Container[str] | None = None,
        closed: bool = False,
    ) -> "Vocabulary":
        """Build a vocabulary from counts: the most frequent words first, then in alphabetical order.

        Args:
            counts: number of occurrences of each word.
            min_count: minimum number of occurrences.
            max_size: maximum number of words, without PAD, UNK and SEP; None: no limit.
            known: only words in this container are included; None: all.
            closed: whether unknown words are an error.

        Returns:
            The vocabulary.
        """
        check_integer("min_count", min_count, at_least=1)
        if max_size is not None:
            check_integer("max_size", max_size, at_least=1)
        frequent = [
            (-count, word)
            for word, count in counts.items()
            if count >= min_count and word not in _SPECIAL and (known is None or word in known)
        ]
        return cls((word for _, word in sorted(frequent)[:max_size]), closed)

    @property
    def closed(self) -> bool:
        """Whether unknown words are an error."""
        return self._closed

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the words in their order, in hexadecimal digits."""
        return hashlib.sha256("\n".join(self._words).encode("utf-8", "surrogatepass")).hexdigest()

    def __len__(self) -> int:
        """The number of ids: three more than there are words."""
        return len(self._words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary):
            return NotImplemented
        return self._words == other._words and self._closed == other._closed

    def __hash__(self) -> int:
        return hash((self._words, self._closed))

    def __repr__(self) -> str:
        return f"<Vocabulary of {len(self)} ids{', closed' if self._closed else ''}>"

    def ids(self, tokens: Iterable[str]) -> list[int]:
        """Convert tokens to ids.

        Args:
            tokens: the tokens.

        Returns:
            Their ids; UNK for unknown ones.

        Raises:
            ValueError: if a token is unknown and the vocabulary is closed.
        """
        if self._closed:
            try:
                return [self._ids[token] for token in tokens]
            except KeyError as error:
                raise ValueError(unknown("token", error.args[0], self._ids)) from None
        find = self._ids.get
        return [find(token, self.UNK) for token in tokens]

    def lookup(self, words: Sequence[str]) -> Int[np.ndarray, "W"]:
        """Convert words to an array of ids, a table for texts that are stored as indices into `words`.

        Args:
            words: the words.

        Returns:
            Their ids, (W,).
        """
        return np.array(self.ids(words), dtype=np.int32)

    def words(self, ids: Iterable[int] | None = None) -> list[str]:
        """Convert ids to words.

        Args:
            ids: the ids; None: all, in order.

        Returns:
            Their words.

        Raises:
            ValueError: if there is no such id.
        """
        if ids is None:
            return list(self._words)
        ids = list(ids)
        for index in ids:
            if not 0 <= index < len(self):
                raise ValueError(f"there is no word with id {index}: ids are from 0 to {len(self) - 1}")
        return [self._words[index] for index in ids]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a JSON list of all words, one per line, in the order of their ids. The file is written atomically.

        Args:
            path: path of the file.
        """
        with open_atomically(path) as file:
            file.write(encode(json.dumps(self._words, ensure_ascii=False, indent=0)) + b"\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str], closed: bool = False) -> "Vocabulary":
        """Read a vocabulary that `save` wrote.

        Args:
            path: path of the file.
            closed: whether unknown words are an error; the file does not store it.

        Returns:
            The vocabulary.

        Raises:
            ValueError: if the file is not a vocabulary.
        """
        try:
            words = json.loads(Path(path).read_bytes())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: it is not JSON ({error}): it must be a list of words") from None
        if not isinstance(words, list) or tuple(words[: len(_SPECIAL)]) != _SPECIAL:
            raise ValueError(
                f"{path}: it is not a vocabulary: it must be a JSON list that starts with {', '.join(_SPECIAL)}"
            )
        try:
            return cls(words[len(_SPECIAL) :], closed)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
