"""Read your own data from tables: TSV, CSV or JSONL with a text and a label, or with two texts and a label.

A header names the columns, in any order and case. The text is `text`, `sentence`, `sentence1`, `premise` or `source`;
the second text of a pair is `text2`, `sentence2`, `second` or `hypothesis`; the label is `label`, `gold_label`,
`target` or `sentiment`; other columns are ignored. The first line is a header if it names a text and a label. Without a
header the columns are text, label or text, text, label, in this order; if they look different, an error asks for a
header. In JSONL the fields have the same names.

Gold trees are in the column `tree`, `trees` or `tree1`, and those of the second text of a pair in `tree2`: brackets
around tokens, `((a fine) film)`, without labels; `-LRB-` and `-RRB-` stand for brackets that are tokens. A bracket with
more than two constituents is binarised, left-branching. The leaves must be the tokens of the text. If there are trees
and no texts, the leaves are the texts.

- CSV: cells are separated by commas. In double quotes, commas and line breaks are text and quotes are doubled.
- TSV: one row per line, split at every tab. Double quotes around a cell are removed if all quotes inside are doubled;
  any other quote is text.
- JSONL: one object per line. A label that is a number, true or false is converted to text.

Blank lines are skipped. A label is any text that is not empty, without surrounding whitespace.
"""

import csv
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Literal, NamedTuple, get_args

from beamtree.data import fields
from beamtree.data.rows import Row, label_text
from beamtree.data.samples import Sample, at, located
from beamtree.data.tokenizers import TokenizerLike, make_tokenizer
from beamtree.utils.checks import check_choice

Kind = Literal["tsv", "csv", "jsonl"]
KINDS: tuple[Kind, ...] = get_args(Kind)

TEXT_NAMES = ("text", "sentence", "sentence1", "premise", "source")
SECOND_NAMES = ("text2", "sentence2", "second", "hypothesis")
LABEL_NAMES = ("label", "gold_label", "target", "sentiment")
TREE_NAMES = ("tree", "trees", "tree1")
SECOND_TREE_NAMES = ("tree2",)

_PACKED = (".gz", ".xz")
_LOOK_AHEAD = 1_000  # rows that are examined to check the columns of a file without header

# The line number of a row, and its values, which are validated later.
_NumberedValues = tuple[int, "_Values"]


class _Layout(NamedTuple):
    """The indices of the columns."""

    label: int
    texts: tuple[int, ...]
    trees: tuple[int, ...] = ()

    def values(self, row: Sequence[object]) -> "_Values":
        texts, trees = (tuple(row[index] for index in indices) for indices in (self.texts, self.trees))
        return _Values(row[self.label], texts, trees)


class _Values(NamedTuple):
    label: object
    texts: tuple[object, ...]
    trees: tuple[object, ...]


def kind_of(path: str | os.PathLike[str]) -> Kind:
    """The kind of a file by its suffix, or by the one before .gz or .xz."""
    name = PurePath(path).name
    plain = PurePath(name.lower())
    suffix = (plain.with_suffix("") if plain.suffix in _PACKED else plain).suffix
    for kind in KINDS:
        if suffix == f".{kind}":
            return kind
    raise ValueError(
        f"{name!r} is not the name of a table: it must end in .tsv, .csv or .jsonl, optionally followed by .gz or .xz"
    )


def read(lines: Iterable[str], where: object, kind: Kind, tokenizer: TokenizerLike = "spaces") -> Iterator[Sample]:
    """Read the samples of a table; texts are tokenised by `tokenizer`, by default at whitespace."""
    made = make_tokenizer(tokenizer)
    return (row.sample(made) for row in read_rows(lines, where, kind))


def read_rows(lines: Iterable[str], where: object, kind: Kind) -> Iterator[Row]:
    """Read the rows of a table, without tokenising their texts. Raises if there is none."""
    check_choice("kind", kind, KINDS)
    lines = _without_mark(lines)
    rows = _objects(lines, where) if kind == "jsonl" else _table(lines, where, kind)
    number = 0
    for number, values in rows:
        place = f"{where}, line {number}"
        with located(place):
            label = label_text(values.label)
        yield Row(place, label, values.texts, values.trees)
    if not number:
        with at(where, 1):
            raise ValueError("the file has no samples: each line should have text and label, or text, text and label")


def _without_mark(lines: Iterable[str]) -> Iterator[str]:
    """Remove the byte order mark that some programs write at the start of a file."""
    for number, line in enumerate(lines):
        yield line if number else line.removeprefix("\ufeff")


def _table(lines: Iterator[str], where: object, kind: Kind) -> Iterator[_NumberedValues]:
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
                raise ValueError(f"{_count(len(names), 'column')} expected, as in line {start}, found {len(cells)}")
        yield number, layout.values(cells)


def _cells(lines: Iterator[str], where: object, kind: Kind) -> Iterator[tuple[int, list[str]]]:
    """The number of its first line, and the cells, of each row."""
    if kind == "tsv":
        for number, line in enumerate(lines, start=1):
            yield number, [_unquoted(cell) for cell in line.split("\t")]
        return
    # Strict: otherwise an unclosed quote would include the rest of the file. Line ends are restored, since those
    # within quotes are text.
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
                    f"invalid CSV ({error}): quotes around a cell must be closed, those inside it doubled"
                ) from None
        yield number, cells


def _unquoted(cell: str) -> str:
    inner = cell[1:-1]
    if len(cell) > 1 and cell[0] == cell[-1] == '"' and '"' not in inner.replace('""', ""):
        return inner.replace('""', '"')
    return cell


def _objects(lines: Iterator[str], where: object) -> Iterator[_NumberedValues]:
    names: tuple[str, ...] = ()
    layout = first = None  # layout of this line, and of the first line that is not blank
    start = 0
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
                if first is None:
                    start, first = number, layout
                _check_alike(layout, first, start)
        yield number, layout.values(list(row.values()))


def _check_alike(layout: _Layout, first: _Layout, start: int) -> None:
    for what, found, expected in (("texts", layout.texts, first.texts), ("trees", layout.trees, first.trees)):
        if len(found) != len(expected):
            raise ValueError(f"{len(expected)} of the {what} expected, as in line {start}, found {len(found)}")


def _named(names: Sequence[str]) -> _Layout | None:
    """The layout by a header; None if it names no label, or neither a text nor a tree."""
    label, *indices = (
        _column(names, known) for known in (LABEL_NAMES, TEXT_NAMES, SECOND_NAMES, TREE_NAMES, SECOND_TREE_NAMES)
    )
    if label is None or (indices[0] is None and indices[2] is None):
        return None
    texts = _sides(*indices[:2])
    trees = _sides(*indices[2:])
    if texts and trees and len(texts) != len(trees):
        raise ValueError(
            f"{_count(len(texts), 'text')} and {_count(len(trees), 'tree')}: every text needs a tree, "
            "in the columns tree1 and tree2 for a pair"
        )
    return _Layout(label, texts, trees)


def _sides(first: int | None, second: int | None) -> tuple[int, ...]:
    return () if first is None else (first,) if second is None else (first, second)


def _column(names: Sequence[str], known: tuple[str, ...]) -> int | None:
    found = [index for index, name in enumerate(names) if name.strip().lower() in known]
    if len(found) > 1:
        both = " and ".join(repr(names[index]) for index in found)
        raise ValueError(f"{both} are names for the same column: rename all but one of them")
    return found[0] if found else None


def _unnamed(first: list[str], rows: list[list[str]], kind: Kind) -> _Layout:
    """The layout of a table without header. Raises if the columns look as if it were a different one."""
    width = len(first)
    separator = "<TAB>" if kind == "tsv" else ","
    remedy = f"add a header line such as {separator.join(('label', 'text', 'text2')[: 3 if width == 3 else 2])}"
    for cell in first:
        if cell.strip().lower() in (*TEXT_NAMES, *SECOND_NAMES, *LABEL_NAMES, *TREE_NAMES, *SECOND_TREE_NAMES):
            raise ValueError(
                f"{cell!r} is the name of a column, but a header must name both a text ({', '.join(TEXT_NAMES)}) "
                f"and a label ({', '.join(LABEL_NAMES)})"
            )
    if width not in (2, 3):
        raise ValueError(
            f"{_count(width, 'column')} and no header: have 2 (text, label) or 3 (text, text, label), or {remedy}"
        )
    *texts, labels = zip(*rows, strict=True)
    if any(all(cell.strip().isdigit() for cell in text) for text in texts):
        raise ValueError(f"a column before the last has only numbers instead of texts, and no header: {remedy}")
    if any(_looks_like_labels_of(text, labels) for text in texts):
        raise ValueError(f"the last column looks like a text rather than a label, and there is no header: {remedy}")
    return _Layout(width - 1, tuple(range(width - 1)))


def _looks_like_labels_of(column: Sequence[str], other: Sequence[str]) -> bool:
    """Whether a column has fewer distinct cells and fewer words than the other, as labels have compared with texts."""
    distinct, words = len(set(column)), sum(len(cell.split()) for cell in column)
    other_distinct, other_words = len(set(other)), sum(len(cell.split()) for cell in other)
    no_more = distinct <= other_distinct and words <= other_words
    return no_more and (distinct, words) != (other_distinct, other_words)


def _count(count: int, what: str) -> str:
    return f"1 {what}" if count == 1 else f"{count} {what}s"
