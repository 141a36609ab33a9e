"""Hyperparameter search with Optuna: a study of trials, each of which is a run.

    params = parse_params(["optimizer.lr=log:1e-4:1e-2", "model.dropout=0.1:0.5"])
    study = tune(recipes.load("listops"), params, "runs/tune/listops", trials=20)
    beamtree.load(study.best.folder)

The study is stored in a database, by default a SQLite file in its folder. Several processes can work on it at the same
time: each one claims a trial, trains it in the folder `trial-NNN`, and goes on until the study has all its trials. A
trial whose process was stopped or killed is resumed from its last checkpoint by the next process that claims one.
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
from beamtree.training.launch import find_processes
from beamtree.training.loading import prepare
from beamtree.training.loggers import DEFAULT, check_loggers
from beamtree.training.run import Run
from beamtree.training.screen import Screen
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
    """Search settings with Optuna: work on a study until it has a number of trials.

    Args:
        settings: settings of all trials, apart from the parameters. The seed is also that of the search.
        params: the settings to be searched, by their keys; see `parse_params`.
        folder: the folder of the study, in which the runs of the trials are. If it holds a study, that study is
            continued.
        trials: number of trials, with those that are pruned or fail.
        metric: "accuracy" to be maximized, or "loss" to be minimized, on dev; by default that of `training.select`.
        pruner: "median" ends a trial that is worse after an epoch than the median of the others; "none" ends none.
        storage: URL of a database, as for Optuna, in which the study has the name of the folder. By default it is the
            file `study.db` in the folder.
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
    screen = Screen(quiet=not progress)
    data = functools.cache(lambda: _load_data(settings, params, roots, screen))
    with screen.open(), open_database(Path(folder), storage) as database:
        if not database.has_study():
            data()  # errors in the data come before a study is created
        study = database.open_study(StudySpec(settings, params, metric), pruner)
        if study.summary().count("complete", "pruned", "failed") < trials:
            options["data"] = data()
            while _run_trial(study, trials, callbacks, options, screen):
                _free_memory()
        return study.summary()


def show_value(metric: str, value: float | None) -> str:
    """The value of a metric as text."""
    if value is None:
        return "–"
    return f"{100 * value:.2f} %" if metric == "accuracy" else f"{value:.4f}"


def _load_data(settings: Settings, params: Params, roots: Roots | None, screen: Screen) -> Data | None:
    """Load the data that all trials share; None if the parameters decide on it."""
    if any(key.startswith("data.") for key in params):
        return None
    data = load(settings.data.task, None, roots=roots, progress=screen.show, **settings.data.options)
    prepare(settings, roots, screen.show, screen.tell, data)
    screen.clear()
    return data


def _run_trial(
    study: Study, trials: int, callbacks: Sequence[Callback], options: dict[str, Any], screen: Screen
) -> bool:
    """Run a trial; return False if there are enough."""
    with study.claim(trials) as trial:
        if trial is None:
            return False
        folder = study.folder_of(trial.number)
        values = ", ".join(f"{key}={_short(value)}" for key, value in trial.params.items())
        screen.tell(f"{folder.name}: {'resumed' if run_storage.is_run(folder) else 'started'} with {values}")
        try:
            _train(study, trial, folder, callbacks, options, screen)
        finally:
            screen.clear()
        screen.tell(_result_line(study.summary(), trial.number, trials))
    return True


def _train(
    study: Study,
    trial: Any,
    folder: Path,
    callbacks: Sequence[Callback],
    options: dict[str, Any],
    screen: Screen,
) -> None:
    """Train the model of a trial, and store how the trial ended. If it was interrupted, it stays as it is."""
    from optuna import TrialPruned

    reporter = _Reporter(study, trial, screen)
    try:
        settings = apply(study.spec.settings, trial.params)
    except ValueError as error:
        return study.fail(trial, error)
    try:
        results = loop.train(settings, folder, callbacks=[*callbacks, reporter], progress=False, **options)
    except TrialPruned:
        study.prune(trial)
    except Exception as error:
        if not reporter.has_started:  # not because of its parameters: it can be run when the error is repaired
            raise
        study.fail(trial, error)
        if not isinstance(error, ValueError | torch.OutOfMemoryError):
            raise
    else:
        study.complete(trial, results["dev"][study.spec.metric])


class _Reporter(Callback):
    """Reports the metric of each epoch to the study, whose pruner may end the run."""

    def __init__(self, study: Study, trial: Any, screen: Screen) -> None:
        self._trial, self._screen, self._metric = trial, screen, study.spec.metric
        self._name, self._reported = study.folder_of(trial.number).name, study.reported(trial)
        self.has_started = False

    def on_train_start(self, run: Run) -> None:
        self.has_started = True
        self._report(run)  # if the run was interrupted after a checkpoint, but before the report

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
        self._screen.show(self._name, run.epoch, run.settings.training.max_epochs, note)
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
