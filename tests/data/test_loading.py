"""Loading the tasks from their authors' file layouts: samples, the cache, vocabularies, and invalid files."""

import gzip
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from beamtree.data import load, loading
from beamtree.data.cache import entries
from beamtree.data.samples import Sample
from beamtree.data.tasks.listops import task as listops_task
from beamtree.data.vectors import Vectors
from beamtree.trees import Tree
from toy_originals import LONG, ORIGINALS, SICK, pair, write


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BEAMTREE_DATA", raising=False)
    monkeypatch.setattr(listops_task, "_DEV", 2)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "data", ORIGINALS)
    return tmp_path / "data"


@pytest.fixture
def makings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The splits that were prepared and not found in the cache."""
    made: list[str] = []
    prepare: Callable[..., Any] = loading._prepared

    def counted(task: Any, columns: Any, samples: Any) -> Any:
        made.extend(f"{task.name} {column.name}" for column in columns)
        return prepare(task, columns, samples)

    monkeypatch.setattr(loading, "_prepared", counted)
    return made


def plain(samples: Any) -> list[tuple[str, ...]]:
    """Label and texts of each sample."""
    return [
        (sample.label, *(" ".join(side) for side in (sample.tokens, sample.second) if side is not None))
        for sample in samples
    ]


def test_logic_trains_on_seven_files_and_holds_out_every_tenth_pair(root: Path) -> None:
    data = load("logic", roots=[root])
    assert data.splits == ("train", "dev", *map(str, range(13)))
    lines = [line for number in range(7) for line in ORIGINALS[f"propositionallogic/train{number}"]]
    expected = [tuple(line.split("\t")) for line in lines]
    assert plain(data["train"]) == expected[:9] + expected[10:]
    assert plain(data["dev"]) == [expected[9]]
    assert [len(data[str(number)]) for number in range(13)] == list(range(1, 14))
    assert data["train"].second_tree(1) == Tree.from_actions([0, 0, 0], ["(", "not", "a", ")"])


def test_split_c_tests_negations_right_of_an_operator(root: Path) -> None:
    data = load("logic-c", roots=[root])
    both = [("<", "( a ( and ( not b ) ) )", "a"), (">", "a", "( a ( or ( not b ) ) )")]
    assert plain(data["C"]) == both
    assert (len(data["train"]), len(data["dev"])) == (11, 1)
    only_and = load("logic-c", roots=[root], and_only=True)
    assert plain(only_and["C"]) == both[:1]
    assert (len(only_and["train"]), len(only_and["dev"])) == (12, 1)
    assert plain(load("logic-c", "c", roots=[root])) == both, "the one must not be taken for the other"


def test_sst_trains_on_phrases_and_tests_on_sentences(root: Path) -> None:
    five = load("sst5", roots=[root])
    assert plain(five["train"]) == [
        ("positive", "it really works"),
        ("neutral", "it"),
        ("very positive", "really works"),
        ("neutral", "really"),
        ("positive", "works"),
        ("negative", "no fun"),
        ("neutral", "no"),
        ("negative", "fun"),
    ]
    assert five["train"].tree(0) == Tree.parse("(it (really works))")
    assert plain(five["dev"]) == [("very positive", "great (ish)"), ("neutral", "a film")]
    assert plain(five["IID"]) == [("very negative", "dire film")]
    two = load("sst2", roots=[root])
    assert plain(two["dev"]) == [("positive", "great (ish)")]
    assert two["train"].label_counts() == {"negative": 2, "positive": 3}


def test_imdb_takes_reviews_by_length_and_the_tables_as_they_are(root: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    data = load("imdb", roots=[root], progress=lambda *news: told.append(news))
    assert plain(data["train"]) == [("negative", " ".join(["bad"] * 200)), ("positive", "a good film . good !")]
    longer = ("positive", " ".join(["good"] * 201))
    assert plain(data["dev"]) == [longer, ("positive", "lovely"), ("negative", "unlovely")]
    assert plain(data["IID"]) == [("negative", "dull ."), ("positive", "fine .")]
    assert plain(data["con-ood"]) == [("negative", "not nice"), ("positive", "not boring")]
    assert plain(data["Count. OOD"]) == [("negative", "far from nice")]
    assert plain(data["con-originals"]) == [("positive", "nice"), ("negative", "boring")]
    assert plain(data["count-originals"]) == [("positive", "quite nice")]
    assert told == [("reviews", 0, 50_000)]
    official = load("imdb", "dev", roots=[root], official=True)
    assert plain(official) == [longer, ("positive", "lovely"), ("positive", "lovely")]
    assert plain(load("imdb", "dev", roots=[root])) == plain(data["dev"])


def test_mnli_holds_out_a_tenth_and_tests_on_its_dev_sets(root: Path) -> None:
    data = load("mnli", roots=[root])
    together = [*plain(data["train"]), *plain(data["dev"])]
    assert (len(data["train"]), len(data["dev"])) == (18, 2)
    expected = [("entailment", f"number {number} rings .", "it rings .") for number in range(20)]
    assert sorted(together) == sorted(expected)
    long = LONG.lower()
    assert plain(data["M"]) == [
        ("contradiction", "it does n't rain .", "it rains ."),
        ("neutral", long, "not too long here"),
    ]
    assert plain(data["MM"]) == [("neutral", "it rains .", "it is late .")]
    assert plain(data["Len M"]) == [("neutral", "long .", "short .")]
    assert plain(data["Numerical"]) == [("neutral", "two cats .", "three cats .")]
    tautology = " ".join(["and true is true"] * 5)
    assert plain(data["Len MM (ours)"]) == [("neutral", f"it rains {tautology} .", "it is late .")]
    assert plain(data["neg-m-ours"])[1] == ("neutral", long, "not too long here and false is not true")


def test_snli_and_sick_are_read_in_their_authors_files(root: Path) -> None:
    assert plain(load("snli", "dev", roots=[root])) == [("neutral", "a man .", "a tall man .")]
    sick = load("sick", roots=[root])
    assert plain(sick["train"]) == [
        ("entailment", "a dog runs", "an animal runs"),
        ("entailment", "a cat sleeps", "a cat rests"),
    ]
    assert plain(sick["dev"]) == [("contradiction", "a dog runs", "no dog runs")]
    assert plain(sick["test"]) == [("neutral", "a dog runs", "a cat sleeps")]


def test_sick_may_be_a_file_for_each_part_or_packed(tmp_path: Path) -> None:
    write(tmp_path, {f"jsonl/sick_{part}.jsonl": [pair("neutral", part, "B")] for part in ("train", "dev", "test")})
    assert plain(load("sick", "dev", roots=[tmp_path / "jsonl"])) == [("neutral", "dev", "b")]
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "SICK.txt.gz").write_bytes(gzip.compress("\r\n".join(SICK).encode()))
    assert plain(load("sick", "test", roots=[tmp_path / "packed"])) == [("neutral", "a dog runs", "a cat sleeps")]


def test_original_listops_takes_dev_from_the_head_of_the_training_file(root: Path) -> None:
    data = load("listops-original", roots=[root])
    assert [(sample.label, len(sample.tokens)) for sample in data["dev"]] == [("7", 1), ("9", 102)]
    train = [Sample(sample.tokens, sample.label) for sample in data["train"]]
    assert [(sample.label, len(sample.tokens)) for sample in train] == [("2", 4), ("1", 1), ("8", 100)]
    assert data["train"].tree(0) == Tree.parse("((([MIN 4) 2) ])")
    assert plain(data["near-IID"]) == [("3", "3")]


def test_a_split_is_made_once_and_then_mapped_from_the_cache(root: Path, makings: list[str]) -> None:
    first = load("sst5", roots=[root])
    assert makings == [], "nothing is made before it is asked for"
    dev = first["dev"]
    assert first["dev"] is dev
    again = load("sst5", "dev", roots=[root])
    assert makings == ["sst5 dev"]
    assert list(again) == list(dev)
    assert isinstance(again.tokens.flat, np.memmap)
    load("sst2", "dev", roots=[root])
    assert makings == ["sst5 dev", "sst2 dev"]


def test_splits_that_belong_together_are_made_together(root: Path, makings: list[str]) -> None:
    load("logic", "dev", roots=[root])
    load("logic", "train", roots=[root])
    assert makings == ["logic train", "logic dev"]


def test_other_options_are_made_and_kept_beside_the_first(root: Path, makings: list[str]) -> None:
    for _ in range(2):
        assert len(load("logic-c", "C", roots=[root])) == 2
        assert len(load("logic-c", "C", roots=[root], and_only=True)) == 1
    assert makings == ["logic-c train", "logic-c dev", "logic-c c"] * 2
    assert len(entries()) == 2


def test_originals_that_change_are_read_again(root: Path, makings: list[str]) -> None:
    load("sst5", "dev", roots=[root])
    (root / "trees/dev.txt").write_text("(4 (2 Great) (2 -LRB-ish-RRB-))\n(2 (2 A) (2 play))\n")
    assert plain(load("sst5", "dev", roots=[root]))[1] == ("neutral", "a play")
    assert makings == ["sst5 dev"] * 2
    os.utime(root / "trees/dev.txt", (0, 0))
    load("sst5", "dev", roots=[root])
    assert makings == ["sst5 dev"] * 3


def test_a_split_made_from_another_makes_that_one_first(root: Path, makings: list[str]) -> None:
    load("mnli", "len-mm-ours", roots=[root])
    load("mnli", "neg-mm-ours", roots=[root])
    assert makings == ["mnli mm", "mnli len-mm-ours", "mnli neg-mm-ours"]


def test_originals_are_found_in_the_folders_that_the_environment_names(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEAMTREE_DATA", str(root))
    assert len(load("sst5", "dev")) == 2


def test_a_split_is_in_the_data_by_title_and_by_name(root: Path) -> None:
    data = load("imdb", roots=[root])
    assert list(data) == list(data.splits)
    assert "con-ood" in data
    assert "Con. OOD" in data
    assert "train" in data
    assert "test" not in data
    assert 3 not in data
    assert repr(data).startswith("<Data imdb: train, dev, iid, ")
    assert (data.name, data.labels) == ("imdb", ("negative", "positive"))


def test_missing_says_what_to_get_and_makes_nothing(root: Path, makings: list[str], tmp_path: Path) -> None:
    data = load("mnli", roots=[root])
    assert [split for split in data if data.missing(split) is None] == [
        *("train", "dev", "m", "mm", "len-m", "numerical", "len-m-ours", "len-mm-ours", "neg-m-ours", "neg-mm-ours")
    ]
    lacking = data.missing("Neg MM")
    assert lacking is not None
    assert f"{root}/StressTests lacks" in lacking
    assert "multinli_0.9_negation_mismatched.jsonl" in lacking
    assert "'beamtree data get nli-stress' downloads it" in lacking
    empty = tmp_path / "empty"
    empty.mkdir()
    absent = load("sst5", roots=[empty]).missing("dev")
    assert absent == (
        f"sst is not in {empty}: 'beamtree data get sst' downloads it, or get it from "
        "https://nlp.stanford.edu/sentiment/ and put it into a folder in BEAMTREE_DATA"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(absent)}$"):
        load("sst5", "dev", roots=[empty])
    with pytest.raises(ValueError, match=r"snli_1\.0 lacks snli_1\.0_train\.jsonl: 'beamtree data get snli'"):
        load("snli", "train", roots=[root])
    with pytest.raises(ValueError, match="is not a folder: it must be a folder with sst"):
        load("sst5", "dev", roots=[tmp_path / "nowhere"])
    assert (makings, load("listops").missing("train")) == ([], None)


def test_an_unknown_task_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^unknown task 'sst-5' \(did you mean 'sst5'\?\); known: listops, .*, sick, or"
    ):
        load("sst-5")
    with pytest.raises(ValueError, match=r"or the path of a \.tsv, \.csv or \.jsonl file that exists$"):
        load(tmp_path / "absent.tsv")


def test_a_wrong_split_or_option_is_refused_before_anything_is_looked_for() -> None:
    with pytest.raises(ValueError, match=r"^sst5: unknown split 'tset'"):
        load("sst5", "tset")
    with pytest.raises(ValueError, match=r"^sst5: unknown option 'seed'; known: none"):
        load("sst5", seed=1)


def test_a_vocabulary_is_of_the_training_text_alone_unless_told_otherwise(root: Path) -> None:
    data = load("sst5", roots=[root])
    counts = Counter(token for sample in data["train"] for token in sample.tokens)
    by_frequency = sorted(counts, key=lambda word: (-counts[word], word))
    assert data.vocabulary().words()[3:] == by_frequency
    assert not data.vocabulary().closed
    everything = data.vocabulary(include_test=True)
    assert set(everything.words()[3:]) == {*counts, "great", "(ish)", "a", "film", "dire"}
    assert data.vocabulary(max_size=2).words()[3:] == by_frequency[:2]
    assert data.vocabulary(min_count=3).words()[3:] == ["really", "works"]
    with pytest.raises(ValueError, match="min_count is 0: it must be an integer of at least 1"):
        data.vocabulary(min_count=0)


def test_a_word_must_be_as_frequent_as_the_paper_asks_for(root: Path) -> None:
    mnli = load("mnli", roots=[root])
    words = Counter(word for sample in mnli["train"] for side in (sample.tokens, sample.second or ()) for word in side)
    assert set(mnli.vocabulary().words()[3:]) == {word for word, count in words.items() if count >= 4}
    assert words["0"] + words["1"] > 0
    assert load("imdb", roots=[root]).vocabulary().words()[3:] == ["bad"]
    assert load("sick", roots=[root]).vocabulary().words()[3:] == [
        "a",
        "cat",
        "runs",
        "an",
        "animal",
        *("dog", "rests", "sleeps"),
    ]


def test_splits_that_are_not_at_hand_do_not_count(root: Path) -> None:
    data = load("mnli", roots=[root])
    words = data.vocabulary(include_test=True, min_count=1).words()
    assert {"late", "cats", "n't", "false"} <= set(words)


def test_with_vectors_only_their_words_are_known(root: Path) -> None:
    vectors = Vectors(["works", "film", "no"], np.ones((3, 2), dtype=np.float32))
    data = load("sst5", roots=[root])
    assert data.vocabulary(vectors).words()[3:] == ["works", "no"]
    assert data.vocabulary(vectors, include_test=True).words()[3:] == ["works", "film", "no"]


def test_a_formal_language_has_a_closed_vocabulary_without_any_data() -> None:
    logic = load("logic").vocabulary()
    assert logic.words()[3:] == ["(", ")", *"abcdef", "and", "or", "not"]
    assert logic.closed
    assert len(load("listops-dg").vocabulary()) == 18
    assert load("listops-original").vocabulary() == load("listops").vocabulary()
