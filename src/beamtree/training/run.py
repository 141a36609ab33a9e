"""A run, from its settings to its results: `train` begins one, or goes on with it; `resume` needs its folder alone.

    results = train(recipes.load("listops", seed=1), "runs/listops/bt-grc-seed1")
    results["splits"]["near-iid"]["accuracy"]

A finished run is never run again: its results are read. One that was stopped, or killed at any moment, goes on from its
last checkpoint to the same end; on a CPU, with as many devices, to the very same bits.
"""

import contextlib
import logging
import os
import shutil
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import rank_zero_only

from beamtree import runs
from beamtree.data.loading import Roots
from beamtree.evaluation import Scores
from beamtree.pretrained import build
from beamtree.recipes.settings import Settings
from beamtree.tasks import Model
from beamtree.training import checkpoints
from beamtree.training.course import Course, make_loggers, score
from beamtree.training.folder import alone, is_finished, note_data, write_or_verify
from beamtree.training.loading import DEV, Materials, prepare
from beamtree.training.module import Training
from beamtree.training.saving import Saving, Stopped
from beamtree.training.screen import Bar, Screen
from beamtree.utils.checks import check_choice, check_integer

DEVICES = ("auto", "cpu", "cuda")


def train(
    settings: Settings,
    folder: str | os.PathLike[str],
    *,
    devices: int = 1,
    nodes: int = 1,
    device: str = "auto",
    progress: bool = True,
    roots: Roots | None = None,
    checkpoint_minutes: float = 5.0,
    checkpoint_steps: int | None = None,
) -> dict[str, Any]:
    """Train a model by these settings into a folder, which then holds it; the results on its test splits.

    devices: of each of the `nodes`; the samples of a step are shared among them all.
    device: "cpu", "cuda", or "auto", the better one that is there.
    roots: folders with the originals of the data, as for `beamtree.data.load`.
    checkpoint_minutes: between two checkpoints; each epoch ends with one anyway. `checkpoint_steps` counts the
        optimiser's steps instead.

    With several devices only the first process has the results; the others return an empty dict.
    """
    folder = Path(folder)
    device = checked_device(devices, nodes, device, checkpoint_minutes)
    if checkpoint_steps is not None:
        check_integer("checkpoint_steps", checkpoint_steps, at_least=1)
    first = _is_first()
    if is_finished(folder, settings, first):
        return runs.read_results(folder)
    screen = Screen(quiet=not progress, mute=not first)
    with alone(folder) if first else contextlib.nullcontext(), screen.open():
        if is_finished(folder, settings, first):  # in the meantime
            return runs.read_results(folder)
        materials = prepare(settings, roots, screen.show, screen.tell)
        screen.clear()
        if first:
            write_or_verify(folder, materials, device)
        begin = checkpoints.newest(folder / runs.CHECKPOINTS, screen.warn)
        course = Course(settings.training, folder, screen)
        saving = Saving(
            folder / runs.CHECKPOINTS, settings.seed, checkpoint_minutes, checkpoint_steps, begin, screen.tell
        )
        callbacks = [course, Bar(screen, settings.training.max_epochs), saving]  # in this order
        trainer = _make_trainer(settings, folder, device, devices, nodes, callbacks)
        checkpoints.seed_all(settings.seed)  # all ranks have the same weights
        model = build(materials.config, len(materials.vocabulary), materials.vectors)
        with _matrix_precision(settings.training.precision), _quiet_lightning():
            _fit(trainer, Training(model, materials), begin)
        if not trainer.is_global_zero:
            return {}
        if not course.best.weights:
            raise ValueError(
                f"the loss of epoch {len(course.lines)} is not a number: the training has diverged; "
                f"choose a smaller optimizer.lr than {settings.optimizer.lr:g}"
            )
        if course.diverged:
            screen.warn(f"the training has diverged in epoch {len(course.lines)}: the epochs before it count")
        model.load_state_dict(course.best.weights, strict=False)  # frozen weights are not among them
        return _finish(folder, model, materials, course, trainer.strategy.root_device, screen)


def resume(folder: str | os.PathLike[str], **options: Any) -> dict[str, Any]:
    """Go on with a run that was stopped; `options` are those of `train`, such as `devices`."""
    config = runs.read_config(folder)
    if (Path(folder) / runs.WEIGHTS).exists() and not (Path(folder) / runs.METRICS).exists():
        raise ValueError(f"{folder} is a model that was trained elsewhere: it has no {runs.METRICS} to go on from")
    return train(config.settings, folder, **options)


def _is_first() -> bool:
    """Of the processes that train together: the one that writes and speaks."""
    return not getattr(rank_zero_only, "rank", 0)


def checked_device(devices: int, nodes: int, device: str, checkpoint_minutes: float) -> str:
    """ "cpu" or "cuda", of options of `train` that are all as they should be."""
    check_choice("device", device, DEVICES)
    check_integer("devices", devices, at_least=1)
    check_integer("nodes", nodes, at_least=1)
    if not checkpoint_minutes >= 0:
        raise ValueError(f"checkpoint_minutes is {checkpoint_minutes!r}: it must be a number of at least 0")
    there = torch.cuda.device_count()
    if device == "auto":
        device = "cuda" if there else "cpu"
    if device == "cuda" and devices > there:
        raise ValueError(f"devices is {devices}: there are {there} CUDA devices; choose fewer, or device 'cpu'")
    return device


def _make_trainer(
    settings: Settings, folder: Path, device: str, devices: int, nodes: int, callbacks: list[L.Callback]
) -> L.Trainer:
    """Without what costs time in each step and is not needed: bars, summaries, and logs of its own."""
    training = settings.training
    strategy: Any = "auto"
    if devices * nodes > 1:
        # Where all inputs of a batch are of one token, nothing is composed, and the cell has no gradient.
        strategy = DDPStrategy(find_unused_parameters=True)
    with _quiet_lightning():
        return L.Trainer(
            accelerator=device,
            devices=devices,
            num_nodes=nodes,
            strategy=strategy,
            precision="bf16-mixed" if training.precision == "bf16" else "32-true",
            max_epochs=training.max_epochs,
            accumulate_grad_batches=training.batch_size // training.micro_batch,
            gradient_clip_val=training.clip,
            gradient_clip_algorithm="norm",
            callbacks=callbacks,
            plugins=[checkpoints.CheckpointFiles()],
            logger=make_loggers(folder) if _is_first() else False,
            default_root_dir=folder,
            limit_val_batches=0,
            num_sanity_val_steps=0,
            log_every_n_steps=0,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_autolog_hparams=False,
            use_distributed_sampler=False,
        )


def _fit(trainer: L.Trainer, module: Training, begin: Path | None) -> None:
    try:
        trainer.fit(module, ckpt_path=begin)
    except Stopped as stopped:
        if stopped.signal_number == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise SystemExit(128 + stopped.signal_number) from None  # as shells know it
    except SystemExit:
        if trainer.interrupted:  # what Lightning makes of Ctrl-C
            raise KeyboardInterrupt from None
        raise


@contextlib.contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Within it Lightning does not tell of devices, tips and its own steps."""
    loggers = [logging.getLogger(f"lightning.{name}") for name in ("pytorch", "fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # How Lightning uses torch is its own affair.
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _matrix_precision(precision: str) -> Iterator[None]:
    """Within it matrix products are as exact as the settings ask for."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _finish(
    folder: Path, model: Model, materials: Materials, course: Course, device: torch.device, screen: Screen
) -> dict[str, Any]:
    """Score the best epoch's weights on every test split, and write them and the results."""
    model.to(device)
    runs.write_weights(folder, model)

    def scored(split: str) -> dict[str, Any]:
        batches = materials.data[split].batches(materials.vocabulary, model.needs_trees)
        return _summary(score(model, batches, device, screen, split))

    with _matrix_precision("32"):
        results = {
            "splits": {split: scored(split) for split in materials.tests},
            "dev": scored(DEV),
            "best_epoch": course.best.epoch,
            "epochs": len(course.lines),
            "seconds": round(course.clock.now(), 2),
        }
    note_data(folder, materials, materials.tests, str(device))
    runs.write_json(folder / runs.RESULTS, results)
    shutil.rmtree(folder / runs.CHECKPOINTS, ignore_errors=True)  # a finished run is never run again
    return results


def _summary(scores: Scores) -> dict[str, Any]:
    return {
        "correct": int(scores.hit.sum()),
        "count": len(scores.hit),
        "accuracy": float(scores.hit.mean()),
        "loss": float(scores.losses.mean()),
    }
