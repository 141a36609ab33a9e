"""Hold out a part of the training data, for tasks without a dev set."""

import random
from collections.abc import Iterable

from beamtree.data.samples import Sample
from beamtree.utils.checks import check_integer


def at_random(samples: Iterable[Sample], count: int, seed: int) -> tuple[list[Sample], list[Sample]]:
    """Divide samples into training and dev set: `count` random ones are for dev. Both keep the order of the samples.

    If there are fewer than 10 × `count` samples, a tenth of them is held out, at least one, so that training data
    remains in a small data set or subset too. The same seed selects the same indices on any machine.
    """
    check_integer("count", count, at_least=1)
    check_integer("seed", seed, at_least=0)
    samples = list(samples)
    if len(samples) < 2:
        raise ValueError(
            f"{len(samples)} samples cannot be divided into training and dev set: there must be at least 2"
        )
    # A partial shuffle. `Random.random` is the only method whose sequence Python guarantees across versions.
    uniform = random.Random(seed).random
    indices = list(range(len(samples)))
    held = max(1, min(count, len(samples) // 10))
    for first in range(held):
        other = first + int(uniform() * (len(indices) - first))
        indices[first], indices[other] = indices[other], indices[first]
    dev, train = sorted(indices[:held]), sorted(indices[held:])
    return [samples[index] for index in train], [samples[index] for index in dev]
