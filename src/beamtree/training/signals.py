"""Ctrl-C and SIGTERM: the first one asks a run to stop after the current step, a second one ends it at once."""

import signal
import threading
import time
from types import FrameType
from typing import Any

import torch
from lightning.fabric import Fabric

_INTERVAL = 1.0  # seconds between two agreements of several processes, about
_MAX_STEPS = 1000  # between two agreements


class StopSignals:
    """Context manager that receives the signals. `received` is the number of the first one."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number


class Schedule:
    """When to write a checkpoint between two epochs, and when to stop: all processes decide alike.

    A single process decides after every step. Several compare their signals and clocks about once a second, after a
    number of steps that the first process determines from its speed.
    """

    def __init__(self, fabric: Fabric, signals: StopSignals, minutes: float, steps: int | None) -> None:
        """steps: number of steps between two checkpoints; None: `minutes` decide."""
        self._fabric, self._signals, self._seconds, self._steps = fabric, signals, 60 * minutes, steps
        self._saved_step, self._saved_time = 0, time.monotonic()
        self._agreed_step, self._agreed_time = 0, time.monotonic()
        self._next = 0

    def start(self, step: int) -> None:
        """Begin to count, after the step with this number."""
        self.saved(step)
        self._agreed_step, self._agreed_time, self._next = step, time.monotonic(), step + 1

    def saved(self, step: int) -> None:
        """A checkpoint has been written."""
        self._saved_step, self._saved_time = step, time.monotonic()

    def decide(self, step: int, always: bool = False) -> tuple[bool, int | None]:
        """After a step: whether a checkpoint is due, and the signal to stop for.

        `always` makes several processes agree now.
        """
        due = step - self._saved_step >= self._steps if self._steps is not None else False
        stop = self._signals.received
        if self._fabric.world_size == 1:
            return due or (self._steps is None and self._is_time()), stop
        if step < self._next and not always:
            return due, None
        speed = (step - self._agreed_step) / max(time.monotonic() - self._agreed_time, 1e-3)
        steps = min(max(int(speed * _INTERVAL), 1), _MAX_STEPS) if self._fabric.is_global_zero else 0
        timed = self._fabric.is_global_zero and self._steps is None and self._is_time()
        own = torch.tensor([stop or 0, int(timed), steps], device=self._fabric.device)
        signal_number, save, steps = self._fabric.all_reduce(own, reduce_op="max").tolist()  # type: ignore[union-attr]
        self._agreed_step, self._agreed_time, self._next = step, time.monotonic(), step + steps
        return due or bool(save), signal_number or None

    def _is_time(self) -> bool:
        return time.monotonic() - self._saved_time >= self._seconds
