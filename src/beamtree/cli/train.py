"""`beamtree train`: a recipe to a model, one run or a sweep of them."""

# ruff: noqa: B006 (a list is how typer is told the default of a repeatable option; nothing changes it)

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from beamtree import recipes, runs
from beamtree.cli.terminal import duration, make_table, print_table
from beamtree.recipes.settings import Precision, Settings
from beamtree.utils.checks import check_choice, check_integer

EXAMPLE = (
    "Examples: a small model in minutes; another encoder and setting; three seeds of two encoders, three at once; "
    "a run that was stopped\n\n"
    "  beamtree train listops-tiny\n\n"
    "  beamtree train listops --encoder bt-grc-onesoft --seed 1 --set optimizer.lr=5e-4 --out runs/slow\n\n"
    "  beamtree train listops -e bt-grc -e bt-grc-onesoft --seeds 3 --at-once 3\n\n"
    "  beamtree train --resume runs/slow"
)


def train_command(
    recipe: Annotated[
        str | None, typer.Argument(help="Its name (see --list), or the path of your own .yaml.", show_default=False)
    ] = None,
    encoders: Annotated[
        list[str],
        typer.Option("--encoder", "-e", help="Repeatable: a run for each.", show_default="the recipe's own"),
    ] = [],
    seed: Annotated[int, typer.Option(help="Of weights, order and noise.")] = 0,
    seeds: Annotated[int, typer.Option(help="So many runs, with --seed and those after it.")] = 1,
    changes: Annotated[
        list[str], typer.Option("--set", help="Another value for a setting, as optimizer.lr=5e-4; repeatable.")
    ] = [],
    precision: Annotated[
        str | None, typer.Option(help="32, tf32 or bf16, for training.", show_default="the recipe's, 32")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The folder of the run; of several runs, the folder of their folders.",
            show_default="runs/RECIPE/ENCODER-seedN",
        ),
    ] = None,
    roots: Annotated[
        list[Path], typer.Option("--data-dir", help="A folder with the originals of the data; repeatable.")
    ] = [],
    devices: Annotated[int, typer.Option(help="GPUs, or processes on the CPU, that share each step.")] = 1,
    nodes: Annotated[int, typer.Option(help="Machines with so many devices each.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    at_once: Annotated[int, typer.Option(help="Runs side by side, of several.")] = 1,
    checkpoint_minutes: Annotated[
        float, typer.Option(help="Between checkpoints; each epoch ends with one anyway.")
    ] = 5,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.", show_default=False)] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List the recipes.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No bar, and no line after each epoch.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON and nothing else.")] = False,
) -> None:
    """Train a model by a recipe, and score it on the recipe's test splits.

    The folder then holds the model, its metrics by epoch, and its results. Ctrl-C stops a run with a checkpoint, a
    second one stops it at once. However it was stopped, the same command, or --resume, goes on to the same end. A
    finished run is never run again.
    """
    if list_all:
        from beamtree.cli.models import list_recipes

        list_recipes()
        return
    check_integer("--seeds", seeds, at_least=1)
    check_integer("--at-once", at_once, at_least=1)
    options: dict[str, Any] = {
        **{"devices": devices, "nodes": nodes, "device": device},
        **{"checkpoint_minutes": checkpoint_minutes},
    }
    if resume is not None:
        seeded = {"--seed": seed, "--seeds": seeds - 1}
        given = {"RECIPE": recipe, "--encoder": encoders, "--set": changes, "--precision": precision, "--out": out}
        for name, value in (given | seeded).items():
            if value:
                raise ValueError(f"{name} does not go with --resume: the run in {resume} has its settings")
        plan = [(runs.read_config(resume).settings, resume)]
    elif recipe is not None:
        if precision is not None:
            check_choice("--precision", precision, get_args(Precision))
            changes = [*changes, f"training.precision={precision}"]
        plan = _plan(recipe, encoders, range(seed, seed + seeds), changes, out)
    else:
        raise ValueError("a recipe is missing: 'beamtree train listops' has one, 'beamtree train --list' shows all")
    if len(plan) == 1:
        found = [_train(*plan[0], options, roots, quiet or as_json, resumed=resume is not None)]
    else:
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        arguments += [f"--set={change}" for change in changes] + [f"--data-dir={root}" for root in roots]
        found = _sweep(plan, options, [str(recipe), *arguments], at_once, quiet or as_json)
    _print(plan, found, as_json)
    if len(plan) > 1 and not all(found):
        raise typer.Exit(1)


def _plan(
    recipe: str, encoders: list[str], seeds: range, changes: list[str], out: Path | None
) -> list[tuple[Settings, Path]]:
    """The settings of each run, all checked before the first one begins, and its folder."""
    parsed = recipes.parse_changes(changes)
    chosen: list[str | None] = [*dict.fromkeys(encoders)] or [None]
    settings = [recipes.load(recipe, encoder, seed, parsed) for encoder in chosen for seed in seeds]
    if len(settings) == 1 and out is not None:
        return [(settings[0], out)]
    above = Path("runs") / settings[0].recipe if out is None else out
    return [(each, above / f"{each.encoder.name}-seed{each.seed}") for each in settings]


def _train(
    settings: Settings, folder: Path, options: dict[str, Any], roots: list[Path], quiet: bool, resumed: bool
) -> dict[str, Any]:
    from beamtree.training import resume, train  # here: what they import takes long

    options = {**options, "progress": not quiet, "roots": roots or None}
    try:
        return resume(folder, **options) if resumed else train(settings, folder, **options)
    except KeyboardInterrupt:
        if runs.is_run(folder):
            typer.echo(f"interrupted; to go on: beamtree train --resume {shlex.quote(str(folder))}", err=True)
        raise


def _sweep(
    plan: list[tuple[Settings, Path]], options: dict[str, Any], arguments: list[str], at_once: int, quiet: bool
) -> list[dict[str, Any]]:
    """The results of each run, empty of one that failed. The arguments are those that all runs have."""
    from beamtree.training.run import checked_device
    from beamtree.training.screen import Screen
    from beamtree.training.sweep import Job, run_all

    checked_device(**options)  # once, and not by every run
    jobs = []
    for settings, folder in plan:
        own = [f"--encoder={settings.encoder.name}", f"--seed={settings.seed}", f"--out={folder}"]
        jobs.append(Job(settings, folder, [sys.executable, "-m", "beamtree", "train", *arguments, *own]))
    try:
        failed = run_all(jobs, at_once, Screen(quiet))
    except KeyboardInterrupt:
        typer.echo("interrupted; to go on, give the same command again", err=True)
        raise
    for job in failed:
        typer.echo(f"failed: {job.name}, see {job.log}", err=True)
    return [{} if job in failed else runs.read_results(job.folder) for job in jobs]


def _print(plan: list[tuple[Settings, Path]], found: list[dict[str, Any]], as_json: bool) -> None:
    """The results of all runs that have some: where several devices train together, the first process alone has."""
    there = [(folder, results) for (_, folder), results in zip(plan, found, strict=True) if results]
    if not there:
        return
    if as_json:
        report = [{"folder": str(folder), **results} for folder, results in there]
        typer.echo(json.dumps(report if len(plan) > 1 else report[0], indent=2))
    elif len(plan) > 1:
        _print_all(there)
    else:
        _print_one(*there[0])


def _print_one(folder: Path, results: dict[str, Any]) -> None:
    table = make_table("split", "samples", "accuracy, %", "loss", left=("split",))
    for split, scores in {**results["splits"], "dev": results["dev"]}.items():
        table.add_row(split, f"{scores['count']:,}", f"{100 * scores['accuracy']:.2f}", f"{scores['loss']:.4f}")
    print_table(table)
    typer.echo(
        f"\nbest epoch {results['best_epoch']} of {results['epochs']}, {duration(results['seconds'])}; "
        f"the model is in {folder}"
    )


def _print_all(there: list[tuple[Path, dict[str, Any]]]) -> None:
    """A row for each run."""
    splits = list(dict.fromkeys(split for _, results in there for split in results["splits"]))
    table = make_table("accuracy, %", *splits, "dev", "epochs", left=("accuracy, %",))
    for folder, results in there:
        scores = {**results["splits"], "dev": results["dev"]}
        row = [f"{100 * scores[split]['accuracy']:.2f}" if split in scores else "–" for split in (*splits, "dev")]
        table.add_row(folder.name, *row, str(results["epochs"]))
    print_table(table)
    typer.echo(f"\nthe models are in {there[0][0].parent}")
