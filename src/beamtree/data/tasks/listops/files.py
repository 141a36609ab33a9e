"""ListOps files in their original layouts, plain or compressed with xz; every label is checked by evaluation.

The original: `label<TAB>( ( ( [MAX 2 ) 9 ) ] )`, no header. Long Range Arena: `( ( ( [MAX 2 ) 9 ) ] )<TAB>label` under
the header `Source<TAB>Target`. The parentheses are those of the gold tree and carry no information: "( " and " )" are
deleted, and the rest is split at spaces.
"""

import lzma
import os
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

from beamtree.data.samples import at
from beamtree.data.tasks.listops.expressions import evaluate, to_brackets
from beamtree.data.tasks.listops.splits import Example
from beamtree.utils.files import open_atomically

FileFormat = Literal["original", "lra"]

_LRA_HEADER = "Source\tTarget"
_COLUMNS = {"original": "label<TAB>expression", "lra": "expression<TAB>label"}


def read(path: str | os.PathLike[str]) -> list[Example]:
    """Read all examples of a file, whose layout is detected by its first line."""
    return list(parse(_lines(Path(path)), path))


def parse(lines: Iterable[str], where: object) -> Iterator[Example]:
    """Parse the examples in the lines of a file."""
    layout: FileFormat = "original"
    empty = True
    for number, line in enumerate(lines, start=1):
        if number == 1 and line.rstrip() == _LRA_HEADER:
            layout = "lra"
            continue
        with at(where, number):
            example = _parse(line, layout)
        yield example
        empty = False
    if empty:
        with at(where, 1):
            raise ValueError(f"the file has no examples: each line should be {_COLUMNS[layout]}")


def write(path: str | os.PathLike[str], examples: Iterable[Example], layout: FileFormat = "original") -> None:
    """Write a file for `read`, atomically."""
    path = Path(path)
    with open_atomically(path) as raw, lzma.open(raw, "wb") if path.suffix == ".xz" else nullcontext(raw) as file:
        if layout == "lra":
            file.write(f"{_LRA_HEADER}\n".encode())
        for tokens, label in examples:
            columns = (str(label), to_brackets(tokens))
            file.write(("\t".join(columns if layout == "original" else columns[::-1]) + "\n").encode())


def _lines(path: Path) -> Iterator[str]:
    try:
        with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else open(path, encoding="utf-8") as file:
            for line in file:
                yield line.rstrip("\r\n")
    except (lzma.LZMAError, EOFError) as error:
        raise ValueError(f"{path}: the file is damaged or not an xz file ({error}): download it again") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: the file is not UTF-8 text ({error.reason} at byte {error.start})") from None


def _parse(line: str, layout: FileFormat) -> Example:
    columns = line.split("\t")
    if len(columns) != 2:
        raise ValueError(f"2 columns expected, {_COLUMNS[layout]}, found {len(columns)}")
    label, text = columns if layout == "original" else columns[::-1]
    opening, closing = text.count("( "), text.count(" )")
    if opening != closing:
        raise ValueError(f"unbalanced brackets: there are {opening} '(' and {closing} ')'")
    tokens = tuple(text.replace("( ", "").replace(" )", "").split(" "))
    value = evaluate(tokens)
    if label != str(value):
        raise ValueError(f"the label is {label!r}, but the expression evaluates to {value}")
    return Example(tokens, value)
