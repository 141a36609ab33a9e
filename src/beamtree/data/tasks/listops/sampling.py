"""Sample ListOps expressions of given length and nesting, with exactly the probabilities of rejection sampling.

The grammar (Nangia & Bowman 2018): a node at depth q, the root at 1, is with probability p, if q < max_depth, an
operator with uniform min_args..max_args arguments at depth q+1; otherwise it is a digit. Rejection sampling generates
whole expressions and discards those outside the filters, which for lengths of 900 to 1000 is all but one in many
thousands. Here the probabilities of all lengths are tabulated first. Let u_q(n) be the probability that a node at depth
q spans n tokens, and u^k its k-fold convolution (k neighbours together span n tokens):

    u_q(n) = (1-p) [n = 1] + p Σ_m u_{q+1}^m(n-2) / (max_args - min_args + 1)

An expression is then sampled top-down: its length; the number of arguments given the length; and, argument by argument,
how the remaining length is divided between the next argument and the others.

A bound on nesting divides each node's probability into two. `short` nodes have no operator at depth min_nesting or
deeper, `deep` nodes have at least one, and `any` is their sum; none has an operator deeper than max_nesting. At least
one of a deep node's arguments is deep: the first of k is deep and the others are any, or it is short and the others are
deep:

    deep^k = deep * any^(k-1) + short * deep^(k-1)

All terms are positive, so there is no cancellation.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from beamtree.data.tasks.listops.expressions import CLOSE, DIGITS, OPERATORS

Weights = npt.NDArray[np.float64]

_ANY, _SHORT, _DEEP = range(3)

# Maximum length of cached splits. Longer ones are too many to cache and too rare to matter.
_MAX_CACHED_SPLIT = 128


class _Level(NamedTuple):
    """For each kind (any, short, deep), by k: the probability that k neighbours at this depth span n tokens."""

    any: list[Weights]
    short: list[Weights]
    deep: list[Weights]


@dataclass(frozen=True, kw_only=True)
class Grammar:
    """The grammar and the filters; bounds include both ends, and max_nesting is below max_depth."""

    operator_probability: float
    min_args: int
    max_args: int
    max_depth: int
    min_length: int
    max_length: int
    min_nesting: int
    max_nesting: int


class Sampler:
    """Samples expressions of the grammar, conditioned on length and nesting; `random` returns uniforms in [0, 1)."""

    def __init__(self, grammar: Grammar, random: Callable[[], float]) -> None:
        self._random = random
        self._min_args = grammar.min_args
        self._min_nesting = grammar.min_nesting
        self._min_length = grammar.min_length
        self._levels = _tabulate(grammar)
        self._root = _DEEP if grammar.min_nesting else _ANY
        lengths = self._levels[0][self._root][1][grammar.min_length :]
        self._lengths: list[float] = np.cumsum(lengths).tolist()
        self._arguments: dict[tuple[int, int, int], list[float]] = {}
        self._splits: dict[tuple[int, int, int, int], list[float]] = {}

    @property
    def acceptance(self) -> float:
        """The probability that rejection sampling accepts an expression."""
        return self._lengths[-1] if self._lengths else 0.0

    def draw(self) -> tuple[str, ...]:
        """Sample an expression. Must not be called if `acceptance` is 0."""
        random = self._random
        length = self._min_length + _choose(self._lengths, random())
        tokens: list[str] = []
        # A stack of what remains to be generated: `count` neighbours of one kind at `level` (depth level + 1) that span
        # `length` tokens together; a count of 0 is a closing bracket.
        todo = [(0, self._root, 1, length)]
        while todo:
            level, kind, count, length = todo.pop()
            if count == 0:
                tokens.append(CLOSE)
                continue
            if length == count:  # all of them are digits, since no list spans a single token
                tokens += [DIGITS[int(random() * 10)] for _ in range(count)]
                continue
            if count > 1:
                kind, size, others = self._split(level, kind, count, length)
                todo.append((level, others, count - 1, length - size))
                length = size
            if length == 1:
                tokens.append(DIGITS[int(random() * 10)])
                continue
            tokens.append(OPERATORS[int(random() * 4)])
            todo.append((level, kind, 0, 0))
            if kind == _DEEP and level + 1 == self._min_nesting:
                kind = _ANY  # this operator is the required deep one
            todo.append((level + 1, kind, self._argument_count(level, kind, length), length - 2))
        return tuple(tokens)

    def _argument_count(self, level: int, kind: int, length: int) -> int:
        """Sample the number of arguments of this kind for an operator whose list spans `length` tokens."""
        key = (level, kind, length)
        table = self._arguments.get(key)
        if table is None:
            neighbours = self._levels[level + 1][kind]
            table = np.cumsum([row[length - 2] for row in neighbours[self._min_args :]]).tolist()
            self._arguments[key] = table
        return self._min_args + _choose(table, self._random())

    def _split(self, level: int, kind: int, count: int, length: int) -> tuple[int, int, int]:
        """Of `count` neighbours that span `length` tokens, sample kind and length of the first and the others' kind."""
        key = (level, kind, count, length)
        table = self._splits.get(key)
        longest = length - count + 1  # the others need a token each
        if table is None:
            tables = self._levels[level]
            if kind == _DEEP:
                deep_first = _products(tables.deep[1], tables.any[count - 1], length, longest)
                deep_later = _products(tables.short[1], tables.deep[count - 1], length, longest)
                sums = np.cumsum(np.concatenate([deep_first, deep_later]))
            else:
                sums = np.cumsum(_products(tables[kind][1], tables[kind][count - 1], length, longest))
            if length > _MAX_CACHED_SPLIT:
                value = self._random() * float(sums[-1])
                return _decode(kind, int(np.searchsorted(sums, value, side="right")), longest)
            table = self._splits[key] = sums.tolist()
        return _decode(kind, _choose(table, self._random()), longest)


def _choose(sums: list[float], uniform: float) -> int:
    """Sample an index from weights, given their cumulative sums; never one of weight 0."""
    return bisect_right(sums, uniform * sums[-1])


def _decode(kind: int, choice: int, longest: int) -> tuple[int, int, int]:
    if kind != _DEEP:
        return kind, choice + 1, kind
    if choice < longest:
        return _DEEP, choice + 1, _ANY
    return _SHORT, choice - longest + 1, _DEEP


def _products(first: Weights, others: Weights, length: int, longest: int) -> Weights:
    """For each length of the first, from 1 to `longest`: its weight times that of the others, which span the rest."""
    return first[1 : longest + 1] * others[length - longest : length][::-1]


def _tabulate(grammar: Grammar) -> list[_Level]:
    """Compute the tables of each depth, from the root down to the depth at which there are only digits."""
    min_args, max_args, min_nesting = grammar.min_args, grammar.max_args, grammar.min_nesting
    bottom = grammar.max_nesting + 1
    each = grammar.operator_probability / (max_args - min_args + 1)
    nothing = np.zeros(grammar.max_length + 1)
    empty, digit = nothing.copy(), nothing.copy()
    empty[0] = 1.0
    digit[1] = 1.0

    def powers(node: Weights) -> list[Weights]:
        rows = [empty, node]
        while len(rows) <= max_args:
            rows.append(_convolve(rows[-1], node))
        return rows

    def operator(neighbours: list[Weights]) -> Weights:
        node = nothing.copy()
        for row in neighbours[min_args:]:
            node[2:] += each * row[:-2]
        return node

    levels: list[_Level] = []
    for depth in range(bottom, 0, -1):
        # If max_nesting rather than the grammar excludes an operator, the probability of a digit is not increased.
        is_digit = digit * (1.0 if depth == grammar.max_depth else 1.0 - grammar.operator_probability)
        below = levels[-1] if depth < bottom else None
        any_node = is_digit + operator(below.any) if below else is_digit
        any_rows = powers(any_node)
        if depth > min_nesting:  # at these depths, deep and short are no longer distinguished
            levels.append(_Level(any_rows, [], []))
            continue
        if below is None:
            short_node, deep_node = is_digit, nothing
        elif depth == min_nesting:
            short_node, deep_node = is_digit, operator(below.any)
        else:
            short_node, deep_node = is_digit + operator(below.short), operator(below.deep)
        deep_rows = [nothing, deep_node]
        for count in range(2, max_args + 1):
            others = _convolve(any_rows[count - 1], deep_node)
            deep_rows.append(others + _convolve(deep_rows[-1], short_node))
        levels.append(_Level(any_rows, powers(short_node), deep_rows))
    return levels[::-1]


def _convolve(left: Weights, right: Weights) -> Weights:
    """Σ_i left(i) right(n-i), in one fixed order of single IEEE operations.

    Unlike np.convolve, whose order of summation depends on the machine: the same seed must result in the same bytes.
    """
    result = np.zeros_like(left)
    for shift in np.flatnonzero(right).tolist():
        result[shift:] += right[shift] * left[: len(left) - shift]
    return result
