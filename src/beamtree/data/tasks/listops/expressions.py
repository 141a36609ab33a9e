"""What a ListOps expression means: its value, its nesting, its gold tree, its brackets in the original files.

Nothing recurses, so that depth costs nothing and a malformed expression is an error message, never a stack overflow.
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
    """The value of an expression, a digit: MED is the median rounded down, SM the sum modulo 10.

    >>> evaluate("[MAX 2 9 [MED 4 7 ] 0 ]".split())
    9
    """
    return _evaluate(tokens, {})


def values(tokens: Sequence[str]) -> dict[Span, str]:
    """The value of each list of an expression, by its tokens [start, end). Empty for an expression with a fault.

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
    """The value of an expression. The values of its lists are added to `lists`."""
    opened: list[int] = []  # where the lists still open begin
    arguments: list[list[int]] = [[]]  # what each of them holds so far, under a bottom that receives the value
    for position, token in enumerate(tokens):
        if not opened and arguments[0]:
            raise ValueError(f"the expression is complete before {token!r} at token {position}: give one expression")
        if token in _VALUES:
            arguments[-1].append(_VALUES[token])
        elif token == CLOSE:
            if not opened:
                raise ValueError(f"unbalanced brackets: the ']' at token {position} closes no list")
            start, given = opened.pop(), arguments.pop()
            if not given:
                raise ValueError(f"the list {tokens[start]!r} that ends at token {position} has no arguments: give one")
            value = lists[start, position + 1] = _apply(tokens[start], given)
            arguments[-1].append(value)
        elif token in OPERATORS:
            opened.append(position)
            arguments.append([])
        else:
            raise ValueError(f"unknown token {token!r} at token {position}: ListOps has {' '.join(TOKENS)}")
    if opened:
        raise ValueError(f"unbalanced brackets: {len(opened)} of the lists have no ']' at token {len(tokens)}, the end")
    if not arguments[0]:
        raise ValueError("the expression is empty at token 0: the shortest one is a digit")
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
    """The binary tree of an expression: left-branching inside a list, lists are constituents.

    >>> str(gold_tree("[MAX 2 [SM 4 7 ] 0 ]".split()))
    '(((([MAX 2) ((([SM 4) 7) ])) 0) ])'
    """
    evaluate(tokens)  # for its error messages
    return left_branching(tokens, OPERATORS, CLOSE)


def to_brackets(tokens: Sequence[str]) -> str:
    """The expression as the original files have it: "( ( ( [MAX 2 ) 9 ) ] )"."""
    evaluate(tokens)
    pieces = list(tokens)
    opened: list[int] = []  # where each list still open begins
    for position, token in enumerate(tokens):
        if token in OPERATORS:
            opened.append(position)
            continue
        if token == CLOSE:
            start = opened.pop()
            pieces[start] = "( " + pieces[start]
            pieces[position] += " )"
        if opened:  # a digit or a list is an argument of the list around it
            pieces[opened[-1]] = "( " + pieces[opened[-1]]
            pieces[position] += " )"
    return " ".join(pieces)
