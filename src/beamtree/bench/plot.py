"""Plots of time and memory over length. Requires matplotlib, an optional package."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from beamtree.bench.measure import Case, Result
from beamtree.utils.plot import make_figure, save_figure, style


def draw(results: Sequence[Result], file: Path, title: str = "") -> None:
    """Plot time and peak memory of a training step side by side, on logarithmic axes."""
    figure = make_figure(9, 4, title)
    left, right = figure.subplots(1, 2)
    _curves(left, "training step (s)", [(result.case, result.train_seconds) for result in results])
    sizes = [(result.case, result.peak_bytes and result.peak_bytes / 2**20) for result in results]
    _curves(right, "peak memory (MiB)", sizes)
    save_figure(figure, file)


def _curves(axes: Any, label: str, values: Sequence[tuple[Case, float | None]]) -> None:
    """One line per encoder. Cases without a measurement have no point."""
    points = [(case, value) for case, value in values if value]
    axes.set(xlabel="length N", ylabel=label)
    if not points:
        axes.set_title("not measured")
        return
    for index, name in enumerate(dict.fromkeys(case.encoder for case, _ in values)):
        own = [(case.length, value) for case, value in points if case.encoder == name]
        axes.plot([length for length, _ in own], [value for _, value in own], label=name, **style(index))
    axes.set(xscale="log", yscale="log")
    lengths = sorted({case.length for case, _ in values})
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths], rotation=45)
    axes.yaxis.set_major_locator(importlib.import_module("matplotlib.ticker").LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
