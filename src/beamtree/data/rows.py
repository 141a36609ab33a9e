"""A row of your own data, from a table or from memory, before its texts are tokenised."""

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from beamtree.data import fields, gold
from beamtree.data.samples import Sample, located
from beamtree.data.tokenizers import Tokenizer
from beamtree.trees import Tree


class Row(NamedTuple):
    """A label with one or two texts, with their gold trees, or with both.

    A text is a string, or a list of tokens; a tree is a `Tree`, or a string of brackets. Texts and trees are validated
    by `sample`.
    """

    place: str  # in messages: "reviews.tsv, line 3"
    label: str
    texts: tuple[Any, ...]
    trees: tuple[Any, ...] = ()

    @property
    def key(self) -> str:
        """The content of the row, by which it is assigned to a split. It does not depend on the tokenizer."""
        return "\n".join(map(_key, self.texts or self.trees))

    def sample(self, tokenizer: Tokenizer) -> Sample:
        with located(self.place):
            count = len(self.texts or self.trees)
            texts, trees = (given or (None,) * count for given in (self.texts, self.trees))
            (tokens, tree), *other = (_side(*side, tokenizer) for side in zip(texts, trees, strict=True))
        second, second_tree = other[0] if other else (None, None)
        return Sample(tokens, self.label, second, tree, second_tree)


def label_text(label: object) -> str:
    """Convert a label to text; numbers as in JSON."""
    if not isinstance(label, str) and hasattr(label, "item"):
        label = label.item()  # a scalar of NumPy or PyTorch
    if isinstance(label, float) and math.isnan(label):
        raise ValueError("the label is NaN, a missing value: remove the sample or fill it in")
    if isinstance(label, bool | int | float):
        return json.dumps(label)
    if not isinstance(label, str):
        raise ValueError(f"the label is {fields.shown(label)}: it must be a string or a number")
    if not label.strip():
        raise ValueError("the label is empty: remove the line or fill it in")
    return label.strip()


def _side(text: Any, tree: Any, tokenizer: Tokenizer) -> tuple[tuple[str, ...], Tree | None]:
    """The tokens of a text and its gold tree."""
    if tree is None:
        return _tokens(text, tokenizer), None
    if not isinstance(tree, Tree):
        if not isinstance(tree, str):
            raise ValueError(f"the tree is {fields.shown(tree)}: it must be brackets such as '((a b) c)'")
        tree = gold.from_brackets(tree)
    tokens = tuple(tokenizer.of_leaves(tree.leaves)) if text is None else _tokens(text, tokenizer)
    return tokens, gold.over_tokens(tree, tokens, tokenizer.lower)


def _tokens(text: Any, tokenizer: Tokenizer) -> tuple[str, ...]:
    if isinstance(text, str) or not isinstance(text, Sequence):
        return fields.cut("the text", text, tokenizer)
    for index, token in enumerate(text):
        if not isinstance(token, str) or token.split() != [token]:
            raise ValueError(f"token {index} is {token!r}: it must be a non-empty string without whitespace")
    if not text:
        raise ValueError("the text has no tokens: fill it in, or remove the sample")
    return tuple(text)


def _key(side: Any) -> str:
    return side if isinstance(side, str) else " ".join(map(str, side)) if isinstance(side, list | tuple) else str(side)
