"""Hyperparameter search with Optuna: a study of trials, each of which is a run.

    params = parse_params(["optimizer.lr=log:1e-4:1e-2", "model.dropout=0.1:0.5"])
    study = tune(recipes.load("listops"), params, "runs/tune/listops", trials=20)
    beamtree.load(study.best.folder)

The study is stored in a database, by default a SQLite file in its folder. Several processes can work on it at the same
time: each one claims a trial, trains it in the folder `trial-NNN`, and repeats this until the study has all its trials.
If a process is stopped or killed, the next process that claims a trial resumes the interrupted one from its last
checkpoint.
"""

import functools
import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.loggers.logger import Logger

from beamtree.data.loading import Data, Roots, load
from beamtree.models import storage as run_storage
from beamtree.nn.engine import release_memory
from beamtree.runs.settings import Settings
from beamtree.training import loop
from beamtree.training.callbacks import Callback
from beamtree.training.console import TrainingConsole
from beamtree.training.launch import find_processes
from beamtree.training.loading import prepare
from beamtree.training.loggers import DEFAULT, check_loggers
from beamtree.training.run import Run
from beamtree.training.tune.space import Choices, Params, Range, apply, check_params, parse_params
from beamtree.training.tune.study import (
    PRUNERS,
    Study,
    StudySpec,
    StudySummary,
    TrialSummary,
    check_installed,
    open_database,
)
from beamtree.utils.checks import check_choice, check_integer

__all__ = ["Choices", "Range", "StudySummary", "TrialSummary", "parse_params", "show_value", "tune"]

METRICS = ("accuracy", "loss")


def tune(
    settings: Settings,
    params: Params,
    folder: str | os.PathLike[str],
    *,
    trials: int = 20,
    metric: str | None = None,
    pruner: str = "median",
    storage: str | None = None,
    device: str = "auto",
    roots: Roots | None = None,
    loggers: Sequence[str | Logger] = DEFAULT,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
) -> StudySummary:
    """Search for the best settings with Optuna: run trials until the study has `trials` of them.

    Args:
        settings: settings of all trials, except for the searched ones. Their seed is also the seed of the search.
        params: the search space by keys of settings; see `parse_params`.
        folder: the folder of the study and of the runs of its trials. An existing study is continued.
        trials: number of trials, including pruned and failed ones.
        metric: "accuracy", which is maximised, or "loss", which is minimised, on dev. Defaults to `training.select`.
        pruner: "median" stops a trial whose best value so far is worse than the median of the others at the same epoch;
            "none" stops none.
        storage: URL of a database, as for Optuna; the study is named after the folder. Defaults to the SQLite file
            `study.db` in the folder.
        device: as for `train`.
        roots: as for `train`.
        loggers: as for `train`.
        callbacks: as for `train`.
        progress: whether to print progress bars and a line for each trial.

    Returns:
        The study with all its trials.

    Raises:
        ValueError: if a parameter is invalid, if Optuna is not installed, or if the folder holds another study.

    Examples:
        >>> from beamtree.runs import recipes
        >>> from beamtree.training.tune import parse_params, tune
        >>> params = parse_params(["optimizer.lr=log:1e-4:1e-2"])
        >>> study = tune(recipes.load("listops-tiny"), params, "runs/tune/lr", trials=10)  # doctest: +SKIP
    """
    check_integer("trials", trials, at_least=1)
    metric = settings.training.select if metric is None else metric
    check_choice("metric", metric, METRICS)
    check_choice("pruner", pruner, PRUNERS)
    check_params(settings, params)
    check_installed()
    check_loggers(loggers)
    find_processes(device, 1, 1)
    roots = None if roots is None else list(roots)
    options = {"device": device, "devices": 1, "nodes": 1, "roots": roots, "loggers": loggers}
    console = TrainingConsole(quiet=not progress)
    data = functools.cache(lambda: _load_data(settings, params, roots, console))
    with console.open(), open_database(Path(folder), storage) as database:
        if not database.has_study():
            data()  # report errors in the data before a study is created
        study = database.open_study(StudySpec(settings, params, metric), pruner)
        if study.summary().count("complete", "pruned", "failed") < trials:
            options["data"] = data()
            while _run_trial(study, trials, callbacks, options, console):
                _free_memory()
        return study.summary()


def show_value(metric: str, value: float | None) -> str:
    """Format the value of a metric."""
    if value is None:
        return "–"
    return f"{100 * value:.2f} %" if metric == "accuracy" else f"{value:.4f}"


def _load_data(settings: Settings, params: Params, roots: Roots | None, console: TrainingConsole) -> Data | None:
    """Load the data that all trials share; return None if it depends on the searched parameters."""
    if any(key.startswith("data.") for key in params):
        return None
    data = load(settings.data.task, None, roots=roots, progress=console.show, **settings.data.options)
    prepare(settings, roots, console.show, console.print, data)
    console.clear()
    return data


def _run_trial(
    study: Study, trials: int, callbacks: Sequence[Callback], options: dict[str, Any], console: TrainingConsole
) -> bool:
    """Run a trial; return False if the study has all its trials."""
    with study.claim(trials) as trial:
        if trial is None:
            return False
        folder = study.folder_of(trial.number)
        values = ", ".join(f"{key}={_short(value)}" for key, value in trial.params.items())
        console.print(f"{folder.name}: {'resumed' if run_storage.is_run(folder) else 'started'} with {values}")
        try:
            _train(study, trial, folder, callbacks, options, console)
        finally:
            console.clear()
        console.print(_result_line(study.summary(), trial.number, trials))
    return True


def _train(
    study: Study,
    trial: Any,
    folder: Path,
    callbacks: Sequence[Callback],
    options: dict[str, Any],
    console: TrainingConsole,
) -> None:
    """Train the model of a trial, and store the outcome. An interrupted trial stays in the state "running"."""
    from optuna import TrialPruned

    reporter = _Reporter(study, trial, console)
    try:
        settings = apply(study.spec.settings, trial.params)
    except ValueError as error:
        return study.fail(trial, error)
    try:
        results = loop.train(settings, folder, callbacks=[*callbacks, reporter], progress=False, **options)
    except TrialPruned:
        study.prune(trial)
    except Exception as error:
        if not reporter.has_started:  # not caused by its parameters: the trial can be run once the error is fixed
            raise
        study.fail(trial, error)
        if not isinstance(error, ValueError | torch.OutOfMemoryError):
            raise
    else:
        study.complete(trial, results["dev"][study.spec.metric])


class _Reporter(Callback):
    """Reports the metric of each epoch to the study, whose pruner may stop the run."""

    def __init__(self, study: Study, trial: Any, console: TrainingConsole) -> None:
        self._trial, self._console, self._metric = trial, console, study.spec.metric
        self._name, self._reported = study.folder_of(trial.number).name, study.reported(trial)
        self.has_started = False

    def on_train_start(self, run: Run) -> None:
        self.has_started = True
        self._report(run)  # the run may have been interrupted between a checkpoint and its report

    def on_epoch_end(self, run: Run, metrics: dict[str, Any]) -> None:
        self._report(run)

    def _report(self, run: Run) -> None:
        from optuna import TrialPruned

        values = {metrics["epoch"]: metrics[f"dev_{self._metric}"] for metrics in run.metrics}
        for epoch, value in values.items():
            if epoch not in self._reported:
                self._trial.report(value, epoch)
                self._reported.add(epoch)
        note = f"dev {self._metric} {show_value(self._metric, values.get(run.epoch))}"
        self._console.show(self._name, run.epoch, run.settings.training.max_epochs, note)
        if values and not run.is_over and self._trial.should_prune():
            raise TrialPruned


def _result_line(summary: StudySummary, number: int, trials: int) -> str:
    trial = next(each for each in summary.trials if each.number == number)
    text = f"dev {summary.metric} {show_value(summary.metric, trial.value)} after {trial.epochs} epochs"
    if trial.state == "pruned":
        text = f"pruned, with {text}"
    elif trial.state == "failed":
        text = f"failed: {trial.error}"
    best = summary.best
    if best is not None and best != trial:
        text += f"; best {best.name} with {show_value(summary.metric, best.value)}"
    ended = summary.count("complete", "pruned", "failed")
    return f"{trial.name}: {text} ({ended} of {trials} trials)"


def _free_memory() -> None:
    """Free the GPU memory of a trial for the next one."""
    gc.collect()
    release_memory()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
