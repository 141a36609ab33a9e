"""Ctrl-C and SIGTERM: the first signal stops a run after the current step, a second one stops it at once."""

import signal
import threading
import time
from types import FrameType
from typing import Any

import torch
from lightning.fabric import Fabric

_INTERVAL = 1.0  # seconds, approximately, between two synchronisations of several processes
_MAX_STEPS = 1000  # between two synchronisations


class StopSignals:
    """Context manager that handles the signals. `received` is the first signal, or None."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():  # Python allows handlers in the main thread only
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._previous[signum] = signal.signal(signum, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signum


class Schedule:
    """Decides when to write a checkpoint within an epoch and when to stop, with the same result in all processes.

    A single process decides after every step. Several processes synchronise their signals and clocks about once a
    second, after a number of steps that the first process computes from its speed.
    """

    def __init__(self, fabric: Fabric, signals: StopSignals, minutes: float, steps: int | None) -> None:
        """Create a schedule.

        Args:
            fabric: Lightning Fabric, which launched the processes.
            signals: receives the signals of this process.
            minutes: minutes between two checkpoints.
            steps: number of steps between two checkpoints, instead of `minutes`.
        """
        self._fabric, self._signals, self._seconds, self._steps = fabric, signals, 60 * minutes, steps
        self._saved_step, self._saved_time = 0, time.monotonic()
        self._synced_step, self._synced_time = 0, time.monotonic()
        self._next = 0

    def start(self, step: int) -> None:
        """Start counting after step `step`."""
        self.saved(step)
        self._synced_step, self._synced_time, self._next = step, time.monotonic(), step + 1

    def saved(self, step: int) -> None:
        """Record that a checkpoint was written after step `step`."""
        self._saved_step, self._saved_time = step, time.monotonic()

    def decide(self, step: int, always: bool = False) -> tuple[bool, int | None]:
        """Called after a step. Returns whether a checkpoint is due, and the signal to stop for, or None.

        `always` makes several processes synchronise now.
        """
        due = step - self._saved_step >= self._steps if self._steps is not None else False
        stop = self._signals.received
        if self._fabric.world_size == 1:
            return due or (self._steps is None and self._is_time()), stop
        if step < self._next and not always:
            return due, None
        speed = (step - self._synced_step) / max(time.monotonic() - self._synced_time, 1e-3)
        steps = min(max(int(speed * _INTERVAL), 1), _MAX_STEPS) if self._fabric.is_global_zero else 0
        timed = self._fabric.is_global_zero and self._steps is None and self._is_time()
        decision = torch.tensor([stop or 0, int(timed), steps], device=self._fabric.device)
        signum, save, steps = self._fabric.all_reduce(decision, reduce_op="max").tolist()  # type: ignore[union-attr]
        self._synced_step, self._synced_time, self._next = step, time.monotonic(), step + steps
        return due or bool(save), signum or None

    def _is_time(self) -> bool:
        return time.monotonic() - self._saved_time >= self._seconds
