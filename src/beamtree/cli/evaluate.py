"""`beamtree evaluate`: how often a model is right, on the tests of its task or on one's own data."""

# ruff: noqa: B006 (a list is how typer is told the default of a repeatable option; nothing changes it)

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from beamtree import recipes
from beamtree.bench import plot as bench_plot
from beamtree.cli.terminal import INTERRUPTED, make_table, named_bars, print_table
from beamtree.data.loading import TASKS, Data, load
from beamtree.data.task import Progress
from beamtree.recipes.settings import DataSettings
from beamtree.runs import Config
from beamtree.utils.checks import check_integer
from beamtree.utils.devices import find_device

EXAMPLE = (
    "Examples: all tests of the model's task; one of them, and a plot; one's own file\n\n"
    "  beamtree evaluate listops-bt-grc\n\n"
    "  beamtree evaluate runs/listops/bt-grc-seed0 --split 900-1000 --plot accuracy.svg\n\n"
    "  beamtree evaluate listops-bt-grc --data expressions.tsv"
)

# The options that say which data, for every command that has a model read some.
SplitsOption = Annotated[list[str], typer.Option("--split", help="Only this one; repeatable.")]
DataOption = Annotated[
    str | None, typer.Option("--data", help="A .tsv, .csv or .jsonl file, or a folder of them, or another task.")
]
SettingsOption = Annotated[list[str], typer.Option("--set", help="An option of the data, as seed=1; repeatable.")]
RootsOption = Annotated[
    list[Path], typer.Option("--data-dir", help="A folder with the originals of the task; repeatable.")
]


def evaluate_command(
    model: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, a shipped model, or a hub id.")],
    splits: SplitsOption = [],
    own: DataOption = None,
    settings: SettingsOption = [],
    roots: RootsOption = [],
    batch_size: Annotated[
        int | None, typer.Option(help="The most inputs at once; of long ones there are fewer.", show_default="256")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    plot: Annotated[Path | None, typer.Option(help="Draw accuracy over length into this .png, .svg or .pdf.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Measure how often a model is right: as a whole, by length, and for ListOps by depth.

    Accuracies are in per cent and come with Wilson's interval of 95 %. Without --split these are the tests that the
    model's recipe names, or else all splits of its task but train and dev; those whose originals are missing are named.
    """
    if plot is not None:
        bench_plot.check_plot(plot)
    if batch_size is not None:
        check_integer("batch size", batch_size, at_least=1)
    place = find_device(device)
    from beamtree import evaluation, pretrained  # here: what they import takes long
    from beamtree.evaluation.plot import draw

    trained = pretrained.load(model, place)
    config = trained.config
    limit = evaluation.MAX_SAMPLES if batch_size is None else batch_size
    found: dict[str, evaluation.Evaluation] = {}
    interrupted = False
    with named_bars() as bar, warning_lines():
        data, wanted, missing = choose_data(config, splits, own, settings, roots, bar)
        try:
            for split in wanted:
                if split not in missing:
                    show = partial(bar, split)
                    found[split] = evaluation.evaluate(trained, data[split], max_samples=limit, progress=show)
        except KeyboardInterrupt:
            interrupted = True

    about = {"model": model, "encoder": config.settings.encoder.name, "data": data.name, "options": data.options}
    report = {**about, "device": place, "interrupted": interrupted, "missing": missing, **evaluation.records(found)}
    if as_json:
        typer.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print(report)
    if plot is not None and found:
        draw(evaluation.views(found), plot, f"{model} on {data.name}")
    if interrupted:
        typer.echo(f"interrupted: {len(found)} of {len(wanted) - len(missing)} splits evaluated", err=True)
        raise typer.Exit(INTERRUPTED)


def choose_data(
    config: Config, splits: list[str], own: str | None, settings: list[str], roots: list[Path], progress: Progress
) -> tuple[Data, list[str], dict[str, str]]:
    """The data that the options name for a model, the splits that are wanted, and what is missing of these."""
    data = _data(config.settings.data, config.closed_vocabulary, own, recipes.parse_changes(settings), roots, progress)
    wanted = _wanted(data, splits, () if own else config.settings.data.tests)
    missing = {split: message for split in wanted if (message := data.missing(split))}
    if len(missing) == len(wanted) or (splits and missing):
        raise ValueError(f"{', '.join(missing)}: {next(iter(missing.values()))}")
    return data, wanted, missing


def _data(
    trained_on: DataSettings,
    closed: bool,
    own: str | None,
    changes: dict[str, Any],
    roots: list[Path],
    progress: Progress,
) -> Data:
    """The data of the model's task, with the options that it was trained with, or one's own."""
    options: dict[str, Any] = dict(trained_on.options)
    if own in TASKS:
        options = {}
    elif own is not None:  # a formal language has spaces between its tokens
        options = {"tokenizer": options.get("tokenizer", "spaces" if closed else "words")}
    name = trained_on.task if own is None else own
    return load(name, None, roots=roots or None, progress=progress, **{**options, **changes})


def _wanted(data: Data, splits: list[str], tests: tuple[str, ...]) -> list[str]:
    names = splits or tests or [split for split in data if split not in ("train", "dev")]
    if not names:
        raise ValueError(f"{data.name} has no split for tests: choose one of {', '.join(data)} with --split")
    return list(dict.fromkeys(data.task.part(split)[1].name for split in names))


def _print(report: dict[str, Any]) -> None:
    typer.echo(f"{report['model']}: {report['encoder']} on {data_line(report)}\n")
    table = make_table("split", "count", "accuracy", "95 % interval", "loss", left=("split",))
    for split, row in report["splits"].items():
        low, high = (percent(limit) for limit in row["interval"])
        table.add_row(split, f"{row['count']:,}", percent(row["accuracy"]), f"{low} – {high}", f"{row['loss']:.4f}")
    print_table(table)
    for view in ("length", "depth"):
        if splits := report.get(f"by_{view}"):
            typer.echo(f"\naccuracy by {view} (samples)")
            _print_bins(view, splits)
    print_missing(report["missing"])


def data_line(report: dict[str, Any]) -> str:
    """The data of a report with its options, and the device."""
    options = "".join(f", {key}={str(value).lower()}" for key, value in report["options"].items())
    return f"{report['data']}{options}; {report['device']}"


def print_missing(missing: dict[str, str]) -> None:
    """A line for each reason that a split is missing."""
    by_message: dict[str, list[str]] = {}
    for split, message in missing.items():
        by_message.setdefault(message, []).append(split)
    for message, names in by_message.items():
        typer.echo(f"\nmissing: {', '.join(names)}: {message}")


def _print_bins(view: str, splits: dict[str, list[dict[str, Any]]]) -> None:
    """A line for each bin that any split has, a column for each split."""
    table = make_table(view, *splits)
    cells = {
        (split, each["first"], each["last"]): f"{percent(each['accuracy'])} ({each['count']:,})"
        for split, bins in splits.items()
        for each in bins
    }
    for first, last in sorted({(first, last) for _, first, last in cells}):
        name = str(first) if first == last else f"{first}–{last}"
        table.add_row(name, *(cells.get((split, first, last), "–") for split in splits))
    print_table(table)


def percent(share: float) -> str:
    return f"{100 * share:.2f}"


@contextmanager
def warning_lines() -> Iterator[None]:
    """Warnings within it are lines of the program, without the place in the code."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", RuntimeWarning)
        warnings.showwarning = lambda message, *place, **rest: typer.echo(f"warning: {message}", err=True)
        yield
