"""Word vectors: text files in all formats, npz, invalid files, and the matrix for a vocabulary."""

import gzip
import lzma
import math
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import real_files
from beamtree.data import vectors
from beamtree.data.vectors import Vectors
from beamtree.data.vocabulary import Vocabulary
from beamtree.data.words import tokenize

GLOVE_6B = "vectors/glove_6B_100d_taskvocab.npz"
GLOVE = b"the 0.1 -0.2 3\n, 1e-3 0 .5\nfilm 7 8 9\n"


def write(path: Path, content: bytes) -> Path:
    """A file with this content, compressed according to its suffix."""
    match path.suffix:
        case ".gz":
            path.write_bytes(gzip.compress(content))
        case ".xz":
            path.write_bytes(lzma.compress(content))
        case ".zip":
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(path.stem, content)
        case _:
            path.write_bytes(content)
    return path


@pytest.mark.parametrize("suffix", ["txt", "txt.gz", "txt.xz", "txt.zip", "vec"])
def test_a_text_is_read_plain_or_packed(tmp_path: Path, suffix: str) -> None:
    read = vectors.read(write(tmp_path / f"glove.{suffix}", GLOVE))
    assert (read.words, read.dim, len(read)) == (("the", ",", "film"), 3, 3)
    np.testing.assert_array_equal(read.matrix, np.array([[0.1, -0.2, 3], [1e-3, 0, 0.5], [7, 8, 9]], np.float32))


@pytest.mark.parametrize(
    "content",
    [
        b"3 3\n" + GLOVE,  # the header of word2vec
        GLOVE.replace(b"\n", b" \r\n"),  # its spaces at line ends, and those of Windows
        GLOVE + b"\n",
        GLOVE.rstrip(),
    ],
)
def test_the_layouts_differ_in_nothing_that_matters(tmp_path: Path, content: bytes) -> None:
    plain, other = (vectors.read(write(tmp_path / "glove.txt", text)) for text in (GLOVE, content))
    assert plain.words == other.words
    np.testing.assert_array_equal(plain.matrix, other.matrix)


def test_words_may_hold_spaces_and_any_bytes(tmp_path: Path) -> None:
    content = (
        b". . . 1 2 3\nat name@domain.com 4 5 6\n. 7 8 9\n\xc2\x85 1 1 1\n\xff\xfe 2 2 2\n7 3 3 3\n"
        + "caf\u00e9\u00a0x 5 5 5\n".encode()
    )
    path = write(tmp_path / "glove.txt", content)
    words = (". . .", "at name@domain.com", ".", "\x85", "\udcff\udcfe", "7", "café\u00a0x")
    assert vectors.read(path).words == words
    assert vectors.read(path, wanted={"at", ".", "7"}).words == (".", "7")
    assert vectors.read(path, wanted={". . ."}).matrix.tolist() == [[1, 2, 3]]


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters=" \r\n"), min_size=1).filter(
            lambda word: word.strip() == word
        ),
        st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=4, max_size=4),
        min_size=1,
    ),
    st.data(),
)
def test_what_is_wanted_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, rows: dict[str, list[float]], data: st.DataObject
) -> None:
    wanted = data.draw(st.sets(st.sampled_from(sorted(rows)), min_size=1))
    path = tmp_path_factory.mktemp("vectors") / "glove.txt"
    path.write_bytes("".join(f"{word} {' '.join(map(repr, row))}\n" for word, row in rows.items()).encode())
    read = vectors.read(path, wanted)
    kept = [word for word in rows if word in wanted]
    assert list(read.words) == kept
    np.testing.assert_array_equal(read.matrix, np.array([rows[word] for word in kept], np.float32))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "line 1: the file has no vectors"),
        (b"\n\n", "line 1: the file has no vectors"),
        (b"the\n", "line 1: a word and its values expected.*found 'the'"),
        (b"the film\n", "line 1: a word and its values expected.*found 'the film'"),
        (GLOVE + b"dog 1 2\n", "line 4: a word and 3 values expected.*found 2 values: 'dog 1 2'"),
        (GLOVE + b"dog\n", "line 4: a word and 3 values expected.*found 0 values: 'dog'"),
        (GLOVE + b"dog 1 2 3 4\n", "line 4: a word and 3 values expected.*found 4 values: 'dog 1 2 3 4'"),
        (GLOVE + b" 1 2 3\n", "line 4: a word and 3 values expected"),
        (GLOVE + b"dog  1 2 3\n", "line 4: a word and 3 values expected"),
        (b"3 2\n" + GLOVE, "line 2: a word and 2 values expected.*found 3 values"),
        (b"3 4\n" + GLOVE, "line 2: a word and 4 values expected.*found 3 values"),
        (GLOVE + b"dog 1 x 3\n", "line 4: 'x' is not a number"),
        (GLOVE + b"dog 1 \xff 3\n", "line 4: '\ufffd' is not a number"),
        (GLOVE + b"dog 1 nan 3\n", "line 4: the value 'nan' is not finite"),
        (GLOVE + b"dog 1 2 1e39\n", "line 4: the value '1e39' is not finite, or too large"),
        (b"\x00\x01\x02" * 100, "line 1: a word and its values expected"),
    ],
)
@pytest.mark.parametrize("suffix", ["txt", "txt.gz"])
def test_a_bad_text_is_refused_with_its_line(tmp_path: Path, content: bytes, complaint: str, suffix: str) -> None:
    path = write(tmp_path / f"glove.{suffix}", content)
    with pytest.raises(ValueError, match=f"glove.{suffix}, (?:{complaint})") as caught:
        vectors.read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", ["gz", "xz", "zip", "npz"])
def test_a_damaged_file_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"glove.{suffix}"
    if suffix == "npz":
        np.savez_compressed(path, words=np.array(["a"] * 999), vectors=np.random.RandomState(0).rand(999, 9))
    else:
        write(path, np.random.RandomState(0).bytes(9999))
    whole = path.read_bytes()
    for content in (b"no such file", whole[: len(whole) // 2], b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"glove.{suffix}") as caught:
            vectors.read(path)
        assert "\n" not in str(caught.value)


def test_an_archive_of_several_files_is_refused_with_their_names(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "glove.6B.zip", "w") as archive:
        archive.writestr("glove.50d.txt", GLOVE)
        archive.writestr("glove.100d.txt", GLOVE)
    with pytest.raises(
        ValueError, match=r"glove.6B.zip: it contains 2 files \(glove.50d.txt, glove.100d.txt\): unpack it"
    ):
        vectors.read(tmp_path / "glove.6B.zip")


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_arrays_are_read_in_any_precision(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "glove.npz"
    np.savez(path, words=np.array(["a", "(", "b"]), vectors=np.eye(3, dtype=kind))
    assert vectors.read(path).matrix.dtype == kind
    assert vectors.read(path, wanted={"b", "-LRB-"}).words == ("(", "b")
    assert vectors.read(path).matrix_for(Vocabulary(["b"]))[3].tolist() == [0, 0, 1]


@pytest.mark.usefixtures("shape_checks_off")
@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"words": np.array(["a"])}, "must contain the arrays 'words' and 'vectors'"),
        ({"words": np.array([1]), "vectors": np.eye(1)}, "'words' is int64 of shape .* a 1-D array of strings"),
        ({"words": np.array(["a"], dtype=object), "vectors": np.eye(1)}, "allow_pickle"),
        ({"words": np.array(["a", "b"]), "vectors": np.eye(1)}, r"\(2, D\), one row per word"),
        ({"words": np.array(["a"]), "vectors": np.eye(2)}, r"\(1, D\), one row per word"),
        ({"words": np.array(["a"]), "vectors": np.eye(1, dtype=int)}, "they must be floats"),
        ({"words": np.array(["a"]), "vectors": np.ones(1)}, "of shape"),
        ({"words": np.array([], dtype=str), "vectors": np.ones((0, 3))}, "at least one word"),
        ({"words": np.array(["a", "b"]), "vectors": np.array([[1], [np.nan]])}, "vector of 'b' has NaN"),
    ],
)
def test_bad_arrays_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray], complaint: str) -> None:
    np.savez(tmp_path / "glove.npz", **arrays)  # type: ignore[arg-type]
    for wanted in (None, {"a", "b"}):
        with pytest.raises(ValueError, match=f"glove.npz: .*{complaint}") as caught:
            vectors.read(tmp_path / "glove.npz", wanted)
        assert "\n" not in str(caught.value)


def test_a_file_without_any_wanted_word_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "glove.npz", words=np.array(["a"]), vectors=np.eye(1))
    for path in (tmp_path / "glove.npz", write(tmp_path / "glove.txt", GLOVE)):
        with pytest.raises(ValueError, match=f"{path.name}: it has none of the wanted words"):
            vectors.read(path, wanted={"hund"})


def test_brackets_are_found_in_every_spelling(tmp_path: Path) -> None:
    path = write(tmp_path / "glove.txt", b"( 1\n-rrb- 2\n[ 3\ndog 4\n")
    read = vectors.read(path, wanted={"-lrb-", "(", ")", "-LSB-"})
    assert read.words == ("(", "-rrb-", "[")
    forms = ["(", "-lrb-", "-LRB-", ")", "-RRB-", "-rsb-", "dog"]
    assert [form in read for form in forms] == [True] * 5 + [False] * 2
    assert read.matrix_for(Vocabulary(forms))[3:8, 0].tolist() == [1, 1, 1, 2, 2]
    own = Vectors(["(", "-lrb-"], np.array([[1.0], [2.0]]))
    assert own.matrix_for(Vocabulary(["(", "-lrb-"]))[3:, 0].tolist() == [1, 2], "a vector of its own comes first"


def test_the_matrix_has_vectors_zeros_and_uniform_rows() -> None:
    words = [f"w{number}" for number in range(50)]
    given = np.random.RandomState(1).normal(size=(50, 300)).astype(np.float16)
    known = Vectors([*words, "<unk>"], np.concatenate([given, np.full((1, 300), 9, np.float16)]))
    vocabulary = Vocabulary([*reversed(words), *(f"other{number}" for number in range(100))])
    matrix = known.matrix_for(vocabulary)
    assert (matrix.dtype, matrix.shape) == (torch.float32, (153, 300))
    assert not matrix[vocabulary.PAD].any()
    np.testing.assert_array_equal(matrix[3:53].numpy(), given[::-1].astype(np.float32))
    drawn = torch.cat([matrix[1:3], matrix[53:]]).double()
    bound = math.sqrt(3 / 300)
    assert 0.999 * bound < float(drawn.abs().max()) <= bound
    count = drawn.numel()
    assert abs(float(drawn.mean())) < 4 * bound / math.sqrt(3 * count)
    assert float(drawn.square().mean()) == pytest.approx(bound**2 / 3, rel=0.02)
    assert len(drawn.unique(dim=0)) == len(drawn)


def test_the_drawn_rows_follow_from_the_seed() -> None:
    known, vocabulary = Vectors(["a"], np.ones((1, 4))), Vocabulary(["a", "b"])
    one, same, other = (known.matrix_for(vocabulary, seed) for seed in (101, 101, 102))
    assert torch.equal(one, same)
    assert torch.equal(one, known.matrix_for(vocabulary))
    assert not torch.equal(one[1], other[1])
    expected = torch.tensor([0.3209, 0.5783, -0.3343, 0.6818])
    assert torch.allclose(one[vocabulary.UNK], expected, atol=1e-4), "as on any machine"


def test_a_word_that_is_there_twice_has_its_first_vector() -> None:
    known = Vectors(["a", "b", "a"], np.array([[1.0], [2.0], [3.0]]))
    assert known.matrix_for(Vocabulary(["a"]))[3].tolist() == [1]


def test_coverage_is_a_share_of_tokens() -> None:
    known = Vectors(["a", "("], np.ones((2, 1)))
    assert known.coverage({"a": 5, "-lrb-": 1, "b": 2}) == 0.75
    with pytest.raises(ValueError, match="counts is empty"):
        known.coverage({})


def test_the_real_vectors_cover_the_real_text() -> None:
    path, text = real_files.find(GLOVE_6B), real_files.find("imdb/contrast.tar.xz")
    read = vectors.read(path)
    assert (len(read), read.dim, read.matrix.dtype) == (82_625, 100, np.dtype("float16"))
    with tarfile.open(text) as archive:
        table = archive.extractfile("test_contrast.tsv")
        assert table is not None
        counts = Counter(tokenize(table.read().decode().replace("<br />", " ")))
    assert 0.97 < read.coverage(counts) < 0.99
    vocabulary = Vocabulary.build(counts, min_count=2, known=read)
    assert torch.equal(read.matrix_for(vocabulary), vectors.read(path, wanted=vocabulary).matrix_for(vocabulary))


def test_vectors_of_a_source_are_found_by_its_name(tmp_path):
    with zipfile.ZipFile(tmp_path / "glove.6B.zip", "w") as archive:
        for width in (50, 100):
            archive.writestr(f"glove.6B.{width}d.txt", f"the{' 0.5' * width}\ncat{' 1' * width}\n")
    found = vectors.load("glove-6b", dim=100, wanted={"cat"}, roots=[tmp_path])
    assert (found.words, found.dim) == (("cat",), 100)


@pytest.mark.parametrize(
    ("name", "dim", "message"),
    [
        ("glove", 50, "known: glove-6b, glove-840b"),
        ("glove-840b", 50, "no vectors of width 50"),
        ("glove-6b", 300, "lacks"),
    ],
)
def test_vectors_that_are_not_there_are_named(tmp_path, name, dim, message):
    (tmp_path / "glove.6B.100d.txt").write_text("the" + " 1" * 100)
    with pytest.raises(ValueError, match=message):
        vectors.load(name, dim=dim, roots=[tmp_path])


def test_the_real_vectors_are_found_by_name():
    folder = real_files.find(GLOVE_6B).parents[1]
    assert len(vectors.load("glove-6b", dim=100, roots=[folder])) == 82_625
