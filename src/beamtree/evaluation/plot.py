"""Plots of accuracy over length and depth, with matplotlib, an optional package."""

from pathlib import Path
from typing import Any

from beamtree.evaluation.results import Bin, Views
from beamtree.utils.plot import make_figure, save_figure, style


def draw(shown: Views, file: Path, title: str) -> None:
    """Draw a plot for each view, with a line for each split: accuracies with their confidence intervals."""
    figure = make_figure(5 * len(shown), 4, title)
    for axes, (view, splits) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True):
        axes.set(xlabel=view, ylabel="accuracy (%)")
        for index, (split, bins) in enumerate(splits.items()):
            _line(axes, bins, label=split, **style(index))
        axes.set_ylim(top=101)
        axes.grid(alpha=0.3)
        axes.legend()
    save_figure(figure, file)


def _line(axes: Any, bins: list[Bin], **look: str) -> None:
    middles = [(each.first + each.last) / 2 for each in bins]
    percent = [100 * each.accuracy for each in bins]
    below = [100 * (each.accuracy - each.interval[0]) for each in bins]
    above = [100 * (each.interval[1] - each.accuracy) for each in bins]
    axes.errorbar(middles, percent, yerr=(below, above), capsize=3, **look)
