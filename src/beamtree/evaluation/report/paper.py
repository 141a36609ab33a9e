"""The paper's figures, from `paper.yaml`, where it is said how they are written."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

CITATION = "Ray Chowdhury & Caragea, Beam Tree Recursive Cells (ICML 2023)"
OPTIONS = {"beam_size": 5}  # that the paper varies, with what they are where nothing is said
_FILE = Path(__file__).with_name("paper.yaml")


@dataclass(frozen=True)
class Figure:
    """An accuracy in per cent."""

    value: float
    std: float | None = None  # of several runs, in per cent too
    runs: int | None = None  # of which it is, where these are not all runs of its row
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
    """A model in one of the paper's tables; of its columns those of one task."""

    table: int
    statistic: str
    runs: int
    encoder: str
    options: dict[str, int]  # that it was run with
    figures: dict[str, Figure | None]  # by split

    def fits(self, encoder: str, options: dict[str, Any]) -> bool:
        """Whether a run of this encoder with these options can be compared with it."""
        return encoder == self.encoder and self.options.items() <= {**OPTIONS, **options}.items()


def model_name(encoder: str) -> str:
    return str(_document()["models"].get(encoder, encoder))


def order(encoder: str) -> int:
    """Its place among the models; those that the paper does not have come last."""
    names = list(_document()["models"])
    return names.index(encoder) if encoder in names else len(names)


def title(task: str) -> str:
    return str(_document()["titles"].get(task, task))


def note(task_or_encoder: str) -> str | None:
    """What must be known to compare ours with the paper's."""
    found = _document()["notes"].get(task_or_encoder)
    return None if found is None else str(found)


def statistics(task: str) -> list[str]:
    """How the paper sums up its runs of a task: "median", "mean" or "max"; the one of its main table first."""
    return list(dict.fromkeys(row.statistic for row in rows(task)))


def columns(task: str) -> list[str]:
    """The splits of a task that the paper reports."""
    return list(dict.fromkeys(split for row in rows(task) for split in row.figures))


def group(task: str, split: str) -> str:
    """The heading that a column has in common with its neighbours, or ""."""
    for table in _tables(task):
        for heading, splits in table.get("groups", {}).items():
            if split in splits:
                return str(heading)
    return ""


def rows(task: str) -> list[PaperRow]:
    """All of a task, in the order of the tables."""
    found = []
    for table in _tables(task):
        for key, text in table["rows"].items():
            encoder, *options = key.split()
            names = [column.split() for column in table["columns"]]
            figures = {
                split: Figure.parse(figure)
                for (own, split), figure in zip(names, text.split(), strict=True)
                if own == _same(task)
            }
            given = {name: int(value) for name, _, value in (option.partition("=") for option in options)}
            runs = 1 if encoder in table.get("once", ()) else table["runs"]
            found.append(PaperRow(table["number"], table["statistic"], runs, encoder, given, figures))
    return found


def _tables(task: str) -> Iterator[dict[str, Any]]:
    for table in _document()["tables"]:
        if any(column.split()[0] == _same(task) for column in table["columns"]):
            yield table


def _same(task: str) -> str:
    """The task under whose name its figures stand."""
    return str(_document()["same_tables"].get(task, task))


@cache
def _document() -> dict[str, Any]:
    return dict(yaml.safe_load(_FILE.read_text(encoding="utf-8")))
