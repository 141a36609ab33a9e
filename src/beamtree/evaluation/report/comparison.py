"""Our figures beside the paper's: which are better, and by more than two standard errors.

The standard error of a mean of n runs is s / √n, that of a median √(π/2) · s / √n (the limit for many normally
distributed values; with three runs the exact factor is 1.16 instead of 1.25). Where the paper's table gives a median
without a deviation, s is taken from its table of means of the same model, if there is one.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from beamtree.evaluation.report import paper
from beamtree.evaluation.report.paper import PaperRow

MEDIAN_FACTOR = math.sqrt(math.pi / 2)
STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "max": max,
}


@dataclass(frozen=True)
class Comparison:
    """A figure of ours beside the paper's."""

    is_better: bool
    is_significant: bool | None  # the difference is more than two standard errors; None: deviations are not known

    @property
    def marks(self) -> tuple[bool, bool]:
        """Whether the figure is printed in bold, and whether it is marked as significantly different."""
        return self.is_better, bool(self.is_significant)


def compare(values: Mapping[str, Sequence[float]], theirs: PaperRow, task: str) -> dict[str, Comparison]:
    """Compare the accuracies of runs, in per cent, by split, with a row of the paper."""
    compared = {}
    for split, figure in theirs.figures.items():
        runs = values.get(split)
        if figure is None or not runs:
            continue
        difference = STATISTICS[theirs.statistic](runs) - figure.value
        error = _standard_error(runs, theirs, split, task)
        is_significant = None if error is None else abs(difference) > 2 * error
        compared[split] = Comparison(round(difference, 9) > 0, is_significant)
    return compared


def _standard_error(values: Sequence[float], theirs: PaperRow, split: str, task: str) -> float | None:
    """Standard error of the difference between our figure and the paper's; None if a deviation is not known."""
    variance = _paper_variance(theirs, split, task)
    if len(values) < 2 or variance is None or theirs.statistic == "max":
        return None
    error = math.sqrt(statistics.variance(values) / len(values) + variance / theirs.runs)
    return error * MEDIAN_FACTOR if theirs.statistic == "median" else error


def _paper_variance(theirs: PaperRow, split: str, task: str) -> float | None:
    """The sample variance of the paper's runs. The paper prints deviations that are divided by n, not n − 1."""
    for row in paper.rows(task):
        figure = row.figures.get(split)
        if (row.encoder, row.options) == (theirs.encoder, theirs.options) and figure and figure.std and row.runs > 1:
            return figure.std**2 * row.runs / (row.runs - 1)
    return None
