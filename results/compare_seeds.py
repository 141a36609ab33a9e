"""Compare the seeds of the same encoder: does a lower dev loss go with a higher accuracy on more arguments?

    python results/compare_seeds.py

If the dev loss after a few epochs predicted it, several short beginnings could be made, and the best one continued. All
pairs of seeds of the same encoder are counted in which the one with the lower loss has the higher accuracy; ties count
half. In brackets is the p-value of an exact two-sided test: all assignments of the accuracies of an encoder to its
seeds are equally probable. Only encoders that find the trees, with three or more seeds.
"""

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent
VARIANTS = (
    *(f"listops/{name}" for name in ("bt-grc", "bt-grc-beam2", "bt-lstm", "ebt-grc", "bsrp-grc", "bsrp-grc-noise50")),
    *("listops-dg/bt-grc", "listops-dg/ebt-grc"),
)
SPLITS = {"args-10": "10 arguments", "args-15": "15 arguments", "lra": "LRA"}
EPOCHS = (3, 5, 8, 10, 15)
SELECTED = "selected"  # the epoch whose weights were kept: the one with the lowest dev loss
MIN_SEEDS = 3


class Seed(NamedTuple):
    losses: Mapping[int | str, float]  # on dev, after an epoch
    accuracy: Mapping[str, float]  # on a split


def seeds(name: str) -> list[Seed]:
    """The runs of a variant."""
    found = []
    for path in sorted(RESULTS.glob(f"{name}-seed*/results.json")):
        results: dict[str, Any] = json.loads(path.read_text())
        epochs = [json.loads(line) for line in (path.parent / "metrics.jsonl").read_text().splitlines()]
        losses: dict[int | str, float] = {each["epoch"]: each["dev_loss"] for each in epochs}
        losses[SELECTED] = results["dev"]["loss"]
        found.append(Seed(losses, {split: each["accuracy"] for split, each in results["splits"].items()}))
    return found


def excess(losses: Sequence[float], accuracies: Sequence[float]) -> int:
    """The number of pairs in which the lower loss has the higher accuracy, less the number of the other pairs."""
    pairs = itertools.combinations(zip(losses, accuracies, strict=True), 2)
    return sum(_sign(other[0] - one[0]) * _sign(one[1] - other[1]) for one, other in pairs)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


class Agreement(NamedTuple):
    agreeing: float  # pairs of seeds; ties count half
    pairs: int
    p_value: float


def agreement(groups: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Agreement:
    """Count the pairs within each group of (losses, accuracies), and test their sum.

    The distribution of the sum is exact: that of each group over all permutations, convolved.
    """
    total, pairs, chances = 0, 0, {0: 1.0}
    for losses, accuracies in groups:
        total += excess(losses, accuracies)
        pairs += len(losses) * (len(losses) - 1) // 2
        permutations = list(itertools.permutations(accuracies))
        counts = Counter(excess(losses, each) for each in permutations)
        sums: Counter[int] = Counter()
        for so_far, chance in chances.items():
            for value, count in counts.items():
                sums[so_far + value] += chance * count / len(permutations)
        chances = dict(sums)
    p_value = sum(chance for value, chance in chances.items() if abs(value) >= abs(total))
    return Agreement((pairs + total) / 2, pairs, min(p_value, 1.0))


def table() -> str:
    """How many pairs of seeds agree, for the dev loss after some epochs."""
    variants = [runs for runs in map(seeds, VARIANTS) if len(runs) >= MIN_SEEDS]
    lines = [f"| dev loss | {' | '.join(SPLITS.values())} |", "|---|" + "---:|" * len(SPLITS)]
    for epoch in (*EPOCHS, SELECTED):
        cells = []
        for split in SPLITS:
            groups = [([run.losses[epoch] for run in runs], [run.accuracy[split] for run in runs]) for runs in variants]
            found = agreement(groups)
            cells.append(f"{found.agreeing:g} of {found.pairs} ({found.p_value:.3f})")
        name = "of the selected epoch" if epoch == SELECTED else f"after epoch {epoch}"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
