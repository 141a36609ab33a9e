"""Plots with matplotlib, an optional package, in the colours of `palette`."""

import importlib
from pathlib import Path
from typing import Any

from beamtree.utils.extras import require
from beamtree.utils.palette import SERIES

ENDINGS = (".png", ".svg", ".pdf")
MARKERS = "os^Dv*X"


def check_plot(file: Path) -> None:
    """Validate the file before measuring: raise a `ValueError` if no plot can be written to it."""
    if file.suffix.lower() not in ENDINGS:
        raise ValueError(f"the plot {str(file)!r} must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    if not file.absolute().parent.is_dir():
        raise ValueError(f"the plot {str(file)!r} is in a folder that does not exist: create it first")
    require("plot", "a plot")


def make_figure(width: int, height: int, title: str) -> Any:
    """Create an empty figure of this size in inches."""
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title)
    return figure


def style(index: int) -> dict[str, str]:
    """Colour and marker of the line of this index."""
    return {"color": SERIES[index % len(SERIES)], "marker": MARKERS[index % len(MARKERS)]}


def save_figure(figure: Any, file: Path) -> None:
    try:
        figure.savefig(file, dpi=150)
    except OSError as error:
        raise ValueError(f"the plot {str(file)!r} cannot be written: {error.strerror}") from error
