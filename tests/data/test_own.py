"""One's own files as a task: kinds, folders, tokenizers, labels, and that a changed file is read again."""

import gzip
import json
import lzma
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beamtree.data import load, loading, own

TSV = "A fine film.\tgood\nDon't!\tbad\n"
CSV = '"A fine film.",good\nDon\'t!,bad\n'
JSONL = '{"text": "A fine film.", "label": "good"}\n{"label": "bad", "text": "Don\'t!"}\n'
SAMPLES = [("good", ("a", "fine", "film", ".")), ("bad", ("do", "n't", "!"))]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def makings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tasks whose splits were made, and not found in the cache."""
    made: list[str] = []
    prepare: Callable[..., Any] = loading._prepared

    def counted(task: Any, columns: Any, samples: Any) -> Any:
        made.append(task.name)
        return prepare(task, columns, samples)

    monkeypatch.setattr(loading, "_prepared", counted)
    return made


def put(folder: Path, **files: str) -> Path:
    """A folder with these texts, each in a .tsv file of its name."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.tsv").write_text(text)
    return folder


def plain(split: Any) -> list[tuple[str, tuple[str, ...]]]:
    return [(sample.label, sample.tokens) for sample in split]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("reviews.tsv", TSV.encode()),
        ("reviews.csv", CSV.encode()),
        ("reviews.jsonl", JSONL.encode()),
        ("reviews.tsv.gz", gzip.compress(TSV.encode())),
        ("REVIEWS.CSV.GZ", gzip.compress(CSV.encode())),
        ("reviews.jsonl.xz", lzma.compress(JSONL.encode())),
        ("reviews.tsv", b"\xef\xbb\xbf" + TSV.replace("\n", "\r\n").encode()),
    ],
    ids=["tsv", "csv", "jsonl", "tsv.gz", "CSV.GZ", "jsonl.xz", "of-windows"],
)
def test_a_file_of_any_kind_is_a_task_of_one_split(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    data = load(tmp_path / name)
    assert (data.splits, data.labels) == (("reviews",), ("bad", "good"))
    assert plain(data["reviews"]) == SAMPLES
    assert plain(load(str(tmp_path / name), "Reviews")) == SAMPLES
    assert data.missing("reviews") is None


def test_pairs_keep_both_texts(tmp_path: Path) -> None:
    rows = [{"premise": "It rains", "hypothesis": "It is wet", "label": True}]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    [sample] = load(tmp_path / "pairs.jsonl", "pairs")
    assert (sample.tokens, sample.second, sample.label) == (("it", "rains"), ("it", "is", "wet"), "true")


def test_the_files_of_a_folder_are_the_splits_with_train_first(tmp_path: Path) -> None:
    folder = put(tmp_path / "mine", test="a b\tx\n", dev="a c\ty\n", train="a d\tx\na e\tz\n")
    (folder / "notes.txt").write_text("not data")
    (folder / "._train.tsv").write_text("not data either")
    (folder / "old").mkdir()
    (folder / "old" / "more.tsv").write_text("not\tseen\n")
    data = load(folder)
    assert data.splits == ("train", "dev", "test")
    assert {split: plain(data[split]) for split in data} == {
        "train": [("x", ("a", "d")), ("z", ("a", "e"))],
        "dev": [("y", ("a", "c"))],
        "test": [("x", ("a", "b"))],
    }
    assert data.labels == ("x", "y", "z")
    assert all(data[split].label_names == data.labels for split in data), "a label is one number in all splits"
    assert data.vocabulary().words()[3:] == ["a", "d", "e"]
    assert data.vocabulary(include_test=True).words()[3:] == ["a", "b", "c", "d", "e"]


def test_without_a_train_file_the_first_split_gives_the_vocabulary(tmp_path: Path) -> None:
    data = load(put(tmp_path / "mine", later="b b\tx\n", earlier="a a\tx\n"))
    assert data.vocabulary().words()[3:] == ["a"]


def test_the_tokenizer_is_that_of_words_or_of_spaces(tmp_path: Path) -> None:
    folder = put(tmp_path / "mine", train="Don't [MAX stop.\tx\n")
    assert load(folder, "train")[0].tokens == ("do", "n't", "[", "max", "stop", ".")
    assert load(folder, "train", tokenizer="spaces")[0].tokens == ("Don't", "[MAX", "stop.")
    assert load(folder, "train", tokenizer="words")[0].tokens[0] == "do"
    with pytest.raises(
        ValueError, match=r"^unknown tokenizer 'space' \(did you mean 'spaces'\?\); known: words, spaces$"
    ):
        load(folder, "train", tokenizer="space")
    with pytest.raises(ValueError, match="mine: the option tokenizer is 3: it must be a word"):
        load(folder, "train", tokenizer=3)


@pytest.mark.parametrize(
    ("labels", "ordered"),
    [
        (["10", "9", "2", "10"], ("2", "9", "10")),
        (["10", "9", "b"], ("10", "9", "b")),
        (["yes", "no"], ("no", "yes")),
        (["1", "01"], ("01", "1")),
    ],
)
def test_labels_that_are_numbers_are_in_their_order(labels: list[str], ordered: tuple[str, ...]) -> None:
    assert own.label_names(labels) == ordered


@given(st.lists(st.text(max_size=3)), st.randoms())
def test_labels_are_all_there_once_whatever_the_order_of_the_rows(labels: list[str], shuffled: Any) -> None:
    names = own.label_names(labels)
    assert (len(names), set(names)) == (len(set(labels)), set(labels))
    other = sorted(labels, key=lambda _: shuffled.random())
    assert own.label_names(other) == names


def test_a_file_is_read_once_and_again_when_it_has_changed(tmp_path: Path, makings: list[str]) -> None:
    folder = put(tmp_path / "mine", train="a b\tx\n", dev="a c\tx\n")
    for _ in range(2):
        assert plain(load(folder, "dev")) == [("x", ("a", "c"))]
    assert makings == ["mine"]
    (folder / "dev.tsv").write_text("a d\tx\n")  # of the same size
    assert plain(load(folder, "dev")) == [("x", ("a", "d"))]
    put(folder, test="a e\ty\n")
    assert load(folder).labels == ("x", "y")
    assert makings == ["mine"] * 3


def test_files_of_one_name_in_two_folders_are_two_data_sets(tmp_path: Path) -> None:
    for folder, word in (("first", "a"), ("second", "b")):
        path = put(tmp_path / folder, train=f"{word} c\tx\n") / "train.tsv"
        os.utime(path, ns=(10**18, 10**18))
    for folder, word in (("first", "a"), ("second", "b")):
        assert plain(load(tmp_path / folder / "train.tsv", "train")) == [("x", (word, "c"))]


def test_a_task_s_name_goes_before_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "sst5", train="a b\tx\n")
    monkeypatch.chdir(tmp_path)
    assert load("sst5").splits == ("train", "dev", "iid")
    assert load("./sst5").splits == ("train",)
    assert plain(load(Path("sst5").resolve(), "train")) == [("x", ("a", "b"))]


def test_two_files_for_one_split_are_refused(tmp_path: Path) -> None:
    folder = put(tmp_path / "mine", train="a\tx\n")
    (folder / "Train.v2.csv").write_text("a,x\n")
    complaint = f"{folder}: Train.v2.csv and train.tsv are both the split 'train'"
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}$"):
        load(folder)


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.txt").write_text("a\tx\n")
    with pytest.raises(ValueError, match=r"mine: there is no \.tsv, \.csv or \.jsonl file in the folder$"):
        load(tmp_path / "mine")
    with pytest.raises(ValueError, match=r"^'train\.txt' is no table by its name: it must end in \.tsv, \.csv or"):
        load(tmp_path / "mine" / "train.txt")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a b\tx\na b\n", ", line 2: 2 columns expected, as in line 1, found 1"),
        ("a b\tx\n \ty\n", ", line 2: the text is ' ', which has no words"),
        ("a b\tx\na b\t\n", ", line 2: the label is empty"),
        ("", ", line 1: the file holds no samples"),
        ("id\ttext\tlabel\n", ", line 1: the file holds no samples"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    folder = put(tmp_path / "mine", train="a b\tx\n", dev=text)
    for split in ("train", "dev"):  # all splits are needed for the labels
        with pytest.raises(ValueError, match=re.escape(complaint)) as caught:
            load(folder, split)
        assert type(caught.value) is ValueError
        assert "\n" not in str(caught.value)
        assert str(caught.value).startswith(f"{folder / 'dev.tsv'}, line ")


def test_what_is_neither_file_nor_folder_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^/dev/null: it cannot be read \(Not a directory\)$"):
        load("/dev/null")
    for name in ("", "x" * 5000, "a\0b"):
        with pytest.raises(ValueError, match=r"^unknown task '.*; known: listops"):
            load(name)


def test_a_damaged_or_unreadable_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "cut.tsv.gz").write_bytes(gzip.compress(TSV.encode() * 100)[:-20])
    with pytest.raises(ValueError, match=r"cut\.tsv\.gz: the file is damaged, cut short"):
        load(tmp_path / "cut.tsv.gz", "cut")
    (tmp_path / "latin.tsv").write_bytes("a b\tx\ncafé\ty\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.tsv, line 2: this is not UTF-8 text"):
        load(tmp_path / "latin.tsv", "latin")
