"""Texts have the tokens of a model's training, with their offsets."""

import copy
from typing import Any

import pytest

from beamtree.data import TASKS, Data, Vocabulary, make_tokenizer
from beamtree.models.config import Config
from beamtree.models.tokens import tokenizer_of

DOCUMENT: dict[str, Any] = {
    "data": {"task": "sst5", "options": {}, "vectors": None},
    "model": {"dim": 8, "hidden": None, "dropout": 0.0, "dropout_in": 0.0},
    "encoder": {"name": "bt-grc", "options": {}},
    **{"labels": ["no", "yes"], "pair": False, "closed_vocabulary": False, "beamtree": "0.2"},
}


def config(task: str, closed: bool = False, **options: Any) -> Config:
    document = copy.deepcopy(DOCUMENT)
    document["data"] |= {"task": task, "options": options}
    return Config.from_document(document | {"closed_vocabulary": closed})


def vocabulary(task: str) -> Vocabulary:
    words = TASKS[task].words if task in TASKS else None
    return Vocabulary(words or ["a"], closed=words is not None)


@pytest.mark.parametrize(
    ("task", "options", "text", "tokens"),
    [
        ("listops", {}, "( ( [MAX 2 ) 9]", "[MAX 2 9 ]"),
        ("logic", {}, "(not a)", "( not a )"),
        ("sst5", {}, "İt isn't.", "i̇t is n't ."),
        ("imdb", {"official": False}, "İt<br/>isn't", "i̇t is n't"),
        ("reviews.tsv", {"tokenizer": "words"}, "Isn't<br>it", "is n't < br > it"),
        ("reviews.tsv", {"tokenizer": "spaces", "dev": 0.1}, "İt  isn't.", "İt isn't."),
    ],
)
def test_a_text_has_the_tokens_of_the_training_with_their_offsets(
    task: str, options: dict[str, Any], text: str, tokens: str
) -> None:
    settings, words = config(task, bool(TASKS[task].words if task in TASKS else None), **options), vocabulary(task)
    assert tokenizer_of(settings, words).words(text) == tokens.split()
    found = tokenizer_of(settings, words).tokenize(text)
    assert [token.text for token in found] == tokens.split()
    assert [text[token.start : token.end].lower() for token in found] == tokens.lower().split()
    whole = text[found[0].start : found[-1].end]  # a constituent over all tokens
    assert whole in text
    assert whole.split()[-1].endswith(text[found[-1].start :])


@pytest.mark.parametrize("task", TASKS)
def test_a_model_of_a_task_has_the_tokenizer_of_its_data(task: str) -> None:
    settings = config(task, TASKS[task].words is not None)
    assert tokenizer_of(settings, vocabulary(task)) == Data(TASKS[task], {}).tokenizer


def test_a_function_must_be_given_again() -> None:
    settings = config("samples", tokenizer="custom")
    with pytest.raises(
        ValueError, match=r"^the model was trained with a function as tokenizer, which is not stored wit"
    ):
        tokenizer_of(settings, vocabulary("samples"))
    with pytest.raises(ValueError, match=r"^the model was trained with a Hugging Face tokenizer, which is not stored"):
        tokenizer_of(config("samples", tokenizer="huggingface"), vocabulary("samples"))
    again = make_tokenizer(lambda text: text.split("-"))
    assert tokenizer_of(settings, vocabulary("samples"), again).words("a-b") == ["a", "b"]
    assert tokenizer_of(settings, vocabulary("samples"), again).tokenize("a-b")[1] == ("b", 2, 3)
