"""The vocabulary: which words it contains and in which order, conversion to ids and back, and its file."""

import hashlib
import json
import os
import pickle
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beamtree.data.vocabulary import Vocabulary

WORDS = st.text(min_size=1, max_size=4).filter(lambda word: word.split() == [word])
LEXICONS = st.lists(WORDS, unique=True, max_size=20)


def test_the_first_three_ids_are_padding_unknown_and_separator() -> None:
    vocabulary = Vocabulary(["the", "film"])
    assert (vocabulary.PAD, vocabulary.UNK, vocabulary.SEP, len(vocabulary)) == (0, 1, 2, 5)
    assert vocabulary.words() == ["<pad>", "<unk>", "<sep>", "the", "film"]
    assert vocabulary.ids(["film", "the", "dog", "<pad>", "<sep>"]) == [4, 3, 1, 1, 1]
    assert ("film" in vocabulary, "dog" in vocabulary, "<unk>" in vocabulary) == (True, False, False)


def test_the_most_frequent_words_come_first_and_then_the_alphabet() -> None:
    counts = {"b": 2, "rare": 1, "a": 2, "often": 9, "<unk>": 50}
    assert Vocabulary.build(counts).words()[3:] == ["often", "a", "b", "rare"]
    assert Vocabulary.build(counts, min_count=2).words()[3:] == ["often", "a", "b"]
    assert Vocabulary.build(counts, max_size=2).words()[3:] == ["often", "a"]
    assert Vocabulary.build(counts, max_size=2, known={"rare", "b", "a"}).words()[3:] == ["a", "b"]
    assert Vocabulary.build({}).words()[3:] == []


@given(st.lists(WORDS), st.randoms())
def test_the_order_of_counting_does_not_matter(tokens: list[str], random: object) -> None:
    other = sorted(tokens, key=lambda _: random.random())  # type: ignore[attr-defined]
    assert Vocabulary.build(Counter(tokens)) == Vocabulary.build(Counter(other))


@given(LEXICONS, st.lists(WORDS))
def test_ids_and_words_there_and_back(lexicon: list[str], tokens: list[str]) -> None:
    vocabulary = Vocabulary(lexicon)
    assert vocabulary.words(vocabulary.ids(lexicon)) == lexicon
    assert vocabulary.words(vocabulary.ids(tokens)) == [token if token in lexicon else "<unk>" for token in tokens]
    assert vocabulary.words(range(len(vocabulary))) == vocabulary.words()
    assert vocabulary.lookup(tokens).tolist() == vocabulary.ids(tokens)


def test_a_closed_vocabulary_takes_no_unknown_words() -> None:
    vocabulary = Vocabulary(["[MIN", "[MAX", "]"], closed=True)
    assert vocabulary.ids(["[MAX", "]"]) == [4, 5]
    for find in (vocabulary.ids, vocabulary.lookup):
        with pytest.raises(
            ValueError, match=r"unknown token '\[MAD' \(did you mean '\[MA?X?I?N?'\?\); known: \[MIN, \[MAX"
        ):
            find(["]", "[MAD"])
    assert vocabulary != Vocabulary(["[MIN", "[MAX", "]"])


@pytest.mark.usefixtures("shape_checks_off")
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["a", "b", "a"], "word 5 is 'a', and so is word 3"),
        (["a", ""], "word 4 is '': a word must be"),
        (["a b"], "word 3 is 'a b': a word must be"),
        (["a\u2028"], "without whitespace"),
        ([7], "word 3 is 7: a word must be"),
        (["<pad>"], "word 3 is '<pad>', which is reserved"),
    ],
)
def test_what_is_no_word_is_refused(words: list[str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Vocabulary(words)


def test_ids_that_do_not_exist_are_refused() -> None:
    for wrong in (-1, 4):
        with pytest.raises(ValueError, match=f"no word with id {wrong}: ids are from 0 to 3"):
            Vocabulary(["a"]).words([0, wrong])


@pytest.mark.parametrize("wrong", [{"min_count": 0}, {"max_size": 0}])
def test_bounds_that_leave_nothing_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be an integer of at least 1"):
        Vocabulary.build({"a": 1}, **wrong)  # type: ignore[arg-type]


@given(LEXICONS, LEXICONS)
def test_equal_words_have_equal_fingerprints_and_others_do_not(left: list[str], right: list[str]) -> None:
    one, two = Vocabulary(left), Vocabulary(right)
    assert (one == two) == (one.fingerprint == two.fingerprint) == (left == right)
    assert hash(one) == hash(pickle.loads(pickle.dumps(one)))
    assert len(one.fingerprint) == 64


def test_a_fingerprint_is_the_sum_of_the_lines() -> None:
    """It is part of keys on disk, so it must never change."""
    lines = "<pad>\n<unk>\n<sep>\nthe\ncafé"
    assert Vocabulary(["the", "café"]).fingerprint == hashlib.sha256(lines.encode()).hexdigest()
    assert Vocabulary(["\udc80"]).fingerprint != Vocabulary(["\udc81"]).fingerprint


@given(lexicon=LEXICONS, closed=st.booleans())
def test_loading_what_was_saved_gives_it_back(
    tmp_path_factory: pytest.TempPathFactory, lexicon: list[str], closed: bool
) -> None:
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.json"
    vocabulary = Vocabulary([*lexicon, "half-\udc80"], closed)  # an unpaired surrogate, as JSON may contain it
    vocabulary.save(path)
    assert Vocabulary.load(path, closed) == vocabulary
    assert os.listdir(path.parent) == [path.name]


def test_the_file_is_a_readable_list(tmp_path: Path) -> None:
    path = tmp_path / "vocab.json"
    path.write_text("old")
    Vocabulary(["the", "café"]).save(path)
    assert path.read_text(encoding="utf-8") == '[\n"<pad>",\n"<unk>",\n"<sep>",\n"the",\n"café"\n]\n'


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "vocab.json"
    Vocabulary(["old"]).save(path)

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        Vocabulary(["new"]).save(path)
    assert os.listdir(tmp_path) == [path.name]
    assert "old" in Vocabulary.load(path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "it is not JSON"),
        (b'["<pad>", "<unk>"', "it is not JSON"),
        (b"\xff\xfe\xfa", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b'{"a": 1}', "it is not a vocabulary: it must be a JSON list that starts with <pad>, <unk>, <sep>"),
        (b'["the", "film"]', "it is not a vocabulary"),
        (json.dumps(["<pad>", "<unk>", "<sep>", "a", "a"]).encode(), "word 4 is 'a', and so is word 3"),
        (json.dumps(["<pad>", "<unk>", "<sep>", "a", 7]).encode(), "word 4 is 7: a word must be"),
    ],
)
@pytest.mark.usefixtures("shape_checks_off")
def test_a_bad_file_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "vocab.json").write_bytes(content)
    with pytest.raises(ValueError, match=f"vocab.json: {complaint}") as caught:
        Vocabulary.load(tmp_path / "vocab.json")
    assert "\n" not in str(caught.value)
