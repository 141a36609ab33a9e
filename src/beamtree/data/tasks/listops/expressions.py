"""The meaning of a ListOps expression: its value, depth and gold tree, and its brackets in the original files.

All functions are iterative, so deep nesting is no problem, and a malformed expression never overflows the stack.
"""

from collections.abc import Sequence

from beamtree.data.gold import left_branching
from beamtree.trees.tree import Span, Tree

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
DIGITS = tuple("0123456789")
CLOSE = "]"
TOKENS = (*OPERATORS, CLOSE, *DIGITS)

_VALUES = {digit: value for value, digit in enumerate(DIGITS)}


def evaluate(tokens: Sequence[str]) -> int:
    """Compute the value of an expression, a digit: MED is the median rounded down, SM the sum modulo 10.

    >>> evaluate("[MAX 2 9 [MED 4 7 ] 0 ]".split())
    9
    """
    return _evaluate(tokens, {})


def values(tokens: Sequence[str]) -> dict[Span, str]:
    """Compute the value of each list of an expression, by span [start, end). Empty for an invalid expression.

    >>> values("[MAX 2 9 [MED 4 7 ] 0 ]".split())
    {(3, 7): '5', (0, 9): '9'}
    """
    found: dict[Span, int] = {}
    try:
        _evaluate(tokens, found)
    except ValueError:
        return {}
    return {span: DIGITS[value] for span, value in found.items()}


def _evaluate(tokens: Sequence[str], lists: dict[Span, int]) -> int:
    """Compute the value of an expression, and add those of its lists to `lists`."""
    opened: list[int] = []  # the starts of the open lists
    arguments: list[list[int]] = [[]]  # of each open list so far; the first item receives the final value
    for position, token in enumerate(tokens):
        if not opened and arguments[0]:
            raise ValueError(f"the expression is complete before {token!r} at token {position}: remove the rest")
        if token in _VALUES:
            arguments[-1].append(_VALUES[token])
        elif token == CLOSE:
            if not opened:
                raise ValueError(f"unbalanced brackets: the ']' at token {position} closes no list")
            start, given = opened.pop(), arguments.pop()
            if not given:
                raise ValueError(f"the list {tokens[start]!r} that ends at token {position} has no arguments: add one")
            value = lists[start, position + 1] = _apply(tokens[start], given)
            arguments[-1].append(value)
        elif token in OPERATORS:
            opened.append(position)
            arguments.append([])
        else:
            raise ValueError(f"unknown token {token!r} at token {position}: ListOps has {' '.join(TOKENS)}")
    if opened:
        raise ValueError(f"unbalanced brackets: {len(opened)} '[' not closed at the end, token {len(tokens)}")
    if not arguments[0]:
        raise ValueError("the expression is empty: it must have at least a digit")
    return arguments[0][0]


def _apply(operator: str, values: list[int]) -> int:
    if operator == "[MIN":
        return min(values)
    if operator == "[MAX":
        return max(values)
    if operator == "[SM":
        return sum(values) % 10
    values.sort()
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) // 2


def depth(tokens: Sequence[str]) -> int:
    """The paper's depth: the maximum number of nested operators; a digit has depth 0."""
    deepest = current = 0
    for token in tokens:
        if token == CLOSE:
            current -= 1
        elif token in OPERATORS:
            current += 1
            deepest = max(deepest, current)
    return deepest


def gold_tree(tokens: Sequence[str]) -> Tree:
    """Build the binary tree of an expression: lists are constituents, and left-branching inside.

    >>> str(gold_tree("[MAX 2 [SM 4 7 ] 0 ]".split()))
    '(((([MAX 2) ((([SM 4) 7) ])) 0) ])'
    """
    evaluate(tokens)  # raises if the expression is invalid
    return left_branching(tokens, OPERATORS, CLOSE)


def to_brackets(tokens: Sequence[str]) -> str:
    """Format an expression as in the original files: "( ( ( [MAX 2 ) 9 ) ] )"."""
    evaluate(tokens)
    pieces = list(tokens)
    opened: list[int] = []  # the starts of the open lists
    for position, token in enumerate(tokens):
        if token in OPERATORS:
            opened.append(position)
            continue
        if token == CLOSE:
            start = opened.pop()
            pieces[start] = "( " + pieces[start]
            pieces[position] += " )"
        if opened:  # a digit or a list is an argument of the enclosing list
            pieces[opened[-1]] = "( " + pieces[opened[-1]]
            pieces[position] += " )"
    return " ".join(pieces)
