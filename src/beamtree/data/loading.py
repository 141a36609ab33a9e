"""Loading data: a task of the paper by its name, or one's own files by their path.

data = load("imdb")                          # its splits, made when they are asked for and then kept
train, vocabulary = data["train"], data.vocabulary()
test = load("listops", "900-1000", seed=1)   # one split
mine = load("reviews.tsv")                   # text and label, or text, text and label
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from beamtree.data import imdb, logic, nli, own, sst
from beamtree.data.cache import Prepared, stored
from beamtree.data.listops import task as listops
from beamtree.data.listops import tiny
from beamtree.data.originals import SOURCES, NotFound, Originals, find
from beamtree.data.split import Split
from beamtree.data.task import Column, Materials, Option, Part, Progress, Task, slug
from beamtree.data.vectors import Vectors
from beamtree.data.vocabulary import Vocabulary
from beamtree.utils.checks import unknown

TASKS: dict[str, Task] = {task.name: task for module in (listops, tiny, logic, sst, imdb, nli) for task in module.TASKS}

_VERSION = 1  # of what the readers and generators give: another one makes all data anew
_MAX_WORDS = 50_000  # of a vocabulary, as in the paper

Roots = Iterable[str | os.PathLike[str]]


class Data:
    """The splits of a task. Each is made when it is first asked for, and kept in the cache from then on."""

    def __init__(
        self, task: Task, options: Mapping[str, Option], roots: Roots | None = None, progress: Progress | None = None
    ) -> None:
        self.task, self.options = task, task.settings(options)
        self.roots = None if roots is None else list(roots)
        self.progress: Progress = progress or (lambda what, done, total: None)
        self._loaded: dict[str, Split] = {}

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.task.columns)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Their names; of one's own files those that occur in any of them."""
        return self.task.labels or self[self.splits[0]].label_names

    def __repr__(self) -> str:
        return f"<Data {self.name}: {', '.join(self.splits)}>"

    def __iter__(self) -> Iterator[str]:
        return iter(self.splits)

    def __contains__(self, split: object) -> bool:
        return isinstance(split, str) and slug(split) in self.splits

    def __getitem__(self, split: str) -> Split:
        part, column = self.task.part(split)
        if column.name not in self._loaded:
            self._loaded |= self._load(part)
        return self._loaded[column.name]

    def missing(self, split: str) -> str | None:
        """What must be got before the split can be made; None if nothing."""
        try:
            self._originals(self.task.part(split)[0])
        except NotFound as error:
            return str(error)
        return None

    def vocabulary(
        self,
        vectors: Vectors | None = None,
        min_count: int | None = None,
        max_size: int | None = _MAX_WORDS,
        include_test: bool = False,
    ) -> Vocabulary:
        """The words of the training text, the most frequent first; with `vectors` only those that have one.

        A formal language has all its words, and no others. `min_count` defaults to the paper's for the task. With
        `include_test` all splits that are at hand count: so did the published code.
        """
        if self.task.words is not None:
            return Vocabulary(self.task.words, closed=True)
        counted = [split for split in self if not self.missing(split)] if include_test else [self._training_split()]
        counts: Counter[str] = sum((self[split].word_counts() for split in counted), Counter())
        least = self.task.min_count if min_count is None else min_count
        return Vocabulary.build(counts, least, max_size, known=vectors)

    def _training_split(self) -> str:
        return "train" if "train" in self else self.splits[0]

    def _originals(self, part: Part) -> dict[str, Originals]:
        return {**part.found, **{source: find(SOURCES[source], self.roots, part.files) for source in part.sources}}

    def _load(self, part: Part) -> dict[str, Split]:
        originals = self._originals(part)
        options = {name: self.options[name] for name in part.options}
        names = [column.name for column in part.columns]
        parameters = {
            "version": _VERSION,
            "splits": names,
            "options": options,
            "originals": {name: found.fingerprint() for name, found in originals.items()},
        }

        def make() -> Prepared:
            made = part.make(Materials(originals, self.options, self.__getitem__, self.progress))
            return _prepared(self.task, part.columns, made)

        kept = stored(self.name, parameters, make)
        arrays: dict[str, dict[str, Any]] = {name: {} for name in names}
        for key, array in kept.arrays.items():
            name, _, field = key.partition(".")
            arrays[name][field] = array
        return {name: Split.from_arrays(arrays[name], kept.about["labels"], self.task.gold) for name in names}


def _prepared(task: Task, columns: Iterable[Column], made: Mapping[str, Any]) -> Prepared:
    labels = task.labels
    if not labels:
        made = {title: list(samples) for title, samples in made.items()}
        labels = own.label_names(sample.label for samples in made.values() for sample in samples)
    arrays: dict[str, Any] = {}
    for column in columns:
        split = Split.from_samples(made[column.title], labels)
        if not len(split):
            raise ValueError(f"{task.name}: the split {column.name} has no samples")
        arrays |= {f"{column.name}.{field}": array for field, array in split.arrays().items()}
    return Prepared(arrays, {"labels": list(labels)})


@overload
def load(
    name: str | os.PathLike[str],
    split: None = None,
    *,
    roots: Roots | None = None,
    progress: Progress | None = None,
    **options: Option,
) -> Data: ...
@overload
def load(
    name: str | os.PathLike[str],
    split: str,
    *,
    roots: Roots | None = None,
    progress: Progress | None = None,
    **options: Option,
) -> Split: ...
def load(
    name: str | os.PathLike[str],
    split: str | None = None,
    *,
    roots: Roots | None = None,
    progress: Progress | None = None,
    **options: Option,
) -> Data | Split:
    """A task of the paper (`TASKS`) or one's own data: all its splits, or one of them.

    One's own data is a file .tsv, .csv or .jsonl, packed or not, or a folder of such files, each a split. Originals are
    looked for in `roots`, by default in the folders that BEAMTREE_DATA names and among the downloads. `options` are the
    task's, as `seed=1` for ListOps.
    """
    if str(name) in TASKS:
        task = TASKS[str(name)]
    elif os.path.exists(name):  # of a Path, a name that is too long would be an error
        task = own.task(Path(name))
    else:
        raise ValueError(f"{unknown('task', str(name), TASKS)}, or the path of a .tsv, .csv or .jsonl file that exists")
    data = Data(task, options, roots, progress)
    return data if split is None else data[split]
