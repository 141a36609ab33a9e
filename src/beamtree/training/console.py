"""Terminal output of a run: progress bars, a line after each epoch, and warnings."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import MofNCompleteColumn, Progress, TaskID, TextColumn

from beamtree.utils.terminal import progress_bar

_PAUSE = 0.5  # seconds between two updates of the bar, each of which syncs with the device


class TrainingConsole:
    """Prints lines and progress bars to standard error. Bars are shown only if it is a terminal.

    Attributes:
        quiet: print warnings only.
        mute: print nothing; used in all processes but the first.
    """

    def __init__(self, quiet: bool = False, mute: bool = False) -> None:
        self.quiet, self.mute = quiet or mute, mute
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._updated = 0.0

    @property
    def has_bar(self) -> bool:
        return self._bar is not None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Show progress bars during the block."""
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

    def print(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        if not self.mute:
            print(f"warning: {text}", file=sys.stderr, flush=True)

    def is_due(self) -> bool:
        """Whether a bar is shown and should be updated."""
        return self.has_bar and time.monotonic() - self._updated >= _PAUSE

    def show(self, what: str, done: int, total: int | None, note: str = "") -> None:
        """Show or update the progress bar with the description `what`."""
        if self._bar is None:
            return
        self._updated = time.monotonic()
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(what, total=total, note=note)
        self._bar.update(self._tasks[what], completed=done, total=total, note=note)

    def clear(self) -> None:
        """Remove all bars."""
        for task in self._tasks.values():
            if self._bar is not None:
                self._bar.remove_task(task)
        self._tasks = {}
