"""What the commands have in common: tables, bars, and numbers as people read them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from typer.core import TyperGroup

INTERRUPTED = 130  # what shells give a program that Ctrl-C has ended


class Group(TyperGroup):
    """Commands under one name, which alone shows the help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])


def progress_bar(*columns: ProgressColumn) -> Progress:
    """A bar on the terminal that vanishes when it is done; nothing where there is no terminal."""
    console = Console(stderr=True)
    shown = columns or (MofNCompleteColumn(),)
    return Progress(
        *(TextColumn("{task.description}"), BarColumn(), *shown, TimeElapsedColumn()),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def named_bars() -> Iterator[Any]:
    """A function that is told what is being made, how far it is, and of how much."""
    with progress_bar() as bar:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield show


def make_table(*names: str, left: tuple[str, ...] = ()) -> Table:
    """A table with these columns, numbers on the right."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for name in names:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    return table


def print_table(table: Table) -> None:
    """At its full width, in a file or a narrow window too: nothing is cut."""
    width = Console(width=1000).measure(table).maximum
    console = Console()
    console.width = max(console.width, width)
    console.print(table)


def digits(value: float | None, unit: str = "") -> str:
    """Three digits, never as a power of ten."""
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
