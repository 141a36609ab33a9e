"""Stress tests of natural language inference, made by us after two of Naik et al. (2018): length and negation.

These are not the released files, and a figure on them is not one of the paper's columns. Naik et al. put a tautology
into the pairs of MultiNLI's dev sets, which changes no label:

- length: "and true is true", five times, in the premise, which becomes much longer than the hypothesis;
- negation: "and false is not true", once, in the hypothesis, whose "not" is a strong hint at a contradiction in the
  training data.

Here as there the tautology stands before the mark that ends the sentence, where that is a token of its own. Unlike
there, a side of several sentences keeps them all: the released script cuts it after the first.
"""

from collections.abc import Iterable, Iterator

from beamtree.data.samples import Sample

_LENGTH = ("and", "true", "is", "true") * 5
_NEGATION = ("and", "false", "is", "not", "true")
_MARKS = (".", "!", "?")


def length(samples: Iterable[Sample]) -> Iterator[Sample]:
    """The pairs with five tautologies at the end of the premise.

    >>> [longer] = length([Sample(("it", "rains", "."), "entailment", ("it", "is", "wet"))])
    >>> " ".join(longer.tokens)
    'it rains and true is true and true is true and true is true and true is true and true is true .'
    """
    for number, sample in enumerate(samples, start=1):
        _check_pair(number, sample)
        yield sample._replace(tokens=_extended(sample.tokens, _LENGTH), tree=None)


def negation(samples: Iterable[Sample]) -> Iterator[Sample]:
    """The pairs with a tautology that holds "not" at the end of the hypothesis.

    >>> [negated] = negation([Sample(("it", "rains", "."), "entailment", ("it", "is", "wet"))])
    >>> " ".join(negated.second)
    'it is wet and false is not true'
    """
    for number, sample in enumerate(samples, start=1):
        yield sample._replace(second=_extended(_check_pair(number, sample), _NEGATION))


def _check_pair(number: int, sample: Sample) -> tuple[str, ...]:
    if sample.second is None:
        raise ValueError(f"sample {number} is a single text: stress tests are made of pairs, premise and hypothesis")
    return sample.second


def _extended(tokens: tuple[str, ...], words: tuple[str, ...]) -> tuple[str, ...]:
    end = len(tokens)
    while end > 1 and tokens[end - 1] in _MARKS:  # a side may end in "? !", or be nothing but a mark
        end -= 1
    return (*tokens[:end], *words, *tokens[end:])
