"""The data of a run, and the micro-batches of its steps.

    data = prepare(settings)
    for micro_batch in Loader(data.train, buckets, accumulate=2).epoch(0):
        (model.loss(...) * micro_batch.weight).backward()

A step of the optimizer consists of `accumulate` micro-batches. In distributed training, each process gets a part of
every micro-batch, so the steps are the same as in a single process.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from beamtree.data import vectors as word_vectors
from beamtree.data.batching import Batch, Batches, Buckets, Ragged
from beamtree.data.loading import Data, Roots, load
from beamtree.data.split import Split
from beamtree.data.task import DataProgress
from beamtree.data.vocabulary import Vocabulary
from beamtree.models.config import Config, make_config
from beamtree.models.parser import load_parser, with_trees
from beamtree.models.pretrained import Pretrained
from beamtree.nn.encoders import needs_trees
from beamtree.runs.settings import DataSettings, Settings

TRAIN, DEV = "train", "dev"


@dataclass(frozen=True, eq=False)
class TrainingData:
    """The data of a run, and the config, vocabulary and word vectors of its model."""

    settings: Settings
    config: Config
    data: Data
    vocabulary: Vocabulary
    vectors: Float[Tensor, "V D"] | None  # None if word embeddings are learned
    parser: Pretrained | None  # None: gold trees, or those that the encoder finds
    train: Batches
    dev: Batches
    tests: tuple[str, ...]  # names of splits

    def batches(self, split: str, progress: DataProgress | None = None) -> Batches:
        """The samples of a split, with trees if the encoder needs them; `progress` is called while they are parsed."""
        return _batches(self.data[split], self.vocabulary, self.settings, self.parser, progress)


def prepare(
    settings: Settings,
    roots: Roots | None = None,
    progress: DataProgress | None = None,
    notify: Callable[[str], None] = lambda text: None,
    data: Data | None = None,
    parser: Pretrained | None = None,
) -> TrainingData:
    """Load the data that the settings name, or use `data`, and build the vocabulary.

    Args:
        settings: the settings of the run.
        roots: folders with the original files of data sets.
        progress: called with the progress of the preparation.
        notify: called with messages: how the data was split, and which test splits are left out because their original
            files are missing.
        data: used instead of the data that the settings name.
        parser: the model that the setting data.parser names; loaded if it is not given.
    """
    roots = None if roots is None else list(roots)  # iterated more than once
    if data is None:
        data = load(settings.data.task, None, roots=roots, progress=progress, **settings.data.options)
    for note in data.notes:
        notify(note)
    for split in (TRAIN, DEV):
        if split not in data:
            raise ValueError(
                f"{settings.data.task} has no split {split}, only {', '.join(data)}: training needs train and dev"
            )
    tests = _tests(data, settings.data, notify)
    train = data[TRAIN]
    if settings.data.parser is not None and parser is None:
        parser = load_parser(settings.data.parser)
    if parser is not None:
        _check_words(parser, settings.data.parser, train, notify)
    vectors = matrix = None
    if settings.data.vectors is not None:
        vectors = word_vectors.load(settings.data.vectors, settings.model.dim, frozenset(train.words), roots)
    vocabulary = data.vocabulary(vectors)
    if vectors is not None:
        matrix = vectors.matrix_for(vocabulary)
    return TrainingData(
        settings,
        make_config(settings.to_dict(), data.labels, train.second is not None, vocabulary.closed),
        data,
        vocabulary,
        matrix,
        parser,
        _batches(train, vocabulary, settings, parser, progress),
        _batches(data[DEV], vocabulary, settings, parser, progress),
        tests,
    )


def _check_words(parser: Pretrained, name: str | None, train: Split, notify: Callable[[str], None]) -> None:
    """Raise if the parser does not know most of the training data's words; notify if it does not know some."""
    unknown = train.unknown_share(parser.vocabulary)
    message = f"the parser {name} does not know {100 * unknown:.1f} % of the words in the training data"
    if unknown > 0.5:
        raise ValueError(f"{message}: use a model that was trained on similar texts")
    if unknown:
        notify(message)


def _batches(
    split: Split,
    vocabulary: Vocabulary,
    settings: Settings,
    parser: Pretrained | None,
    progress: DataProgress | None = None,
) -> Batches:
    return with_trees(split, parser, progress).batches(vocabulary, needs_trees(settings.encoder.name))


def _tests(data: Data, settings: DataSettings, notify: Callable[[str], None]) -> tuple[str, ...]:
    """Names of the test splits: those in the settings, which must be available, or all that are available."""
    if settings.tests:
        names = [data.task.part(split)[1].name for split in settings.tests]
        for name in names:
            if missing := data.missing(name):
                raise ValueError(f"the test split {name} is not available: {missing}")
        return tuple(names)
    found = []
    for name in data:
        if name in (TRAIN, DEV):
            continue
        if missing := data.missing(name):
            notify(f"the test split {name} is left out: {missing}")
        else:
            found.append(name)
    return tuple(found)


def part_of(batches: Batches, rank: int, world_size: int) -> Batches:
    """Every `world_size`-th sample, starting with sample `rank`."""
    if world_size == 1:
        return batches
    if len(batches) < world_size:
        raise ValueError(f"{len(batches)} samples cannot be divided among {world_size} devices: use fewer devices")
    rows = range(rank, len(batches), world_size)
    first, second = (
        None if side is None else Ragged.from_sequences([side[row].tolist() for row in rows])
        for side in (batches.tokens, batches.second)
    )
    assert first is not None
    labels = None if batches.labels is None else batches.labels[rank::world_size]
    gold = batches.trees
    trees = None if gold is None else (lambda row: gold(rows[row]))
    return Batches(first, labels, second, batches.pad, trees)


class MicroBatch:
    """The part of a micro-batch that one process encodes. Not a dataclass: Lightning would traverse its fields."""

    def __init__(self, batch: Batch, weight: float, count: int, ends_step: bool) -> None:
        self.batch = batch
        # Factor for the mean loss: weighted losses, summed over the micro-batches of a step and averaged over
        # processes, are the mean over all samples of the step.
        self.weight = weight
        self.count = count  # number of samples; 0 if `batch` is a placeholder, since there are too few samples
        self.ends_step = ends_step

    def to(self, device: torch.device) -> "MicroBatch":
        return MicroBatch(self.batch.to(device, non_blocking=True), self.weight, self.count, self.ends_step)


class Loader:
    """The micro-batches of one process. `buckets` determines them for each epoch."""

    def __init__(
        self,
        batches: Batches,
        buckets: Buckets,
        accumulate: int = 1,
        rank: int = 0,
        world_size: int = 1,
        pin: bool = False,
    ) -> None:
        self.batches, self.buckets, self.accumulate = batches, buckets, accumulate
        self.rank, self.world_size, self.pin = rank, world_size, pin

    def __len__(self) -> int:
        """Number of micro-batches in an epoch."""
        return len(self.buckets)

    def epoch(self, number: int, start: int = 0) -> Iterator[MicroBatch]:
        """The micro-batches of an epoch, starting with index `start`."""
        self.buckets.set_epoch(number)
        plan = list(self.buckets)
        step_sizes = np.add.reduceat([len(rows) for rows in plan], range(0, len(plan), self.accumulate))
        for index in range(start, len(plan)):
            ends_step = (index + 1) % self.accumulate == 0 or index + 1 == len(plan)
            yield self._part(plan[index], int(step_sizes[index // self.accumulate]), ends_step)

    def _part(self, rows: np.ndarray, step_size: int, ends_step: bool) -> MicroBatch:
        own = rows[self.rank :: self.world_size]  # samples are sorted by length, so all parts have similar lengths
        batch = self.batches[own if len(own) else rows[:1]]
        weight = len(own) * self.world_size / step_size
        return MicroBatch(batch.pin_memory() if self.pin else batch, weight, len(own), ends_step)
