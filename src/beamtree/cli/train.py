"""`beamtree train`: train models with a recipe, on its data or your own, in one run or several."""

# ruff: noqa: B006 (typer takes the default of a repeatable option as a list, which is never modified)

# PyTorch is imported inside functions, so that help is fast.
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from beamtree.utils.checks import check_choice, check_integer
from beamtree.utils.extras import require
from beamtree.utils.terminal import duration, make_table, print_table

if TYPE_CHECKING:
    import beamtree.runs.settings
    import beamtree.training.sweep

EXAMPLE = (
    "Examples: a small model in minutes; your own data, a file with columns text and label; another encoder and "
    "setting; three seeds of two encoders, three runs at a time on each GPU; resuming a run\n\n"
    "  beamtree train listops-tiny\n\n"
    "  beamtree train reviews.tsv\n\n"
    "  beamtree train listops --encoder bt-grc-onesoft --seed 1 --set optimizer.lr=5e-4 --out runs/slow\n\n"
    "  beamtree train listops -e bt-grc -e bt-grc-onesoft --seeds 3 --at-once 3\n\n"
    "  beamtree train --resume runs/slow"
)
TEXT = "text"  # the recipe for your own data
EXECUTORS = ("local", "slurm")
DATA_SUFFIXES = tuple(f"{kind}{packed}" for kind in (".tsv", ".csv", ".jsonl") for packed in ("", ".gz", ".xz"))


def train_command(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE|DATA",
            help="Name of a recipe (see --list), path of your own recipe (.yaml) or of a run's config.yaml, or path of "
            "your own data.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="Train on this task or file instead of the recipe's.", show_default=False),
    ] = None,
    recipe: Annotated[str | None, typer.Option("--recipe", help="Recipe for your own data.", show_default=TEXT)] = None,
    encoders: Annotated[
        list[str],
        typer.Option("--encoder", "-e", help="Repeatable: one run for each.", show_default="the recipe's"),
    ] = [],
    seed: Annotated[int, typer.Option(help="Seed of the initial weights, the order of samples and all noise.")] = 0,
    seeds: Annotated[int, typer.Option(help="Number of runs: seeds SEED, SEED+1, …")] = 1,
    changes: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as optimizer.lr=5e-4; repeatable."),
    ] = [],
    max_epochs: Annotated[
        int | None,
        typer.Option(
            help="Same as --set training.max_epochs. A finished run continues if this allows more epochs.",
            show_default="the recipe's",
        ),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(metavar="32|tf32|bf16", help="Precision of training.", show_default="the recipe's, 32")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder of the run; for several runs, the parent of their folders.",
            show_default="runs/RECIPE/ENCODER-seedN",
        ),
    ] = None,
    roots: Annotated[
        list[Path],
        typer.Option("--data-dir", help="Folder with original files of data sets; repeatable.", show_default=False),
    ] = [],
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to train.")] = "auto",
    devices: Annotated[
        int | None,
        typer.Option(
            help="Number of GPUs, or of processes on the CPU, that share each step.",
            show_default="the launcher's, or 1",
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(help="Number of machines, each with that many devices.", show_default="the launcher's, or 1"),
    ] = None,
    loggers: Annotated[
        list[str],
        typer.Option(
            "--logger",
            metavar="NAME",
            help="Logger besides metrics.jsonl: tensorboard, csv, wandb, mlflow or none; repeatable.",
            show_default="tensorboard and csv",
        ),
    ] = [],
    at_once: Annotated[int, typer.Option(help="For several runs: number of runs at a time on each GPU.")] = 1,
    executor: Annotated[
        str, typer.Option(metavar="local|slurm", help="For several runs: start them here, or submit them to Slurm.")
    ] = "local",
    cluster: Annotated[
        list[str],
        typer.Option(
            "--cluster",
            metavar="KEY=VALUE",
            help="Parameter of submitit for --executor slurm, such as timeout_min=240; repeatable.",
        ),
    ] = [],
    print_commands: Annotated[
        bool, typer.Option("--print-commands", help="Print the command of each run instead of starting it.")
    ] = False,
    checkpoint_minutes: Annotated[
        float, typer.Option(help="Minutes between checkpoints, in addition to those after each epoch.")
    ] = 5,
    resume: Annotated[Path | None, typer.Option(help="Resume the run in this folder.", show_default=False)] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List the recipes.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of recipes, for editors.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no line after each epoch.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON and nothing else.")] = False,
) -> None:
    """Train a model with a recipe, and evaluate it on the test splits.

    The folder of the run holds the model, its metrics per epoch, and its results. Ctrl-C stops a run after writing a
    checkpoint, a second Ctrl-C stops it at once. Rerun the command, or use --resume, to resume the run; the result is
    the same. A finished run is not trained again.
    """
    require("train", "beamtree train")
    if list_all:
        from beamtree.cli.models import list_recipes

        return list_recipes()
    if schema:
        from beamtree.runs.settings import schema as make_schema

        return typer.echo(json.dumps(make_schema(), indent=2))
    check_integer("--seeds", seeds, at_least=1)
    check_integer("--at-once", at_once, at_least=1)
    check_choice("--executor", executor, EXECUTORS)
    options: dict[str, Any] = {
        **{"devices": devices, "nodes": nodes, "device": device, "checkpoint_minutes": checkpoint_minutes},
        "loggers": [name for name in loggers if name != "none"] if loggers else None,
    }
    options = {name: value for name, value in options.items() if value is not None}
    if resume is not None:
        given = {
            **{"RECIPE": what, "--data": data, "--recipe": recipe, "--encoder": encoders, "--set": changes},
            **{"--precision": precision, "--out": out, "--seed": seed, "--seeds": seeds - 1},
            **{"--at-once": at_once - 1, "--executor": executor != "local", "--cluster": cluster},
            **{"--print-commands": print_commands},
        }
        for name, value in given.items():
            if value:
                raise ValueError(
                    f"{name} cannot be combined with --resume, which uses the settings in {resume}: leave it out"
                )
        from beamtree.runs.folder import read_settings

        plan = [(read_settings(resume), resume)]
        results = [_resume(resume, max_epochs, options, roots, quiet or as_json)]
        return _print(plan, results, as_json)

    if precision is not None:
        check_choice("--precision", precision, ("32", "tf32", "bf16"))
        changes = [*changes, f"training.precision={precision}"]
    if max_epochs is not None:
        changes = [*changes, f"training.max_epochs={max_epochs}"]
    chosen, task = _recipe_and_data(what, recipe, data)
    plan = _plan(chosen, task, encoders, range(seed, seed + seeds), changes, out)
    if len(plan) == 1 and not print_commands and executor == "local":
        results = [_train(*plan[0], options, roots, quiet or as_json)]
        return _print(plan, results, as_json)

    arguments = [chosen] if task is None else [f"--recipe={chosen}", f"--data={plan[0][0].data.task}"]
    arguments += [f"--set={change}" for change in changes] + [f"--data-dir={root.absolute()}" for root in roots]
    for name, value in options.items():
        if name == "loggers":
            arguments += [f"--logger={each}" for each in value or ["none"]]
        else:
            arguments.append(f"--{name.replace('_', '-')}={value}")
    jobs = _jobs(plan, arguments, options)
    if print_commands:
        from beamtree.training.sweep import command_lines

        return typer.echo("\n".join(command_lines(jobs)))
    if executor == "slurm":
        return _submit(jobs, cluster)
    results = _sweep(jobs, options, at_once, quiet or as_json)
    _print(plan, results, as_json)
    if not all(results):
        raise typer.Exit(1)


def _recipe_and_data(what: str | None, recipe: str | None, data: str | None) -> tuple[str, str | None]:
    """The recipe, and the data if it is not that of the recipe."""
    from beamtree.models import storage
    from beamtree.runs import recipes

    if (
        what is not None
        and what not in recipes.names()
        and not what.endswith((".yaml", ".yml"))
        and Path(what).exists()
    ):
        if storage.is_run(what):
            raise ValueError(f"{what} is a run: give --resume {what}, or {what}/config.yaml for a run like it")
        if data is not None:
            raise ValueError(f"--data cannot be combined with {what}, which is data: name a recipe with --recipe")
        return recipe or TEXT, what
    if what is not None and what.lower().endswith(DATA_SUFFIXES):
        raise ValueError(f"{what}: the file does not exist")
    if what is not None and recipe is not None:
        raise ValueError(f"--recipe cannot be combined with the recipe {what}: give one of them")
    chosen = what or recipe or (TEXT if data is not None else None)
    if chosen is None:
        raise ValueError(
            "a recipe is missing: name one, as in 'beamtree train listops'; 'beamtree train --list' lists all"
        )
    return chosen, data


def _plan(
    recipe: str, task: str | None, encoders: list[str], seeds: range, changes: list[str], out: Path | None
) -> "list[tuple[beamtree.runs.settings.Settings, Path]]":
    """The settings and the folder of each run, validated before the first run starts."""
    from beamtree.runs import recipes

    parsed = recipes.parse_changes(changes)
    chosen: list[str | None] = [*dict.fromkeys(encoders)] or [None]
    settings = [recipes.load(recipe, encoder, seed, parsed, task) for encoder in chosen for seed in seeds]
    if len(settings) == 1 and out is not None:
        return [(settings[0], out)]
    recipe, data = settings[0].recipe, task or settings[0].data.task
    name = recipe if task is None and recipe != TEXT else Path(data).name.partition(".")[0] or recipe
    parent = Path("runs") / name if out is None else out
    return [(each, parent / f"{each.encoder.name}-seed{each.seed}") for each in settings]


def _train(
    settings: "beamtree.runs.settings.Settings", folder: Path, options: dict[str, Any], roots: list[Path], quiet: bool
) -> dict[str, Any]:
    from beamtree.training import train

    with _explained_interruption(folder):
        return train(settings, folder, **options, progress=not quiet, roots=roots or None)


def _resume(
    folder: Path, max_epochs: int | None, options: dict[str, Any], roots: list[Path], quiet: bool
) -> dict[str, Any]:
    from beamtree.training import resume

    with _explained_interruption(folder):
        return resume(folder, max_epochs=max_epochs, **options, progress=not quiet, roots=roots or None)


@contextmanager
def _explained_interruption(folder: Path) -> Iterator[None]:
    """After Ctrl-C, print how to resume the run."""
    from beamtree.models import storage

    try:
        yield
    except KeyboardInterrupt:
        if storage.is_run(folder):
            typer.echo(f"interrupted; to resume: beamtree train --resume {shlex.quote(str(folder))}", err=True)
        raise


def _jobs(
    plan: "list[tuple[beamtree.runs.settings.Settings, Path]]", arguments: list[str], options: dict[str, Any]
) -> "list[beamtree.training.sweep.Job]":
    """Create a job for each run. `arguments` are those that all runs share."""
    from beamtree.training.sweep import Job

    jobs = []
    for settings, folder in plan:
        specific = [f"--encoder={settings.encoder.name}", f"--seed={settings.seed}", f"--out={folder}"]
        command = [sys.executable, "-m", "beamtree", "train", *arguments, *specific]
        jobs.append(Job(settings, folder, command, options["device"], options.get("devices", 1)))
    return jobs


def _sweep(
    jobs: "list[beamtree.training.sweep.Job]", options: dict[str, Any], at_once: int, quiet: bool
) -> list[dict[str, Any]]:
    """Run all jobs and return the results of each run; the results of a failed run are empty."""
    from beamtree.models import storage
    from beamtree.training.console import TrainingConsole
    from beamtree.training.launch import find_processes
    from beamtree.training.loggers import check_loggers
    from beamtree.training.sweep import run_all

    # Validate once here, and not in every run.
    find_processes(options["device"], options.get("devices"), options.get("nodes"))
    check_loggers(options.get("loggers", ()))
    try:
        failed = run_all(jobs, at_once, TrainingConsole(quiet))
    except KeyboardInterrupt:
        typer.echo("interrupted; rerun the same command to resume", err=True)
        raise
    for job in failed:
        typer.echo(f"failed: {job.name}, see {job.log}", err=True)
    return [{} if job in failed else storage.read_results(job.folder) for job in jobs]


def _submit(jobs: "list[beamtree.training.sweep.Job]", parameters: list[str]) -> None:
    from beamtree.training.cluster import parse_parameters, submit

    folder = jobs[0].folder.parent / "slurm"
    for submitted in submit(jobs, folder, "slurm", **parse_parameters(parameters)):
        typer.echo(f"{submitted.job.name}: submitted as {submitted.id}")
    typer.echo(f"\nlogs are in {folder}; when the runs are finished: beamtree report {jobs[0].folder.parent}")


def _print(
    plan: "list[tuple[beamtree.runs.settings.Settings, Path]]", results: list[dict[str, Any]], as_json: bool
) -> None:
    """Print the results of all runs that have some. In distributed training, only the first process has them."""
    completed = [(folder, each) for (_, folder), each in zip(plan, results, strict=True) if each]
    if not completed:
        return
    if as_json:
        report = [{"folder": str(folder), **each} for folder, each in completed]
        typer.echo(json.dumps(report if len(plan) > 1 else report[0], indent=2))
    elif len(plan) > 1:
        _print_all(completed)
    else:
        _print_one(*completed[0])


def _print_one(folder: Path, results: dict[str, Any]) -> None:
    table = make_table("split", "samples", "accuracy, %", "loss", left=("split",))
    for split, scores in {**results["splits"], "dev": results["dev"]}.items():
        table.add_row(split, f"{scores['count']:,}", f"{100 * scores['accuracy']:.2f}", f"{scores['loss']:.4f}")
    print_table(table)
    typer.echo(
        f"\nbest epoch {results['best_epoch']} of {results['epochs']}, {duration(results['seconds'])}; "
        f"the model is in {folder}"
    )


def _print_all(completed: list[tuple[Path, dict[str, Any]]]) -> None:
    """Print one row per run."""
    splits = list(dict.fromkeys(split for _, results in completed for split in results["splits"]))
    table = make_table("accuracy, %", *splits, "dev", "epochs", left=("accuracy, %",))
    for folder, results in completed:
        scores = {**results["splits"], "dev": results["dev"]}
        row = [f"{100 * scores[split]['accuracy']:.2f}" if split in scores else "–" for split in (*splits, "dev")]
        table.add_row(folder.name, *row, str(results["epochs"]))
    print_table(table)
    typer.echo(f"\nthe models are in {completed[0][0].parent}")
