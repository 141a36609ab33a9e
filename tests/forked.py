"""Programs in processes forked from one that has already imported beamtree: the imports of `beamtree train` take four
seconds. In everything else these are processes of their own."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["beamtree.cli.train", "beamtree.training.loop"])


def beamtree() -> None:
    from beamtree.cli import main

    main()


class Command:
    """A running program, by default `beamtree ARGUMENTS`, as the leader of a session of its own."""

    def __init__(
        self,
        arguments: list[str],
        folder: Path,
        environment: dict[str, str],
        output: Path,
        program: Callable[[], None] = beamtree,
    ) -> None:
        """output: prefix of the files for stdout and stderr. program: a function of a module."""
        self._files = [output.with_suffix(suffix) for suffix in (".out", ".err")]
        for file in self._files:
            file.touch()
        self._process = _CONTEXT.Process(target=_run, args=(program, arguments, folder, environment, self._files))
        self._process.start()
        self.kill = self._process.kill

    def ended(self, seconds: float = 90) -> tuple[int, str, str]:
        """Wait for its end. Returns its exit status and what it has printed."""
        self._process.join(seconds)
        if self._process.exitcode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            raise TimeoutError(f"{self._files[1].read_text()}\nit takes longer than {seconds} seconds")
        output, errors = (file.read_text() for file in self._files)
        return self._process.exitcode, output, errors


def _run(
    program: Callable[[], None], arguments: list[str], folder: Path, environment: dict[str, str], files: list[Path]
) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for descriptor, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY), descriptor)
    sys.argv = ["beamtree", *arguments]
    program()
