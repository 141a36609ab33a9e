"""What a trained model reads: the tokens of texts and pairs, and their trees if its encoder needs some."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from beamtree.data.loading import TASKS
from beamtree.data.tokenizers import Tokenizer
from beamtree.data.vocabulary import Vocabulary
from beamtree.models.config import Config
from beamtree.models.parser import best_trees
from beamtree.models.readings import Tokenized
from beamtree.models.tokens import tokenizer_of
from beamtree.trees import Tree
from beamtree.utils.checks import unknown

if TYPE_CHECKING:
    from beamtree.models.pretrained import Pretrained

T = TypeVar("T")
TextOrPair = str | tuple[str, str]
TokenizedSides = tuple[Tokenized, ...]  # a text, or both texts of a pair
TreesOf = Callable[[int], tuple[Tree, ...]]  # from the index of a sample to the trees of its sides

_SHOWN = 60  # characters of a text in an error message


def as_list(texts: Sequence[T]) -> list[T]:
    """The texts as a list. A string, which is a sequence of texts too, is a mistake."""
    if isinstance(texts, str):
        raise ValueError(f"texts is the string {_shortened(texts)}: it must be a list of texts, such as [text]")
    return list(texts)


def tokenize(text: str, config: Config, vocabulary: Vocabulary, stored: Tokenizer | None) -> Tokenized:
    """The tokens of a text.

    Args:
        text: the text.
        config: the configuration of the model.
        vocabulary: its vocabulary.
        stored: its tokenizer; None for the one that the configuration names.

    Raises:
        ValueError: if the text is empty or has tokens that are not in a closed vocabulary.
    """
    if not isinstance(text, str):
        raise ValueError(f"{_shortened(text)} is of type {type(text).__name__}: a text must be a string")
    found = Tokenized(text, tokenizer_of(config, vocabulary, stored).tokenize(text))
    if not found.tokens:
        raise ValueError(f"the text {_shortened(text)} is empty: it has nothing to encode")
    if vocabulary.closed:
        missing = list(dict.fromkeys(word for word in found.words if word not in vocabulary))
        if missing:
            known = vocabulary.words()[Vocabulary.SEP + 1 :]
            others = f"; also unknown: {', '.join(map(repr, missing[1:6]))}" if missing[1:] else ""
            raise ValueError(f"{_shortened(text)}: {unknown('token', missing[0], known)}{others}")
    return found


def sides_of(text: TextOrPair, pair: bool) -> tuple[str, ...]:
    """The text alone, or both texts of a pair.

    Raises:
        ValueError: if it is a pair where the model takes single texts, or the reverse.
    """
    sides = text if isinstance(text, tuple | list) else (text,)
    if len(sides) != (2 if pair else 1) or not all(isinstance(side, str) for side in sides):
        wanted = "pairs of texts: give tuples (text, text)" if pair else "single texts: give strings"
        raise ValueError(f"{_shortened(text)} does not fit: the model takes {wanted}")
    return tuple(sides)


def given_trees(samples: Sequence[TokenizedSides], config: Config, parser: "Pretrained | None") -> TreesOf:
    """The trees of samples for an encoder that composes along given ones: by the parser, or by the task's rule.

    Raises:
        ValueError: if there is neither a parser nor a rule.
    """
    if parser is not None:
        parsed = iter(best_trees(parser, [side.words for sides in samples for side in sides]))
        return [tuple(next(parsed) for _ in sides) for sides in samples].__getitem__
    task = TASKS.get(config.task)
    if task is None or task.gold is None:
        raise ValueError(f"{config.encoder} needs gold trees, and its task has no rule to derive them from new texts")
    gold = task.gold
    return lambda index: tuple(gold(side.words) for side in samples[index])


def _shortened(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
