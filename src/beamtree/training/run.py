"""A run during training: its state, the end of an epoch, and its checkpoints."""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers.logger import Logger
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from beamtree.data.batching import Batches, Buckets
from beamtree.evaluation import MAX_SAMPLES, Outcomes, evaluate_model
from beamtree.models import storage
from beamtree.models.build import build
from beamtree.models.heads import Model
from beamtree.nn.cells import Cell
from beamtree.runs import checkpoints
from beamtree.runs.folder import CHECKPOINTS, METRICS
from beamtree.training.console import TrainingConsole
from beamtree.training.launch import quiet_lightning
from beamtree.training.loading import DEV, Loader, MicroBatch, TrainingData, part_of
from beamtree.training.loggers import Loggers
from beamtree.training.optim import make_optimizer
from beamtree.training.progress import Best, Clock, EpochSums, Forecast, Means, means, summary
from beamtree.training.signals import Schedule
from beamtree.utils import files

_PLATEAU_THRESHOLD = 1e-4  # of ReduceLROnPlateau, relative to the best value so far


class Run:
    """A run during training, which is passed to callbacks: the model, its optimizer, and its progress.

    Attributes:
        settings: all settings.
        folder: the folder of the run.
        model: the model; call `run.model.read(batch)`.
        optimizer: the optimizer.
        epoch: number of completed epochs.
        step: number of optimizer steps.
        metrics: the lines of metrics.jsonl, one dict for each epoch.
        best: the best epoch so far.
        should_stop: set this to True to stop after the current epoch.

    Examples:
        >>> from beamtree.training import Callback
        >>> class PrintAccuracy(Callback):
        ...     def on_epoch_end(self, run, metrics):
        ...         if run.is_first:
        ...             print(run.epoch, metrics["dev_accuracy"])
    """

    def __init__(
        self,
        fabric: Fabric,
        data: TrainingData,
        folder: Path,
        console: TrainingConsole,
        state: dict[str, Any] | None = None,
    ) -> None:
        """Create the model and its optimizer. Called by `train`.

        Args:
            fabric: Lightning Fabric, which launched the processes.
            data: the data, prepared for training.
            folder: the folder of the run.
            console: shows the progress.
            state: a checkpoint to resume from.
        """
        self.fabric, self.data, self.folder, self.console = fabric, data, folder, console
        self.settings = data.settings
        training = self.settings.training
        self.epoch = self.step = self.micro_batches = 0  # micro-batches of the current epoch
        self.metrics: list[dict[str, Any]] = []
        self.best = Best()
        self.diverged = self.should_stop = False
        self.clock, self.epoch_started = Clock(), 0.0
        self._loggers: Loggers | None = None

        checkpoints.seed_all(self.settings.seed)  # the same initial weights in all processes
        self.model = build(data.config, len(data.vocabulary), data.vectors)
        optimizer = make_optimizer([p for p in self.model.parameters() if p.requires_grad], self.settings.optimizer)
        with quiet_lightning():
            self.module, self.optimizer = fabric.setup(_Classifier(self.model), optimizer)
        self.state_noise = float(self.settings.encoder.options.get("state_noise") or 0.0)  # in the end, if it rises
        self.scheduler: ReduceLROnPlateau | None = None
        if training.plateau_factor is not None:
            self.scheduler = ReduceLROnPlateau(
                optimizer,
                mode="min" if training.select == "loss" else "max",
                factor=training.plateau_factor,
                patience=training.plateau_patience,
                threshold=_PLATEAU_THRESHOLD,
            )
        buckets = Buckets(
            data.train.lengths,
            max_samples=training.micro_batch,
            bucket_factor=training.bucket_factor,
            seed=self.settings.seed,
        )
        accumulate = training.batch_size // training.micro_batch
        rank, world_size = fabric.global_rank, fabric.world_size
        pin = fabric.device.type == "cuda"
        self.loader = Loader(data.train, buckets, accumulate, rank, world_size, pin)
        self.dev = part_of(data.dev, rank, world_size)
        self.epoch_sums = EpochSums(fabric.device)
        recipe, small = self.settings.recipe, "listops-tiny"
        smaller = small if recipe.startswith("listops") and recipe != small else None
        self._forecast = Forecast(len(self.loader), training.max_epochs, fabric.device.type, smaller)
        if state is None:
            checkpoints.seed_all(self.settings.seed, 1 + rank)  # from here on, random numbers differ between processes
        else:
            self._restore(state)

    @property
    def is_first(self) -> bool:
        """Whether this is the first of several processes, or the only one."""
        return bool(self.fabric.is_global_zero)

    @property
    def is_over(self) -> bool:
        """Whether training has ended."""
        training = self.settings.training
        no_gain = self.best.waited >= training.patience
        return self.should_stop or self.diverged or no_gain or self.epoch >= training.max_epochs

    def begin_epoch(self) -> None:
        """Prepare for the micro-batches of an epoch, or for the rest of them after resuming."""
        self.model.train()
        if noise_epochs := self.settings.training.noise_epochs:
            cell = self.model.get_submodule("encoder.cell")
            assert isinstance(cell, Cell)
            cell.state_noise = self.state_noise * min(self.epoch / noise_epochs, 1.0)
        if self.micro_batches == 0:
            self.epoch_started = self.clock.now()

    def count(self, micro_batch: MicroBatch, loss: Tensor, hits: Tensor) -> None:
        """Add a micro-batch to the sums of the epoch, and update the progress bar."""
        self.micro_batches += 1
        if micro_batch.count:
            self.epoch_sums.add(loss, hits)
        if (forecast := self._forecast.after_micro_batch()) is not None:
            self.console.print(forecast)
        if self.console.is_due():
            train = means(self.epoch_sums.sums())
            speed = train.samples / max(self.clock.now() - self.epoch_started, 1e-9)
            note = f"loss {train.loss:.4f}  accuracy {train.accuracy:.2%}  {speed:,.0f} samples/s"
            what = f"epoch {self.epoch + 1}/{self.settings.training.max_epochs}"
            self.console.show(what, self.micro_batches, len(self.loader), note)

    def end_epoch(self) -> dict[str, Any]:
        """Evaluate on dev, adapt the learning rate, keep the best weights; return the metrics of the epoch."""
        training = self.settings.training
        train = means(self._sum(self.epoch_sums.sums()))  # syncs with the device
        speed = train.samples / (self.clock.now() - self.epoch_started)
        lr = self.optimizer.param_groups[0]["lr"]  # of this epoch
        dev = self._evaluate_dev()
        self.epoch += 1
        by_loss = training.select == "loss"
        if self.epoch > training.noise_epochs:
            if self.best.offer(-dev.loss if by_loss else 100 * dev.accuracy, self.epoch):
                self.best.weights = _trained_weights(self.model)
            if self.scheduler is not None:
                self.scheduler.step(dev.loss if by_loss else dev.accuracy)
        self.diverged = not math.isfinite(dev.loss)
        metrics = {
            **{"epoch": self.epoch, "step": self.step},
            **{"train_loss": train.loss, "train_accuracy": train.accuracy},
            **{"dev_loss": dev.loss, "dev_accuracy": dev.accuracy},
            **{"lr": lr, "samples_per_second": round(speed, 1), "seconds": round(self.clock.now(), 2)},
        }
        self.metrics.append(metrics)
        self.micro_batches, self.epoch_sums = 0, EpochSums(self.fabric.device)
        return metrics

    def report(self, metrics: dict[str, Any]) -> None:
        """Write the metrics of an epoch, and the weights if it is the best. Called after its checkpoint is written."""
        if not self.is_first:
            return
        is_best = self.best.epoch == metrics["epoch"]
        files.append_json_line(self.folder / METRICS, metrics)
        if is_best:
            storage.write_weights(self.folder, self.model)  # from here on, the folder can be loaded as a model
        if self._loggers is not None:
            self._loggers.log(metrics)
        self.console.print(summary(metrics, self.settings.training.max_epochs, is_best))

    def agree_to_stop(self) -> None:
        """If a callback has set `should_stop` in one process, set it in all."""
        if self.fabric.world_size > 1:
            self.should_stop = bool(self._sum(torch.tensor(float(self.should_stop), device=self.fabric.device)))

    def open_logs(self, loggers: Sequence[str | Logger]) -> None:
        """Restore metrics.jsonl to the state of the checkpoint, and open the loggers."""
        text = "".join(files.json_line(metrics) for metrics in self.metrics)
        files.write_atomically(self.folder / METRICS, text)
        self._loggers = Loggers(loggers, self.folder, self.settings, self.metrics)

    def close_logs(self) -> None:
        if self._loggers is not None:
            self._loggers.close()

    def save(self, schedule: Schedule) -> None:
        """Write a checkpoint, including the random states of all processes."""
        state = {
            **{"epoch": self.epoch, "step": self.step, "micro_batches": self.micro_batches},
            "model": _trained_weights(self.model),
            "optimizer": self.optimizer.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            **{"best": self.best.state_dict(), "metrics": self.metrics, "diverged": self.diverged},
            **{"seconds": self.clock.now(), "epoch_started": self.epoch_started},
            "tally": self._sum(self.epoch_sums.sums()).cpu(),
            "random": self._random_states(),
        }
        if self.is_first:
            checkpoints.save(checkpoints.path_of(self.folder / CHECKPOINTS, self.step), state)
            checkpoints.prune(self.folder / CHECKPOINTS)
        schedule.saved(self.step)

    def _restore(self, state: dict[str, Any]) -> None:
        self.epoch, self.step, self.micro_batches = state["epoch"], state["step"], state["micro_batches"]
        self.model.load_state_dict(state["model"], strict=False)  # frozen weights are not in checkpoints
        self.optimizer.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.best, self.metrics, self.diverged = Best(**state["best"]), state["metrics"], state["diverged"]
        self.clock, self.epoch_started = Clock(state["seconds"]), state["epoch_started"]
        if self.is_first:  # the sum over all processes, which one process continues
            self.epoch_sums.load(state["tally"])
        random, world_size = state["random"], self.fabric.world_size
        if len(random) == world_size:
            checkpoints.restore_random_state(random[self.fabric.global_rank], self.fabric.device)
            return
        checkpoints.seed_all(self.settings.seed, 1 + self.fabric.global_rank, self.step)
        self.console.print(
            f"the run was started on {len(random)} devices and continues on {world_size}: "
            "its random numbers will differ from here on"
        )

    def _random_states(self) -> list[dict[str, Any]]:
        state = checkpoints.random_state(self.fabric.device)
        states: list[Any] = [state]
        if self.fabric.world_size > 1:
            states = [None] * self.fabric.world_size
            torch.distributed.all_gather_object(states, state)
        return states

    def _evaluate_dev(self) -> Means:
        """Evaluate on dev, in float32 whatever the precision of training."""
        scores = score(self.model, self.dev, self.fabric.device, self.console, DEV, self.settings.training.dev_batch)
        sums = torch.tensor([scores.losses.sum(), scores.hit.sum(), len(scores.hit)], dtype=torch.float64)
        return means(self._sum(sums.to(self.fabric.device)))

    def _sum(self, values: Tensor) -> Tensor:
        """Sum over all processes. All of them must call this."""
        if self.fabric.world_size == 1:
            return values
        total = self.fabric.all_reduce(values, reduce_op="sum")
        assert isinstance(total, Tensor)
        return total


class _Classifier(nn.Module):
    """Module that returns the mean loss of a micro-batch, and for each sample whether it is classified correctly."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        # DDP with find_unused_parameters warns if the first batch uses all parameters: this one is never used.
        self.unused = nn.Parameter(torch.zeros(()))

    def forward(self, micro_batch: MicroBatch) -> tuple[Tensor, Tensor]:
        batch = micro_batch.batch
        assert batch.labels is not None
        logits = self.model.read(batch).logits
        return self.model.loss(logits, batch.labels), self.model.predictions(logits) == batch.labels


def score(
    model: Model,
    batches: Batches,
    device: torch.device,
    console: TrainingConsole,
    what: str,
    max_samples: int = MAX_SAMPLES,
) -> Outcomes:
    """Evaluate with a progress bar, and print warnings, for example of scarce memory, as lines."""
    with warnings.catch_warnings(record=True) as caught:
        scores = evaluate_model(
            model,
            batches,
            device=device,
            max_samples=max_samples,
            progress=lambda done, total: console.show(what, done, total),
        )
    console.clear()
    for warning in caught:
        console.warn(str(warning.message))
    return scores


def _trained_weights(model: Model) -> dict[str, Tensor]:
    """A copy of the weights on the CPU, except frozen ones: pretrained word vectors are large."""
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    weights = model.state_dict().items()
    return {name: tensor.detach().cpu().clone() for name, tensor in weights if name not in frozen}
