"""What a task is: splits, under the paper's column names, and how they are made.

A split's name is the paper's column in small letters, with "-" for what is no letter or digit: "Len MM" is "len-mm".
Either finds it. `published` is the number of samples in the authors' files, where they are the original ones.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from beamtree.data.division import Division
from beamtree.data.raw import Originals
from beamtree.data.samples import Sample
from beamtree.data.split import ConstituentLabels, GoldTree, Split
from beamtree.data.tokenizers import Tokenizer
from beamtree.utils.checks import unknown

Option = bool | int | float | str
Progress = Callable[[str, int, int | None], None]  # what is being made, how far it is, and of how much


@dataclass(frozen=True)
class Column:
    """A split, as the paper's tables name it."""

    title: str
    about: str = ""
    published: int | None = None

    @property
    def name(self) -> str:
        return slug(self.title)


@dataclass(frozen=True)
class Materials:
    """What a split is made of: the originals, the task's options, and the task's other splits."""

    originals: Mapping[str, Originals]
    options: Mapping[str, Any]
    load: Callable[[str], Split]
    progress: Progress


@dataclass(frozen=True)
class Part:
    """Splits that are made together, since they come from the same originals or the same draw."""

    columns: tuple[Column, ...]
    make: Callable[[Materials], Mapping[str, Iterable[Sample]]]  # by the titles of the columns
    sources: tuple[str, ...] = ()
    files: tuple[str, ...] = ()  # of the sources, those that it needs though they need not be there
    options: tuple[str, ...] = ()  # those of the task's options that it heeds
    found: Mapping[str, Originals] = field(default_factory=dict)  # sources that need not be looked for
    fingerprint: str | None = ""  # of what else it depends on, as part of the cache's key; None: it is not cached


@dataclass(frozen=True)
class Task:
    """A task. One without labels takes them from its data."""

    name: str
    about: str
    labels: tuple[str, ...]
    parts: tuple[Part, ...]
    options: Mapping[str, Option] = field(default_factory=dict)  # with their defaults
    gold: GoldTree | None = None
    values: ConstituentLabels | None = None  # labels of constituents, where they follow from the tokens
    words: tuple[str, ...] | None = None  # all there are, where the language is a formal one
    min_count: int = 1  # of a word in the training text, to be in the vocabulary
    pair: bool = False
    tokenizer: Tokenizer | None = None  # of your own data
    division: Division | None = None  # if one set of samples was divided into splits
    notes: tuple[str, ...] = ()  # lines about what was left out of the data

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(column for part in self.parts for column in part.columns)

    def part(self, split: str) -> tuple[Part, Column]:
        """Where a split, named in any of its ways, belongs."""
        for part in self.parts:
            for column in part.columns:
                if column.name == slug(split):
                    return part, column
        raise ValueError(f"{self.name}: {unknown('split', split, [column.name for column in self.columns])}")

    def settings(self, options: Mapping[str, Option]) -> dict[str, Option]:
        """The options given, with the defaults of the others."""
        for name, value in options.items():
            if name not in self.options:
                known = self.options or ["none"]
                raise ValueError(f"{self.name}: {unknown('option', name, known)}")
            kind = type(self.options[name])
            if type(value) is not kind and not (kind is float and type(value) is int):
                allowed = {bool: "true or false", int: "an integer", float: "a number", str: "a word"}[kind]
                raise ValueError(f"{self.name}: the option {name} is {value!r}: it must be {allowed}")
        return {**self.options, **options}


def slug(title: str) -> str:
    """The name of a split from the title of its column: 'Con. OOD' → 'con-ood'."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
