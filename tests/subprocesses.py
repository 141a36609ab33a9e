"""Other Python processes for tests of files and locks, and a substitute for a system without locks.

The processes import this module too, so it needs neither torch nor pytest.
"""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock

_TESTS = Path(__file__).parent

# Runs before the code of a process: `folder` is its argument, and `say` prints a line that `until` waits for.
PREFACE = f"""
import os, sys, time
sys.path[:0] = [{str(_TESTS.parent / "src")!r}, {str(_TESTS)!r}]
from subprocesses import without_locks
folder = sys.argv[1]
def say(text):
    print(text, flush=True)
"""


class NoLocks:
    """Replaces `filelock.FileLock` as on a system without locks."""

    def __init__(self, path: Path, **options: object) -> None:
        pass

    def acquire(self, timeout: float) -> None:
        raise NotImplementedError


def without_locks() -> None:
    """Simulate a system without locks for the rest of this process. In a test, use `monkeypatch` instead."""
    filelock.FileLock = NoLocks


@contextlib.contextmanager
def starting(folder: Path, preface: str = "") -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """A function that starts a process with the given code. All processes are killed when the block ends."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PREFACE + preface + code, str(folder)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    try:
        yield run
    finally:
        for process in started:
            process.kill()
            process.communicate()


def until(process: subprocess.Popen[str], said: str) -> None:
    """Wait until the process prints this line."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line == said, line or process.communicate()[1]
