"""Tokenise texts as in the training of a model.

tokenizer_of(config, vocabulary).tokenize("It isn't.")   # tokens with their offsets in the text
"""

from beamtree.data.tokenizers import Custom, HuggingFace, Tokenizer, make_tokenizer, task_tokenizer
from beamtree.data.vocabulary import Vocabulary
from beamtree.models.config import Config


def tokenizer_of(config: Config, vocabulary: Vocabulary, stored: Tokenizer | None = None) -> Tokenizer:
    """Return the tokenizer of a model.

    Args:
        config: the configuration of the model.
        vocabulary: its vocabulary.
        stored: the tokenizer that is stored with the model or was given by the user, if any. Required for a model that
            was trained with a function or with a Hugging Face tokenizer.

    Returns:
        The stored tokenizer, or the one that the configuration names.

    Raises:
        ValueError: if the model was trained with a tokenizer that is neither stored nor given.
    """
    if stored is not None:
        return stored
    if config.closed_vocabulary:
        return task_tokenizer(config.task, vocabulary)
    name = config.data_options.get("tokenizer")
    if name in (Custom.name, HuggingFace.name):
        kind = "a function as tokenizer" if name == Custom.name else "a Hugging Face tokenizer"
        raise ValueError(f"the model was trained with {kind}, which is not stored with it: give it as tokenizer=…")
    return task_tokenizer(config.task, None) if name is None else make_tokenizer(name)
