"""Data in memory: lists of texts and labels, and data sets of Hugging Face."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from beamtree.data import Data, load
from beamtree.data.samples import Sample
from beamtree.data.tokenizers import Spaces, Words, make_tokenizer
from beamtree.runs.folder import fingerprint
from beamtree.trees import Tree

TEXTS = [f"A fine film, number {number}." for number in range(100)]
LABELS = ["good" if number % 5 else "bad" for number in range(100)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path / "cache"))


def sizes(data: Data) -> dict[str, int]:
    return {split: len(data[split]) for split in data}


def texts(data: Data) -> dict[str, list[str]]:
    return {split: [" ".join(sample.tokens) for sample in data[split]] for split in data}


def test_lists_of_texts_and_labels_become_three_splits(tmp_path: Path) -> None:
    data = Data.from_samples(TEXTS, LABELS)
    assert (data.name, data.labels, sizes(data)) == ("samples", ("bad", "good"), {"train": 80, "dev": 10, "test": 10})
    assert data["dev"].label_counts() == data["test"].label_counts() == {"bad": 2, "good": 8}
    found = Counter((sample.tokens, sample.label) for split in data for sample in data[split])
    expected = [
        (("a", "fine", "film", ",", "number", str(number), "."), LABELS[number]) for number in range(len(TEXTS))
    ]
    assert found == Counter(expected)
    assert data.tokenizer == Words()
    assert data.options == {"tokenizer": "words", "seed": 0, "dev": 0.1, "test": 0.1}
    assert data.notes == ("samples: 100 samples divided by label with seed 0: train 80, dev 10, test 10",)
    assert data.vocabulary().words()[3:8] == [",", ".", "a", "film", "fine"]
    assert all(data.missing(split) is None for split in data)
    assert not (tmp_path / "cache").exists(), "it stays in memory"


def test_a_file_of_the_same_rows_has_the_same_splits(tmp_path: Path) -> None:
    path = tmp_path / "samples.tsv"
    path.write_text("".join(f"{text}\t{label}\n" for text, label in zip(TEXTS, LABELS, strict=True)))
    ours, files = Data.from_samples(TEXTS, LABELS, seed=3), load(path, dev=0.1, test=0.1, seed=3)
    assert texts(ours) == texts(files)
    assert fingerprint(ours, ours) == fingerprint(files, files)
    assert ours.options == files.options


def test_the_fingerprint_is_that_of_the_samples() -> None:
    first, again = Data.from_samples(TEXTS, LABELS), Data.from_samples(tuple(TEXTS), np.array(LABELS))
    assert fingerprint(first, first) == fingerprint(again, again)
    assert fingerprint(first, first) != fingerprint(other := Data.from_samples(TEXTS, LABELS, seed=1), other)


def test_the_split_does_not_depend_on_the_tokenizer() -> None:
    words, spaces = (Data.from_samples(TEXTS, LABELS, tokenizer=name) for name in ("words", "spaces"))
    for split in words:
        assert [sample.tokens[-2] for sample in words[split]] == [sample.tokens[-1][:-1] for sample in spaces[split]]


def test_texts_may_be_tokens_and_keep_their_case() -> None:
    data = Data.from_samples([text.split() for text in TEXTS], LABELS, dev=5, test=0)
    assert sizes(data) == {"train": 95, "dev": 5}
    assert data["dev"][0].tokens[:3] == ("A", "fine", "film,")
    assert data.tokenizer == Spaces()
    assert data.options == {"tokenizer": "spaces", "seed": 0, "dev": 5, "test": 0.0}


def test_pairs_are_tuples() -> None:
    data = Data.from_samples([(text, "It isn't.") for text in TEXTS], LABELS, dev=0, test=0)
    assert sizes(data) == {"train": 100}
    assert (data["train"][0].second, data.task.pair, data.notes) == (("it", "is", "n't", "."), True, ())
    assert data.options == {"tokenizer": "words"}
    tokens = Data.from_samples([(["a", "B"], ["c"])] * 10, [True, False] * 5, dev=2, test=2)
    assert (tokens["dev"][0].tokens, tokens["dev"][0].second, tokens.labels) == (("a", "B"), ("c",), ("false", "true"))


def test_labels_may_be_numbers_of_any_kind() -> None:
    for labels in ([2, 10] * 10, np.array([2, 10] * 10), [np.int64(2), 10] * 10):
        assert Data.from_samples(TEXTS[:20], labels).labels == ("2", "10")


def test_a_tokenizer_may_be_a_function() -> None:
    data = Data.from_samples(TEXTS, LABELS, tokenizer=lambda text: list(text.replace(" ", "")))
    assert data["dev"][0].tokens[:3] == ("A", "f", "i")
    assert (data.tokenizer.name, data.options["tokenizer"]) == ("custom", "custom")


def test_splits_may_be_given_by_name() -> None:
    parts = {"validation": (TEXTS[:7], LABELS[:7]), "train": (TEXTS[7:], LABELS[7:]), "hard": (["So so"], ["good"])}
    data = Data.from_samples(parts, name="My Films")
    assert (data.name, data.splits, sizes(data)) == (
        "my-films",
        ("train", "dev", "hard"),
        {"train": 93, "dev": 7, "hard": 1},
    )
    assert (data["dev"][0].tokens[5], data.notes) == ("0", ())
    assert all(data[split].label_names == ("bad", "good") for split in data)


def test_of_given_splits_dev_is_held_out_if_it_is_missing_and_test_is_not() -> None:
    parts = {"train": (TEXTS[:80], LABELS[:80]), "hard": (TEXTS[80:], LABELS[80:])}
    data = Data.from_samples(parts, dev=0.2)
    assert sizes(data) == {"train": 64, "dev": 16, "hard": 20}
    assert data.notes == ("samples: 80 samples divided by label with seed 0: train 64, dev 16",)
    assert sizes(Data.from_samples({"hard": parts["hard"]})) == {"hard": 20}


def test_gold_trees_come_as_trees_or_as_brackets() -> None:
    shapes: list[Any] = ["((a Fine) film)", Tree.parse("(a (fine film))"), "(a fine film)"]
    data = Data.from_samples(["A fine film"] * 3, [0, 1, 1], dev=0, test=0, trees=shapes)
    found = [data["train"].tree(index) for index in range(3)]
    assert found == [Tree.parse("((a fine) film)"), Tree.parse("(a (fine film))"), Tree.parse("((a fine) film)")]
    pairs = Data.from_samples([("a b c", ["d", "e"])], [0], dev=0, test=0, trees=[("(a (b c))", "(d e)")])
    assert pairs["train"][0] == Sample(("a", "b", "c"), "0", ("d", "e"), Tree.parse("(a (b c))"), Tree.parse("(d e)"))
    batch = pairs["train"].batches(pairs.vocabulary(), trees=True)[[0]]
    assert batch.trees == (Tree.parse("(a (b c))"), Tree.parse("(d e)"))
    by_split = Data.from_samples({"test": (["a b"], ["x"], ["(a b)"])})
    assert by_split["test"].tree(0) == Tree.parse("(a b)")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((["a", "b"], ["x"]), "samples: there are 2 texts and 1 labels"),
        (("a b", ["x"]), "texts is of type str: it must be a list, with one item for each sample"),
        ((["a"], None), "labels is of type NoneType: it must be a list, with one item for each sample"),
        ((["a", " "], ["x", "y"]), "samples, sample 1: the text is ' ', which has no tokens"),
        ((["a", 3], ["x", "y"]), "samples, sample 1: the text is 3: it must be a string"),
        ((["a", None], ["x", "y"]), "samples, sample 1: the text is null: it must be a string"),
        ((["a", []], ["x", "y"]), "samples, sample 1: the text has no tokens"),
        ((["a", ["b c"]], ["x", "y"]), "samples, sample 1: token 0 is 'b c': it must be a non-empty string without"),
        ((["a", ("b", "c", "d")], ["x", "y"]), "samples, sample 1: the text is a tuple of 3: use a tuple of two for"),
        ((["a", ("b", "c")], ["x", "y"]), "1 of 2 samples have a second text: all must have one, or none"),
        ((["a", "b"], ["x", None]), "samples, sample 1: the label is null: it must be a string or a number"),
        ((["a", "b"], ["x", " "]), "samples, sample 1: the label is empty"),
        ((["a", "b"], [0, float("nan")]), "samples, sample 1: the label is NaN, a missing value"),
        ((["a", "b"], [0, object]), "samples, sample 1: the label is <class 'object'>: it must be a string or a num"),
        (([], []), "samples: the split train has no samples"),
        (({},), "samples: there are no samples"),
        (({"train": ["a"]},), "the split 'train' must be a tuple (texts, labels) or (texts, labels, trees)"),
        (({"train": (["a"], ["x"])}, ["x"]), "texts is a mapping of splits with labels and trees: the arguments"),
        (({"dev": (["a"], ["x"]), "Val": (["a"], ["x"])},), "dev, Val: two of them are the split 'dev'"),
    ],
)
@pytest.mark.usefixtures("shape_checks_off")
def test_a_wrong_sample_is_refused_with_its_place(arguments: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}") as refused:
        Data.from_samples(*arguments, dev=0, test=0)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "tree", "complaint"),
    [
        (
            "a b",
            "(a c)",
            "samples, sample 0: leaf 1 of the tree is 'c', but token 1 of the text is 'b': the leaves must be",
        ),
        (
            "a b c",
            "(a b)",
            "samples, sample 0: the tree has 2 leaves and the text 3 tokens: the leaves must be the tok",
        ),
        ("a b", "(a b", "samples, sample 0: the tree: unbalanced brackets"),
        ("a b", 3, "samples, sample 0: the tree is 3: it must be brackets such as '((a b) c)'"),
        (("a", "b"), "(a b)", "samples, sample 0: a pair needs a tuple of two trees, and a text one tree"),
    ],
)
def test_a_tree_that_does_not_fit_its_text_is_refused(text: Any, tree: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}"):
        Data.from_samples([text], ["x"], dev=0, test=0, trees=[tree])


def test_too_few_samples_for_three_splits_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^samples: 2 samples cannot be divided into dev 1 and test 1: none would be"):
        Data.from_samples(["a", "b"], ["x", "y"])


def test_the_name_of_a_task_of_the_paper_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^name is 'imdb', which is a task of the paper: choose another name$"):
        Data.from_samples(TEXTS, LABELS, name="imdb")


# Data sets of Hugging Face, made in memory.


def hugging_face(rows: list[tuple[Any, ...]], *columns: str, names: list[str] | None = None) -> Any:
    package = pytest.importorskip("datasets")
    table = package.Dataset.from_dict(dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True)))
    return table if names is None else table.cast_column("label", package.ClassLabel(names=names))


def test_a_data_set_of_hugging_face_is_divided_like_lists() -> None:
    found = Data.from_datasets(hugging_face(list(zip(TEXTS, LABELS, strict=True)), "text", "label"))
    expected = Data.from_samples(TEXTS, LABELS, name="dataset")
    assert (found.name, found.options, found.notes) == (expected.name, expected.options, expected.notes)
    assert fingerprint(found, found) == fingerprint(expected, expected)


def test_class_names_become_labels_in_their_order_and_validation_is_dev() -> None:
    package = pytest.importorskip("datasets")
    names = ["worse", "better", "unused"]
    rows: list[tuple[Any, ...]] = [("It rains.", "It is wet.", 1), ("It rains.", "It is dry.", 0), ("It?", "No.", -1)]
    columns = ("premise", "hypothesis", "label")
    parts = {"train": rows, "test": [("Unknown.", "So?", -1)], "validation": rows[:1], "validation_2": rows[1:2]}
    dataset = package.DatasetDict({split: hugging_face(part, *columns, names=names) for split, part in parts.items()})
    data = Data.from_datasets(dataset, text="premise", second="hypothesis", name="mine")
    assert (data.labels, data.splits) == (("worse", "better", "unused"), ("train", "dev", "validation-2"))
    assert list(data["train"]) == [
        Sample(("it", "rains", "."), "better", ("it", "is", "wet", ".")),
        Sample(("it", "rains", "."), "worse", ("it", "is", "dry", ".")),
    ]
    assert data.notes == (
        "mine train: 1 of 3 samples have no label: they are left out",
        "mine test: 1 of 1 samples have no label: the split is left out",
    )


def test_a_data_set_may_have_tokens_trees_and_missing_labels() -> None:
    rows: list[tuple[Any, ...]] = [(["A", "b"], "(A b)", 1.5), (["c"], "c", None)] * 3
    dataset = hugging_face(rows, "tokens", "tree", "label")
    data = Data.from_datasets(dataset, "tokens", tree="tree", dev=1, test=0)
    assert (sizes(data), data.tokenizer) == ({"train": 2, "dev": 1}, Spaces())
    assert data["dev"][0] == Sample(("A", "b"), "1.5", tree=Tree.parse("(A b)"))
    assert data.notes[0] == "dataset: 3 of 6 samples have no label: they are left out"


def test_a_format_or_a_stream_makes_no_difference() -> None:
    dataset = hugging_face(list(zip(TEXTS, [0, 1] * 50, strict=True)), "text", "label", names=["no", "yes"])
    plain = Data.from_datasets(dataset)
    for other in (dataset.with_format("numpy"), dataset.with_format("arrow"), dataset.to_iterable_dataset()):
        found = Data.from_datasets(other)
        assert fingerprint(found, found) == fingerprint(plain, plain)


def test_a_data_set_of_the_paper_s_name_gets_another() -> None:
    dataset = hugging_face(list(zip(TEXTS, LABELS, strict=True)), "text", "label")
    dataset.info.dataset_name = "imdb"
    assert Data.from_datasets(dataset).name == "hf-imdb"
    dataset.info.dataset_name = "rotten_tomatoes"
    assert Data.from_datasets(dataset).name == "rotten-tomatoes"


def test_a_tokenizer_of_hugging_face_is_stored_by_its_kind() -> None:
    package = pytest.importorskip("tokenizers")
    tokenizer = package.Tokenizer(package.models.WordLevel({"A": 0, "fine": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = package.pre_tokenizers.Whitespace()
    dataset = hugging_face(list(zip(TEXTS, LABELS, strict=True)), "text", "label")
    data = Data.from_datasets(dataset, tokenizer=tokenizer)
    assert data["dev"][0].tokens[:3] == ("A", "fine", "?")
    assert (data.options["tokenizer"], data.tokenizer) == ("huggingface", make_tokenizer(tokenizer))


@pytest.mark.usefixtures("shape_checks_off")
def test_what_is_no_data_set_is_refused() -> None:
    dataset = hugging_face([("a", "x")], "text", "label")
    with pytest.raises(ValueError, match=r"^dataset: unknown column 'sentence'; known: text, label$"):
        Data.from_datasets(dataset, text="sentence")
    for trees in ({"tree": "text", "second": "text"}, {"tree": "text", "second_tree": "text"}):
        with pytest.raises(
            ValueError, match=r"^a pair needs the columns tree and second_tree, and a single text the col"
        ):
            Data.from_datasets(dataset, **trees)
    for wrong in ([("a", "x")], {"train": TEXTS}):
        with pytest.raises(
            ValueError, match=r"^the data set is of type list: it must be a Dataset or a DatasetDict of H"
        ):
            Data.from_datasets(wrong)


def test_the_package_is_not_imported_by_ours() -> None:
    """It is not among the dependencies, and takes seconds to import."""
    program = "import sys, beamtree.data; assert not {'datasets', 'tokenizers', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
