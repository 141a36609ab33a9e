"""Where a model fails on ListOps: in its trees, or in its cell?

Three measures of each list, by operator and by number of arguments:

- *intact*: the list is a constituent of the model's most probable tree;
- *accuracy*: of the lists that are intact, those whose label is their value;
- *alone*: the accuracy on the list by itself, with the values of inner lists in their place, as an expression of its
  own: [MAX 2 [MIN 4 7 ] ] becomes [MAX 2 4 ].

A broken list is a fault of the tree. A wrong value of a list by itself is, for the most part, a fault of the cell.
Whole expressions are counted by the largest number of arguments of any of their lists, and by their outermost operator;
they are correct if the label of the root of the most probable tree is their value.

    report = measure_lists(model, data["args-10"], limit=200)
    report.lists["[MED", 8].intact, report.by_most_arguments[8].accuracy
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from beamtree.data.split import Split
from beamtree.data.tasks.listops.expressions import CLOSE, DIGITS, OPERATORS, evaluate
from beamtree.models.pretrained import Pretrained
from beamtree.trees.tree import Span

CHUNK = 256  # expressions that are parsed together


class ListExpression(NamedTuple):
    """A list of an expression.

    Attributes:
        operator: its first token.
        arguments: the values of its arguments.
        span: its tokens [start, end) in the expression.
    """

    operator: str
    arguments: tuple[str, ...]
    span: Span

    @property
    def alone(self) -> tuple[str, ...]:
        """The list as an expression of its own, without inner lists."""
        return (self.operator, *self.arguments, CLOSE)

    @property
    def value(self) -> str:
        """The value of the list, a digit."""
        return DIGITS[evaluate(self.alone)]


@dataclass
class ListCounts:
    """Counts of lists with the same operator and number of arguments."""

    lists: int = 0
    intact: int = 0  # constituents of the model's tree
    correct: int = 0  # of these, lists whose label is their value
    alone: int = 0  # lists that were also evaluated by themselves
    alone_correct: int = 0


@dataclass
class ExpressionCounts:
    """Counts of whole expressions."""

    expressions: int = 0
    correct: int = 0

    @property
    def accuracy(self) -> float:
        return self.correct / self.expressions if self.expressions else float("nan")


@dataclass
class ListReport:
    """The counts of a model on a split.

    Attributes:
        lists: by operator and number of arguments.
        by_most_arguments: whole expressions, by the largest number of arguments of their lists.
        by_operator: whole expressions, by their outermost operator.
    """

    lists: dict[tuple[str, int], ListCounts] = field(default_factory=dict)
    by_most_arguments: dict[int, ExpressionCounts] = field(default_factory=dict)
    by_operator: dict[str, ExpressionCounts] = field(default_factory=dict)

    def add(self, tokens: Sequence[str], labels: Mapping[Span, str]) -> None:
        """Add an expression: `labels` are those of the constituents of the model's tree."""
        found = find_lists(tokens)
        for each in found:
            counts = self.lists.setdefault((each.operator, len(each.arguments)), ListCounts())
            counts.lists += 1
            counts.intact += each.span in labels
            counts.correct += labels.get(each.span) == each.value
        if not found:
            return
        outermost = found[-1]
        correct = labels.get((0, len(tokens))) == outermost.value
        most = max(len(each.arguments) for each in found)
        for totals in (
            self.by_most_arguments.setdefault(most, ExpressionCounts()),
            self.by_operator.setdefault(outermost.operator, ExpressionCounts()),
        ):
            totals.expressions += 1
            totals.correct += correct

    def to_dict(self) -> dict[str, Any]:
        """In types of JSON."""
        return {
            "lists": [
                {"operator": operator, "arguments": arguments, **vars(counts)}
                for (operator, arguments), counts in sorted(self.lists.items(), key=_order)
            ],
            "by_most_arguments": [
                {"arguments": arguments, **vars(counts)} for arguments, counts in sorted(self.by_most_arguments.items())
            ],
            "by_operator": [
                {"operator": operator, **vars(self.by_operator[operator])}
                for operator in OPERATORS
                if operator in self.by_operator
            ],
        }


def find_lists(tokens: Sequence[str]) -> list[ListExpression]:
    """The lists of an expression, inner ones first.

    Examples:
        >>> [each.alone for each in find_lists("[MAX 2 [MIN 4 7 ] ]".split())]
        [('[MIN', '4', '7', ']'), ('[MAX', '2', '4', ']')]
    """
    starts: list[int] = []
    arguments: list[list[str]] = [[]]
    found: list[ListExpression] = []
    for position, token in enumerate(tokens):
        if token in OPERATORS:
            starts.append(position)
            arguments.append([])
        elif token == CLOSE:
            start = starts.pop()
            found.append(ListExpression(tokens[start], tuple(arguments.pop()), (start, position + 1)))
            arguments[-1].append(found[-1].value)
        else:
            arguments[-1].append(token)
    return found


def measure_lists(
    model: Pretrained, split: Split, limit: int | None = None, alone: int = 100, seed: int = 0
) -> ListReport:
    """Measure a model on the first expressions of a ListOps split.

    Args:
        model: a model that builds trees.
        split: a split with expressions of ListOps.
        limit: number of expressions; all by default.
        alone: how many lists of each operator and number of arguments are evaluated by themselves, sampled from those
            of the split; 0 for none.
        seed: of this sampling.

    Returns:
        The counts.
    """
    report = ListReport()
    lists: dict[tuple[str, int], set[tuple[str, ...]]] = {}
    for chunk in _chunks(split, limit):
        for tokens, tree in zip(chunk, model.label_tokens(chunk), strict=True):
            report.add(tokens, tree.labels or {})
            for each in find_lists(tokens):
                lists.setdefault((each.operator, len(each.arguments)), set()).add(each.alone)
    chooser = random.Random(seed)
    for key, expressions in sorted(lists.items()):
        chosen = chooser.sample(sorted(expressions), min(alone, len(expressions)))
        predictions = model.predict([" ".join(tokens) for tokens in chosen]) if chosen else []
        counts = report.lists[key]
        counts.alone = len(chosen)
        counts.alone_correct = sum(
            found.label == DIGITS[evaluate(tokens)] for found, tokens in zip(predictions, chosen, strict=True)
        )
    return report


def _chunks(split: Split, limit: int | None) -> Iterator[list[tuple[str, ...]]]:
    count = len(split) if limit is None else min(limit, len(split))
    for first in range(0, count, CHUNK):
        yield [split[index].tokens for index in range(first, min(first + CHUNK, count))]


def _order(item: tuple[tuple[str, int], ListCounts]) -> tuple[int, int]:
    (operator, arguments), _ = item
    return OPERATORS.index(operator), arguments
