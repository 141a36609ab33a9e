"""When checkpoints are written: after each epoch, every few minutes, and before a run stops because it is asked to."""

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import Checkpoint

from beamtree.training import checkpoints

_TOGETHER = 50  # steps after which several devices ask the first one whether it is time


class Stopped(BaseException):
    """The run was asked to stop, by this signal, and its checkpoint is written."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


class Saving(Checkpoint):
    """Writes checkpoints with the random states of all ranks, and restores those.

    The first Ctrl-C, or SIGTERM, lets the step end and its checkpoint be written; the second one ends at once.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        minutes: float,
        steps: int | None,
        begin: Path | None,
        tell: Callable[[str], None],
    ) -> None:
        """`begin` is the checkpoint that the run goes on from; `steps`, if it is given, counts instead of minutes."""
        self.folder, self.seed, self.seconds, self.steps, self.begin = folder, seed, 60 * minutes, steps, begin
        self.tell = tell
        self._random: list[dict[str, Any]] = []
        self._asked: int | None = None
        self._last_step = 0
        self._saved_step, self._saved_time = 0, time.monotonic()

    def setup(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        own = checkpoints.random_state(self._trainer.strategy.root_device)
        if self._trainer.world_size == 1:
            return {"random": [own]}
        states: list[Any] = [None] * self._trainer.world_size
        torch.distributed.all_gather_object(states, own)
        return {"random": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._random = state["random"]

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """The last before the first step: what is drawn from here on is the model's."""
        if trainer.is_global_zero:
            checkpoints.remove_after(self.folder, self.begin)
        device = trainer.strategy.root_device
        if len(self._random) == trainer.world_size:
            checkpoints.restore_random_state(self._random[trainer.global_rank], device)
        else:
            checkpoints.seed_all(self.seed, 1 + trainer.global_rank, trainer.global_step)
            if self._random:
                self.tell(
                    f"the run was begun on {len(self._random)} devices and goes on with {trainer.world_size}: "
                    "its random numbers are others from here on"
                )
        self._last_step = self._saved_step = trainer.global_step
        self._saved_time = time.monotonic()
        if trainer.world_size == 1 and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self._ask)  # Lightning puts the former handlers back in the end

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if step == self._last_step:
            return  # in the midst of a step there are gradients, which no checkpoint has
        self._last_step = step
        # The last batch's checkpoint is that of the epoch.
        if not trainer.is_last_batch and (self._asked is not None or self._is_due(trainer, step)):
            self._save(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._save(trainer)

    def _is_due(self, trainer: L.Trainer, step: int) -> bool:
        if self.steps is not None:
            return step - self._saved_step >= self.steps
        if trainer.world_size == 1:
            return time.monotonic() - self._saved_time >= self.seconds
        if step % _TOGETHER:
            return False
        return bool(trainer.strategy.broadcast(time.monotonic() - self._saved_time >= self.seconds))

    def _save(self, trainer: L.Trainer) -> None:
        trainer.save_checkpoint(checkpoints.path_of(self.folder, trainer.global_step), weights_only=False)
        if trainer.is_global_zero:
            checkpoints.prune(self.folder)
        self._saved_step, self._saved_time = trainer.global_step, time.monotonic()
        if self._asked is not None:
            raise Stopped(self._asked)

    def _ask(self, number: int, frame: Any) -> None:
        if self._asked is not None:
            raise KeyboardInterrupt
        self._asked = number
