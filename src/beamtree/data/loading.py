"""Loading data: a task of the paper by its name, your own files by their path, or lists of texts and labels.

data = load("imdb")                             # its splits, prepared on first use and cached
train, vocabulary = data["train"], data.vocabulary()
test = load("listops", "900-1000", seed=1)      # one split
mine = load("reviews.tsv", dev=0.1, test=0.1)   # a file of texts and labels, divided into train, dev and test
mine = Data.from_samples(texts, labels)         # the same, from lists
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from beamtree.data import files, memory
from beamtree.data.cache import Prepared, stored
from beamtree.data.division import DEFAULT_SHARE, DEV, TEST, Share
from beamtree.data.raw import SOURCES, NotFound, RawFiles, find
from beamtree.data.split import Split
from beamtree.data.task import Column, DataProgress, Option, Part, PartInputs, Task, slug
from beamtree.data.tasks import imdb, logic, nli, sst
from beamtree.data.tasks.listops import task as listops
from beamtree.data.tasks.listops import tiny
from beamtree.data.tokenizers import Tokenizer, TokenizerLike, task_tokenizer
from beamtree.data.vectors import Vectors
from beamtree.data.vocabulary import Vocabulary
from beamtree.utils.checks import unknown

TASKS: dict[str, Task] = {task.name: task for module in (listops, tiny, logic, sst, imdb, nli) for task in module.TASKS}

_VERSION = 1  # of the output of readers and generators: a new version invalidates the cached data
_MAX_WORDS = 50_000  # of a vocabulary, as in the paper

Roots = Iterable[str | os.PathLike[str]]


class Data:
    """The splits of a task. Each is prepared on first access and cached on disk.

    `data["train"]` is a `Split`; iterating over the data yields the names of the splits.

    Args:
        task: the task, which defines the splits.
        options: options of the task that differ from its defaults.
        roots: folders that are searched for original files; see `load`.
        progress: called with the name of the work, the amount that is done, and the total amount or None.

    Examples:
        >>> data = beamtree.data.Data.from_samples(["a fine film", "a dull film"] * 10, ["yes", "no"] * 10)
        >>> data
        <Data samples: train, dev, test>
        >>> len(data["train"]), data.labels
        (16, ('no', 'yes'))
    """

    def __init__(
        self,
        task: Task,
        options: Mapping[str, Option],
        roots: Roots | None = None,
        progress: DataProgress | None = None,
    ) -> None:
        self.task, self.options = task, task.settings(options)
        self.roots = None if roots is None else list(roots)
        self.progress: DataProgress = progress or (lambda what, done, total: None)
        self._loaded: dict[str, Split] = {}
        self.is_in_memory = False  # created from samples, not loaded from files

    @classmethod
    def from_samples(
        cls,
        texts: Iterable[Any] | Mapping[str, Any],
        labels: Iterable[Any] | None = None,
        *,
        dev: Share = DEFAULT_SHARE,
        test: Share = DEFAULT_SHARE,
        seed: int = 0,
        tokenizer: TokenizerLike | None = None,
        trees: Iterable[Any] | None = None,
        name: str = "samples",
    ) -> "Data":
        """Create data from lists of texts and labels, divided into train, dev and test.

        Args:
            texts: strings, lists of tokens, or tuples of two of either for pairs. Or a mapping from the names of splits
                to tuples (texts, labels) or (texts, labels, trees). In that case only dev is held out of train, if it
                is not among them.
            labels: strings or numbers.
            dev: a fraction of the samples, or a number of them, for the split dev; 0: no such split.
            test: the same for the split test.
            seed: seed of the division; see `beamtree.data.division`.
            tokenizer: see `make_tokenizer`. Default: "words", and "spaces" for lists of tokens.
            trees: gold trees, as `Tree` or as brackets, "((a b) c)"; tuples of two for pairs. Their leaves must be the
                tokens.
            name: name of the data, in messages and in the settings of a run.

        Returns:
            The data.

        Raises:
            ValueError: if the lists are inconsistent, or a sample is invalid; the message names it.
        """
        given = memory.from_texts(texts, labels, trees, name)
        return cls._in_memory(given, tokenizer, _shares(dev, test, isinstance(texts, Mapping), given), seed)

    @classmethod
    def from_datasets(
        cls,
        dataset: Any,
        text: str = "text",
        label: str = "label",
        tokenizer: TokenizerLike | None = None,
        second: str | None = None,
        *,
        tree: str | None = None,
        second_tree: str | None = None,
        dev: Share = DEFAULT_SHARE,
        test: Share = DEFAULT_SHARE,
        seed: int = 0,
        name: str | None = None,
    ) -> "Data":
        """Create data from a `Dataset` or a `DatasetDict` of Hugging Face's `datasets`.

        A `Dataset` is divided into train, dev and test. A `DatasetDict` keeps its splits, "validation" as dev; if there
        is no dev, it is held out of train. Samples without a label (None, or -1 of a `ClassLabel`) are left out and
        reported in `notes`.

        Args:
            dataset: the `Dataset` or `DatasetDict`.
            text: column of the texts, which are strings or lists of tokens.
            label: column of the labels.
            tokenizer: as for `from_samples`.
            second: column of the second texts, for pairs.
            tree: column of the gold trees.
            second_tree: column of the gold trees of the second texts.
            dev: as for `from_samples`.
            test: as for `from_samples`.
            seed: as for `from_samples`.
            name: name of the data; by default that of the data set, if it has one.

        Returns:
            The data.

        Raises:
            ValueError: if a column is missing, or a sample is invalid; the message names it.
        """
        texts, trees = ([column for column in pair if column] for pair in ((text, second), (tree, second_tree)))
        given = memory.from_dataset(dataset, texts, trees, label, name)
        if name is None and given.name in TASKS:
            given = given._replace(name=f"hf-{given.name}")
        return cls._in_memory(given, tokenizer, _shares(dev, test, isinstance(dataset, Mapping), given), seed)

    @classmethod
    def _in_memory(
        cls, given: memory.Given, tokenizer: TokenizerLike | None, shares: Mapping[str, Share], seed: int
    ) -> "Data":
        if tokenizer is None:
            tokenizer = "spaces" if memory.uses_tokens(given) else "words"
        task, splits = memory.build(given, tokenizer, shares, seed)
        if task.name in TASKS:
            raise ValueError(f"name is {given.name!r}, which is a task of the paper: choose another name")
        data = cls(task, {})
        data._loaded, data.is_in_memory = splits, True
        return data

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.task.name

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the data, to apply to new texts."""
        return self.task.tokenizer or task_tokenizer(self.task.name, self.task.words)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Messages on how the data was divided into splits, and on samples that were left out.

        Empty for the tasks of the paper. Accessing it loads the splits that were divided.
        """
        division = self.task.division
        divided = [] if division is None else division.describe({s: self[s].label_counts() for s in division.splits})
        return (*self.task.notes, *divided)

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(column.name for column in self.task.columns)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels; for your own files, all labels that occur in them."""
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
        """Check whether the original files of a split are available.

        Args:
            split: name of the split.

        Returns:
            A message about files that must be obtained before the split can be prepared; None if none are missing.
        """
        try:
            self._raw_files(self.task.part(split)[0])
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
        """Build the vocabulary: the words of the training text by descending frequency.

        The vocabulary of a formal language is fixed and ignores the arguments.

        Args:
            vectors: pretrained word vectors; only words that have one are included.
            min_count: minimum number of occurrences; by default the paper's value for the task.
            max_size: maximum number of words.
            include_test: whether to count the words of all available splits, as the published code did.

        Returns:
            The vocabulary.
        """
        if self.task.words is not None:
            return Vocabulary(self.task.words, closed=True)
        counted = [split for split in self if not self.missing(split)] if include_test else [self._training_split()]
        counts: Counter[str] = sum((self[split].word_counts() for split in counted), Counter())
        least = self.task.min_count if min_count is None else min_count
        return Vocabulary.build(counts, least, max_size, known=vectors)

    def _training_split(self) -> str:
        return "train" if "train" in self else self.splits[0]

    def _raw_files(self, part: Part) -> dict[str, RawFiles]:
        return {**part.found, **{source: find(SOURCES[source], self.roots, part.files) for source in part.sources}}

    def _load(self, part: Part) -> dict[str, Split]:
        raw = self._raw_files(part)
        options = {name: self.options[name] for name in part.options}
        names = [column.name for column in part.columns]
        parameters: dict[str, Any] = {
            "version": _VERSION,
            "splits": names,
            "options": options,
            "originals": {name: found.fingerprint() for name, found in raw.items()},
        }

        def make() -> Prepared:
            made = part.make(PartInputs(raw, self.options, self.__getitem__, self.progress))
            return _prepared(self.task, part.columns, made)

        if part.fingerprint:
            parameters["fingerprint"] = part.fingerprint
        kept = make() if part.fingerprint is None else stored(self.name, parameters, make)
        arrays: dict[str, dict[str, Any]] = {name: {} for name in names}
        for key, array in kept.arrays.items():
            name, _, field = key.partition(".")
            arrays[name][field] = array
        derived = self.task.gold, self.task.values
        return {name: Split.from_arrays(arrays[name], kept.about["labels"], *derived) for name in names}


def _shares(dev: Share, test: Share, has_splits: bool, given: memory.Given) -> dict[str, Share]:
    """The shares to hold out of train. For data that has splits this is only dev, if it is missing."""
    if not has_splits:
        return {DEV: dev, TEST: test}
    return {} if DEV in given.splits else {DEV: dev}


def _prepared(task: Task, columns: Iterable[Column], made: Mapping[str, Any]) -> Prepared:
    labels = task.labels
    if not labels:
        made = {title: list(samples) for title, samples in made.items()}
        labels = files.label_names(sample.label for samples in made.values() for sample in samples)
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
    progress: DataProgress | None = None,
    **options: Any,
) -> Data: ...
@overload
def load(
    name: str | os.PathLike[str],
    split: str,
    *,
    roots: Roots | None = None,
    progress: DataProgress | None = None,
    **options: Any,
) -> Split: ...
def load(
    name: str | os.PathLike[str],
    split: str | None = None,
    *,
    roots: Roots | None = None,
    progress: DataProgress | None = None,
    **options: Any,
) -> Data | Split:
    """Load a task of the paper (`TASKS`) or your own data: all its splits, or one of them.

    Args:
        name: name of a task, or path of your own data: a .tsv, .csv or .jsonl file, compressed or not, or a folder of
            such files, one per split.
        split: name of a split; None for all.
        roots: folders that are searched for the original files of the paper's tasks; by default those in BEAMTREE_DATA,
            and the downloads.
        progress: called with the name of the work, the amount that is done, and the total amount or None.
        **options: options of the task, such as `seed=1` for ListOps. For your own data: `tokenizer`; `dev` and `test`,
            the fractions or numbers of samples to hold out of a file, or of train in a folder; and `seed`, the seed of
            this division.

    Returns:
        The data; if `split` is given, that split.

    Raises:
        ValueError: if there is no such task, file, split or option, or if original files are missing.

    Examples:
        >>> data = beamtree.data.load("listops-tiny")
        >>> data.splits, data.labels[:3]
        (('train', 'dev', 'test', 'longer'), ('0', '1', '2'))
    """
    if str(name) in TASKS:
        data = Data(TASKS[str(name)], options, roots, progress)
    else:
        data = Data(files.task(_existing(name), options), {}, roots, progress)
    return data if split is None else data[split]


def training_options(name: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> dict[str, Option]:
    """Complete the options of a task for training. Loading with these always returns the same splits.

    Your own data is divided if it has no dev split: a file into train, dev and test (80, 10 and 10 %); in a folder that
    has train and no dev, dev is held out of train (10 %).

    Args:
        name: name of a task, or path of your own data.
        options: options that differ from the defaults, such as other shares for dev and test.

    Returns:
        All options with their values.

    Raises:
        ValueError: if there is no such task, file or option.

    Examples:
        >>> beamtree.data.training_options("listops", {"seed": 1})
        {'seed': 1, 'official': False}
    """
    if str(name) in TASKS:
        return TASKS[str(name)].settings(options or {})
    return files.training_options(_existing(name), options or {})


def _existing(name: str | os.PathLike[str]) -> Path:
    if not os.path.exists(name):  # Path.exists raises for a name that is too long
        raise ValueError(f"{unknown('task', str(name), TASKS)}, or the path of a .tsv, .csv or .jsonl file that exists")
    return Path(name)
