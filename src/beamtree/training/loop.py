"""Training: `train` starts or resumes a run, `resume` resumes the run in a folder.

    results = train(recipes.load("listops", seed=1), "runs/listops/bt-grc-seed1")
    results["splits"]["near-iid"]["accuracy"]

The training loop is `fit`. A run that was stopped or killed at any moment resumes from its last checkpoint and reaches
the same result; on a CPU with the same number of processes, the weights are bit-identical. A finished run is not
trained again, unless its settings now allow more epochs.
"""

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers.logger import Logger

from beamtree.data.loading import Data, Roots
from beamtree.models import storage
from beamtree.runs import checkpoints
from beamtree.runs.folder import CHECKPOINTS, fingerprint, read_settings
from beamtree.runs.settings import Settings, replace
from beamtree.training.callbacks import Callback
from beamtree.training.console import TrainingConsole
from beamtree.training.folder import (
    Status,
    exclusive,
    finished_at,
    record_data,
    status,
    stored_parser,
    write_or_verify,
)
from beamtree.training.launch import find_processes, launch, on_first
from beamtree.training.loading import DEV, TRAIN, TrainingData, prepare
from beamtree.training.loggers import DEFAULT, check_loggers
from beamtree.training.run import Run, score
from beamtree.training.signals import Schedule, StopSignals
from beamtree.training.watch import Stopped, watch
from beamtree.utils import files
from beamtree.utils.checks import check_integer


def train(
    settings: Settings,
    folder: str | os.PathLike[str],
    *,
    data: Data | None = None,
    device: str = "auto",
    devices: int | None = None,
    nodes: int | None = None,
    loggers: Sequence[str | Logger] = DEFAULT,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    roots: Roots | None = None,
    checkpoint_minutes: float = 5.0,
    checkpoint_steps: int | None = None,
) -> dict[str, Any]:
    """Train a model in a folder and evaluate it on the test splits.

    A run that was stopped is resumed from its last checkpoint. A finished run is not trained again, unless `settings`
    now allow more epochs.

    Args:
        settings: all settings of the run, as `beamtree.runs.recipes.load` returns them.
        folder: the folder of the run; created if it does not exist.
        data: used instead of the data that the settings name.
        device: "cpu", "cuda", or "auto", which is "cuda" if available.
        devices: number of devices per node, with one process each; they share the samples of every step. Defaults to
            the number that torchrun or srun set, or to 1.
        nodes: number of machines, with the same default.
        loggers: "tensorboard", "csv", "wandb", "mlflow", or loggers of Lightning; see `beamtree.training.loggers`.
        callbacks: see `beamtree.training.Callback`.
        progress: whether to print a progress bar and a line after each epoch.
        roots: folders with the original files of data sets, as for `beamtree.data.load`.
        checkpoint_minutes: minutes between checkpoints, in addition to those at the end of each epoch.
        checkpoint_steps: optimizer steps between checkpoints, instead of `checkpoint_minutes`.

    Returns:
        The contents of results.json. In distributed training, all processes but the first return an empty dict.

    Raises:
        ValueError: if the folder holds other files or a run with other settings, if data or packages are missing, or if
            training diverged.

    Examples:
        >>> from beamtree.runs import recipes
        >>> from beamtree.training import train
        >>> results = train(recipes.load("listops-tiny"), "runs/listops-tiny/bt-grc-seed0")  # doctest: +SKIP
        >>> results["splits"]["test"]["accuracy"]  # doctest: +SKIP
    """
    folder = Path(folder)
    if data is not None and data.is_in_memory:
        options = {"tokenizer": data.tokenizer.name}
        settings = replace(settings, data=replace(settings.data, task=data.name, options=options))
    if not checkpoint_minutes >= 0:
        raise ValueError(f"checkpoint_minutes is {checkpoint_minutes!r}: it must be at least 0")
    if checkpoint_steps is not None:
        check_integer("checkpoint_steps", checkpoint_steps, at_least=1)
    check_loggers(loggers)
    processes = find_processes(device, devices, nodes)
    fabric = launch(processes, settings.training.precision, callbacks)
    first = fabric.is_global_zero
    console = TrainingConsole(quiet=not progress, mute=not first)
    try:
        with watch(fabric), console.open(), contextlib.ExitStack() as stack:
            if on_first(fabric, lambda: _lock_unfinished(stack, folder, settings)) is Status.FINISHED:
                return _read_finished(folder, console) if first else {}
            prepared = _prepare(fabric, settings, folder, roots, console, data)
            on_first(fabric, lambda: write_or_verify(folder, prepared, processes.device))
            state = on_first(fabric, lambda: _load_checkpoint(folder, console))
            run = Run(fabric, prepared, folder, console, state)
            if first:
                run.open_logs(loggers)
                stack.callback(run.close_logs)
            with StopSignals() as signals, _matmul_precision(settings.training.precision):
                fit(run, Schedule(fabric, signals, checkpoint_minutes, checkpoint_steps))
            results = _finish(run) if first else {}
            fabric.call("on_train_end", run=run, results=results)
            return results
    except Stopped as stopped:
        return _interrupted(stopped, first)


def resume(folder: str | os.PathLike[str], *, max_epochs: int | None = None, **options: Any) -> dict[str, Any]:
    """Resume the run in a folder.

    Args:
        folder: the folder of the run.
        max_epochs: a new maximum number of epochs, which may be larger than before.
        **options: keyword arguments of `train`.

    Returns:
        As `train`.

    Raises:
        ValueError: as `train`, and if the folder holds no run.

    Examples:
        >>> from beamtree.training import resume
        >>> resume("runs/listops-tiny/bt-grc-seed0", max_epochs=20)  # doctest: +SKIP
    """
    settings = read_settings(folder)
    if max_epochs is not None:
        settings = settings.change({"training.max_epochs": max_epochs})
    return train(settings, folder, **options)


def fit(run: Run, schedule: Schedule) -> None:
    """The training loop: each epoch consists of steps, each step of one or more micro-batches."""
    fabric, training = run.fabric, run.settings.training
    fabric.call("on_train_start", run=run)
    schedule.start(run.step)
    while not run.is_over:
        run.begin_epoch()
        for micro_batch in run.loader.epoch(run.epoch, start=run.micro_batches):
            with fabric.no_backward_sync(run.module, enabled=not micro_batch.ends_step):
                loss, hits = run.module(micro_batch.to(fabric.device))
                fabric.backward(loss * micro_batch.weight)
            run.count(micro_batch, loss, hits)
            if not micro_batch.ends_step:
                continue
            fabric.clip_gradients(run.module, run.optimizer, max_norm=training.clip, error_if_nonfinite=False)
            run.optimizer.step()
            run.optimizer.zero_grad()
            run.step += 1
            fabric.call("on_step_end", run=run, loss=loss)
            if run.micro_batches < len(run.loader):  # after the last step, the checkpoint of the epoch follows
                save, stop = schedule.decide(run.step)
                if save or stop:
                    run.save(schedule)
                if stop:
                    raise Stopped(stop)
        metrics = run.end_epoch()
        run.save(schedule)
        run.report(metrics)
        fabric.call("on_epoch_end", run=run, metrics=metrics)
        run.agree_to_stop()
        _, stop = schedule.decide(run.step, always=True)
        if stop:
            raise Stopped(stop)


def _lock_unfinished(stack: contextlib.ExitStack, folder: Path, settings: Settings) -> Status:
    """Lock the folder until `stack` is closed, unless the run is finished."""
    if status(folder, settings) is Status.FINISHED:
        return Status.FINISHED
    stack.enter_context(exclusive(folder))
    return status(folder, settings)  # another process may have changed it before the lock


def _prepare(
    fabric: Fabric,
    settings: Settings,
    folder: Path,
    roots: Roots | None,
    console: TrainingConsole,
    data: Data | None,
) -> TrainingData:
    """Load the data. The first process of each node goes first, so the others find the data in the cache."""
    with fabric.rank_zero_first(local=True):
        parser = stored_parser(settings, folder, fabric.device)
        prepared = prepare(settings, roots, console.show, console.print, data, parser)
    console.clear()
    if fabric.world_size > 1:
        fingerprints = fingerprint(prepared.data, (TRAIN, DEV))
        if fabric.broadcast(fingerprints) != fingerprints:
            raise ValueError("the data differs from that of the first process: copy the same files to all nodes")
    return prepared


def _load_checkpoint(folder: Path, console: TrainingConsole) -> dict[str, Any] | None:
    """Load the newest checkpoint that is not damaged, and remove newer files."""
    checkpoint_folder = folder / CHECKPOINTS
    path = checkpoints.newest(checkpoint_folder, console.warn)
    checkpoints.remove_after(checkpoint_folder, path)
    return None if path is None else checkpoints.load(path)


def _read_finished(folder: Path, console: TrainingConsole) -> dict[str, Any]:
    console.print(f"{folder} was finished on {finished_at(folder)}; these are its results")
    return storage.read_results(folder)


def _interrupted(stopped: Stopped, first: bool) -> dict[str, Any]:
    """Exit as the signal would have: `KeyboardInterrupt` for Ctrl-C, the exit status of the signal for SIGTERM."""
    if not first:
        return {}  # only the first process reports it
    if stopped.signal_number == signal.SIGINT:
        raise KeyboardInterrupt from None
    raise SystemExit(128 + stopped.signal_number) from None


def _finish(run: Run) -> dict[str, Any]:
    """Evaluate the best weights on all test splits and dev, and write the weights and the results."""
    data, model, console, device = run.data, run.model, run.console, run.fabric.device
    if not run.best.weights and not run.diverged:
        raise ValueError(
            f"training was stopped in epoch {run.epoch}, before an epoch could be selected: the noise on states rises "
            f"until epoch {run.settings.training.noise_epochs} (training.noise_epochs)"
        )
    if not run.best.weights:
        raise ValueError(
            f"training diverged: the loss of epoch {run.epoch} is not finite; "
            f"use a smaller optimizer.lr than {run.settings.optimizer.lr:g}"
        )
    if run.diverged:
        console.warn(f"training diverged in epoch {run.epoch}: using the best epoch before it")
    model.load_state_dict(run.best.weights, strict=False)
    storage.write_weights(run.folder, model)

    def scored(split: str) -> dict[str, Any]:
        scores = score(model, data.batches(split, console.show), device, console, split)
        return {
            "correct": int(scores.hit.sum()),
            "count": len(scores.hit),
            "accuracy": float(scores.hit.mean()),
            "loss": float(scores.losses.mean()),
        }

    with _matmul_precision("32"):
        results = {
            "splits": {split: scored(split) for split in data.tests},
            "dev": scored(DEV),
            "best_epoch": run.best.epoch,
            "epochs": run.epoch,
            "seconds": round(run.clock.now(), 2),
        }
    record_data(run.folder, data, data.tests, str(device))
    files.write_json(run.folder / storage.RESULTS, results)
    checkpoints.prune(run.folder / CHECKPOINTS, kept=1)  # keep one, to allow training for more epochs
    return results


@contextlib.contextmanager
def _matmul_precision(precision: str) -> Iterator[None]:
    """Use TF32 for matrix products if the precision is "tf32", otherwise float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
