"""Tasks: their splits, named after the columns of the paper's tables, and how these are created.

The name of a split is the title of the column in lower case, with "-" for other characters than letters and digits:
"Len MM" becomes "len-mm". Both forms are accepted.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from beamtree.data.division import Division
from beamtree.data.raw import RawFiles
from beamtree.data.samples import Sample
from beamtree.data.split import ConstituentLabels, GoldTreeFunction, Split
from beamtree.data.tokenizers import Tokenizer
from beamtree.utils.checks import unknown

Option = bool | int | float | str
DataProgress = Callable[[str, int, int | None], None]  # what is prepared, the amount that is done, and the total amount


@dataclass(frozen=True)
class Column:
    """A split, as the paper's tables name it. `published` is the number of samples in the authors' files."""

    title: str
    about: str = ""
    published: int | None = None

    @property
    def name(self) -> str:
        return slug(self.title)


@dataclass(frozen=True)
class PartInputs:
    """The input of a split: original files, options of the task, and the task's other splits."""

    raw: Mapping[str, RawFiles]
    options: Mapping[str, Any]
    load: Callable[[str], Split]
    progress: DataProgress


@dataclass(frozen=True)
class Part:
    """Splits that are created together, from the same original files or the same pool."""

    columns: tuple[Column, ...]
    make: Callable[[PartInputs], Mapping[str, Iterable[Sample]]]  # samples by title of the column
    sources: tuple[str, ...] = ()
    files: tuple[str, ...] = ()  # optional files of the sources that are required here
    options: tuple[str, ...] = ()  # the options of the task that the splits depend on
    found: Mapping[str, RawFiles] = field(default_factory=dict)  # sources that need not be searched for
    fingerprint: str | None = ""  # of other dependencies, as part of the cache key; None: do not cache


@dataclass(frozen=True)
class Task:
    """A task. If `labels` is empty, they are taken from the data."""

    name: str
    about: str
    labels: tuple[str, ...]
    parts: tuple[Part, ...]
    options: Mapping[str, Option] = field(default_factory=dict)  # default values by name
    gold: GoldTreeFunction | None = None
    values: ConstituentLabels | None = None  # derives labels of constituents from tokens
    words: tuple[str, ...] | None = None  # the vocabulary of a formal language
    min_count: int = 1  # minimum count of a word in the training text to be in the vocabulary
    pair: bool = False
    tokenizer: Tokenizer | None = None  # of your own data
    division: Division | None = None  # if one source was divided into splits
    notes: tuple[str, ...] = ()  # messages about samples that were left out

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(column for part in self.parts for column in part.columns)

    def part(self, split: str) -> tuple[Part, Column]:
        """Look up a split by its name or title."""
        for part in self.parts:
            for column in part.columns:
                if column.name == slug(split):
                    return part, column
        raise ValueError(f"{self.name}: {unknown('split', split, [column.name for column in self.columns])}")

    def settings(self, options: Mapping[str, Option]) -> dict[str, Option]:
        """Validate options, and add the defaults of the others."""
        for name, value in options.items():
            if name not in self.options:
                known = self.options or ["none"]
                raise ValueError(f"{self.name}: {unknown('option', name, known)}")
            kind = type(self.options[name])
            if type(value) is not kind and not (kind is float and type(value) is int):
                allowed = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}[kind]
                raise ValueError(f"{self.name}: the option {name} is {value!r}: it must be {allowed}")
        return {**self.options, **options}


def slug(title: str) -> str:
    """The name of a split from the title of its column: 'Con. OOD' → 'con-ood'."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
