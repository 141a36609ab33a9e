"""Holding out a part of the training data, where a task has no dev set of its own."""

import random
from collections.abc import Iterable

from beamtree.data.samples import Sample
from beamtree.utils.checks import check_integer


def at_random(samples: Iterable[Sample], count: int, seed: int) -> tuple[list[Sample], list[Sample]]:
    """Training and dev set: `count` samples, drawn at random, are for dev; both keep the order of the samples.

    Of fewer than 10 × `count` samples a tenth is held out, at least one: a subset of the training data is divided in
    the same way as a small data set, and never becomes all dev. The same seed draws the same places on any machine.
    """
    check_integer("count", count, at_least=1)
    check_integer("seed", seed, at_least=0)
    samples = list(samples)
    if len(samples) < 2:
        raise ValueError(f"{len(samples)} samples cannot be divided into training and dev set: give at least 2")
    # The beginning of a shuffle. `Random.random` is the one method whose sequence Python promises to keep.
    uniform = random.Random(seed).random
    places = list(range(len(samples)))
    held = max(1, min(count, len(samples) // 10))
    for first in range(held):
        other = first + int(uniform() * (len(places) - first))
        places[first], places[other] = places[other], places[first]
    dev, train = sorted(places[:held]), sorted(places[held:])
    return [samples[place] for place in train], [samples[place] for place in dev]
