"""What a run shows on the terminal: bars of what goes on, a line after each epoch, and warnings."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as L
from rich.progress import MofNCompleteColumn, Progress, TaskID, TextColumn

from beamtree.cli.terminal import progress_bar
from beamtree.training.module import Training, means

_PAUSE = 0.5  # seconds between two looks at the device, which has to be waited for


class Screen:
    """The terminal of a run. Where there is none it has lines alone, for `quiet` warnings alone; `mute`, nothing."""

    def __init__(self, quiet: bool = False, mute: bool = False) -> None:
        self.quiet, self.mute = quiet or mute, mute
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    @property
    def has_bar(self) -> bool:
        return self._bar is not None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Within it bars are shown."""
        if self.quiet:
            yield
            return
        with progress_bar(MofNCompleteColumn(), TextColumn("{task.fields[note]}")) as bar:
            self._bar = None if bar.disable else bar
            try:
                yield
            finally:
                self.clear()
                self._bar = None

    def tell(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        if not self.mute:
            print(f"warning: {text}", file=sys.stderr, flush=True)

    def show(self, what: str, done: int, total: int | None, note: str = "") -> None:
        """The bar of some work, with how much of it is done."""
        if self._bar is None:
            return
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(what, total=total, note=note)
        self._bar.update(self._tasks[what], completed=done, total=total, note=note)

    def clear(self) -> None:
        """No more bars: the next work begins."""
        for task in self._tasks.values():
            if self._bar is not None:
                self._bar.remove_task(task)
        self._tasks = {}


class Bar(L.Callback):
    """The bar of an epoch, with loss, accuracy and samples per second. It looks at the device twice a second."""

    def __init__(self, screen: Screen, epochs: int) -> None:
        self.screen, self.epochs = screen, epochs
        self._began = self._looked = 0.0
        self._samples = 0

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._begin(module)  # the start of an epoch that goes on is not told

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._begin(module)

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = time.monotonic()
        if not self.screen.has_bar or now - self._looked < _PAUSE:
            return
        assert isinstance(module, Training)
        found = means(module.tally.sums())
        self._looked = time.monotonic()
        speed = (found.samples - self._samples) / (self._looked - self._began)
        note = f"loss {found.loss:.4f}  accuracy {found.accuracy:.2%}  {speed:,.0f} samples/s"
        what = f"epoch {trainer.current_epoch + 1}/{self.epochs}"
        self.screen.show(what, batch_idx + 1, int(trainer.num_training_batches), note)

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.screen.clear()

    def _begin(self, module: L.LightningModule) -> None:
        assert isinstance(module, Training)
        self._began = self._looked = time.monotonic()
        self._samples = module.tally.samples
