"""The course of a run: what happens after each epoch, and when it is enough.

The model is scored on dev; the learning rate falls where that no longer gets better; the weights of the best epoch are
kept; a line is added to the metrics. All of it goes into checkpoints, and a run that goes on from one has the same
course as if it had not been stopped.
"""

import json
import math
import shutil
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from beamtree import runs
from beamtree.data.batching import Batches
from beamtree.evaluation import MAX_SAMPLES, Scores, evaluate_model
from beamtree.recipes.settings import TrainingSettings
from beamtree.tasks import Model
from beamtree.training.loading import DEV, part_of
from beamtree.training.module import Means, Tally, Training, means
from beamtree.training.screen import Screen

GAIN = 1e-4  # less is no gain: of the loss, or of the accuracy in percent
_THRESHOLD = 1e-4  # the same for the learning rate, as a part of the best so far
_LOGS = "logs"


@dataclass
class Best:
    """The best epoch so far, and how many have passed since."""

    score: float = -math.inf
    epoch: int = 0
    waited: int = 0
    weights: dict[str, Tensor] = field(default_factory=dict)

    def offer(self, score: float, epoch: int) -> bool:
        """Whether this one is better."""
        if score > self.score + GAIN:
            self.score, self.epoch, self.waited = score, epoch, 0
            return True
        self.waited += 1
        return False


class Clock:
    """Seconds that a run has taken, over all its sessions."""

    def __init__(self) -> None:
        self.before, self.began = 0.0, time.monotonic()

    def now(self) -> float:
        return self.before + time.monotonic() - self.began

    def set(self, seconds: float) -> None:
        self.before, self.began = seconds, time.monotonic()


class Course(L.Callback):
    """Ends an epoch, and the run. `lines` are those of the metrics, `best` has the weights to keep."""

    def __init__(self, training: TrainingSettings, folder: Path, screen: Screen) -> None:
        self.training, self.folder, self.screen = training, folder, screen
        self.lines: list[dict[str, Any]] = []
        self.best = Best()
        self.diverged = False
        self.clock = Clock()
        self.epoch_began = 0.0
        self._scheduler: ReduceLROnPlateau | None = None
        self._restored: dict[str, Any] = {}
        self._trainer: L.Trainer
        self._module: Training

    @property
    def is_over(self) -> bool:
        return self.diverged or self.best.waited >= self.training.patience

    def setup(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        assert isinstance(module, Training)
        self._trainer, self._module = trainer, module

    def state_dict(self) -> dict[str, Any]:
        best = self.best
        return {
            "lines": self.lines,
            "best": {"score": best.score, "epoch": best.epoch, "waited": best.waited, "weights": best.weights},
            "diverged": self.diverged,
            "seconds": self.clock.now(),
            "epoch_began": self.epoch_began,
            "scheduler": None if self._scheduler is None else self._scheduler.state_dict(),
            "tally": self._total(self._module.tally).cpu(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.lines, self.best, self.diverged = state["lines"], Best(**state["best"]), state["diverged"]
        self.clock.set(state["seconds"])
        self.epoch_began = state["epoch_began"]
        self._restored = state

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        device = trainer.strategy.root_device
        self._module.tally = Tally(device)
        self._dev = part_of(self._module.materials.dev, trainer.global_rank, trainer.world_size)
        if self.training.plateau_factor is not None:
            self._scheduler = ReduceLROnPlateau(
                trainer.optimizers[0],
                mode="min" if self.training.select == "loss" else "max",
                factor=self.training.plateau_factor,
                patience=self.training.plateau_patience,
                threshold=_THRESHOLD,
            )
        if self._restored:
            if self._scheduler is not None:
                self._scheduler.load_state_dict(self._restored["scheduler"])
            if trainer.is_global_zero:  # the sum of all ranks, which one of them goes on with
                self._module.tally.load(self._restored["tally"])
            self._restored = {}
        if trainer.is_global_zero:
            text = "".join(json.dumps(line) + "\n" for line in self.lines)
            runs.write_atomically(self.folder / runs.METRICS, text)  # without the lines after the checkpoint
            for line in self.lines:
                self._log(line)
        if self.is_over:
            trainer.should_stop = True

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._module.tally = Tally(trainer.strategy.root_device)
        self.epoch_began = self.clock.now()

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        train = means(self._total(self._module.tally))  # waits for the device
        speed = train.samples / (self.clock.now() - self.epoch_began)
        lr = trainer.optimizers[0].param_groups[0]["lr"]  # before it falls
        dev = self._score()
        epoch = len(self.lines) + 1
        by_loss = self.training.select == "loss"
        if self.best.offer(-dev.loss if by_loss else 100 * dev.accuracy, epoch):
            self.best.weights = _learned(self._module.model)
            if trainer.is_global_zero:
                runs.write_weights(self.folder, self._module.model)  # from now on the folder is a model
        if self._scheduler is not None:
            self._scheduler.step(dev.loss if by_loss else dev.accuracy)
        line = {
            "epoch": epoch,
            "step": trainer.global_step,
            **{"train_loss": train.loss, "train_accuracy": train.accuracy},
            **{"dev_loss": dev.loss, "dev_accuracy": dev.accuracy},
            **{"lr": lr, "samples_per_second": round(speed, 1), "seconds": round(self.clock.now(), 2)},
        }
        self.lines.append(line)
        if trainer.is_global_zero:
            runs.append_json_line(self.folder / runs.METRICS, line)
            self._log(line)
            self.screen.tell(_summary(line, self.training.max_epochs, gained=self.best.epoch == epoch))
        self.diverged = not math.isfinite(dev.loss)
        if self.is_over:
            trainer.should_stop = True

    def _score(self) -> Means:
        """On dev, in full precision whatever the training has."""
        device = self._trainer.strategy.root_device
        scores = score(self._module.model, self._dev, device, self.screen, DEV, self.training.dev_batch)
        sums = torch.tensor([scores.losses.sum(), scores.hit.sum(), len(scores.hit)], dtype=torch.float64)
        return means(self._reduce(sums.to(device)))

    def _total(self, tally: Tally) -> Tensor:
        return self._reduce(tally.sums())

    def _reduce(self, sums: Tensor) -> Tensor:
        """Over all ranks, which must all be here."""
        total = self._trainer.strategy.reduce(sums, reduce_op="sum")
        assert isinstance(total, Tensor)
        return total

    def _log(self, line: dict[str, Any]) -> None:
        with runs.writing(self.folder / _LOGS):
            for logger in self._trainer.loggers:
                logger.log_metrics({key: value for key, value in line.items() if key != "step"}, step=line["step"])
                logger.save()


def score(
    model: Model, batches: Batches, device: torch.device, screen: Screen, what: str, max_samples: int = MAX_SAMPLES
) -> Scores:
    """Of every sample, with a bar while it goes on; that memory is scarce is told in a line."""
    with warnings.catch_warnings(record=True) as caught:
        scores = evaluate_model(
            model,
            batches,
            device=device,
            max_samples=max_samples,
            progress=lambda done, total: screen.show(what, done, total),
        )
    screen.clear()
    for warning in caught:
        screen.warn(str(warning.message))
    return scores


def make_loggers(folder: Path) -> list[Logger]:
    """For TensorBoard and as a table. They begin anew with each session: `Course` tells them what has been."""
    shutil.rmtree(folder / _LOGS, ignore_errors=True)
    board, table = TensorBoardLogger(folder, _LOGS, "tensorboard"), CSVLogger(folder, _LOGS, "csv")
    with runs.writing(folder / _LOGS):
        _ = board.experiment, table.experiment  # which opens their files
    return [board, table]


def _learned(model: Model) -> dict[str, Tensor]:
    """A copy of the weights without those that are frozen: vectors of words are many."""
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    weights = model.state_dict().items()
    return {name: tensor.detach().cpu().clone() for name, tensor in weights if name not in frozen}


def _summary(line: dict[str, Any], epochs: int, gained: bool) -> str:
    return (
        f"epoch {line['epoch']:>{len(str(epochs))}}/{epochs}  train loss {line['train_loss']:.4f}, "
        f"accuracy {line['train_accuracy']:.2%}  dev loss {line['dev_loss']:.4f}, accuracy {line['dev_accuracy']:.2%}"
        f"  {line['samples_per_second']:,.0f} samples/s{'  best' if gained else ''}"
    )
