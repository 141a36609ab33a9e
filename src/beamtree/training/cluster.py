"""Sweeps on a Slurm cluster with submitit: one Slurm job per run.

    options = parse_parameters(["timeout_min=240", "slurm_partition=gpu", "gpus_per_node=1"])
    for submission in submit(jobs, "runs/listops/slurm", **options):
        print(submission.job.name, submission.id, submission.log)

When a job reaches its time limit or is preempted, its run writes a checkpoint and stops. The job is requeued, and the
run resumes.
"""

import os
import re
import signal
import subprocess
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from beamtree.training.folder import Status, status
from beamtree.training.sweep import Job
from beamtree.utils import files
from beamtree.utils.checks import check_choice
from beamtree.utils.extras import require

EXECUTORS = ("slurm", "local")

_DEFAULTS = {"timeout_min": 720, "stderr_to_stdout": True}  # submitit's default time limit is 5 minutes
_MAX_TIMEOUTS = 100  # times that a job is requeued after its time limit; a run makes progress each time
_CHECKPOINT_SECONDS = 60.0  # time to write the last checkpoint; Slurm kills a job 90 seconds after submitit's signal
_SIGNAL_SECONDS = 120.0  # between the SIGTERM of a preemption and submitit's signal
_INTERVAL = 0.2  # seconds between two checks of the process

_INTEGER = re.compile(r"-?(0|[1-9]\d*)")  # not 007, which may be the name of an account
_FLOAT = re.compile(r"-?\d+\.\d*")


@dataclass(frozen=True, eq=False)
class Submission:
    """A submitted job. `handle` is the job object of submitit, with methods such as `wait` and `cancel`."""

    job: Job
    id: str
    log: Path
    handle: Any

    def __str__(self) -> str:
        return self.id


def submit(
    jobs: Sequence[Job], folder: str | os.PathLike[str], executor: str = "slurm", **options: Any
) -> list[Submission]:
    """Submit all jobs whose runs are not finished.

    Args:
        jobs: the runs and their commands.
        folder: folder for the scripts and logs of submitit, on a file system that all nodes share.
        executor: "slurm", or "local", which starts all jobs on this machine at once.
        **options: parameters of submitit, such as timeout_min=240, gpus_per_node=1 and slurm_partition="gpu". The time
            limit is 12 hours by default. `max_num_timeout` limits how often a job is requeued after its time limit.
    """
    check_choice("executor", executor, EXECUTORS)
    require("slurm", f"the executor {executor}")
    unfinished = [job for job in jobs if status(job.folder, job.settings) is not Status.FINISHED]
    submitter = _make_executor(Path(folder), executor, {**_DEFAULTS, **options})
    return [_submit(submitter, job) for job in unfinished]


def parse_parameters(texts: Iterable[str]) -> dict[str, Any]:
    """Parse parameters: ['timeout_min=60', 'slurm_partition=gpu'] → {'timeout_min': 60, 'slurm_partition': 'gpu'}."""
    parameters: dict[str, Any] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key.isidentifier():
            raise ValueError(f"{text!r} is not a parameter of submitit: write key=value, as in timeout_min=60")
        if key in parameters:
            raise ValueError(f"{text!r}: {key} is given twice")
        parameters[key] = _parse_value(value, text)
    return parameters


class RunCommand:
    """Callable that submitit pickles and calls in the job. It runs a command as a child process."""

    def __init__(self, command: Sequence[str], cwd: str) -> None:
        self.command, self.cwd = list(command), cwd
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> None:
        # Depending on its configuration, Slurm sends signals to all processes of a job. The signal that is meant for
        # submitit must not kill the child: the shell ignores it, and `exec` keeps ignored signals ignored.
        ignore = f'trap "" {os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2")}; exec "$@"'
        self._process = subprocess.Popen(
            ["sh", "-c", ignore, "sh", *self.command], cwd=self.cwd, stdin=subprocess.DEVNULL
        )
        try:
            # Not wait(): a signal handler could call `checkpoint` while wait() holds the lock of the process.
            while self._process.poll() is None:
                time.sleep(_INTERVAL)
            if self._process.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM):
                time.sleep(_SIGNAL_SECONDS)  # preempted: wait for submitit's signal, which requeues the job
        finally:
            self._stop()
        if self._process.returncode:
            raise RuntimeError(f"the command ended with status {self._process.returncode}")

    def checkpoint(self) -> Any:
        """Called by submitit before the job ends. Stops the run and returns the callable for the requeued job."""
        from submitit.helpers import DelayedSubmission

        self._stop()
        return DelayedSubmission(RunCommand(self.command, self.cwd))

    def _stop(self) -> None:
        """Stop the run with SIGTERM, after which it writes a checkpoint. Kill it if that takes too long."""
        if self._process is None or not _is_running(self._process):
            return
        os.kill(self._process.pid, signal.SIGTERM)
        deadline = time.monotonic() + _CHECKPOINT_SECONDS
        while _is_running(self._process):
            if time.monotonic() > deadline:
                os.kill(self._process.pid, signal.SIGKILL)
            time.sleep(_INTERVAL)


def _is_running(process: "subprocess.Popen[bytes]") -> bool:
    """Same as `process.poll() is None`, but without its lock, which an interrupted `poll` may still hold."""
    if process.returncode is not None:
        return False
    try:
        pid, status_code = os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:  # `poll` has already reaped it
        return False
    if pid:
        process.returncode = os.waitstatus_to_exitcode(status_code)
    return not pid


def _make_executor(folder: Path, executor: str, options: dict[str, Any]) -> Any:
    from submitit import AutoExecutor

    max_timeouts = options.pop("max_num_timeout", _MAX_TIMEOUTS)
    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about Slurm's own names, such as partition, which work
            submitter = AutoExecutor(folder, cluster=executor, **{f"{executor}_max_num_timeout": max_timeouts})
            submitter.update_parameters(**options)
    except RuntimeError:
        raise ValueError("Slurm is not available on this machine: the command srun was not found") from None
    except (AssertionError, NameError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]  # followed by a list of all known parameters
        raise ValueError(f"submitit rejects the parameters: {reason}") from None
    return submitter


def _submit(executor: Any, job: Job) -> Submission:
    executor.update_parameters(name=job.name)
    try:
        handle = executor.submit(RunCommand(job.command, os.getcwd()))
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        raise ValueError(f"{job.name} cannot be submitted: {files.one_line(error)}") from None
    return Submission(job, str(handle.job_id), Path(handle.paths.stdout), handle)


def _parse_value(value: str, text: str) -> Any:
    if _INTEGER.fullmatch(value):
        return int(value)
    if _FLOAT.fullmatch(value):
        return float(value)
    if value in ("true", "false"):
        return value == "true"
    if value.startswith(("[", "{")):
        try:
            return yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"{text!r}: the value is not valid YAML ({files.one_line(error)})") from None
    return value
