"""Plots of time and memory over length. Requires matplotlib, an optional package."""

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from beamtree.bench.measure import Case, Result

ENDINGS = (".png", ".svg", ".pdf")
# Okabe and Ito's palette for colour-blind readers, without yellow, which is too pale. Markers differ too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "os^Dv*X"


def check_plot(file: Path) -> None:
    """Validate the file before measuring: raise a `ValueError` if no plot can be written to it."""
    if file.suffix.lower() not in ENDINGS:
        raise ValueError(f"the plot {str(file)!r} must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    if not file.absolute().parent.is_dir():
        raise ValueError(f"the plot {str(file)!r} is to go into a folder that does not exist: make it first")
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("a plot needs matplotlib, which is not installed: pip install matplotlib")


def draw(results: Sequence[Result], file: Path, title: str = "") -> None:
    """Plot time and peak memory of a training step side by side, on logarithmic axes."""
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(9, 4), layout="constrained")
    figure.suptitle(title)
    left, right = figure.subplots(1, 2)
    _curves(left, "training step (s)", [(result.case, result.train_seconds) for result in results])
    sizes = [(result.case, result.peak_bytes and result.peak_bytes / 2**20) for result in results]
    _curves(right, "peak memory (MiB)", sizes)
    try:
        figure.savefig(file, dpi=150)
    except OSError as error:
        raise ValueError(f"the plot {str(file)!r} cannot be written: {error.strerror}") from error


def _curves(axes: Any, label: str, values: Sequence[tuple[Case, float | None]]) -> None:
    """One line per encoder. Cases without a measurement have no point."""
    points = [(case, value) for case, value in values if value]
    axes.set(xlabel="length N", ylabel=label)
    if not points:
        axes.set_title("not measured")
        return
    for index, name in enumerate(dict.fromkeys(case.encoder for case, _ in values)):
        own = [(case.length, value) for case, value in points if case.encoder == name]
        look = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}
        axes.plot([length for length, _ in own], [value for _, value in own], label=name, **look)
    axes.set(xscale="log", yscale="log")
    lengths = sorted({case.length for case, _ in values})
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths], rotation=45)
    axes.yaxis.set_major_locator(importlib.import_module("matplotlib.ticker").LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
