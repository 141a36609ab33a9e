"""Accuracy over length and depth, drawn with matplotlib, which is optional."""

import importlib
from pathlib import Path
from typing import Any

from beamtree.bench.plot import COLOURS, MARKERS
from beamtree.evaluation.results import Bin, Views


def draw(shown: Views, file: Path, title: str) -> None:
    """A picture for each view, in which a split is a line of accuracies with their intervals."""
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(5 * len(shown), 4), layout="constrained")
    figure.suptitle(title)
    for axes, (view, splits) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True):
        axes.set(xlabel=view, ylabel="accuracy (%)")
        for index, (split, bins) in enumerate(splits.items()):
            look = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}
            _line(axes, bins, label=split, **look)
        axes.set_ylim(top=101)
        axes.grid(alpha=0.3)
        axes.legend()
    try:
        figure.savefig(file, dpi=150)
    except OSError as error:
        raise ValueError(f"the plot {str(file)!r} cannot be written: {error.strerror}") from error


def _line(axes: Any, bins: list[Bin], **look: str) -> None:
    middles = [(each.first + each.last) / 2 for each in bins]
    percent = [100 * each.accuracy for each in bins]
    below = [100 * (each.accuracy - each.interval[0]) for each in bins]
    above = [100 * (each.interval[1] - each.accuracy) for each in bins]
    axes.errorbar(middles, percent, yerr=(below, above), capsize=3, **look)
