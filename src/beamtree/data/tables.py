"""A user's own data as a task: TSV, CSV or JSONL with a text and a label, or two texts and a label.

A header names the columns, in any order and case. The text is `text`, `sentence`, `sentence1`, `premise` or `source`;
the second text of a pair is `text2`, `sentence2`, `second` or `hypothesis`; the label is `label`, `gold_label`,
`target` or `sentiment`; other columns are ignored. A first line is a header if it names a text and a label. Without one
the columns are text, label or text, text, label, in this order; where they look different, the reader asks for a header
instead of guessing. In JSONL the same names are those of the fields.

- CSV has commas and double quotes, within which commas and line breaks are text and quotes are doubled.
- TSV has one row a line, cut at every tab. A cell in double quotes whose inner quotes are doubled is taken out of them;
  any other quote is text.
- JSONL has one object a line. A label may be a number, true or false: it becomes its text.

Blank lines are skipped. A label is any text that is not empty, without the spaces around it.
"""

import csv
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Literal, NamedTuple, get_args

from beamtree.data import fields
from beamtree.data.samples import Sample, at
from beamtree.utils.checks import check_choice

Kind = Literal["tsv", "csv", "jsonl"]
KINDS: tuple[Kind, ...] = get_args(Kind)

TEXT_NAMES = ("text", "sentence", "sentence1", "premise", "source")
SECOND_NAMES = ("text2", "sentence2", "second", "hypothesis")
LABEL_NAMES = ("label", "gold_label", "target", "sentiment")

_PACKED = (".gz", ".xz")
_LOOK_AHEAD = 1_000  # rows of a file without header in which the columns are looked at

# A row as it is found: its line, its label, its one or two texts. What the last two should be is checked later.
_Row = tuple[int, object, list[object]]


class _Layout(NamedTuple):
    """Where a row has what."""

    label: int
    texts: tuple[int, ...]


def kind_of(path: str | os.PathLike[str]) -> Kind:
    """The kind of a file by the end of its name, also before .gz or .xz."""
    name = PurePath(path).name
    plain = PurePath(name.lower())
    suffix = (plain.with_suffix("") if plain.suffix in _PACKED else plain).suffix
    for kind in KINDS:
        if suffix == f".{kind}":
            return kind
    raise ValueError(
        f"{name!r} is no table by its name: it must end in .tsv, .csv or .jsonl, or one of them and .gz or .xz"
    )


def read(
    lines: Iterable[str], where: object, kind: Kind, tokenize: Callable[[str], Sequence[str]] = str.split
) -> Iterator[Sample]:
    """The samples of a table; texts are cut into tokens by `tokenize`, by default at whitespace."""
    check_choice("kind", kind, KINDS)
    lines = _without_mark(lines)
    rows = _objects(lines, where) if kind == "jsonl" else _table(lines, where, kind)
    number = 0
    for number, label, texts in rows:
        with at(where, number):
            tokens = [fields.cut("the text", text, tokenize) for text in texts]
            sample = Sample(tokens[0], _label(label), tokens[1] if len(tokens) == 2 else None)
        yield sample
    if not number:
        with at(where, 1):
            raise ValueError("the file holds no samples: each line should have text and label, or text, text and label")


def _without_mark(lines: Iterable[str]) -> Iterator[str]:
    """The lines without the byte order mark that some programs put at a file's start."""
    for number, line in enumerate(lines):
        yield line if number else line.removeprefix("\ufeff")


def _table(lines: Iterator[str], where: object, kind: Kind) -> Iterator[_Row]:
    rows = _cells(lines, where, kind)
    rows = ((number, cells) for number, cells in rows if len(cells) > 1 or "".join(cells).strip())
    head = list(itertools.islice(rows, _LOOK_AHEAD))
    if not head:
        return
    start, names = head[0]
    with at(where, start):
        layout = _named(names)
        if layout is None:
            layout = _unnamed(names, [cells for _, cells in head if len(cells) == len(names)], kind)
        else:
            del head[0]
    for number, cells in itertools.chain(head, rows):
        with at(where, number):
            if len(cells) != len(names):
                raise ValueError(f"{_columns(len(names))} expected, as in line {start}, found {len(cells)}")
        yield number, cells[layout.label], [cells[place] for place in layout.texts]


def _cells(lines: Iterator[str], where: object, kind: Kind) -> Iterator[tuple[int, list[str]]]:
    """Each row with the number of its first line."""
    if kind == "tsv":
        for number, line in enumerate(lines, start=1):
            yield number, [_unquoted(cell) for cell in line.split("\t")]
        return
    # Strict: else a quote that is never closed would swallow the rest of the file. The line ends are put back, as
    # those within quotes are text.
    reader = csv.reader((f"{line}\n" for line in lines), strict=True)
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            with at(where, number):
                raise ValueError(
                    f"broken CSV ({error}): quotes around a cell are closed, those inside it doubled"
                ) from None
        yield number, cells


def _unquoted(cell: str) -> str:
    inner = cell[1:-1]
    if len(cell) > 1 and cell[0] == cell[-1] == '"' and '"' not in inner.replace('""', ""):
        return inner.replace('""', '"')
    return cell


def _objects(lines: Iterator[str], where: object) -> Iterator[_Row]:
    names: tuple[str, ...] = ()
    layout: _Layout | None = None
    start = texts = 0  # the first object, and how many texts it has
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        with at(where, number):
            row = fields.parse(line)
            if layout is None or tuple(row) != names:
                names = tuple(row)
                layout = _named(names)
                if layout is None:
                    raise ValueError(
                        f"a text ({', '.join(TEXT_NAMES)}) and a label ({', '.join(LABEL_NAMES)}) expected, "
                        f"found the fields {', '.join(names) or 'of an empty object'}"
                    )
                if not start:
                    start, texts = number, len(layout.texts)
                if len(layout.texts) != texts:
                    raise ValueError(f"{texts} of the texts expected, as in line {start}, found {len(layout.texts)}")
            values = list(row.values())
        yield number, values[layout.label], [values[place] for place in layout.texts]


def _named(names: Sequence[str]) -> _Layout | None:
    """The layout that a header gives; None if it names no text or no label."""
    label, text, second = (_place(names, known) for known in (LABEL_NAMES, TEXT_NAMES, SECOND_NAMES))
    if label is None or text is None:
        return None
    return _Layout(label, (text,) if second is None else (text, second))


def _place(names: Sequence[str], known: tuple[str, ...]) -> int | None:
    places = [place for place, name in enumerate(names) if name.strip().lower() in known]
    if len(places) > 1:
        both = " and ".join(repr(names[place]) for place in places)
        raise ValueError(f"{both} are names for the same column: rename all but one of them")
    return places[0] if places else None


def _unnamed(first: list[str], rows: list[list[str]], kind: Kind) -> _Layout:
    """The layout of a table without header, unless there is a sign that it is another."""
    width = len(first)
    separator = "<TAB>" if kind == "tsv" else ","
    remedy = f"add a header line such as {separator.join(('label', 'text', 'text2')[: 3 if width == 3 else 2])}"
    for cell in first:
        if cell.strip().lower() in (*TEXT_NAMES, *SECOND_NAMES, *LABEL_NAMES):
            raise ValueError(
                f"{cell!r} is the name of a column, but a header must name both a text ({', '.join(TEXT_NAMES)}) "
                f"and a label ({', '.join(LABEL_NAMES)})"
            )
    if width not in (2, 3):
        raise ValueError(f"{_columns(width)} and no header: have 2 (text, label) or 3 (text, text, label), or {remedy}")
    *texts, labels = zip(*rows, strict=True)
    if any(all(cell.strip().isdigit() for cell in text) for text in texts):
        raise ValueError(f"a column before the last has only numbers, where a text should be, and no header: {remedy}")
    if any(_is_less(text, labels) for text in texts):
        raise ValueError(f"the last column looks like a text, not like a label, and there is no header: {remedy}")
    return _Layout(width - 1, tuple(range(width - 1)))


def _is_less(column: Sequence[str], other: Sequence[str]) -> bool:
    """Whether a column is to the other as labels, few and short, are to texts, many and long."""
    different, words = len(set(column)), sum(len(cell.split()) for cell in column)
    other_different, other_words = len(set(other)), sum(len(cell.split()) for cell in other)
    no_more = different <= other_different and words <= other_words
    return no_more and (different, words) != (other_different, other_words)


def _columns(count: int) -> str:
    return "1 column" if count == 1 else f"{count} columns"


def _label(label: object) -> str:
    if isinstance(label, bool | int | float):
        return json.dumps(label)
    if not isinstance(label, str):
        raise ValueError(f"the label is {json.dumps(label)}: it must be a string or a number")
    if not label.strip():
        raise ValueError("the label is empty: remove the line or fill it in")
    return label.strip()
