"""Propositional logic (Bowman et al. 2015): which of seven relations holds between two formulas.

A line of the files is `relation<TAB>formula<TAB>formula`. Tokens are separated by single spaces, and brackets are
tokens. A formula is one of

    a ... f        ( not X )        ( X ( and Y ) )        ( X ( or Y ) )

The number in the name of a file is the number of operators in the longer side of a pair; `train12` and `test12` have 12
or more. Training and dev set are created from `train0` to `train6` in this order (see `hold_out`); the test sets are
`test0` to `test12`. All functions are iterative, so deep nesting is no problem.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from beamtree.data.gold import left_branching
from beamtree.data.raw import RawFiles
from beamtree.data.samples import Sample, at
from beamtree.data.task import Column, Part, PartInputs, Task
from beamtree.trees import Tree
from beamtree.utils.checks import check_integer, unknown

LABELS = ("=", "<", ">", "^", "|", "v", "#")
OPERATORS = ("and", "or", "not")
VARIABLES = tuple("abcdef")
TOKENS = ("(", ")", *VARIABLES, *OPERATORS)

_LINE = "relation<TAB>formula<TAB>formula"
_FORMULAS = "a, ( not X ), ( X ( and Y ) ) and ( X ( or Y ) )"

# The grammar as an LL(1) table: from an expected symbol and the token found to the symbols that are expected next, in
# reverse order, as they are pushed on a stack.
_REST = ("')'", "')'", "a formula", "'and' or 'or'", "'('")
_GRAMMAR: dict[str, dict[str, tuple[str, ...]]] = {
    "a formula": {"(": ("'not' or a formula",), **dict.fromkeys(VARIABLES, ())},
    "'not' or a formula": {
        "not": ("')'", "a formula"),
        "(": (*_REST, "'not' or a formula"),
        **dict.fromkeys(VARIABLES, _REST),
    },
    "'and' or 'or'": {"and": (), "or": ()},
    "'('": {"(": ()},
    "')'": {")": ()},
}


def read(lines: Iterable[str], where: object) -> Iterator[Sample]:
    """Read the pairs of a file, and validate every formula. Gold trees are not in the file: see `gold_tree`."""
    number = 0
    for number, line in enumerate(lines, start=1):
        with at(where, number):
            columns = line.split("\t")
            if len(columns) != 3:
                raise ValueError(f"3 columns expected, {_LINE}, found {len(columns)}")
            label, *sides = columns
            if label not in LABELS:
                raise ValueError(unknown("label", label, LABELS))
            # Interned, since a quarter of a million samples would otherwise have as many copies of each operator.
            first, second = (tuple(map(sys.intern, side.split(" "))) for side in sides)
            _check(first)
            _check(second)
        yield Sample(first, sys.intern(label), second)
    if not number:
        with at(where, 1):
            raise ValueError(f"the file is empty: each line should be {_LINE}")


def operators(tokens: Sequence[str]) -> int:
    """Count the operators of a formula."""
    return sum(token in OPERATORS for token in tokens)


def gold_tree(tokens: Sequence[str]) -> Tree:
    """Build the binary tree of a formula: bracket pairs are constituents, and left-branching inside.

    >>> str(gold_tree("( a ( or ( not b ) ) )".split())).replace("-LRB-", "<").replace("-RRB-", ">")
    '(((< a) (((< or) (((< not) b) >)) >)) >)'
    """
    _check(tokens)
    return left_branching(tokens, "(", ")")


def hold_out(samples: Iterable[Sample], every: int = 10) -> tuple[list[Sample], list[Sample]]:
    """Divide samples into training and dev set: every tenth sample is for dev.

    For `train0` to `train6`, the sizes are 121,977 and 13,552.
    """
    check_integer("every", every, at_least=2)
    samples = list(samples)
    dev = samples[every - 1 :: every]
    del samples[every - 1 :: every]
    return samples, dev


def systematicity(
    samples: Iterable[Sample], operators: Sequence[str] = ("and", "or")
) -> tuple[list[Sample], list[Sample]]:
    """Split C: (rest, test), where test has the pairs with `( and ( not X ) )` or `( or ( not X ) )` in either side.

    In the rest, no negation is the right argument of an operator. The paper's text mentions only `and`; the published
    code, and the work that introduced the split, include `or`. 83,633 pairs of `train0` to `train6` are for test, with
    `operators=("and",)` 47,581; `hold_out` divides the rest into training and dev set.
    """
    for operator in operators:
        if operator not in ("and", "or"):
            raise ValueError(unknown("operator", operator, ("and", "or")))
    # These four tokens suffice: in a valid formula, the two closing brackets must follow.
    patterns = [f"( {operator} ( not" for operator in operators]
    rest: list[Sample] = []
    test: list[Sample] = []
    for sample in samples:
        pair = f"{' '.join(sample.tokens)}\t{' '.join(sample.second or ())}"
        (test if any(pattern in pair for pattern in patterns) else rest).append(sample)
    return rest, test


def _check(tokens: Sequence[str]) -> None:
    """Raise a ValueError if the tokens are not one valid formula."""
    if not any(tokens):
        raise ValueError("the formula is empty: it must have at least a variable")
    expected = ["a formula"]
    for position, token in enumerate(tokens):
        if not expected:
            if token == ")":
                raise ValueError(f"unbalanced brackets: the ')' at token {position} closes no '('")
            raise ValueError(f"the formula is complete before {token!r} at token {position}: remove the rest")
        wanted = expected.pop()
        following = _GRAMMAR[wanted].get(token)
        if following is None:
            if token not in TOKENS:
                raise ValueError(f"at token {position}: {unknown('token', token, TOKENS)}")
            raise ValueError(f"{token!r} at token {position}, where {wanted} should be: formulas are {_FORMULAS}")
        expected += following
    if expected:
        opened = tokens.count("(") - tokens.count(")")
        raise ValueError(f"unbalanced brackets: {opened} '(' not closed at the end, token {len(tokens)}")


_TRAIN = [f"train{operators}" for operators in range(7)]
_TEST_SIZES = (6, 410, 2198, 4104, 5361, 6027, 5816, 4707, 3347, 2230, 1444, 864, 853)


def _read(raw: RawFiles, *files: str) -> Iterator[Sample]:
    for file in files:
        yield from read(raw.lines(file), raw.label(file))


def _train(inputs: PartInputs) -> Mapping[str, Iterable[Sample]]:
    train, dev = hold_out(_read(inputs.raw["logic"], *_TRAIN))
    return {"train": train, "dev": dev}


def _split_c(inputs: PartInputs) -> Mapping[str, Iterable[Sample]]:
    rest, test = systematicity(
        _read(inputs.raw["logic"], *_TRAIN), ("and",) if inputs.options["and_only"] else ("and", "or")
    )
    train, dev = hold_out(rest)
    return {"train": train, "dev": dev, "C": test}


def _test(operators: int, count: int) -> Part:
    title = str(operators)

    def make(inputs: PartInputs) -> Mapping[str, Iterable[Sample]]:
        return {title: _read(inputs.raw["logic"], f"test{operators}")}

    return Part((Column(title, f"{operators}{' or more' * (operators == 12)} operators", count),), make, ("logic",))


_ABOUT = "logical inference: how do two formulas relate? (Bowman et al. 2015)"
_COMMON: dict[str, Any] = {"labels": LABELS, "gold": gold_tree, "words": TOKENS, "pair": True}

TASKS = (
    Task(
        "logic",
        f"{_ABOUT}; training on up to 6 operators, test splits by number of operators",
        parts=(
            Part((Column("train", "up to 6 operators", 121_977), Column("dev", "", 13_552)), _train, ("logic",)),
            *(_test(operators, count) for operators, count in enumerate(_TEST_SIZES)),
        ),
        **_COMMON,
    ),
    Task(
        "logic-c",
        f"{_ABOUT}; split C, for systematicity",
        parts=(
            Part(
                (
                    Column("train", "no negation right of an operator", 46_707),
                    Column("dev", "", 5_189),
                    Column("C", "all pairs with ( and ( not … ) ) or ( or ( not … ) ); and_only: the first", 83_633),
                ),
                _split_c,
                ("logic",),
                options=("and_only",),
            ),
        ),
        options={"and_only": False},
        **_COMMON,
    ),
)
