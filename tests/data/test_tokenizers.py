"""Tokenizers: their tokens, the offsets of each token in the text, and storing them."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from beamtree.data import words
from beamtree.data.tasks import imdb
from beamtree.data.tokenizers import (
    Custom,
    Formal,
    HuggingFace,
    Spaces,
    Token,
    Tokenizer,
    Words,
    from_json,
    make_tokenizer,
    task_tokenizer,
)

# Text in which every rule of "words" applies, letters whose lower case is longer or depends on their
# neighbours, combining marks, emoji of several characters, all kinds of spaces, and text of any characters.
PIECES = st.sampled_from(
    [*"'\"`.,:;-()[]<>!?*$’“”»…—", "''", "...", "--", "n't", "'s", "mr.", "u.s.", "cannot", "gimme", "<br />", "</BR>"]
) | st.sampled_from(
    ["a", "Dog", "7", " ", "\n", "\x85", "\u3000", "İ", "ΣΑΣ", "ẞ", "e\u0301", "👩‍👩‍👧", "🙂", "ﬁ", "\u0307"]
)
TEXTS = st.lists(PIECES, max_size=20).map("".join) | st.text()
CORPUS = ["the cat sat on the mat", "A fine film İstanbul 🙂 é", "do not stop", "x y z"] * 5


def slices(tokenizer: Tokenizer, text: str) -> list[tuple[str, str]]:
    """Each token with the characters at its offsets."""
    return [(token.text, text[token.start : token.end]) for token in tokenizer.tokenize(text)]


def check_offsets(tokenizer: Tokenizer, text: str) -> None:
    """Tokens are those without offsets, in the order of the text, and inside it."""
    tokens = tokenizer.tokenize(text)
    assert [token.text for token in tokens] == tokenizer.words(text) == tokenizer(text)
    assert all(0 <= token.start <= token.end <= len(text) for token in tokens)
    starts, ends = [token.start for token in tokens], [token.end for token in tokens]
    assert starts == sorted(starts)
    assert ends == sorted(ends)


def without_quotes(text: str) -> str:
    return text.replace('"', "''").replace("`", "'")


@given(TEXTS)
@example("İ''İ\"x``İ")
@example("''\"'''a\"'")
def test_a_word_stands_at_its_offsets_and_only_spaces_stand_between(text: str) -> None:
    check_offsets(Words(), text)
    end = 0
    for token in Words().tokenize(text):
        assert not text[end : token.start].strip()
        assert len(without_quotes(text[token.start : token.end].lower())) == len(token.text)
        end = token.end
    assert not text[end:].strip()


@given(TEXTS)
def test_a_word_is_the_lower_case_of_the_characters_at_its_offsets(text: str) -> None:
    """Compared without case, as the lower case of Σ depends on what follows."""
    for token, characters in slices(Words(), text):
        assert without_quotes(token).casefold() == without_quotes(characters.lower()).casefold()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("İstanbul isn't far.", ["İstanbul", "is", "n't", "far", "."]),
        ("Is it İ? İİİ!", ["Is", "it", "İ", "?", "İİİ", "!"]),
        ('He said: "İ can\'t"', ["He", "said", ":", '"', "İ", "ca", "n't", '"']),
        ("''Quoted'' x", ["''", "Quoted", "''", "x"]),
        ("🙂 great, e\u0301te\u0301!", ["🙂", "great", ",", "e\u0301te\u0301", "!"]),
        ("👩‍👩‍👧's\u3000ΟΔΟΣ.", ["👩‍👩‍👧", "'s", "ΟΔΟΣ", "."]),
        (" \n ", []),
    ],
)
def test_offsets_of_words_count_the_characters_of_the_original_text(text: str, expected: list[str]) -> None:
    assert [characters for _, characters in slices(Words(), text)] == expected


def test_only_one_letter_has_a_lower_case_of_another_length() -> None:
    """The offsets rely on this: the length of a text in lower case is the sum over its letters."""
    letters = [chr(code) for code in range(sys.maxunicode + 1)]
    assert [letter for letter in letters if len(letter.lower()) != 1] == ["İ"]


@pytest.mark.usefixtures("shape_checks_off")
def test_offsets_of_words_take_linear_time() -> None:
    text = 'İ"don\'t." ' * 20_000
    assert len(Words().tokenize(text)) == len(words.tokenize(text))


@given(TEXTS)
def test_line_breaks_of_reviews_are_no_text_and_keep_the_offsets(text: str) -> None:
    tokenizer = Words(line_breaks=True)
    check_offsets(tokenizer, text)
    assert tokenizer.words(text) == words.tokenize(imdb.clean(text))


def test_a_review_has_its_offsets_in_the_original_text() -> None:
    text = "İt was good.<br /><br />Not BAD"
    assert [characters for _, characters in slices(Words(line_breaks=True), text)] == [
        *("İt", "was", "good", ".", "Not", "BAD")
    ]


@given(TEXTS)
def test_spaces_separate_and_change_nothing(text: str) -> None:
    check_offsets(Spaces(), text)
    assert Spaces().words(text) == text.split()
    assert all(token == characters for token, characters in slices(Spaces(), text))


@given(st.lists(st.sampled_from(["[MAX", "(", ")", "]", "7", " ", "a", "and"])).map("".join), st.booleans())
def test_formal_tokens_stand_at_their_offsets(text: str, parentheses: bool) -> None:
    check_offsets(Formal(parentheses), text)
    found = slices(Formal(parentheses), text)
    assert all(token == characters for token, characters in found)
    kept = [token for token in Formal().words(text) if parentheses or token not in "()"]
    assert [token for token, _ in found] == kept


def test_formal_languages_may_have_the_brackets_of_the_gold_tree() -> None:
    text = "( ( ( [MAX 2 ) 9 ) ] )"
    assert Formal(parentheses=False).words(text) == ["[MAX", "2", "9", "]"]
    assert Formal().words("(a(and(not b)))") == ["(", "a", "(", "and", "(", "not", "b", ")", ")", ")"]


def test_a_task_of_the_paper_has_its_tokenizer() -> None:
    assert task_tokenizer("listops", ["[MAX", "]"]) == Formal(parentheses=False)
    assert task_tokenizer("logic", ["(", ")"]) == Formal()
    assert task_tokenizer("imdb", None) == Words(line_breaks=True)
    assert task_tokenizer("sst5", None) == Words()


@given(TEXTS)
def test_a_function_s_tokens_are_found_in_the_text_whatever_their_case(text: str) -> None:
    tokenizer = make_tokenizer(lambda text: text.upper().split())
    check_offsets(tokenizer, text)
    assert [text[token.start : token.end] for token in tokenizer.tokenize(text)] == text.split()


@given(TEXTS, st.lists(st.sampled_from(["a", "dog", "zzz", "<s>", "'s"])))
def test_a_token_that_is_not_in_the_text_has_a_place_in_order(text: str, tokens: list[str]) -> None:
    check_offsets(Custom(lambda text: tokens), text)


def test_a_token_that_is_not_in_the_text_has_the_span_between_its_neighbours() -> None:
    tokenizer = make_tokenizer(lambda text: ["the", "cat", "be", "sit"])
    assert slices(tokenizer, "The cats were sitting") == [
        ("the", "The"),
        ("cat", "cat"),
        ("be", "s were"),
        ("sit", "sit"),
    ]


def test_tokens_that_share_a_character_have_it_both() -> None:
    found = Custom(lambda text: ["s", "zzz", "s"]).tokenize("ß")
    assert [(token.start, token.end) for token in found] == [(0, 1), (0, 0), (0, 1)]


@pytest.mark.usefixtures("shape_checks_off")
@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (lambda text: "ab", "the tokenizer returned 'ab': it must be a list of tokens"),
        (lambda text: None, "the tokenizer returned None: it must be a list of tokens"),
        (lambda text: ["a", ""], "the tokenizer returned the token '': a token must be a non-empty string without"),
        (lambda text: ["a b"], "the tokenizer returned the token 'a b': a token must be a non-empty string without"),
        (lambda text: [3], "the tokenizer returned the token 3: a token must be a non-empty string without whitespace"),
    ],
)
def test_a_function_must_return_tokens(function: Callable[[str], Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}"):
        make_tokenizer(function).words("text")


@pytest.mark.parametrize("tokenizer", [Words(), Words(line_breaks=True), Spaces(), Formal(), Formal(parentheses=False)])
def test_a_tokenizer_comes_back_from_json(tokenizer: Tokenizer) -> None:
    again = from_json(json.loads(json.dumps(tokenizer.to_json())))
    assert again == tokenizer
    assert (type(again), hash(again), again.fingerprint) == (type(tokenizer), hash(tokenizer), tokenizer.fingerprint)
    assert again.to_json() == tokenizer.to_json()
    assert tokenizer != Custom(str.split)


def test_a_function_is_not_stored() -> None:
    tokenizer = make_tokenizer(str.split)
    with pytest.raises(
        ValueError, match=r"^the tokenizer is <method 'split' of 'str' objects>: a function cannot be st"
    ):
        tokenizer.to_json()
    assert tokenizer.fingerprint is None
    assert tokenizer == tokenizer
    assert tokenizer != make_tokenizer(str.split)


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ([], "[] is not a tokenizer: it must be an object with a name"),
        (
            {"name": "word"},
            "unknown tokenizer 'word' (did you mean 'words'?); known: words, spaces, formal, huggingface",
        ),
        ({"name": "custom"}, "unknown tokenizer 'custom'; known:"),
        ({"name": "words", "case": 1}, "the tokenizer words has no options case"),
        ({"name": "words", "line_breaks": 1}, "line_breaks is 1: it must be True or False"),
    ],
)
@pytest.mark.usefixtures("shape_checks_off")
def test_json_of_no_tokenizer_is_refused(document: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}"):
        from_json(document)


@pytest.mark.usefixtures("shape_checks_off")
def test_what_is_no_tokenizer_is_refused() -> None:
    assert make_tokenizer("words") == Words()
    spaces = Spaces()
    assert make_tokenizer(spaces) is spaces
    with pytest.raises(
        ValueError, match=r"^unknown tokenizer 'space' \(did you mean 'spaces'\?\); known: words, spaces$"
    ):
        make_tokenizer("space")
    with pytest.raises(
        ValueError, match=r"^tokenizer is 3: it must be one of words, spaces, a function from a text to"
    ):
        make_tokenizer(3)
    for name in ("huggingface", "custom"):
        with pytest.raises(ValueError, match=f"^tokenizer is '{name}', which is a kind of tokenizer: pass the"):
            make_tokenizer(name)


def test_leaves_of_a_tree_are_tokens_in_the_form_of_the_tokenizer() -> None:
    leaves = ["Can't", "STOP", "."]
    assert Words().of_leaves(leaves) == ["can't", "stop", "."]
    assert Spaces().of_leaves(leaves) == leaves
    assert make_tokenizer(lambda text: text.replace(".", "").split()).of_leaves(leaves) == ["Can't", "STOP"]


def byte_level() -> Any:
    """A byte-level tokenizer that pads and truncates, as for language models."""
    package = pytest.importorskip("tokenizers")
    tokenizer = package.Tokenizer(package.models.BPE())
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = package.pre_tokenizers.ByteLevel.alphabet()
    trainer = package.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.enable_padding(length=20)
    tokenizer.enable_truncation(3)
    return tokenizer


def word_pieces() -> Any:
    """A tokenizer that lower-cases, removes accents, and adds special tokens around a text."""
    package = pytest.importorskip("tokenizers")
    tokenizer = package.Tokenizer(package.models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = package.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = package.pre_tokenizers.BertPreTokenizer()
    special = ["[UNK]", "[CLS]", "[SEP]"]
    trainer = package.trainers.WordPieceTrainer(vocab_size=100, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = package.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer


def characters() -> Any:
    """A tokenizer whose tokens are the characters of a text, including whitespace."""
    package = pytest.importorskip("tokenizers")
    vocabulary = {character: index for index, character in enumerate(["?", *sorted(set("".join(CORPUS))), "\n"])}
    tokenizer = package.Tokenizer(package.models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = package.pre_tokenizers.Split("", "isolated")
    return tokenizer


@pytest.mark.parametrize("make", [byte_level, word_pieces, characters])
def test_a_tokenizer_of_hugging_face_is_used_without_padding_truncation_and_special_tokens(make: Any) -> None:
    theirs = make()
    tokenizer = make_tokenizer(theirs)
    before = theirs.to_str()
    for text in CORPUS[:4]:
        check_offsets(tokenizer, text)
        assert not {"[CLS]", "[SEP]", "[PAD]"} & set(tokenizer.words(text))
        assert "".join(part for _, part in slices(tokenizer, text)).replace(" ", "") == text.replace(" ", "")
    assert theirs.to_str() == before, "the caller's tokenizer stays as it is"
    again = from_json(json.loads(json.dumps(tokenizer.to_json())))
    assert (again, again.words(CORPUS[1])) == (tokenizer, tokenizer.words(CORPUS[1]))


def test_offsets_of_hugging_face_are_those_of_the_original_text_without_spaces() -> None:
    text = "The cat  İstanbul é"
    assert slices(make_tokenizer(word_pieces()), text) == [
        ("the", "The"),
        ("cat", "cat"),
        ("istanbul", "İstanbul"),
        ("e", "é"),
    ]
    found = slices(make_tokenizer(byte_level()), "the cat 🙂")
    assert found == [("the", "the"), ("Ġcat", "cat"), ("ĠðŁĻĤ", "🙂")]


def test_whitespace_in_a_token_is_written_visibly() -> None:
    assert make_tokenizer(characters()).words("a b\nc") == ["a", "▁", "b", "<0x0A>", "c"]


def test_hugging_face_s_tokens_can_be_leaves_whatever_the_text() -> None:
    tokenizers = [make_tokenizer(make()) for make in (byte_level, word_pieces, characters)]  # once for all examples

    @given(TEXTS)
    def check(text: str) -> None:
        for tokenizer in tokenizers:
            check_offsets(tokenizer, text)
            assert all(token.split() == [token] for token in tokenizer.words(text))

    check()


def test_text_that_is_no_unicode_is_refused_by_hugging_face_alone() -> None:
    text = "a \ud800 b"
    for tokenizer in (Words(), Spaces(), Custom(str.split)):
        assert tokenizer.words(text) == ["a", "\ud800", "b"]
    with pytest.raises(ValueError, match=r"^'a \\ud800 b' cannot be tokenized: it is not valid Unicode$"):
        make_tokenizer(byte_level()).words(text)


def test_a_tokenizer_may_be_a_file(tmp_path: Path) -> None:
    theirs = byte_level()
    theirs.save(str(tmp_path / "tokenizer.json"))
    tokenizer = make_tokenizer(theirs)
    assert make_tokenizer(str(tmp_path / "tokenizer.json")) == tokenizer
    for stored in (tokenizer, Formal(parentheses=False)):
        (tmp_path / "ours.json").write_text(json.dumps(stored.to_json()))
        assert make_tokenizer(str(tmp_path / "ours.json")) == stored


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "it cannot be read (No such file or directory)"),
        ("{", "it is not JSON: it must be a tokenizer.json of Hugging Face"),
        ("[]", "[] is not a tokenizer: it must be an object with a name"),
        ('{"model": 3}', "this is not a tokenizer of Hugging Face ("),
        ('{"name": "word"}', "unknown tokenizer 'word'"),
    ],
)
def test_a_file_of_no_tokenizer_is_refused_in_one_line(tmp_path: Path, content: str | None, complaint: str) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path}: {complaint}')}") as refused:
        make_tokenizer(str(path))
    assert "\n" not in str(refused.value)


def test_a_tokenizer_with_parts_in_python_is_refused() -> None:
    package = pytest.importorskip("tokenizers")
    theirs = word_pieces()
    theirs.pre_tokenizer = package.pre_tokenizers.PreTokenizer.custom(object())
    with pytest.raises(ValueError, match=r"cannot be stored \(.*\): pass the function lambda text: tokenizer.encode"):
        make_tokenizer(theirs)


def test_other_forms_of_hugging_face_s_tokenizers_are_taken() -> None:
    package = pytest.importorskip("tokenizers")
    wrapped = package.BertWordPieceTokenizer()
    wrapped.train_from_iterator(CORPUS, show_progress=False)
    assert make_tokenizer(wrapped).words("The cat") == ["the", "cat"]

    class Fast:
        """As `transformers` wraps them; it is callable too."""

        backend_tokenizer = word_pieces()

        def __call__(self, text: str) -> dict[str, list[int]]:
            return {"input_ids": []}

    assert make_tokenizer(Fast()).words("The cat") == ["the", "cat"]


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(
        ValueError, match=r"^a tokenizer of Hugging Face needs the package tokenizers: pip install token"
    ):
        HuggingFace({})


def test_a_token_has_its_text_and_its_place() -> None:
    assert Words().tokenize("It isn't.")[2] == Token(text="n't", start=5, end=8)
    assert repr(Words()) == "<Tokenizer words>"
