"""`beamtree evaluate`: the accuracy of a model on the test splits of its task, or on your own data."""

# ruff: noqa: B006 (typer takes the default of a repeatable option as a list, which is never modified)

# PyTorch is imported inside functions, so that help is fast.
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from beamtree.cli.models import import_recipes
from beamtree.utils.checks import check_integer
from beamtree.utils.devices import find_device
from beamtree.utils.extras import require
from beamtree.utils.plot import check_plot
from beamtree.utils.terminal import INTERRUPTED, make_table, named_bars, print_table

if TYPE_CHECKING:
    import beamtree.data.loading
    import beamtree.data.split
    import beamtree.evaluation
    import beamtree.models.pretrained

EXAMPLE = (
    "Examples: all test splits of the model's task; the first 100 samples of one split, with a plot; test splits "
    "generated with another seed; your own file\n\n"
    "  beamtree evaluate listops-bt-grc\n\n"
    "  beamtree evaluate runs/listops/bt-grc-seed0 --split 900-1000 --limit 100 --plot accuracy.svg\n\n"
    "  beamtree evaluate listops-bt-grc --set data.options.seed=1\n\n"
    "  beamtree evaluate listops-bt-grc --data expressions.tsv --confusion"
)
OPTIONS = "data.options."  # prefix of the keys that --set accepts in commands that apply a model to data
_LONGEST_LABEL = 12  # maximum number of characters of a label in the confusion matrix

# The options that select the data, shared by the commands that apply a model to data.
SplitsOption = Annotated[
    list[str], typer.Option("--split", help="Only this split; repeatable.", show_default="all test splits")
]
DataOption = Annotated[
    str | None, typer.Option("--data", help="Use this task or file instead of the model's task.", show_default=False)
]
SettingsOption = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change an option of the data, such as data.options.seed=1; repeatable."
    ),
]
RootsOption = Annotated[
    list[Path],
    typer.Option("--data-dir", help="Folder with original files of data sets; repeatable.", show_default=False),
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", help="Only the first LIMIT samples of each split.", show_default="all")
]
DeviceOption = Annotated[str, typer.Option("--device", metavar="auto|cpu|cuda", help="Where to run the model.")]


def evaluate_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The folder of a run, a shipped model, or a hub id.")],
    splits: SplitsOption = [],
    data_name: DataOption = None,
    settings: SettingsOption = [],
    roots: RootsOption = [],
    limit: LimitOption = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Maximum batch size; smaller for long inputs.", show_default="256")
    ] = None,
    device: DeviceOption = "auto",
    plot: Annotated[
        Path | None, typer.Option(help="Plot accuracy over length to this .png, .svg or .pdf file.")
    ] = None,
    confusion: Annotated[bool, typer.Option("--confusion", help="Print the confusion matrix of each split.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Measure the accuracy of a model: overall, by length, and for ListOps by depth.

    Accuracy (with a 95 % Wilson interval), macro-F1 (the mean of the F1 scores of all labels) and ECE (the expected
    calibration error over 15 bins) are in per cent. Without --split, the test splits of the model's recipe are
    evaluated, or all splits of its task except train and dev. Splits whose original files are missing are listed. In a
    confusion matrix, rows are labels and columns are predictions.
    """
    require("train", "beamtree evaluate")
    if plot is not None:
        check_plot(plot)
    if batch_size is not None:
        check_integer("batch size", batch_size, at_least=1)
    if limit is not None:
        check_integer("limit", limit, at_least=1)
    place = find_device(device)
    from beamtree import evaluation
    from beamtree.evaluation.plot import draw
    from beamtree.models import pretrained

    trained = pretrained.load(model, place)
    config = trained.config
    max_samples = evaluation.MAX_SAMPLES if batch_size is None else batch_size
    found: dict[str, evaluation.Evaluation] = {}
    totals: dict[str, int] = {}
    interrupted = False
    with named_bars() as bar, warning_lines():
        data, wanted, missing = choose_data(trained, splits, data_name, settings, roots, bar)
        try:
            for split in wanted:
                if split not in missing:
                    samples = data[split]
                    totals[split] = len(samples)
                    found[split] = evaluation.evaluate(
                        trained,
                        first_samples(samples, limit),
                        max_samples=max_samples,
                        progress=partial(bar, split),
                        parser_progress=bar,
                    )
        except KeyboardInterrupt:
            interrupted = True

    about: dict[str, Any] = {"model": model, "encoder": config.encoder, "data": data.name, "options": data.options}
    about |= {"device": place, "limit": limit, "interrupted": interrupted, "missing": missing}
    records = evaluation.records(found)
    for split, row in records["splits"].items():
        row["total"] = totals[split]
    report = {**about, **records}
    if as_json:
        typer.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print(report, confusion)
    if plot is not None and found:
        draw(evaluation.views(found), plot, f"{model} on {data.name}")
    if interrupted:
        typer.echo(f"interrupted: {len(found)} of {len(wanted) - len(missing)} splits evaluated", err=True)
        raise typer.Exit(INTERRUPTED)


def first_samples(split: "beamtree.data.split.Split", limit: int | None) -> "beamtree.data.split.Split":
    """The first `limit` samples of a split, or all if `limit` is None."""
    if limit is None or limit >= len(split):
        return split
    return type(split).from_samples(islice(split, limit), split.label_names, split.gold, split.values)


def choose_data(
    model: "beamtree.models.pretrained.Pretrained",
    splits: list[str],
    data_name: str | None,
    settings: list[str],
    roots: list[Path],
    progress: Callable[[str, int, int | None], None],
) -> "tuple[beamtree.data.loading.Data, list[str], dict[str, str]]":
    """The data that the options select, the splits to evaluate, and a message for each split that is missing."""
    data = _data(model, data_name, data_options(settings), roots, progress)
    wanted = _wanted(data, splits, () if data_name else model.config.tests)
    missing = {split: message for split in wanted if (message := data.missing(split))}
    if len(missing) == len(wanted) or (splits and missing):
        raise ValueError(f"{', '.join(missing)}: {next(iter(missing.values()))}")
    return data, wanted, missing


def data_options(settings: list[str]) -> dict[str, Any]:
    """Parse ['data.options.seed=1'] to {'seed': 1}. Raises a `ValueError` for other settings."""
    changes = import_recipes("--set").parse_changes(settings) if settings else {}
    for key in changes:
        if not key.removeprefix(OPTIONS) or not key.startswith(OPTIONS):
            raise ValueError(f"--set {key}: only options of the data can be changed here, as {OPTIONS}KEY=VALUE")
    return {key.removeprefix(OPTIONS): value for key, value in changes.items()}


def _data(
    model: "beamtree.models.pretrained.Pretrained",
    data_name: str | None,
    changes: dict[str, Any],
    roots: list[Path],
    progress: Callable[[str, int, int | None], None],
) -> "beamtree.data.loading.Data":
    """The data of the model's task, with the options that it was trained with, or the data `data_name`."""
    from beamtree.data.loading import TASKS, load

    config = model.config
    name = config.task if data_name is None else data_name
    options: dict[str, Any] = dict(config.data_options)
    if data_name in TASKS:
        options = {}
    elif data_name is not None:  # tokens of a formal language are separated by spaces
        options = {"tokenizer": options.get("tokenizer", "spaces" if config.closed_vocabulary else "words")}
    if model.tokenizer is not None and name not in TASKS:  # the config only names its kind
        options["tokenizer"] = model.tokenizer
    return load(name, None, roots=roots or None, progress=progress, **{**options, **changes})


def _wanted(data: "beamtree.data.loading.Data", splits: list[str], tests: tuple[str, ...]) -> list[str]:
    chosen = splits or tests or [split for split in data if split not in ("train", "dev")]
    if not chosen:
        raise ValueError(f"{data.name} has no test split: choose one of {', '.join(data)} with --split")
    return list(dict.fromkeys(data.task.part(split)[1].name for split in chosen))


def _print(report: dict[str, Any], confusion: bool) -> None:
    typer.echo(f"{report['model']}: {report['encoder']} on {data_line(report)}\n")
    columns = ("accuracy", "95 % interval", "macro-F1", "ECE", "loss")
    table = make_table("split", "count", *columns, left=("split",))
    for split, row in report["splits"].items():
        low, high = (percent(limit) for limit in row["interval"])
        scores = (percent(row[key]) for key in ("macro_f1", "calibration_error"))
        count = count_text(row["count"], row["total"])
        table.add_row(split, count, percent(row["accuracy"]), f"{low} – {high}", *scores, f"{row['loss']:.4f}")
    print_table(table)
    for view in ("length", "depth"):
        if splits := report.get(f"by_{view}"):
            typer.echo(f"\naccuracy by {view} (samples)")
            _print_bins(view, splits)
    if confusion:
        for split, row in report["splits"].items():
            typer.echo(f"\nconfusion matrix of {split}: labels in rows, predictions in columns")
            _print_confusion(**row["confusion"])
    print_missing(report["missing"])


def count_text(count: int, total: int) -> str:
    """Format a count as '100', or as 'the first 100 of 2,000'."""
    return f"{count:,}" if count == total else f"the first {count:,} of {total:,}"


def data_line(report: dict[str, Any]) -> str:
    """The name and the options of the data, and the device."""
    options = "".join(f", {key}={str(value).lower()}" for key, value in report["options"].items())
    return f"{report['data']}{options}; {report['device']}"


def print_missing(missing: dict[str, str]) -> None:
    """Print one line per reason, with the missing splits."""
    by_message: dict[str, list[str]] = {}
    for split, message in missing.items():
        by_message.setdefault(message, []).append(split)
    for message, missed in by_message.items():
        typer.echo(f"\nmissing: {', '.join(missed)}: {message}")


def _print_bins(view: str, splits: dict[str, list[dict[str, Any]]]) -> None:
    """Print one row per bin and one column per split."""
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


def _print_confusion(labels: list[str], counts: list[list[int]]) -> None:
    """Print one row per label and one column per prediction."""
    shown = [label if len(label) <= _LONGEST_LABEL else f"{label[: _LONGEST_LABEL - 1]}…" for label in labels]
    table = make_table("", *shown, left=("",))
    for label, row in zip(shown, counts, strict=True):
        table.add_row(label, *(f"{count:,}" for count in row))
    print_table(table)


def percent(share: float) -> str:
    return f"{100 * share:.2f}"


@contextmanager
def warning_lines() -> Iterator[None]:
    """Print the warnings of the block as lines on stderr, without their source location."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", RuntimeWarning)
        warnings.showwarning = lambda message, *place, **rest: typer.echo(f"warning: {message}", err=True)
        yield
