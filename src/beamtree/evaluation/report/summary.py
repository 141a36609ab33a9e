"""Tables of runs: the results of runs with equal settings, beside the paper's figures.

Runs form a group if their settings differ only in the seed and in what does not change the results. The statistic of a
group is the median for ListOps, as in the paper, and mean and standard deviation for all other tasks.
"""

import dataclasses
import itertools
import json
import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beamtree.data.loading import TASKS
from beamtree.evaluation.report import paper
from beamtree.evaluation.report.comparison import Comparison, compare
from beamtree.evaluation.report.paper import Figure, PaperRow
from beamtree.models.storage import RESULTS, is_run, read_results
from beamtree.runs import recipes
from beamtree.runs.folder import read_settings
from beamtree.runs.settings import Settings
from beamtree.utils.mappings import flatten

# Settings in which the runs of a group may differ: the seed, the tested splits, and how the same values are computed.
_IGNORED = ("seed", "data.tests", "training.micro_batch", "training.dev_batch", "encoder.options.engine")
_PRECISION = "training.precision"  # may differ from the recipe in a row that is compared with the paper's


@dataclass(frozen=True, eq=False)
class ReportedRun:
    """A finished run: its folder, its settings, and its results."""

    folder: Path
    settings: Settings
    accuracies: dict[str, float]  # by split, from 0 to 1


@dataclass(frozen=True, eq=False)
class Found:
    """The finished runs in some folders, and why others are left out."""

    runs: list[ReportedRun]
    left_out: dict[str, str]  # reasons by folder


@dataclass(frozen=True, eq=False)
class ReportRow:
    """A row of a table: a group of runs, or a row of the paper."""

    encoder: str
    model: str
    count: int  # number of runs
    figures: dict[str, Figure | None]  # by split
    runs: list[ReportedRun] = field(default_factory=list)  # empty for a row of the paper
    changes: dict[str, Any] = field(default_factory=dict)  # settings that differ from the recipe
    table: int | None = None  # number of the paper's table
    comparisons: dict[str, Comparison] = field(default_factory=dict)  # with the paper's figures, by split


@dataclass(frozen=True, eq=False)
class Table:
    """The table of a task."""

    task: str
    statistic: str
    columns: dict[str, str]  # titles by split
    rows: list[ReportRow]
    notes: list[str]

    @property
    def paper_tables(self) -> list[int]:
        return sorted({row.table for row in self.rows if row.table is not None})


def find(folders: Iterable[str | os.PathLike[str]]) -> Found:
    """Find the runs in these folders, each of which is a run or contains runs at any depth."""
    places: dict[Path, None] = {}
    for folder in map(Path, folders):
        inside = list(_runs_in(folder))
        if not inside:
            why = "there are no runs in it" if folder.is_dir() else "there is no such folder"
            raise ValueError(f"{folder}: {why}: give the folder of a run, or a folder with runs in it")
        places |= dict.fromkeys(inside)
    runs: dict[str, ReportedRun] = {}
    left_out = {}
    for place in places:
        try:
            run = ReportedRun(place, read_settings(place), _accuracies(place))
        except ValueError as error:
            left_out[str(place)] = str(error)
            continue
        first = runs.setdefault(json.dumps([_group_key(run), run.settings.seed]), run)
        if first is not run:
            left_out[str(place)] = f"{place} has the same settings and seed as {first.folder}"
    if not runs:
        raise ValueError(f"there is no finished run: {'; '.join(left_out.values())}")
    return Found(list(runs.values()), left_out)


def tables(runs: Sequence[ReportedRun], mean: bool = False) -> list[Table]:
    """Create a table for each task, with the paper's statistic or, with `mean`, mean and standard deviation for all."""
    names = list(dict.fromkeys(run.settings.data.task for run in runs))
    names.sort(key=lambda task: list(TASKS).index(task) if task in TASKS else len(TASKS))  # own data last
    return [_table(task, [run for run in runs if run.settings.data.task == task], mean) for task in names]


def _table(task: str, runs: list[ReportedRun], mean: bool) -> Table:
    statistic = "mean" if mean else (paper.statistics(task) or ["mean"])[0]
    splits = [split for split in paper.columns(task) if any(split == column.name for column in TASKS[task].columns)]
    splits = splits or list(dict.fromkeys(split for run in runs for split in run.accuracies))
    groups: dict[str, list[ReportedRun]] = {}
    for run in runs:
        groups.setdefault(_group_key(run), []).append(run)
    ours = [_row(members, groups.values(), splits, statistic) for members in groups.values()]
    published = [row for row in paper.rows(task) if row.statistic == statistic]

    def place(row: ReportRow) -> tuple[int, int]:
        """Sort key: the paper's order of models, then the row of the paper to compare with."""
        return paper.order(row.encoder), _paper_index(row, published)

    rows: list[ReportRow] = []
    for (_, index), alike in itertools.groupby(sorted(ours, key=lambda row: (*place(row), len(row.changes))), place):
        if index == len(published):
            rows += alike
        else:
            rows += [_compared(row, published[index], task) for row in alike]
            rows.append(_paper_row(published[index]))
    names = (task, *dict.fromkeys(row.encoder for row in rows if row.table is not None))
    notes = [note for name in names if (note := paper.note(name)) and len(names) > 1]
    return Table(task, statistic, {split: _title(task, split) for split in splits}, rows, notes)


def _row(
    members: list[ReportedRun], groups: Iterable[list[ReportedRun]], splits: list[str], statistic: str
) -> ReportRow:
    settings = members[0].settings
    changes = _changes(members[0], groups)
    named = "".join(f", {_short(key)}={_text(value)}" for key, value in changes.items())
    figures = {split: _figure(members, split, statistic) for split in splits}
    name = settings.encoder.name
    return ReportRow(name, f"{paper.model_name(name)}{named}", len(members), figures, members, changes)


def _compared(row: ReportRow, theirs: PaperRow, task: str) -> ReportRow:
    """The row with comparisons, unless its settings differ from the paper's (other word vectors, for example)."""
    if set(row.changes) - {_PRECISION, *(f"encoder.options.{name}" for name in theirs.options)}:
        return row
    values = {split: _values(row.runs, split) for split in row.figures}
    return dataclasses.replace(row, comparisons=compare(values, theirs, task))


def _paper_row(row: PaperRow) -> ReportRow:
    options = {key: value for key, value in row.options.items() if paper.OPTIONS.get(key) != value}
    named = "".join(f", {key}={value}" for key, value in options.items())
    model = f"{paper.model_name(row.encoder)}{named} (paper)"
    return ReportRow(row.encoder, model, row.runs, row.figures, changes=dict(options), table=row.table)


def _paper_index(row: ReportRow, published: list[PaperRow]) -> int:
    """The index of the paper's row to compare this row with; the number of its rows if there is none."""
    options = row.runs[0].settings.encoder.options
    return next((n for n, theirs in enumerate(published) if theirs.fits(row.encoder, options)), len(published))


def _figure(members: list[ReportedRun], split: str, statistic: str) -> Figure | None:
    values = _values(members, split)
    if not values:
        return None
    runs = len(values) if len(values) < len(members) else None
    if statistic == "mean":
        std = statistics.pstdev(values) if len(values) > 1 else None  # as in the paper: divided by n, not n − 1
        return Figure(statistics.fmean(values), std, runs)
    return Figure(max(values) if statistic == "max" else statistics.median(values), None, runs)


def _values(members: list[ReportedRun], split: str) -> list[float]:
    """The accuracies in per cent of the runs that have the split."""
    return [100 * run.accuracies[split] for run in members if split in run.accuracies]


def _group_key(run: ReportedRun) -> str:
    """A string that is equal for the runs of a group."""
    flat = flatten(run.settings.to_dict())
    return json.dumps({key: value for key, value in flat.items() if key not in _IGNORED}, sort_keys=True)


def _changes(run: ReportedRun, groups: Iterable[list[ReportedRun]]) -> dict[str, Any]:
    """Settings that differ from the recipe or, if it is not a shipped recipe, from the first of these runs with it."""
    settings, encoder = run.settings, run.settings.encoder.name
    recipe: dict[str, Any] = {}
    task = None if settings.data.task in TASKS else settings.data.task
    try:
        base = recipes.load(settings.recipe, encoder, settings.seed, task=task)
    except ValueError:
        alike = (g[0].settings for g in groups if g[0].settings.recipe == settings.recipe)
        base = next(other for other in alike if other.encoder.name == encoder)
        recipe = {"recipe": settings.recipe}
    before, now = flatten(base.to_dict()), flatten(settings.to_dict())
    ignored = (*_IGNORED, "data.task")  # a table has one task
    return {**recipe, **{key: now[key] for key in now if key not in ignored and now[key] != before.get(key)}}


def _short(key: str) -> str:
    """The key without its section, where the name is unique without it."""
    for group in ("encoder.options.", "optimizer.", "training."):
        key = key.removeprefix(group)
    return key.replace("data.options.", "data.")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _title(task: str, split: str) -> str:
    return TASKS[task].part(split)[1].title if task in TASKS else split


def _runs_in(folder: Path) -> Iterator[Path]:
    for place, folders, _ in os.walk(folder):
        folders.sort()
        if is_run(place):
            folders.clear()  # do not search inside a run
            yield Path(place)


def _accuracies(folder: Path) -> dict[str, float]:
    found = {}
    for split, result in read_results(folder)["splits"].items():
        accuracy = result.get("accuracy")
        if not isinstance(accuracy, int | float) or not 0 <= accuracy <= 1:
            raise ValueError(f"{folder / RESULTS}: the accuracy of {split} is {accuracy!r}: it must be from 0 to 1")
        found[split] = float(accuracy)
    return found
