"""`beamtree tune`: tune the settings of a recipe with Optuna."""

# ruff: noqa: B006 (typer takes the default of a repeatable option as a list, which is never modified)

# PyTorch is imported inside functions, so that help is fast.
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from beamtree.utils.checks import check_choice, check_integer
from beamtree.utils.terminal import make_table, print_table

if TYPE_CHECKING:
    from beamtree.training.tune import StudySummary, TrialSummary

EXAMPLE = (
    "Examples: the learning rate and the beam size of a small model; a search that several processes share, each on "
    "its own GPU; evaluating the best model\n\n"
    "  beamtree tune listops-tiny --param optimizer.lr=log:1e-4:1e-2 --param encoder.options.beam_size=int:2:5\n\n"
    "  CUDA_VISIBLE_DEVICES=1 beamtree tune sst5 --param model.dropout=0.1:0.5 --param optimizer.name=ranger,adamw "
    "--trials 50\n\n"
    "  beamtree evaluate runs/tune/listops-tiny-bt-grc/trial-007"
)
METRICS = ("accuracy", "loss")
PRUNERS = ("median", "none")


def tune_command(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="Name of a recipe, or path of your own recipe (.yaml).")
    ],
    params: Annotated[
        list[str],
        typer.Option(
            "--param",
            "-p",
            metavar="KEY=FORM",
            help="Setting to search: low:high, log:low:high, int:low:high, or choices a,b,c; repeatable.",
            show_default=False,
        ),
    ] = [],
    trials: Annotated[int, typer.Option(help="Total number of trials of the study, over all processes.")] = 20,
    encoder: Annotated[
        str | None, typer.Option("--encoder", "-e", help="Encoder of all runs.", show_default="the recipe's")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the search and of all runs.")] = 0,
    changes: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of all runs; repeatable."),
    ] = [],
    metric: Annotated[
        str | None,
        typer.Option(metavar="accuracy|loss", help="Metric on dev to optimise.", show_default="training.select"),
    ] = None,
    pruner: Annotated[
        str,
        typer.Option(
            metavar="median|none", help="median: stop trials that are worse than the median at the same epoch."
        ),
    ] = "median",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the study and its runs.", show_default="runs/tune/RECIPE-ENCODER"),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Database of the study, as for Optuna.", show_default="the SQLite file OUT/study.db"
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="Train on this task or file instead of the recipe's.", show_default=False),
    ] = None,
    roots: Annotated[
        list[Path],
        typer.Option("--data-dir", help="Folder with original files of data sets; repeatable.", show_default=False),
    ] = [],
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to train.")] = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no line after each trial.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the trials as JSON and nothing else.")] = False,
) -> None:
    """Tune the settings of a recipe with Optuna.

    Each trial is a run in the folder of the study, evaluated on dev. Ctrl-C stops the search after writing a
    checkpoint. Rerun the command to resume the search; run it several times at once to share the work between
    processes. A larger --trials extends a study.
    """
    check_integer("--trials", trials, at_least=1)
    if metric is not None:
        check_choice("--metric", metric, METRICS)
    check_choice("--pruner", pruner, PRUNERS)
    from beamtree.runs import recipes
    from beamtree.training.tune import parse_params, tune

    settings = recipes.load(recipe, encoder, seed, recipes.parse_changes(changes), data)
    folder = Path("runs", "tune", f"{settings.recipe}-{settings.encoder.name}") if out is None else out
    try:
        study = tune(
            settings,
            parse_params(params),
            folder,
            trials=trials,
            metric=metric,
            pruner=pruner,
            storage=storage,
            device=device,
            roots=roots or None,
            progress=not (quiet or as_json),
        )
    except KeyboardInterrupt:
        typer.echo("interrupted; rerun the same command to resume", err=True)
        raise
    if as_json:
        typer.echo(json.dumps(study.to_dict(), indent=2))
    else:
        _print(study)
    if study.best is None and study.count("failed") == len(study.trials):
        raise typer.Exit(1)


def _print(study: "StudySummary") -> None:
    """Print one row per trial, best first."""
    unit = ", %" if study.metric == "accuracy" else ""
    keys = list(dict.fromkeys(key for trial in study.trials for key in trial.params))
    table = make_table("trial", f"dev {study.metric}{unit}", "epochs", *keys, "state", left=("trial", "state"))
    for trial in study.trials:
        values = [_cell(trial.params.get(key)) for key in keys]
        table.add_row(trial.name, _value(trial, study.metric), str(trial.epochs), *values, trial.state)
    print_table(table)
    for trial in study.trials:
        if trial.error is not None:
            typer.echo(f"\n{trial.name} failed: {trial.error}")
    if others := study.count("running", "waiting"):
        typer.echo(f"\n{others} {'trial is' if others == 1 else 'trials are'} not finished: run by other processes")
    best = study.best
    if best is not None:
        elsewhere = "" if best.folder.is_dir() else " of another machine"
        typer.echo(f"\nthe best model is in {best.folder}{elsewhere}")


def _value(trial: "TrialSummary", metric: str) -> str:
    if trial.value is None:
        return "–"
    return f"{100 * trial.value:.2f}" if metric == "accuracy" else f"{trial.value:.4f}"


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
