"""`beamtree report`: tables of runs in the paper's layout."""

# PyTorch is imported inside functions, so that help is fast.
import json
from pathlib import Path
from typing import Annotated

import typer

from beamtree.utils.extras import require
from beamtree.utils.files import write_atomically

EXAMPLE = (
    "Examples: all runs in a folder; a table for LaTeX\n\n"
    "  beamtree report runs\n\n"
    "  beamtree report runs/listops --latex --out table.tex"
)


def report_command(
    folders: Annotated[list[str], typer.Argument(metavar="RUN", help="Folders of runs, or folders that contain runs.")],
    latex: Annotated[bool, typer.Option("--latex", help="Write LaTeX instead of Markdown.")] = False,
    mean: Annotated[
        bool, typer.Option("--mean", help="Mean and standard deviation for ListOps as well, instead of the median.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write.", show_default="standard output")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON and nothing else.")] = False,
) -> None:
    """Write tables of the accuracies of runs in the paper's layout, next to the paper's figures.

    Runs that differ only in their seed form one row: their median for ListOps, their mean and standard deviation for
    other tasks. Figures better than the paper's are bold; † marks differences of more than two standard errors.
    Unfinished runs are listed and left out.
    """
    require("train", "beamtree report")
    if latex and as_json:
        raise ValueError("--latex and --json are mutually exclusive: choose one")
    if out is not None and not out.absolute().parent.is_dir():
        raise ValueError(f"{out}: the folder {out.parent} does not exist: create it first")
    from beamtree.evaluation import report

    found = report.find(folders)
    tables = report.tables(found.runs, mean)
    if as_json:
        text = json.dumps({"tables": report.records(tables), "left_out": found.left_out}, indent=2, ensure_ascii=False)
        text += "\n"
    else:
        text = report.latex(tables) if latex else report.markdown(tables)
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_atomically(out, text)
        typer.echo(f"{out}: {len(tables)} {'table' if len(tables) == 1 else 'tables'} of {len(found.runs)} runs")
    for why in found.left_out.values():
        typer.echo(f"left out: {why}", err=True)
