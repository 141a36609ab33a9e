"""What every reader gives: samples of tokens with a label, and errors that name the file and the line."""

from collections.abc import Mapping
from types import TracebackType
from typing import NamedTuple

from beamtree.trees.tree import Span, Tree


class Sample(NamedTuple):
    """One labelled text, or a pair of them."""

    tokens: tuple[str, ...]
    label: str
    second: tuple[str, ...] | None = None  # a pair's other side
    tree: Tree | None = None  # the gold tree over `tokens`, where the file has one
    second_tree: Tree | None = None  # the gold tree over `second`
    constituents: Mapping[Span, str] | None = None  # labels of constituents of `tokens`, where the file has them


class located:
    """A context manager: within it, a ValueError gets the place in front."""

    __slots__ = ("place",)

    def __init__(self, place: str) -> None:
        self.place = place

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if isinstance(error, ValueError):
            raise ValueError(f"{self.place}: {error}") from None


def at(file: object, line: int) -> located:
    """Within it, a ValueError gets the place in front: 'train3, line 17: 3 columns expected, …'."""
    return located(f"{file}, line {line}")
