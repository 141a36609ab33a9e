"""What every reader gives: samples of tokens with a label, and errors that name the file and the line."""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from beamtree.trees import Tree


class Sample(NamedTuple):
    """One labelled text, or a pair of them."""

    tokens: tuple[str, ...]
    label: str
    second: tuple[str, ...] | None = None  # a pair's other side
    tree: Tree | None = None  # the gold tree over `tokens`, where the file has one


@contextlib.contextmanager
def at(file: object, line: int) -> Iterator[None]:
    """Within it, a ValueError gets the place in front: 'train3, line 17: 3 columns expected, …'."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{file}, line {line}: {error}") from None
