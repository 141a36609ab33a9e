"""Texts to tokens, as they were tokenised for the training of a model.

tokenizer_of(config, vocabulary).tokenize("It isn't.")   # tokens with their offsets in the text
"""

from beamtree.data.tokenizers import Custom, HuggingFace, Tokenizer, make_tokenizer, task_tokenizer
from beamtree.data.vocabulary import Vocabulary
from beamtree.models.config import Config


def tokenizer_of(config: Config, vocabulary: Vocabulary, stored: Tokenizer | None = None) -> Tokenizer:
    """The tokenizer of a model.

    stored: the one that is stored with the model or was given by the user, if there is one. A model that was trained
    with a function or with a tokenizer of Hugging Face needs it.
    """
    if stored is not None:
        return stored
    if config.closed_vocabulary:
        return task_tokenizer(config.task, vocabulary)
    name = config.data_options.get("tokenizer")
    if name in (Custom.name, HuggingFace.name):
        kind = "a function as tokenizer" if name == Custom.name else "a tokenizer of Hugging Face"
        raise ValueError(f"the model was trained with {kind}, which is not stored with it: load it with tokenizer=…")
    return task_tokenizer(config.task, None) if name is None else make_tokenizer(name)
