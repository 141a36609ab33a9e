"""Our versions of two stress tests of natural language inference by Naik et al. (2018): length and negation.

These are not the released files, and results on them are not comparable with the paper's columns. Naik et al. insert a
tautology into the pairs of MultiNLI's dev sets, which changes no label:

- length: "and true is true", five times, in the premise, which becomes much longer than the hypothesis;
- negation: "and false is not true", once, in the hypothesis. In the training data, "not" strongly indicates a
  contradiction.

As in the released files, the tautology is inserted before the punctuation that ends the sentence, if that is a separate
token. Unlike there, all sentences of a side are kept: the released script truncates it after the first.
"""

from collections.abc import Iterable, Iterator

from beamtree.data.samples import Sample

_LENGTH = ("and", "true", "is", "true") * 5
_NEGATION = ("and", "false", "is", "not", "true")
_MARKS = (".", "!", "?")


def length(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Add five tautologies at the end of the premises.

    >>> [longer] = length([Sample(("it", "rains", "."), "entailment", ("it", "is", "wet"))])
    >>> " ".join(longer.tokens)
    'it rains and true is true and true is true and true is true and true is true and true is true .'
    """
    for number, sample in enumerate(samples, start=1):
        _check_pair(number, sample)
        yield sample._replace(tokens=_extended(sample.tokens, _LENGTH), tree=None)


def negation(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Add a tautology with "not" at the end of the hypotheses.

    >>> [negated] = negation([Sample(("it", "rains", "."), "entailment", ("it", "is", "wet"))])
    >>> " ".join(negated.second)
    'it is wet and false is not true'
    """
    for number, sample in enumerate(samples, start=1):
        yield sample._replace(second=_extended(_check_pair(number, sample), _NEGATION))


def _check_pair(number: int, sample: Sample) -> tuple[str, ...]:
    if sample.second is None:
        raise ValueError(f"sample {number} is a single text: stress tests need pairs of premise and hypothesis")
    return sample.second


def _extended(tokens: tuple[str, ...], words: tuple[str, ...]) -> tuple[str, ...]:
    end = len(tokens)
    while end > 1 and tokens[end - 1] in _MARKS:  # a side may end in "? !", or consist of punctuation only
        end -= 1
    return (*tokens[:end], *words, *tokens[end:])
