"""Sweeps: several runs, each a process of its own, some of them side by side.

A run that is finished is not begun again, so a sweep that was stopped goes on where it was. One that fails does not
stop the others.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from beamtree import runs
from beamtree.recipes.settings import Settings
from beamtree.training.folder import is_finished
from beamtree.training.screen import Screen

_PAUSE = 0.5  # seconds between two looks at the runs


@dataclass(frozen=True, eq=False)
class Job:
    """A run of a sweep: where it is, and the command that does it."""

    settings: Settings
    folder: Path
    command: Sequence[str]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def log(self) -> Path:
        """What the command says; beside the folder, which is the run's alone."""
        return self.folder.with_name(f"{self.folder.name}.log")


def run_all(jobs: Sequence[Job], at_once: int, screen: Screen) -> list[Job]:
    """Run what is not finished, so many `at_once`; those that failed.

    Ctrl-C is passed on to the runs, which stop with a checkpoint; a second one ends them at once.
    """
    waiting = [job for job in jobs if not is_finished(job.folder, job.settings)]
    for job in jobs:
        if job not in waiting:
            screen.tell(f"{job.name}: finished before")
    failed: list[Job] = []
    running: dict[Job, subprocess.Popen[bytes]] = {}
    environment = _environment(at_once)
    with screen.open(), _ended(running):
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running[job] = _start(job, environment)
                screen.tell(f"{job.name}: begun")
            time.sleep(_PAUSE)
            for job, process in list(running.items()):
                line = _last_line(job.folder)
                screen.show(job.name, line.get("epoch", 0), job.settings.training.max_epochs, _note(line))
                if process.poll() is None:
                    continue
                del running[job]
                if process.returncode or not runs.is_finished(job.folder):
                    failed.append(job)
                    screen.tell(f"{job.name}: failed")
                else:
                    screen.tell(f"{job.name}: finished after {line.get('epoch', 0)} epochs")
    return failed


def _environment(at_once: int) -> dict[str, str]:
    """On a CPU each of several runs has one thread, unless told otherwise: more would be in each other's way."""
    own = {} if at_once == 1 or torch.cuda.is_available() else {"OMP_NUM_THREADS": "1"}
    return {**own, **os.environ}


def _start(job: Job, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    with runs.writing(job.log):
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with open(job.log, "ab") as log:
            # In a session of its own: Ctrl-C comes to it from here, once, and not from the terminal too.
            return subprocess.Popen(
                job.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )


@contextlib.contextmanager
def _ended(running: "dict[Job, subprocess.Popen[bytes]]") -> Iterator[None]:
    """Whatever ends it, no run is left behind."""
    with _signals_as_interrupt():
        try:
            yield
        except BaseException:
            try:
                for process in running.values():
                    process.send_signal(signal.SIGINT)
                for process in running.values():
                    process.wait()
            finally:
                for process in running.values():
                    process.kill()
            raise


@contextlib.contextmanager
def _signals_as_interrupt() -> Iterator[None]:
    """Within it SIGTERM, and the end of the terminal, are as Ctrl-C is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _last_line(folder: Path) -> dict[str, Any]:
    """Of the metrics, where there are some."""
    try:
        lines = runs.read_json_lines(folder / runs.METRICS)
    except (OSError, ValueError):
        return {}
    return dict(lines[-1]) if lines else {}


def _note(line: dict[str, Any]) -> str:
    if not line:
        return "starting"
    return (
        f"dev loss {line['dev_loss']:.4f}  accuracy {line['dev_accuracy']:.2%}  "
        f"{line['samples_per_second']:,.0f} samples/s"
    )
