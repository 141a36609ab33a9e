"""Samples, as all readers return them, and errors that name the file and the line."""

from collections.abc import Mapping
from types import TracebackType
from typing import NamedTuple

from beamtree.trees.tree import Span, Tree


class Sample(NamedTuple):
    """One labelled text, or a pair of them.

    Attributes:
        tokens: the tokens of the text.
        label: its label.
        second: the tokens of the second text of a pair, or None.
        tree: the gold tree over `tokens`, or None.
        second_tree: the gold tree over `second`, or None.
        constituents: labels of constituents of `tokens` by span, or None.

    Examples:
        >>> data = beamtree.data.Data.from_samples(["a fine film", "a dull film"] * 10, ["yes", "no"] * 10)
        >>> data["train"][0]
        Sample(tokens=('a', 'fine', 'film'), label='yes', second=None, tree=None, second_tree=None, constituents=None)
    """

    tokens: tuple[str, ...]
    label: str
    second: tuple[str, ...] | None = None
    tree: Tree | None = None
    second_tree: Tree | None = None
    constituents: Mapping[Span, str] | None = None


class located:
    """Context manager that prefixes the message of a ValueError with the place."""

    __slots__ = ("place",)

    def __init__(self, place: str) -> None:
        self.place = place

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if isinstance(error, ValueError):
            raise ValueError(f"{self.place}: {error}") from None


def at(file: object, line: int) -> located:
    """Context manager that prefixes the message of a ValueError: 'train3, line 17: 3 columns expected, …'."""
    return located(f"{file}, line {line}")
