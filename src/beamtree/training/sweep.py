r"""Sweeps: several runs, each in its own process on its own GPU.

    jobs = [Job(settings, folder, command), ...]
    failed = run_all(jobs, at_once=1, console=TrainingConsole())      # one run at a time on each GPU
    print(*command_lines(jobs), sep="\n")                   # for your own scheduler

Finished runs are skipped and stopped ones are resumed, so a sweep that was interrupted can be started again. A run that
fails does not stop the others.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from beamtree.models import storage
from beamtree.runs.folder import METRICS
from beamtree.runs.settings import Settings
from beamtree.training.console import TrainingConsole
from beamtree.training.folder import Status, status
from beamtree.utils import files
from beamtree.utils.checks import check_integer

GPUS = "CUDA_VISIBLE_DEVICES"

_CPU = "cpu"  # used in place of the id of a GPU
_INTERVAL = 0.5  # seconds between two checks of the running processes


@dataclass(frozen=True, eq=False)
class Job:
    """A run of a sweep, and the command that trains it.

    Attributes:
        settings: the settings of the run.
        folder: the folder of the run.
        command: the command that trains the run.
        device: as for `train`.
        devices: number of GPUs, or of processes on the CPU, that the command uses.
    """

    settings: Settings
    folder: Path
    command: Sequence[str]
    device: str = "auto"
    devices: int = 1

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def log(self) -> Path:
        """File for the output of the command, next to the folder of the run, which must be empty at the start."""
        return self.folder.with_name(f"{self.folder.name}.log")


def run_all(jobs: Sequence[Job], at_once: int, console: TrainingConsole) -> list[Job]:
    """Run all jobs that are not finished, and return those that failed.

    Ctrl-C and SIGTERM are passed on to the runs, which write a checkpoint and stop; a second signal kills them.

    Args:
        jobs: the runs and their commands.
        at_once: number of runs at a time on each visible GPU, or in total on a CPU.
        console: shows the progress.
    """
    check_integer("at_once", at_once, at_least=1)
    waiting = _unfinished(jobs, console)
    devices = _Devices(visible_gpus(), at_once)
    for job in waiting:
        devices.check(job)
    failed: list[Job] = []
    running: dict[Job, subprocess.Popen[bytes]] = {}
    used: dict[Job, list[str]] = {}
    with console.open(), _stop_on_error(running):
        while waiting or running:
            while waiting and (acquired := devices.acquire(waiting[0])):
                job = waiting.pop(0)
                used[job] = acquired
                with _deferred_signals():  # otherwise a process that was just started might not be stopped
                    running[job] = _start(job, _environment(acquired, at_once))
                where = "" if _CPU in acquired else f" on GPU {', '.join(acquired)}"
                console.print(f"{job.name}: started{where}")
            time.sleep(_INTERVAL)
            for job, process in list(running.items()):
                metrics = _last_metrics(job.folder)
                console.show(job.name, metrics.get("epoch", 0), job.settings.training.max_epochs, _note(metrics))
                if process.poll() is None:
                    continue
                del running[job]
                devices.release(used.pop(job))
                if process.returncode or not storage.is_finished(job.folder):
                    failed.append(job)
                    console.print(f"{job.name}: failed")
                else:
                    console.print(f"{job.name}: finished after {metrics.get('epoch', 0)} epochs")
    return failed


def command_lines(jobs: Sequence[Job]) -> list[str]:
    """The command of each job as a line for a POSIX shell. The lines can be run in any folder and in any order."""
    return [_command_line(job) for job in jobs]


def visible_gpus() -> list[str]:
    """The GPUs that this process can use, as ids or UUIDs for CUDA_VISIBLE_DEVICES."""
    count = torch.cuda.device_count()
    if (named := os.environ.get(GPUS)) is not None:
        return [name.strip() for name in named.split(",")][:count]  # CUDA ignores all ids after an invalid one
    return [str(index) for index in range(count)]


class _Devices:
    """The GPUs and the CPU, and how many more runs each of them can take."""

    def __init__(self, gpus: Sequence[str], at_once: int) -> None:
        self._gpus = list(gpus)
        self._free = dict.fromkeys((*gpus, _CPU), at_once)

    def check(self, job: Job) -> None:
        """Raise a `ValueError` if the job needs more GPUs than are visible."""
        if self._needs_gpu(job) and job.devices > len(self._gpus):
            raise ValueError(
                f"{job.name}: devices is {job.devices}, but only {len(self._gpus)} GPUs are visible: use fewer"
            )

    def acquire(self, job: Job) -> list[str]:
        """Acquire the least loaded devices for a job; return an empty list if not enough are free."""
        if not self._needs_gpu(job):
            chosen = [_CPU] if self._free[_CPU] else []
        else:
            by_load = sorted(self._gpus, key=lambda gpu: -self._free[gpu])
            chosen = by_load[: job.devices]
            if not all(self._free[gpu] for gpu in chosen):
                return []
        for device in chosen:
            self._free[device] -= 1
        return chosen

    def release(self, devices: Sequence[str]) -> None:
        for device in devices:
            self._free[device] += 1

    def _needs_gpu(self, job: Job) -> bool:
        return bool(self._gpus) and job.device != "cpu"


def _unfinished(jobs: Sequence[Job], console: TrainingConsole) -> list[Job]:
    """The jobs that are not finished. Raises a `ValueError` if a folder holds something other than the job's run."""
    unfinished = []
    for job in jobs:
        if status(job.folder, job.settings) is Status.FINISHED:
            console.print(f"{job.name}: already finished")
        else:
            unfinished.append(job)
    return unfinished


def _environment(devices: Sequence[str], at_once: int) -> dict[str, str]:
    """The environment variables of a run: its GPUs, or its number of threads.

    If several runs share the CPU, each uses one thread, unless the user has set OMP_NUM_THREADS.
    """
    if _CPU not in devices:
        return {**os.environ, GPUS: ",".join(devices)}
    return {**({"OMP_NUM_THREADS": "1"} if at_once > 1 else {}), **os.environ}


def _start(job: Job, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    with files.writing(job.log):
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with open(job.log, "ab") as log:
            # A new session, so that Ctrl-C is not sent twice: by the terminal and by this process.
            return subprocess.Popen(
                job.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )


@contextlib.contextmanager
def _stop_on_error(running: "dict[Job, subprocess.Popen[bytes]]") -> Iterator[None]:
    """If the block raises, send SIGINT to all running processes and wait; kill them if waiting is interrupted."""
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


def _signals_as_interrupt() -> contextlib.AbstractContextManager[None]:
    """Raise `KeyboardInterrupt` for SIGTERM and SIGHUP as well."""
    return _handled(("SIGTERM", "SIGHUP"), signal.default_int_handler)


@contextlib.contextmanager
def _deferred_signals() -> Iterator[None]:
    """Defer the `KeyboardInterrupt` of a signal to the end of the block."""
    received: list[int] = []
    with _handled(("SIGINT", "SIGTERM", "SIGHUP"), lambda signum, frame: received.append(signum)):
        yield
    if received:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _handled(names: Sequence[str], handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Install a handler for signals during the block. No effect outside the main thread, where Python allows none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signums = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {signum: signal.signal(signum, handler) for signum in signums}
    try:
        yield
    finally:
        for signum, previous in before.items():
            signal.signal(signum, previous)


def _last_metrics(folder: Path) -> dict[str, Any]:
    """The metrics of the last epoch; empty before the end of the first epoch."""
    try:
        lines = files.read_json_lines(folder / METRICS)
    except (OSError, ValueError):
        return {}
    return dict(lines[-1]) if lines else {}


def _note(metrics: dict[str, Any]) -> str:
    if not metrics:
        return "starting"
    return (
        f"dev loss {metrics['dev_loss']:.4f}  accuracy {metrics['dev_accuracy']:.2%}  "
        f"{metrics['samples_per_second']:,.0f} samples/s"
    )


def _command_line(job: Job) -> str:
    folder = job.folder.absolute()
    absolute = {str(job.folder): str(folder), f"--out={job.folder}": f"--out={folder}"}
    command = [absolute.get(argument, argument) for argument in job.command]
    line = shlex.join(command)
    # A relative path of a recipe or of data must not become absolute: it is a setting of the run.
    paths = [job.settings.data.task, *(argument.rpartition("=")[2] for argument in command)]
    if any(path and not os.path.isabs(path) and os.path.exists(path) for path in paths):
        line = f"cd {shlex.quote(os.getcwd())} && {line}"
    return line
