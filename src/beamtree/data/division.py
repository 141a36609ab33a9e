"""Divide one set of samples into train, dev and test: stratified by label, and the same on every machine.

    divide(labels, keys, {"dev": 0.1, "test": 0.1}, seed=0)    # {"train": [0, 2, …], "dev": [7, …], "test": [1, …]}

A sample is assigned to a split by a hash of the seed and of its key (the text), not by its position: the order of the
rows does not matter, and adding or removing a row leaves most of the others in their splits.
"""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from operator import itemgetter

from beamtree.utils.checks import check_integer

TRAIN, DEV, TEST = "train", "dev", "test"
DEFAULT_SHARE = 0.1  # of the samples, for dev and for test

Share = float | int  # a fraction of the samples, or their number; 0: none

_MAX_NAMED = 5  # labels in a message


@dataclass(frozen=True)
class Division:
    """How the samples of one source were divided into splits."""

    source: str  # its name in messages
    splits: tuple[str, ...]
    seed: int

    def describe(self, label_counts: Mapping[str, Mapping[str, int]]) -> list[str]:
        """Messages for the user: the size of each split, and the labels that are missing in some splits."""
        sizes = {split: sum(label_counts[split].values()) for split in self.splits}
        shown = ", ".join(f"{split} {size:,}" for split, size in sizes.items())
        lines = [f"{self.source}: {sum(sizes.values()):,} samples divided by label with seed {self.seed}: {shown}"]
        for split in self.splits:
            present = {label for other in self.splits for label, count in label_counts[other].items() if count}
            missing = [label for label, count in label_counts[split].items() if not count and label in present]
            if missing:
                names = ", ".join(map(repr, missing[:_MAX_NAMED])) + (", …" if missing[_MAX_NAMED:] else "")
                labels = "1 label has" if len(missing) == 1 else f"{len(missing)} labels have"
                lines.append(f"{self.source}: {labels} too few samples to be in {split}: {names}")
        return lines


def check_share(name: str, share: object) -> None:
    """Check that a share is a fraction below 1 or a number of samples."""
    is_number = isinstance(share, Real) and not isinstance(share, bool)
    if not is_number or not (share >= 0 and (share < 1 or isinstance(share, Integral))):  # type: ignore[operator]
        raise ValueError(f"{name} is {share!r}: it must be a fraction below 1, such as 0.1, or a number of samples")


def divide(labels: Sequence[str], keys: Sequence[str], shares: Mapping[str, Share], seed: int) -> dict[str, list[int]]:
    """Divide samples into "train" and a split for each share that is not 0.

    Every label has its share of each split, rounded up or down. A label with enough samples for one in every split is
    in all of them, even if that makes a split larger. Every label is in train, even if that makes a split smaller. The
    samples of the last share do not depend on the other shares, unless a label has very few samples.

    Args:
        labels: the label of each sample.
        keys: the key of each sample. Samples with equal labels and keys are interchangeable.
        shares: the share of each split except train.
        seed: seed of the assignment.

    Returns:
        The indices of the samples of each split, in ascending order.
    """
    check_integer("seed", seed, at_least=0)
    for name, share in shares.items():
        check_share(name, share)
    sizes = {name: _size(share, len(labels)) for name, share in shares.items() if share}
    if sum(sizes.values()) >= len(labels):
        asked = " and ".join(f"{name} {size:,}" for name, size in sizes.items())
        raise ValueError(f"{len(labels):,} samples cannot be divided into {asked}: none would be left for {TRAIN}")
    members: dict[str, list[int]] = defaultdict(list)
    for index, label in enumerate(labels):
        members[label].append(index)
    counts = _allocate({label: len(indices) for label, indices in members.items()}, sizes, seed)
    found: dict[str, list[int]] = {name: [] for name in (TRAIN, *sizes)}
    for label, indices in members.items():
        rest = sorted(indices, key=lambda index: _hash(seed, keys[index]))
        for name in reversed(sizes):
            count = counts[name][label]
            found[name] += rest[:count]
            rest = rest[count:]
        found[TRAIN] += rest
    for name in sizes:
        if not found[name]:
            raise ValueError(f"no sample can be held out for {name}: every label must keep one sample in {TRAIN}")
    return {name: sorted(indices) for name, indices in found.items()}


def _size(share: Share, total: int) -> int:
    """The number of samples of a split, at least one."""
    return int(share) if isinstance(share, Integral) else max(1, round(share * total))


def _allocate(totals: Mapping[str, int], sizes: dict[str, int], seed: int) -> dict[str, dict[str, int]]:
    """The number of samples of each label in each split. The largest remainders are rounded up to reach the sizes.

    totals: the number of samples of each label.
    """
    whole = sum(totals.values())
    counts = {name: {label: total * size // whole for label, total in totals.items()} for name, size in sizes.items()}
    for label, total in totals.items():
        if total > len(sizes):
            for name in sizes:
                counts[name][label] = max(1, counts[name][label])
        while _held_out(counts, label) >= total:  # one remains in train
            largest = max(counts.values(), key=itemgetter(label))
            largest[label] -= 1
    for name in reversed(sizes):
        remainders = {label: total * sizes[name] - whole * counts[name][label] for label, total in totals.items()}
        missing = sizes[name] - sum(counts[name].values())
        for _, _, label in sorted((-remainder, _hash(seed, label), label) for label, remainder in remainders.items()):
            if missing <= 0 or remainders[label] <= 0:
                break
            if _held_out(counts, label) < totals[label] - 1:
                counts[name][label] += 1
                missing -= 1
    return counts


def _held_out(counts: Mapping[str, Mapping[str, int]], label: str) -> int:
    return sum(count[label] for count in counts.values())


def _hash(seed: int, key: str) -> bytes:
    return hashlib.sha256(f"{seed}\n{key}".encode("utf-8", "surrogatepass")).digest()
