"""Tables as Markdown, LaTeX and JSON."""

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

from beamtree.data.task import slug
from beamtree.evaluation.report import paper
from beamtree.evaluation.report.comparison import Comparison
from beamtree.evaluation.report.paper import Figure
from beamtree.evaluation.report.summary import ReportRow, Table

_STATISTICS = {
    "median": "median of the runs",
    "mean": "mean ± standard deviation of the runs",
    "max": "maximum of the runs",
}
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--"}
_SIGNIFICANT, _LATEX_SIGNIFICANT = "†", r"^\dagger"
_LATEX[_SIGNIFICANT] = f"${_LATEX_SIGNIFICANT}$"
_LATEX |= {character: f"\\{character}" for character in "&%$#_{}"}


def markdown(tables: Sequence[Table]) -> str:
    return "\n".join(_markdown(table) for table in tables)


def latex(tables: Sequence[Table]) -> str:
    """LaTeX tables, which require no packages."""
    return "\n".join(_latex(table) for table in tables)


def records(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """Convert tables to JSON types."""
    return [
        {
            "task": table.task,
            "statistic": table.statistic,
            "columns": table.columns,
            "rows": [_record(row) for row in table.rows],
            "notes": table.notes,
        }
        for table in tables
    ]


def _markdown(table: Table) -> str:
    cells = [["Model", "Runs", *table.columns.values()]]
    cells += [[row.model, str(row.count), *_cells(table, row, _plain, "–")] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [_line(row, widths) for row in cells]
    lines.insert(1, "|".join(["", "-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:]), ""]))
    notes = [f"\n{note}" for note in table.notes]
    return "\n".join([f"## {paper.title(table.task)}\n", _about(table), "", *lines, *notes, ""])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """A row with padded cells, so the source is readable too. All cells but the first are right-aligned."""
    first, *others = zip(cells, widths, strict=True)
    safe = first[0].replace("|", "\\|")
    return " | ".join([f"| {safe:<{first[1]}}", *(f"{cell:>{width}}" for cell, width in others)]) + " |"


def _about(table: Table) -> str:
    return f"Accuracy in %, {_STATISTICS[table.statistic]}.{_source(table)}{_marks(table)}"


def _marks(table: Table) -> str:
    """What bold figures and marks mean, if there are any."""
    comparisons = [comparison for row in table.rows for comparison in row.comparisons.values()]
    text = " Bold: better than in the paper." if any(comparison.is_better for comparison in comparisons) else ""
    if any(comparison.is_significant for comparison in comparisons):
        text += f" {_SIGNIFICANT}: more than two standard errors apart, where the paper gives a deviation."
    return text


def _source(table: Table) -> str:
    numbers = [str(number) for number in table.paper_tables]
    if not numbers:
        return ""
    joined = " and ".join([", ".join(numbers[:-1]), numbers[-1]]) if len(numbers) > 1 else numbers[0]
    return f" Rows marked (paper): Table{'s' * (len(numbers) > 1)} {joined} of {paper.CITATION}."


def _plain(figure: Figure, is_better: bool, is_significant: bool) -> str:
    text = _value(figure)
    if figure.std is not None:
        text += f" ± {figure.std:g}" if figure.printed else f" ± {figure.std:.2f}"
    return (f"**{text}**" if is_better else text) + f" {_SIGNIFICANT}" * is_significant


def _subscript(figure: Figure, is_better: bool, is_significant: bool) -> str:
    """As the paper prints it: 90_1 is 90 ± 0.1."""
    text = rf"\mathbf{{{_value(figure)}}}" if is_better else _value(figure)
    if figure.std is not None:
        tenths = 10 * figure.std
        text += f"_{{{tenths:.0f}}}" if tenths >= 10 else f"_{{{round(tenths, 1):g}}}"
    return f"${text}{_LATEX_SIGNIFICANT * is_significant}$"


def _value(figure: Figure) -> str:
    return figure.printed or f"{figure.value:.2f}"


def _cells(table: Table, row: ReportRow, text: Callable[[Figure, bool, bool], str], dash: str) -> list[str]:
    """The figures of a row; those that are better than the paper's in bold, significant differences marked."""
    shown = []
    for split in table.columns:
        figure, comparison = row.figures.get(split), row.comparisons.get(split, Comparison(False, None))
        few = f" (of {figure.runs})" if figure is not None and figure.runs is not None else ""
        shown.append(dash if figure is None else text(figure, *comparison.marks) + few)
    return shown


def _latex(table: Table) -> str:
    groups = [
        (name, len(list(same))) for name, same in itertools.groupby(paper.group(table.task, s) for s in table.columns)
    ]
    layout = " | ".join(["l r", *(" ".join("l" * size) for _, size in groups)])
    heads = [_bold(title) for title in map(_escaped, table.columns.values())]
    lines = [r"\begin{table*}[t]", r"\small", r"\centering", rf"\begin{{tabular}}{{{layout}}}", r"\hline"]
    if any(name for name, _ in groups):
        spans = [rf"\multicolumn{{{size}}}{{c}}{{{_bold(_escaped(name))}}}" for name, size in groups]
        lines.append(" & ".join(["", "", *spans]).lstrip() + r" \\")
    lines += [" & ".join([_bold("Model"), _bold("Runs"), *heads]) + r" \\", r"\hline"]
    for row in table.rows:
        lines.append(" & ".join([_escaped(row.model), str(row.count), *_cells(table, row, _subscript, "---")]) + r" \\")
    subscripts = table.statistic == "mean"
    explained = " A subscript is the standard deviation in tenths: $90_1$ is $90 \\pm 0.1$." if subscripts else ""
    text = f"{paper.title(table.task)}: {_about(table)} {' '.join(table.notes)}".strip()
    caption = rf"\caption{{{_escaped(text)}{explained}}}"
    label = rf"\label{{table:{slug(table.task)}}}"
    return "\n".join([*lines, r"\hline", r"\end{tabular}", caption, label, r"\end{table*}", ""])


def _bold(text: str) -> str:
    return rf"\textbf{{{text}}}" if text else ""


def _escaped(text: str) -> str:
    return re.sub("|".join(map(re.escape, _LATEX)), lambda found: _LATEX[found[0]], text)


def _record(row: ReportRow) -> dict[str, Any]:
    shown: dict[str, Any] = {"model": row.model, "encoder": row.encoder, "changes": row.changes, "runs": row.count}
    if row.table is not None:
        shown["paper_table"] = row.table
    else:
        shown["seeds"] = [run.settings.seed for run in row.runs]
        shown["folders"] = [str(run.folder) for run in row.runs]
    figures = {
        split: None if figure is None else {"value": figure.value, "std": figure.std, "runs": figure.runs or row.count}
        for split, figure in row.figures.items()
    }
    if row.comparisons:
        shown["compared"] = {split: vars(comparison) for split, comparison in row.comparisons.items()}
    every = {"splits": [run.accuracies for run in row.runs]} if row.runs else {}
    return {**shown, "figures": figures, **every}
