"""What a run trains on, and in which order: the data of its settings, cut into the micro-batches of its steps.

    materials = prepare(settings)
    for share in Loader(materials.train, buckets, accumulate=2):
        (model.loss(...) * share.weight).backward()

A step of the optimiser has `accumulate` micro-batches. Where several devices train together each gets a part of every
micro-batch, so that the steps are the same ones as on a single device.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from beamtree.data import vectors as word_vectors
from beamtree.data.batching import Batch, Batches, Buckets, Ragged
from beamtree.data.loading import Data, Roots, load
from beamtree.data.task import Progress
from beamtree.data.vocabulary import Vocabulary
from beamtree.nn.encoders import needs_trees
from beamtree.recipes.settings import DataSettings, Settings
from beamtree.runs import Config

TRAIN, DEV = "train", "dev"


@dataclass(frozen=True, eq=False)
class Materials:
    """The data of a run, and what a model must know of it."""

    config: Config
    data: Data
    vocabulary: Vocabulary
    vectors: Float[Tensor, "V D"] | None  # of the words, where they are not learned
    train: Batches
    dev: Batches
    tests: tuple[str, ...]  # names of splits


def prepare(
    settings: Settings,
    roots: Roots | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Materials:
    """Load what the settings name; `say` is told which test splits are left out, as their originals are missing."""
    roots = None if roots is None else list(roots)  # to be gone through more than once
    data = load(settings.data.task, None, roots=roots, progress=progress, **settings.data.options)
    for split in (TRAIN, DEV):
        if split not in data:
            raise ValueError(f"{settings.data.task} has no split {split}, only {', '.join(data)}: training needs one")
    tests = _tests(data, settings.data, say)
    train = data[TRAIN]
    trees = needs_trees(settings.encoder.name)
    vectors = matrix = None
    if settings.data.vectors is not None:
        vectors = word_vectors.load(settings.data.vectors, settings.model.dim, frozenset(train.words), roots)
    vocabulary = data.vocabulary(vectors)
    if vectors is not None:
        matrix = vectors.matrix_for(vocabulary)
    return Materials(
        Config(settings, data.labels, train.second is not None, vocabulary.closed),
        data,
        vocabulary,
        matrix,
        train.batches(vocabulary, trees),
        data[DEV].batches(vocabulary, trees),
        tests,
    )


def _tests(data: Data, settings: DataSettings, say: Callable[[str], None]) -> tuple[str, ...]:
    """The splits for the end. One that is asked for must be there; of all of them, those that are count."""
    if settings.tests:
        names = [data.task.part(split)[1].name for split in settings.tests]
        for name in names:
            if missing := data.missing(name):
                raise ValueError(f"the test split {name} cannot be made: {missing}")
        return tuple(names)
    found = []
    for name in data:
        if name in (TRAIN, DEV):
            continue
        if missing := data.missing(name):
            say(f"the test split {name} is left out: {missing}")
        else:
            found.append(name)
    return tuple(found)


def part_of(batches: Batches, rank: int, world_size: int) -> Batches:
    """Every `world_size`-th sample, beginning with that of the rank."""
    if world_size == 1:
        return batches
    if len(batches) < world_size:
        raise ValueError(f"{len(batches)} samples cannot be shared by {world_size} devices: use fewer devices")
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


@dataclass(frozen=True, eq=False)
class Share:
    """What one device gets of a micro-batch."""

    batch: Batch
    weight: float  # of its mean loss, for the mean of all devices and micro-batches to be that of the step's samples
    count: int  # of its samples; 0 if the only one is lent, by a micro-batch too small for all devices


class Loader:
    """The shares of one rank, epoch after epoch; `sampler` plans them, and is told the epoch.

    It is its own state: the number of micro-batches that it has given in this epoch.
    """

    def __init__(
        self,
        batches: Batches,
        sampler: Buckets,
        accumulate: int = 1,
        rank: int = 0,
        world_size: int = 1,
        pin: bool = False,
    ) -> None:
        self.batches, self.sampler, self.accumulate = batches, sampler, accumulate
        self.rank, self.world_size, self.pin = rank, world_size, pin
        self.given = 0
        self._begin = 0

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Share]:
        """A generator, which looks at the plan when it is first asked: by then the epoch is set."""
        plan = list(self.sampler)
        sizes = self._step_sizes(plan)
        begin, self._begin = self._begin, 0
        for place in range(begin, len(plan)):
            self.given = place + 1
            yield self._share(plan[place], sizes[place // self.accumulate])

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._begin = state["given"]

    def _step_sizes(self, plan: Iterable[np.ndarray]) -> list[int]:
        """How many samples each step has."""
        sizes = np.array([len(rows) for rows in plan])
        return [int(total) for total in np.add.reduceat(sizes, range(0, len(sizes), self.accumulate))]

    def _share(self, rows: np.ndarray, step_size: int) -> Share:
        own = rows[self.rank :: self.world_size]  # every n-th of samples sorted by length: all shares are alike
        count = len(own)
        batch = self.batches[own if count else rows[:1]]
        weight = count * self.accumulate * self.world_size / step_size
        return Share(batch.pin_memory() if self.pin else batch, weight, count)
