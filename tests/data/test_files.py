"""Your own files as a task: kinds, folders, tokenizers and labels; a changed file is read again."""

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

from beamtree.data import Data, files, load, loading, training_options
from beamtree.data.cache import entries
from beamtree.data.tokenizers import Spaces, Words, make_tokenizer
from beamtree.runs.folder import fingerprint
from beamtree.trees import Tree

TSV = "A fine film.\tgood\nDon't!\tbad\n"
CSV = '"A fine film.",good\nDon\'t!,bad\n'
JSONL = '{"text": "A fine film.", "label": "good"}\n{"label": "bad", "text": "Don\'t!"}\n'
SAMPLES = [("good", ("a", "fine", "film", ".")), ("bad", ("do", "n't", "!"))]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def makings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tasks whose splits were prepared and not found in the cache."""
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
    with pytest.raises(ValueError, match="mine: the option tokenizer is 3: it must be a string"):
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
    assert files.label_names(labels) == ordered


@given(st.lists(st.text(max_size=3)), st.randoms())
def test_labels_are_all_there_once_whatever_the_order_of_the_rows(labels: list[str], shuffled: Any) -> None:
    names = files.label_names(labels)
    assert (len(names), set(names)) == (len(set(labels)), set(labels))
    other = sorted(labels, key=lambda _: shuffled.random())
    assert files.label_names(other) == names


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


# Splits that are held out.

REVIEWS = "".join(f"review {number} is fine\t{'bad' if number % 5 else 'good'}\n" for number in range(200))


def sizes(data: Data) -> dict[str, int]:
    return {split: len(data[split]) for split in data}


@pytest.mark.parametrize("name", ["reviews.tsv", "train.tsv", "test.tsv.gz"])
def test_one_file_is_divided_for_training(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(REVIEWS.encode()) if name.endswith(".gz") else REVIEWS.encode())
    options = training_options(path)
    assert options == {"tokenizer": "words", "seed": 0, "dev": 0.1, "test": 0.1}
    data = load(path, **options)
    assert (data.splits, sizes(data)) == (("train", "dev", "test"), {"train": 160, "dev": 20, "test": 20})
    assert data["test"].label_counts() == {"bad": 16, "good": 4}
    assert data.notes == (f"{name}: 200 samples divided by label with seed 0: train 160, dev 20, test 20",)
    assert data.options == options
    assert (len(load(path)[load(path).splits[0]]), load(path).notes) == (200, ()), "without shares it is one split"
    assert load(path).options == {"tokenizer": "words"}


def test_the_options_of_a_division_find_the_same_splits_again(tmp_path: Path, makings: list[str]) -> None:
    (tmp_path / "a.tsv").write_text(REVIEWS)
    options = training_options(tmp_path / "a.tsv", {"dev": 30, "seed": 5, "tokenizer": "spaces"})
    assert options == {"tokenizer": "spaces", "seed": 5, "dev": 30, "test": 0.1}
    first = load(tmp_path / "a.tsv", **options)
    prints = fingerprint(first, first)
    again = load(tmp_path / "a.tsv", **options)
    assert (fingerprint(again, again), again.notes, makings) == (prints, first.notes, ["a-tsv"])
    other = load(tmp_path / "a.tsv", **{**options, "seed": 6})
    assert fingerprint(other, other) != prints
    assert sizes(other) == sizes(first) == {"train": 150, "dev": 30, "test": 20}


def test_the_order_of_the_rows_does_not_change_the_splits(tmp_path: Path) -> None:
    for name, lines in (("a", REVIEWS.splitlines()), ("b", REVIEWS.splitlines()[::-1])):
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines))
    first, other = (load(tmp_path / f"{name}.tsv", dev=0.1, test=0.1) for name in "ab")
    for split in first:
        assert plain(first[split]) == plain(other[split])[::-1]


def test_of_a_folder_without_dev_dev_is_held_out_of_train(tmp_path: Path) -> None:
    folder = put(tmp_path / "mine", train=REVIEWS, test="a b\tgood\nc d\tbad\n")
    options = training_options(folder)
    assert options == {"tokenizer": "words", "seed": 0, "dev": 0.1, "test": 0.0}
    data = load(folder, **options)
    assert (data.splits, len(data["train"]), len(data["dev"])) == (("train", "dev", "test"), 180, 20)
    assert plain(data["test"]) == plain(load(folder, "test"))
    assert data.notes == ("train.tsv: 200 samples divided by label with seed 0: train 180, dev 20",)
    alone = put(tmp_path / "alone", train=REVIEWS)
    assert load(alone, **training_options(alone)).splits == ("train", "dev"), "a test split may be absent"
    assert sizes(load(alone, **training_options(alone, {"test": 7}))) == {"train": 173, "dev": 20, "test": 7}


def test_a_folder_of_a_single_file_is_like_this_file(tmp_path: Path) -> None:
    folder = put(tmp_path / "mine", reviews=REVIEWS)
    assert sizes(load(folder, **training_options(folder))) == {"train": 160, "dev": 20, "test": 20}


def test_a_folder_with_dev_is_taken_as_it_is(tmp_path: Path) -> None:
    for number, name in enumerate(("dev", "validation", "Valid", "val")):
        folder = put(tmp_path / str(number), **{"train": REVIEWS, name: "a b\tgood\n"})
        assert training_options(folder) == {"tokenizer": "words"}
        data = load(folder, **training_options(folder))
        assert (sizes(data), data.notes) == ({"train": 200, "dev": 1}, ())
        with pytest.raises(
            ValueError, match=rf"{number}: dev cannot be held out of train, since it already exists: {name}"
        ):
            load(folder, dev=0.1)
    neither = put(tmp_path / "neither", first=REVIEWS, second=REVIEWS)
    assert training_options(neither) == {"tokenizer": "words"}
    with pytest.raises(
        ValueError, match="neither: there is no file train to hold out dev and test from: rename one of the files"
    ):
        load(neither, dev=0.1, test=0.1)


def test_a_task_of_the_paper_has_its_own_options_for_training() -> None:
    assert training_options("listops", {"seed": 3}) == {"seed": 3, "official": False}
    with pytest.raises(ValueError, match=r"^sst5: unknown option 'dev'; known: none$"):
        training_options("sst5", {"dev": 0.1})
    with pytest.raises(ValueError, match=r"^unknown task 'none'.*file that exists$"):
        training_options("none")


def test_rare_labels_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(REVIEWS + "one more text\trare\n")
    assert load(tmp_path / "a.tsv", dev=0.1, test=0.1).notes == (
        "a.tsv: 201 samples divided by label with seed 0: train 161, dev 20, test 20",
        "a.tsv: 1 label has too few samples to be in dev: 'rare'",
        "a.tsv: 1 label has too few samples to be in test: 'rare'",
    )


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"dev": "0.1"}, "a-tsv: the option dev is '0.1': it must be a number"),
        ({"dev": True}, "a-tsv: the option dev is True: it must be a number"),
        ({"test": 1.5}, "a-tsv: the option test is 1.5: it must be a fraction below 1, such as 0.1, or a number of"),
        ({"seed": 0.5}, "a-tsv: the option seed is 0.5: it must be an integer"),
        ({"sed": 1}, "a-tsv: unknown option 'sed' (did you mean 'seed'?); known: tokenizer, seed, dev, test"),
    ],
)
def test_a_wrong_option_is_refused_when_the_data_is_named(
    tmp_path: Path, options: dict[str, Any], complaint: str
) -> None:
    (tmp_path / "a.tsv").write_text(REVIEWS)
    for refused in (lambda: load(tmp_path / "a.tsv", **options), lambda: training_options(tmp_path / "a.tsv", options)):
        with pytest.raises(ValueError, match=f"^{re.escape(complaint)}"):
            refused()


def test_a_division_that_cannot_be_made_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a b\tx\nc d\ty\n")
    complaint = f"{tmp_path / 'a.tsv'}: 2 samples cannot be divided into dev 1 and test 1: none would be left for train"
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}$"):
        load(tmp_path / "a.tsv", "train", dev=0.1, test=0.1)


# Tokenizers that are objects or paths.


def test_a_function_s_tokens_are_not_cached(tmp_path: Path, makings: list[str]) -> None:
    folder = put(tmp_path / "mine", train="a b\tx\n")
    for function, tokens in ((lambda text: list(text.replace(" ", "_")), ("a", "_", "b")), (str.split, ("a", "b"))):
        data = load(folder, tokenizer=function)
        assert data["train"][0].tokens == tokens
        assert (data.options, data.tokenizer.name) == ({"tokenizer": "custom"}, "custom")
    assert (makings, entries()) == (["mine", "mine"], [])


def test_a_tokenizer_of_hugging_face_is_part_of_the_cache_s_key(tmp_path: Path, makings: list[str]) -> None:
    package = pytest.importorskip("tokenizers")
    folder = put(tmp_path / "mine", train="a b\tx\n")
    for _ in range(2):
        for word in "ab":
            theirs = package.Tokenizer(package.models.WordLevel({word: 0, "?": 1}, unk_token="?"))
            theirs.pre_tokenizer = package.pre_tokenizers.Whitespace()
            data = load(folder, tokenizer=theirs)
            assert data["train"][0].tokens == tuple(token if token == word else "?" for token in "ab")
            assert (data.options, data.tokenizer) == ({"tokenizer": "huggingface"}, make_tokenizer(theirs))
    assert makings == ["mine", "mine"]
    theirs.save(str(tmp_path / "tokenizer.json"))
    data = load(folder, tokenizer=str(tmp_path / "tokenizer.json"))
    assert data["train"][0].tokens == ("?", "b")
    assert data.options == {"tokenizer": str(tmp_path / "tokenizer.json")}


def test_tokenizers_of_one_kind_are_not_taken_for_each_other(tmp_path: Path) -> None:
    folder = put(tmp_path / "mine", train="a<br>b\tx\n")
    for tokenizer, tokens in (("words", ("a", "<", "br", ">", "b")), (Words(line_breaks=True), ("a", "b"))):
        assert load(folder, "train", tokenizer=tokenizer)[0].tokens == tokens


def test_data_has_the_tokenizer_of_its_texts(tmp_path: Path) -> None:
    folder = put(tmp_path / "mine", train="a b\tx\n")
    assert (load(folder).tokenizer, load(folder, tokenizer="spaces").tokenizer) == (Words(), Spaces())
    assert load("imdb").tokenizer == Words(line_breaks=True)
    assert load("listops").tokenizer.words("( [MAX 1 2])") == ["[MAX", "1", "2", "]"]
    assert load("logic").tokenizer.words("(not a)") == ["(", "not", "a", ")"]


# Gold trees.


def test_gold_trees_are_read_and_cached(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.tsv").write_text("tree\ttext\tlabel\n((A fine) film)\tA fine film\tgood\n(so so)\tso so\tbad\n")
    (folder / "pairs.jsonl").write_text('{"tree1": "(a (b c))", "tree2": "d", "label": 1}\n')
    for _ in range(2):
        assert load(folder / "train.tsv", "train").tree(0) == Tree.parse("((a fine) film)")
        [pair] = load(folder / "pairs.jsonl", "pairs")
        assert (pair.tokens, pair.tree) == (("a", "b", "c"), Tree.parse("(a (b c))"))
        assert (pair.second, pair.second_tree) == (("d",), Tree.parse("d"))
    split = load(folder / "train.tsv", "train")
    batch = split.batches(load(folder / "train.tsv").vocabulary(), trees=True)[[1, 0]]
    assert batch.trees == (Tree.parse("(so so)"), Tree.parse("((a fine) film)"))


def test_trees_do_not_change_the_splits(tmp_path: Path) -> None:
    rows = [(f"a b {number}", f"(a (b {number}))", "xy"[number % 2]) for number in range(50)]
    (tmp_path / "plain.tsv").write_text("".join(f"{text}\t{label}\n" for text, _, label in rows))
    (tmp_path / "trees.tsv").write_text("text\ttree\tlabel\n" + "".join("\t".join(row) + "\n" for row in rows))
    first, other = (load(tmp_path / f"{name}.tsv", dev=0.1, test=0.1) for name in ("plain", "trees"))
    for split in first:
        assert plain(first[split]) == plain(other[split])


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
    with pytest.raises(ValueError, match=r"^'train\.txt' is not the name of a table: it must end in \.tsv, \.csv or"):
        load(tmp_path / "mine" / "train.txt")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a b\tx\na b\n", ", line 2: 2 columns expected, as in line 1, found 1"),
        ("a b\tx\n \ty\n", ", line 2: the text is ' ', which has no tokens"),
        ("a b\tx\na b\t\n", ", line 2: the label is empty"),
        ("", ", line 1: the file has no samples"),
        ("id\ttext\tlabel\n", ", line 1: the file has no samples"),
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
    with pytest.raises(ValueError, match=r"cut\.tsv\.gz: the file is damaged, truncated"):
        load(tmp_path / "cut.tsv.gz", "cut")
    (tmp_path / "latin.tsv").write_bytes("a b\tx\ncafé\ty\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.tsv, line 2: this is not UTF-8 text"):
        load(tmp_path / "latin.tsv", "latin")
