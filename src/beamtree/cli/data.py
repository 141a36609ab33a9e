"""`beamtree data`: list, download and inspect data sets, and generate ListOps."""

# ruff: noqa: B006 (typer takes the default of a repeatable option as a list, which is never modified)

# PyTorch and NumPy are imported inside functions, so that help is fast.
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.progress import DownloadColumn, Task, TransferSpeedColumn

from beamtree.cli import evaluate
from beamtree.utils.checks import check_choice, check_integer, unknown
from beamtree.utils.terminal import (
    Command,
    Group,
    ProgressBar,
    make_table,
    memory,
    named_bars,
    print_table,
    progress_bar,
)

if TYPE_CHECKING:
    import beamtree.data.loading
    import beamtree.data.raw
    import beamtree.data.split
    import beamtree.data.task

app = typer.Typer(
    cls=Group,
    add_completion=False,
    rich_markup_mode="rich",
    help="Download, generate and inspect the data of the tasks.",
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@app.command("list", cls=Command, epilog="Example:\n\n  BEAMTREE_DATA=~/corpora beamtree data list")
def list_command(as_json: AsJson = False) -> None:
    """List the tasks, and whether their original files are available."""
    from beamtree.data.loading import TASKS

    rows = [{"name": task.name, "splits": len(task.columns), **_availability(task)} for task in TASKS.values()]
    if as_json:
        typer.echo(json.dumps([{**row, "about": TASKS[row["name"]].about} for row in rows], indent=2))
        return
    table = make_table("task", "splits", "labels", "data", "about", left=("task", "data", "about"))
    for row, task in zip(rows, TASKS.values(), strict=True):
        table.add_row(task.name, str(row["splits"]), str(len(task.labels)), row["data"], task.about)
    print_table(table)
    typer.echo("\n'beamtree data show TASK' counts its samples; 'beamtree data get TASK' downloads missing files.")


def _availability(task: "beamtree.data.task.Task") -> dict[str, Any]:
    from beamtree.data.loading import Data

    data = Data(task, {})
    if not any(part.sources for part in task.parts):
        return {"data": "generated", "missing": []}
    missing = [split for split in data if data.missing(split)]
    state = "missing" if len(missing) == len(data.splits) else "in part" if missing else "here"
    return {"data": state, "missing": missing}


@app.command(
    "show",
    cls=Command,
    epilog="Examples:\n\n  beamtree data show listops --split near-iid --set data.options.seed=1\n\n"
    "  beamtree data show reviews.csv",
)
def show_command(
    name: Annotated[
        str,
        typer.Argument(metavar="TASK|FILE", help="A task (see 'beamtree data list'), or the path of your own data."),
    ],
    splits: Annotated[
        list[str], typer.Option("--split", help="Only this split; repeatable.", show_default="all splits")
    ] = [],
    settings: evaluate.SettingsOption = [],
    roots: evaluate.RootsOption = [],
    examples: Annotated[int, typer.Option(help="Number of samples of each split to print.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Show statistics of a task: numbers of samples, lengths and labels, and an example with its gold tree.

    A split is prepared when it is first used, and cached.
    """
    check_integer("examples", examples, at_least=0)
    from beamtree.data.loading import load

    with named_bars() as bar:
        data = load(name, None, roots=roots or None, progress=bar, **evaluate.data_options(settings))
        wanted = [data.task.part(split)[1].name for split in splits] or list(data)
        found = {split: _described(data, split, examples) for split in wanted}
    if as_json:
        report = {"name": data.name, "about": data.task.about, "labels": data.labels, "options": data.options}
        typer.echo(json.dumps({**report, "splits": found}, indent=2, ensure_ascii=False))
        return
    typer.echo(f"{data.name}: {data.task.about}")
    if data.options:
        typer.echo("options: " + ", ".join(f"{key}={_text(value)}" for key, value in data.options.items()))
    typer.echo()
    _print_splits(data, found)


def _described(data: "beamtree.data.loading.Data", split: str, examples: int) -> dict[str, Any]:
    import numpy as np

    column = data.task.part(split)[1]
    described: dict[str, Any] = {"title": column.title, "about": column.about, "published": column.published}
    if missing := data.missing(split):
        return {**described, "missing": missing}
    found = data[split]
    lengths = found.lengths
    statistics = {"min": lengths.min(), "median": np.median(lengths), "mean": lengths.mean(), "max": lengths.max()}
    return {
        **described,
        "samples": len(found),
        "lengths": {key: round(float(value), 2) for key, value in statistics.items()},
        "labels": found.label_counts(),
        "examples": [_example(found, index) for index in range(min(examples, len(found)))],
    }


def _example(split: "beamtree.data.split.Split", index: int) -> dict[str, Any]:
    sample = split[index]
    texts = {"text": " ".join(sample.tokens), "second": sample.second and " ".join(sample.second)}
    trees = {"tree": sample.tree, "second_tree": split.second_tree(index)}
    found = {**texts, "label": sample.label, **{key: tree and str(tree) for key, tree in trees.items()}}
    return {key: value for key, value in found.items() if value is not None}


def _print_splits(data: "beamtree.data.loading.Data", found: dict[str, dict[str, Any]]) -> None:
    lengths = ("shortest", "median", "mean", "longest")
    table = make_table("split", "samples", "published", *lengths, "about", left=("split", "about"))
    for split, row in found.items():
        published = "–" if row["published"] is None else f"{row['published']:,}"
        if "missing" in row:
            table.add_row(split, "missing", published, *["–"] * 4, row["about"])
        else:
            statistics = [f"{row['lengths'][key]:g}" for key in ("min", "median", "mean", "max")]
            table.add_row(split, f"{row['samples']:,}", published, *statistics, row["about"])
    print_table(table)
    available = {split: row for split, row in found.items() if "missing" not in row}
    if available:
        typer.echo()
        shares = make_table("labels, %", *data.labels, left=("labels, %",))
        for split, row in available.items():
            shares.add_row(split, *(f"{100 * row['labels'][label] / row['samples']:.1f}" for label in data.labels))
        print_table(shares)
    for split, row in available.items():
        for example in row["examples"]:
            typer.echo(f"\n{split}: {example['label']}")
            for key in ("text", "tree", "second", "second_tree"):
                if key in example:
                    typer.echo(f"  {key.replace('_', ' ')}: {example[key]}")
    for message in dict.fromkeys(row["missing"] for row in found.values() if "missing" in row):
        typer.echo(f"\nmissing: {message}")


@app.command(
    "get",
    cls=Command,
    epilog="Examples:\n\n  beamtree data get sst5\n\n  beamtree data get imdb --data-dir ~/Downloads",
)
def get_command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="TASK|SOURCE",
            help="A task (see 'beamtree data list'), or a source: listops, listops-lengths, listops-lra, logic, sst, "
            "imdb, imdb-contrast, imdb-counterfactual, multinli, nli-stress, snli, sick, glove-6b, glove-840b.",
        ),
    ],
    origin: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", help="Copy original files from this folder instead of downloading them.", show_default=False
        ),
    ] = None,
) -> None:
    """Get the original files of a task: download them from the authors' servers, or copy them from a folder.

    Rerun the command to resume an interrupted download.
    """
    from beamtree.data.raw import copy_to, download_folder, find

    for source in _sources(name):
        if origin is not None:
            typer.echo(f"{source.name}: {copy_to(find(source, [origin]), download_folder(source))}")
            continue
        with progress_bar(DownloadColumn(), TransferSpeedColumn(), line=_download_line) as bar:
            folder = _download(source, bar)
        typer.echo(f"{source.name}: {folder}")


def _sources(name: str) -> "list[beamtree.data.raw.Source]":
    from beamtree.data.loading import TASKS
    from beamtree.data.raw import SOURCES

    task = TASKS.get(name)
    names = dict.fromkeys(source for part in task.parts for source in part.sources) if task else {}
    if not names and name in SOURCES:
        names = {name: None}
    if not names and task:
        raise ValueError(f"{name} is generated, not downloaded: use 'beamtree data show {name}'")
    if not names:
        raise ValueError(unknown("task or source", name, dict.fromkeys((*TASKS, *SOURCES))))
    return [SOURCES[source] for source in names]


def _download(source: "beamtree.data.raw.Source", bar: ProgressBar) -> Path:
    from beamtree.data.raw import download, download_folder

    tasks: dict[str, Any] = {}

    def show(file: "beamtree.data.raw.Download", done: int, size: int | None) -> None:
        if file.file not in tasks:
            tasks[file.file] = bar.add_task(file.file, total=size)
        bar.update(tasks[file.file], completed=done, total=size)

    download.get(source, progress=show)
    return download_folder(source)


def _download_line(task: Task) -> str:
    """A line such as 'aclImdb_v1.tar.gz: 12.0 MiB of 80.2 MiB'."""
    total = "" if task.total is None else f" of {memory(int(task.total))}"
    return f"{task.description}: {memory(int(task.completed))}{total}"


make_app = typer.Typer(cls=Group, rich_markup_mode="rich", help="Generate data with your own parameters.")
app.add_typer(make_app, name="make")


def _list_presets(wanted: bool) -> bool:
    if wanted:
        from beamtree.data.tasks import listops

        typer.echo("\n".join(listops.PRESETS))
        raise typer.Exit
    return wanted


@make_app.command(
    "listops",
    cls=Command,
    epilog="Examples:\n\n  beamtree data make listops 900-1000 --out test.tsv --seed 1\n\n"
    "  beamtree data make listops dg-train --count 5000 --max-length 60 --out small.tsv.xz",
)
def make_listops(
    preset: Annotated[
        str, typer.Argument(metavar="PRESET", help="Parameters of a split, such as d20s-train or 900-1000; see --list.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write; compressed if it ends in .xz.")],
    seed: Annotated[int, typer.Option(help="Seed; the file is the same on all machines.")] = 0,
    count: Annotated[int | None, typer.Option(help="Number of expressions.")] = None,
    operator_probability: Annotated[
        float | None, typer.Option(help="Probability of a list instead of a digit.")
    ] = None,
    min_args: Annotated[int | None, typer.Option(help="Minimum number of arguments of a list.")] = None,
    max_args: Annotated[int | None, typer.Option(help="Maximum number of arguments of a list.")] = None,
    max_depth: Annotated[
        int | None, typer.Option(help="Depth of the grammar at which only digits are generated.")
    ] = None,
    min_length: Annotated[int | None, typer.Option(help="Minimum length in tokens.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Maximum length in tokens.")] = None,
    min_nesting: Annotated[int | None, typer.Option(help="Minimum nesting of lists in lists.")] = None,
    max_nesting: Annotated[int | None, typer.Option(help="Maximum nesting of lists in lists.")] = None,
    exclude: Annotated[
        list[Path], typer.Option(help="File whose expressions are excluded; repeatable.", show_default=False)
    ] = [],
    layout: Annotated[
        str,
        typer.Option(metavar="original|lra", help="original: label, expression. lra: expression, label."),
    ] = "original",
    list_all: Annotated[
        bool, typer.Option("--list", callback=_list_presets, is_eager=True, help="List the presets.")
    ] = False,
) -> None:
    """Generate a ListOps file: a split of the paper, or one with other parameters.

    The preset determines all parameters that are not given.
    """
    from beamtree.data.tasks import listops

    check_choice("layout", layout, get_args(listops.FileFormat))
    given: dict[str, Any] = {
        "operator_probability": operator_probability,
        **{"min_args": min_args, "max_args": max_args, "max_depth": max_depth, "count": count},
        **{"min_length": min_length, "max_length": max_length},
        **{"min_nesting": min_nesting, "max_nesting": max_nesting},
    }
    changed = {key: value for key, value in given.items() if value is not None}
    spec = listops.preset(preset)
    if spec.pool is not None and changed:  # with other parameters, the split is not sampled as a part of a pool
        spec = replace(
            spec, pool=None, pool_part=(0, 0), kept_length=None, max_length=spec.kept_length or spec.max_length
        )
    spec = replace(spec, **changed)
    if not out.parent.is_dir():
        raise ValueError(f"{out}: the folder {out.parent} does not exist: create it first")
    with named_bars() as bar:
        excluded = [example for path in exclude for example in listops.read(_existing(path))]
        found = listops.generate(spec, seed, excluded, lambda done: bar("expressions", done, spec.pool or spec.count))
        listops.write(out, found, layout)  # type: ignore[arg-type]
    typer.echo(f"{out}: {len(found):,} expressions")


@app.command("cache", cls=Command, epilog="Example:\n\n  beamtree data cache --clear")
def cache_command(
    clear: Annotated[bool, typer.Option("--clear", help="Remove the prepared data; keep original files.")] = False,
) -> None:
    """List the prepared data in the cache, or remove it."""
    from beamtree.data import cache

    found = cache.entries()
    if clear:
        for entry in found:
            cache.remove(entry)
        typer.echo(f"{cache.cache_folder()}: {len(found)} removed, {memory(sum(entry.bytes for entry in found))}")
        return
    table = make_table("data", "splits", "size", "folder", left=("data", "splits", "folder"))
    for entry in found:
        splits = "damaged" if entry.parameters is None else ", ".join(entry.parameters.get("splits", ["–"]))
        table.add_row(entry.name, splits, memory(entry.bytes), entry.path.name)
    typer.echo(f"{cache.cache_folder()}: {memory(sum(entry.bytes for entry in found))}")
    if found:
        print_table(table)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ValueError(f"{path}: the file does not exist")
    return path
