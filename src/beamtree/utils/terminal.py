"""Helpers of the commands: help, tables, progress bars, and readable values."""

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

INTERRUPTED = 130  # exit status of shells after Ctrl-C
FIRST_LINE, NEXT_LINE = 10, 30  # seconds before the first line of progress, and at least between two lines
_clock = time.monotonic


class Command(TyperCommand):
    """A command with plain help, see `plain_params`."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.help = unwrap(self.help)

    def get_params(self, ctx: Any) -> Any:
        return plain_params(super().get_params(ctx), ctx)


class Group(TyperGroup):
    """A group of commands, which shows its help if no command is given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])

    def get_params(self, ctx: Any) -> Any:
        return plain_params(super().get_params(ctx), ctx)


def unwrap(text: str | None) -> str | None:
    """A help text with one line per paragraph, which wraps at any width."""
    return text and "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def plain_params(params: list[Any], ctx: Any) -> list[Any]:
    """The parameters of a command, with plain types in their help.

    The help shows no types for flags and arguments, and those of single values for repeatable options: typer writes
    <bool> and <list[str]>.
    """
    for param in params:
        show = getattr(param, "display_type_rich", None)  # older versions of typer show no such types
        if show is None:
            continue
        if param.param_type_name == "argument" or getattr(param, "is_flag", False):
            param.display_type_rich = lambda ctx: None
        elif found := re.fullmatch(r"<list\[(\w+)\]>", show(ctx) or ""):
            param.metavar = f"<{found[1].lower()}>"
    return params


def counts_line(task: Task) -> str:
    """A line such as 'near-iid: 1,200 of 10,000'."""
    total = "" if task.total is None else f" of {task.total:,.0f}"
    return f"{task.description}: {task.completed:,.0f}{total}"


class ProgressBar(Progress):
    """Progress bars on a terminal. Without a terminal, long work occasionally prints a line to stderr.

    `line` formats such a line; with None, none are printed.
    """

    def __init__(self, *columns: ProgressColumn, line: Callable[[Task], str] | None, **settings: Any) -> None:
        super().__init__(*columns, **settings)
        self.line, self._due = line, _clock() + FIRST_LINE

    def update(self, task_id: Any, **changes: Any) -> None:
        super().update(task_id, **changes)
        if self.disable and self.line is not None and (now := _clock()) >= self._due:
            self._due = now + NEXT_LINE
            print(self.line(next(task for task in self.tasks if task.id == task_id)), file=sys.stderr, flush=True)


def progress_bar(
    *columns: ProgressColumn, line: Callable[[Task], str] = counts_line, hidden: bool = False
) -> ProgressBar:
    """Create a progress bar that disappears from the terminal at the end; without a terminal, it prints lines.

    Args:
        *columns: columns after the bar; by default the completed and total counts.
        line: formats a line.
        hidden: whether to show neither the bar nor lines.

    Returns:
        The progress bar.
    """
    console = Console(stderr=True)
    shown = columns or (MofNCompleteColumn(),)
    return ProgressBar(
        *(TextColumn("{task.description}"), BarColumn(), *shown, TimeElapsedColumn()),
        line=None if hidden else line,
        console=console,
        transient=True,
        disable=hidden or not console.is_terminal,
    )


@contextmanager
def named_bars() -> Iterator[Any]:
    """Yield a function `show(name, done, total)` that updates the bar of this name, and adds it on the first call."""
    with progress_bar() as bar:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield show


def make_table(*names: str, left: tuple[str, ...] = ()) -> Table:
    """Create a table with these columns, right-aligned except those in `left`."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for name in names:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    return table


def print_table(table: Table) -> None:
    """Print a table at its full width, even to a file or a narrow terminal. Cells are plain text: [ ] is not markup."""
    width = Console(width=1000, markup=False, emoji=False).measure(table).maximum
    console = Console(markup=False, emoji=False)
    console.width = max(console.width, width)
    console.print(table)


def digits(value: float | None, unit: str = "") -> str:
    """Format with three digits, without an exponent."""
    if value is None:
        return "–"
    places = max(0, 3 - len(str(int(value))))
    return f"{value:.{places}f}{unit}"


def duration(seconds: float | None) -> str:
    if seconds is None or seconds >= 1:
        return digits(seconds, " s")
    return digits(seconds * 1e3, " ms")


def memory(size: int | None) -> str:
    if size is None:
        return digits(None)
    for power, unit in ((30, " GiB"), (20, " MiB")):
        if size >= 2**power:
            return digits(size / 2**power, unit)
    return digits(size / 2**10, " KiB")
