"""The paper's figures, from `paper.yaml`, which describes its format."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

CITATION = "Ray Chowdhury & Caragea, Beam Tree Recursive Cells (ICML 2023)"
OPTIONS = {"beam_size": 5}  # options that the paper varies, with their defaults
_FILE = Path(__file__).with_name("paper.yaml")


@dataclass(frozen=True)
class Figure:
    """An accuracy in per cent."""

    value: float
    std: float | None = None  # standard deviation over the runs, in per cent
    runs: int | None = None  # number of runs, if fewer than those of the row
    printed: str = ""  # the value as the paper prints it; "": with two decimals

    @classmethod
    def parse(cls, text: str) -> "Figure | None":
        """Read a figure as it is stored: '52.19_1.5' → 52.19 ± 0.15."""
        if text == "-":
            return None
        value, _, tenths = text.partition("_")
        return cls(float(value), float(tenths) / 10 if tenths else None, printed=value)


@dataclass(frozen=True)
class PaperRow:
    """A row of one of the paper's tables, with the columns of one task."""

    table: int
    statistic: str
    runs: int
    encoder: str
    options: dict[str, int]  # of the encoder
    figures: dict[str, Figure | None]  # by split

    def fits(self, encoder: str, options: dict[str, Any]) -> bool:
        """Whether a run of this encoder with these options can be compared with the row."""
        return encoder == self.encoder and self.options.items() <= {**OPTIONS, **options}.items()


def model_name(encoder: str) -> str:
    return str(_document()["models"].get(encoder, encoder))


def order(encoder: str) -> int:
    """The position of an encoder in the paper's order; encoders that are not in the paper come last."""
    names = list(_document()["models"])
    return names.index(encoder) if encoder in names else len(names)


def title(task: str) -> str:
    return str(_document()["titles"].get(task, task))


def note(task_or_encoder: str) -> str | None:
    """A note on differences between our setup and the paper's."""
    found = _document()["notes"].get(task_or_encoder)
    return None if found is None else str(found)


def statistics(task: str) -> list[str]:
    """The paper's statistics for a task: "median", "mean" or "max"; that of its main table first."""
    return list(dict.fromkeys(row.statistic for row in rows(task)))


def columns(task: str) -> list[str]:
    """The splits of a task that the paper reports."""
    return list(dict.fromkeys(split for row in rows(task) for split in row.figures))


def group(task: str, split: str) -> str:
    """The heading that a column shares with its neighbours, or ""."""
    for table in _tables(task):
        for heading, splits in table.get("groups", {}).items():
            if split in splits:
                return str(heading)
    return ""


def rows(task: str) -> list[PaperRow]:
    """The paper's rows for a task, in the order of its tables."""
    found = []
    for table in _tables(task):
        for key, text in table["rows"].items():
            encoder, *options = key.split()
            names = [column.split() for column in table["columns"]]
            figures = {
                split: Figure.parse(figure)
                for (own, split), figure in zip(names, text.split(), strict=True)
                if own == _task_in_tables(task)
            }
            given = {name: int(value) for name, _, value in (option.partition("=") for option in options)}
            runs = 1 if encoder in table.get("once", ()) else table["runs"]
            found.append(PaperRow(table["number"], table["statistic"], runs, encoder, given, figures))
    return found


def _tables(task: str) -> Iterator[dict[str, Any]]:
    for table in _document()["tables"]:
        if any(column.split()[0] == _task_in_tables(task) for column in table["columns"]):
            yield table


def _task_in_tables(task: str) -> str:
    """The task under whose name the figures of this task are stored."""
    return str(_document()["same_tables"].get(task, task))


@cache
def _document() -> dict[str, Any]:
    return dict(yaml.safe_load(_FILE.read_text(encoding="utf-8")))
