"""Pretrained word vectors such as GloVe (Pennington et al. 2014): read them, and build the matrix for a vocabulary.

    vectors = read("glove.840B.300d.txt", wanted=counts)
    vocabulary = Vocabulary.build(counts, min_count=5, known=vectors)
    weight = vectors.matrix_for(vocabulary)

Files are text with lines `word v1 … vD`, optionally after a header `count D`, plain or compressed as .gz, .xz or .zip;
or .npz with the arrays `words` and `vectors`. Text is read line by line, and only the wanted words are kept: a file of
many gigabytes needs no more memory than these. Brackets have two spellings, "(" and the Treebank's "-lrb-", which are
equivalent.
"""

import contextlib
import gzip
import io
import lzma
import os
import re
import zipfile
import zlib
from array import array
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from jaxtyping import Float
from numpy.lib.npyio import NpzFile
from torch import Tensor

from beamtree.data.raw import SOURCES, find
from beamtree.data.vocabulary import Vocabulary
from beamtree.utils.checks import check_integer, unknown

_BRACKETS = [
    (bracket, f"-{form}-", f"-{form.upper()}-")
    for bracket, form in zip("()[]{}", ("lrb", "rrb", "lsb", "rsb", "lcb", "rcb"), strict=True)
]
_FORMS = {form: forms for forms in _BRACKETS for form in forms}
# RuntimeError is raised by zipfile if a file is encrypted, or compressed by a method that it does not support.
_DAMAGE = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zipfile.BadZipFile, zlib.error, RuntimeError)
_BUFFER = 1 << 20  # bytes: reading lines is faster in large blocks
_NONE_WANTED = "it has none of the wanted words: it may be of another language, or not in lower case"


class Vectors:
    """Words with their vectors.

    `len(vectors)` is the number of words, and `word in vectors` says whether a word has a vector.

    Args:
        words: the words. Of duplicates, the first counts.
        matrix: their vectors, (W, D), in the same order.

    Examples:
        >>> import numpy as np
        >>> from beamtree.data.vectors import Vectors
        >>> vectors = Vectors(["a", "film"], np.zeros((2, 300), dtype=np.float32))
        >>> vectors.matrix_for(beamtree.data.Vocabulary(["a", "film"])).shape
        torch.Size([5, 300])
    """

    def __init__(self, words: Sequence[str], matrix: Float[np.ndarray, "W D"]) -> None:
        if matrix.ndim != 2 or matrix.dtype.kind != "f" or len(matrix) != len(words):
            raise ValueError(
                f"the vectors are {matrix.dtype} of shape {matrix.shape}: they must be floats of shape "
                f"({len(words)}, D), one row per word"
            )
        if not matrix.size:
            raise ValueError(f"the vectors are of shape {matrix.shape}: there must be at least one word and one value")
        finite = np.isfinite(matrix).all(axis=1)
        if not finite.all():
            raise ValueError(f"the vector of {words[int(finite.argmin())]!r} has NaN or infinity")
        self.words, self.matrix = tuple(words), matrix
        self._rows = {word: row for row, word in reversed(list(enumerate(words)))}

    @property
    def dim(self) -> int:
        """The width of the vectors."""
        return self.matrix.shape[1]

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and self._row(word) is not None

    def __repr__(self) -> str:
        return f"<Vectors of {len(self)} words, {self.dim} values each>"

    def coverage(self, counts: Mapping[str, int]) -> float:
        """Compute the share of tokens that have a vector.

        Args:
            counts: number of occurrences of each word.

        Returns:
            A number between 0 and 1.
        """
        total = sum(counts.values())
        if total < 1:
            raise ValueError("counts is empty: the share of tokens with vectors is undefined")
        return sum(count for word, count in counts.items() if word in self) / total

    def matrix_for(self, vocabulary: Vocabulary, seed: int = 101) -> Float[Tensor, "V D"]:
        """Build the matrix of the vectors of a vocabulary.

        Args:
            vocabulary: the vocabulary.
            seed: seed of the random vectors.

        Returns:
            Vectors (V, D) in the order of the ids, in float32. PAD is zero. UNK, SEP and words without a vector are
            sampled from U(±√(3/D)), with an expected squared norm of 1.
        """
        check_integer("seed", seed, at_least=0)
        words = vocabulary.words()
        found = [self._row(word) for word in words]
        found[: vocabulary.SEP + 1] = [None] * (vocabulary.SEP + 1)  # these ids are not words
        has = np.array([row is not None for row in found])
        matrix = np.empty((len(words), self.dim), dtype=np.float32)
        matrix[has] = self.matrix[[row for row in found if row is not None]]
        # The legacy generator, whose sequence NumPy guarantees across versions.
        bound = (3 / self.dim) ** 0.5
        sampled = np.random.RandomState(seed).uniform(-bound, bound, (int((~has).sum()), self.dim))
        matrix[~has] = sampled.astype(
            self.matrix.dtype
        )  # the same precision as the others, so that all can be stored in it
        matrix[vocabulary.PAD] = 0
        return torch.from_numpy(matrix)

    def _row(self, word: str) -> int | None:
        row = self._rows.get(word)
        if row is None and word in _FORMS:
            row = next((self._rows[form] for form in _FORMS[word] if form in self._rows), None)
        return row


def read(path: str | os.PathLike[str], wanted: Container[str] | None = None) -> Vectors:
    """Read word vectors from a file.

    Args:
        path: a text file, plain or compressed as .gz, .xz or .zip, or an .npz file; see `beamtree.data.vectors`.
        wanted: the words to keep; None: all.

    Returns:
        The vectors.

    Raises:
        ValueError: if the file is damaged, or contains none of the wanted words.

    Examples:
        >>> from beamtree.data import vectors
        >>> glove = vectors.read("glove.840B.300d.txt", wanted={"film"})  # doctest: +SKIP
    """
    path = Path(path)
    with _damage(path):
        if path.suffix.lower() == ".npz":
            return _read_arrays(path, wanted)
        with _opened(path) as file:
            return _read_lines(file, path, wanted)


def load(
    name: str,
    dim: int = 300,
    wanted: Container[str] | None = None,
    roots: Iterable[str | os.PathLike[str]] | None = None,
) -> Vectors:
    """Load published word vectors, which must have been downloaded: `beamtree data get glove-840b`.

    Args:
        name: "glove-6b" or "glove-840b".
        dim: width of the vectors.
        wanted: the words to keep; None: all.
        roots: folders that are searched for the file; see `beamtree.data.load`.

    Returns:
        The vectors.

    Raises:
        ValueError: if there are no such vectors, or the file is not found.

    Examples:
        >>> from beamtree.data import vectors
        >>> glove = vectors.load("glove-840b", wanted={"film"})  # doctest: +SKIP
    """
    known = {source.name: source for source in SOURCES.values() if source.name.startswith("glove")}
    if name not in known:
        raise ValueError(unknown("vectors", name, known))
    widths = {int(width[1]): file.name for file in known[name].files if (width := re.search(r"(\d+)d", file.name))}
    if dim not in widths:
        raise ValueError(f"{name} has no vectors of width {dim}: there are {', '.join(map(str, widths))}")
    file = widths[dim]
    raw = find(known[name], roots, [file])
    if raw.actual(file).endswith(".npz"):
        return read(raw.where / raw.actual(file), wanted)
    with raw.open(file) as lines:
        return _read_lines(lines, Path(raw.label(file)), wanted)


def _read_lines(lines: Iterable[bytes], path: Path, wanted: Container[str] | None) -> Vectors:
    words: list[str] = []
    values = array("f")  # grows in place; a list of rows would have to be copied into a matrix
    dim = number = 0
    try:  # not `with at(…)` for each line, which would take longer than parsing it
        for full_line in lines:
            number += 1
            line = full_line.rstrip()
            if not line:
                continue
            if not dim:
                dim, header = _dimension(line)
                if header:
                    continue
            end = _word_end(line, dim)
            # A word may be any bytes: one that is not UTF-8 is not wanted, but not an error.
            word = line[:end].decode("utf-8", "surrogateescape")
            if wanted is None or _is_wanted(word, wanted):
                values.frombytes(_parsed(line[end + 1 :]).tobytes())
                words.append(word)
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: {error}") from None
    if not dim:
        raise ValueError(f"{path}, line 1: the file has no vectors: each line should be a word and its values")
    if not words:
        raise ValueError(f"{path}: {_NONE_WANTED}")
    return Vectors(words, np.frombuffer(values, dtype=np.float32).reshape(len(words), dim))


def _dimension(line: bytes) -> tuple[int, bool]:
    """The number of values per line, by the first line, and whether that is a header, `count D`."""
    parts = line.split(b" ")
    if len(parts) == 2 and all(part.isdigit() for part in parts) and int(parts[1]):
        return int(parts[1]), True
    dim = 0
    while dim < len(parts) - 1 and _is_number(parts[-1 - dim]):
        dim += 1
    if not dim:
        raise ValueError(f"a word and its values expected, separated by single spaces, found {_shown(line)}")
    return dim, False


def _word_end(line: bytes, dim: int) -> int:
    """The end of the word. It may contain spaces, like ". . ." in GloVe 840B, but its last part is not a number."""
    extra = line.count(b" ") - dim
    end = line.find(b" ") if extra == 0 else len(line.rsplit(b" ", dim)[0])
    last = line[line.rfind(b" ", 0, end) + 1 : end]
    if extra < 0 or not last or (extra > 0 and _is_number(last)):
        raise ValueError(
            f"a word and {dim} values expected, separated by single spaces, found {max(0, extra + dim)} values: "
            f"{_shown(line)}"
        )
    return end


def _parsed(text: bytes) -> Float[np.ndarray, "D"]:
    parts = text.decode("utf-8", "replace").split(" ")  # parsing numbers is faster from text than from bytes
    try:
        values = list(map(float, parts))
    except ValueError:
        wrong = next(part for part in parts if not _is_number(part))
        raise ValueError(f"{wrong!r} is not a number: all values after the word must be") from None
    with np.errstate(over="ignore"):
        row = np.array(values, dtype=np.float32)
    if not np.isfinite(row).all():
        wrong = parts[int(np.isfinite(row).argmin())]
        raise ValueError(f"the value {wrong!r} is not finite, or too large for single precision")
    return row


def _read_arrays(path: Path, wanted: Container[str] | None) -> Vectors:
    try:
        with open(path, "rb") as file:  # NumPy would not close a damaged file
            arrays = np.load(file, allow_pickle=False)
            if not isinstance(arrays, NpzFile) or not {"words", "vectors"} <= set(arrays):
                raise ValueError("it must contain the arrays 'words' and 'vectors'")
            words, matrix = arrays["words"], arrays["vectors"]
        if words.ndim != 1 or words.dtype.kind != "U":
            raise ValueError(f"'words' is {words.dtype} of shape {words.shape}: it must be a 1-D array of strings")
        vectors = Vectors(words.tolist(), matrix)
        if wanted is None:
            return vectors
        kept = [row for row, word in enumerate(vectors.words) if _is_wanted(word, wanted)]
        if not kept:
            raise ValueError(_NONE_WANTED)
        return Vectors([vectors.words[row] for row in kept], matrix[kept])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _is_wanted(word: str, wanted: Container[str]) -> bool:
    return word in wanted or (word in _FORMS and any(form in wanted for form in _FORMS[word]))


def _is_number(part: bytes | str) -> bool:
    try:
        float(part)
    except ValueError:
        return False
    return True


def _shown(text: bytes) -> str:
    return repr(text[:40].decode("utf-8", "replace")) + ("…" if len(text) > 40 else "")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open the file, decompressed."""
    with contextlib.ExitStack() as stack:
        match path.suffix.lower():
            case ".gz":
                raw: Any = stack.enter_context(gzip.open(path))
            case ".xz":
                raw = stack.enter_context(lzma.open(path))
            case ".zip":
                archive = stack.enter_context(zipfile.ZipFile(path))
                names = [name for name in archive.namelist() if not name.endswith("/")]
                if len(names) != 1:
                    contents = f"{len(names)} files ({', '.join(names)})" if names else "no file"
                    raise ValueError(f"{path}: it contains {contents}: unpack it, and pass the path of one file")
                raw = stack.enter_context(archive.open(names[0]))
            case _:
                raw = stack.enter_context(open(path, "rb", buffering=0))
        yield stack.enter_context(io.BufferedReader(raw, _BUFFER))


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise ValueError(f"{path}: the file is damaged, or its suffix is wrong ({error}): download it again") from None
