"""Data in memory: lists of texts and labels, or data sets of Hugging Face, as a task and its splits.

The public interface is `Data.from_samples` and `Data.from_datasets`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from beamtree.data.division import DEV, TEST, TRAIN, Division, Share, divide
from beamtree.data.files import label_names, split_name
from beamtree.data.rows import Row, label_text
from beamtree.data.samples import located
from beamtree.data.split import Split
from beamtree.data.task import Column, Option, Part, PartInputs, Task, slug
from beamtree.data.tokenizers import TokenizerLike, make_tokenizer
from beamtree.utils.checks import unknown

_BATCH = 1_000  # rows of a data set that are read at a time


class Given(NamedTuple):
    """The rows of one or several splits, before they are divided and tokenised."""

    name: str
    splits: dict[str, list[Row]]
    label_names: tuple[str, ...] = ()  # all labels in order; empty: those of the samples
    notes: tuple[str, ...] = ()


def from_texts(texts: Any, labels: Any, trees: Any, name: str) -> Given:
    """Convert the arguments of `Data.from_samples`."""
    if not isinstance(texts, Mapping):
        return Given(name, {TRAIN: _rows(texts, labels, trees, name)})
    if labels is not None or trees is not None:
        raise ValueError(
            "texts is a mapping of splits with labels and trees: the arguments labels and trees must be None"
        )
    splits: dict[str, list[Row]] = {}
    for split, given in texts.items():
        if not isinstance(given, tuple | list) or len(given) not in (2, 3):
            raise ValueError(f"the split {split!r} must be a tuple (texts, labels) or (texts, labels, trees)")
        found = splits.setdefault(split_name(split), [])
        if found:
            raise ValueError(f"{', '.join(texts)}: two of them are the split {split_name(split)!r}")
        found += _rows(given[0], given[1], given[2] if len(given) == 3 else None, f"{name} {split}")
    return Given(name, splits)


def uses_tokens(given: Given) -> bool:
    """Whether the texts are lists of tokens."""
    return any(not isinstance(text, str) for rows in given.splits.values() for row in rows[:1] for text in row.texts)


def from_dataset(
    dataset: Any, texts: Sequence[str], trees: Sequence[str], label: str, name: str | None = None
) -> Given:
    """Convert a `datasets.Dataset` or `datasets.DatasetDict`; `texts`, `trees` and `label` are names of columns."""
    if trees and len(trees) != len(texts):
        raise ValueError("a pair needs the columns tree and second_tree, and a single text the column tree")
    parts = dict(dataset) if isinstance(dataset, Mapping) else {TRAIN: dataset}
    for part in parts.values():
        if not hasattr(part, "column_names") or not hasattr(part, "iter"):
            raise ValueError(
                f"the data set is of type {type(part).__name__}: it must be a Dataset or a DatasetDict of Hugging Face"
            )
    names = {split: getattr((part.features or {}).get(label), "names", None) for split, part in parts.items()}
    given = Given(name or _name(parts), {}, tuple(next(filter(None, names.values()), ())))
    notes: list[str] = []
    for split, part in parts.items():
        where = f"{given.name} {split}" if isinstance(dataset, Mapping) else given.name
        rows, count = _dataset_rows(part, texts, trees, label, names[split], where)
        if len(rows) < count:
            left_out = "the split is left out" if not rows else "they are left out"
            notes.append(f"{where}: {count - len(rows):,} of {count:,} samples have no label: {left_out}")
        if rows:
            if split_name(split) in given.splits:
                raise ValueError(f"{', '.join(parts)}: two of them are the split {split_name(split)!r}")
            given.splits[split_name(split)] = rows
    return given._replace(notes=tuple(notes))


def build(
    given: Given, tokenizer: TokenizerLike, shares: Mapping[str, Share], seed: int
) -> tuple[Task, dict[str, Split]]:
    """Create the task and its splits. `shares` are held out of the split "train"."""
    made = make_tokenizer(tokenizer)
    rows = dict(sorted(given.splits.items(), key=lambda item: (item[0] != TRAIN, item[0] != DEV)))
    division = None
    shares = {split: share for split, share in shares.items() if share}
    if shares and TRAIN in rows:
        train = rows.pop(TRAIN)
        with located(given.name):
            indices = divide([row.label for row in train], [row.key for row in train], shares, seed)
        rows = {part: [train[index] for index in indices[part]] for part in indices} | rows
        division = Division(given.name, tuple(indices), seed)
    labels = given.label_names or label_names(row.label for part in rows.values() for row in part)
    splits: dict[str, Split] = {}
    for split, part in rows.items():
        if not part:
            raise ValueError(f"{given.name}: the split {split} has no samples")
        splits[split] = Split.from_samples((row.sample(made) for row in part), labels)
    if not splits:
        raise ValueError(f"{given.name}: there are no samples")
    options: dict[str, Option] = {"tokenizer": tokenizer if isinstance(tokenizer, str) else made.name}
    if division is not None:
        options |= {"seed": seed, **{split: shares.get(split, 0.0) for split in (DEV, TEST)}}
    task = Task(
        slug(given.name) or "samples",
        "data from memory",
        labels,
        (Part(tuple(map(Column, splits)), _make, options=tuple(options)),),
        options,
        pair=any(split.second is not None for split in splits.values()),
        tokenizer=made,
        division=division,
        notes=given.notes,
    )
    return task, splits


def _make(inputs: PartInputs) -> Mapping[str, Any]:
    raise ValueError("the data was only in memory: create it again with Data.from_samples or Data.from_datasets")


def _rows(texts: Any, labels: Any, trees: Any, name: str) -> list[Row]:
    columns = {"texts": _listed("texts", texts), "labels": _listed("labels", labels)}
    if trees is not None:
        columns["trees"] = _listed("trees", trees)
    for what, values in columns.items():
        if len(values) != len(columns["texts"]):
            raise ValueError(f"{name}: there are {len(columns['texts'])} texts and {len(values)} {what}")
    rows = []
    for index, (text, label, *tree) in enumerate(zip(*columns.values(), strict=True)):
        place = f"{name}, sample {index}"
        with located(place):
            both = _sides("the text", text)
            gold = _sides("the tree", tree[0]) if tree else ()
            if gold and len(gold) != len(both):
                raise ValueError("a pair needs a tuple of two trees, and a text one tree")
            rows.append(Row(place, label_text(label), both, gold))
    return rows


def _listed(name: str, values: Any) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name} is of type {type(values).__name__}: it must be a list, with one item for each sample")
    return list(values)


def _sides(name: str, value: Any) -> tuple[Any, ...]:
    """The two sides of a pair, which is a tuple; anything else is one text or one tree."""
    if not isinstance(value, tuple):
        return (value,)
    if len(value) != 2:
        raise ValueError(f"{name} is a tuple of {len(value)}: use a tuple of two for a pair, and a list for tokens")
    return value


def _dataset_rows(
    part: Any, texts: Sequence[str], trees: Sequence[str], label: str, names: Sequence[str] | None, where: str
) -> tuple[list[Row], int]:
    """The rows that have a label, and the total number of rows."""
    columns = list(dict.fromkeys((*texts, *trees, label)))
    for column in columns:
        if part.column_names is not None and column not in part.column_names:
            raise ValueError(f"{where}: {unknown('column', column, part.column_names)}")
    rows: list[Row] = []
    count = 0
    for batch in part.with_format(None).select_columns(columns).iter(batch_size=_BATCH):
        for values in zip(*(batch[column] for column in columns), strict=True):
            record = dict(zip(columns, values, strict=True))
            place, found = f"{where}, row {count}", record[label]
            count += 1
            if found is None or (names and found == -1):  # -1 is Hugging Face's value for a missing label
                continue
            with located(place):
                text = label_text(names[found] if names else found)
            rows.append(Row(place, text, *(tuple(record[column] for column in side) for side in (texts, trees))))
    return rows, count


def _name(parts: Mapping[str, Any]) -> str:
    for part in parts.values():
        name = getattr(getattr(part, "info", None), "dataset_name", None)
        if name:
            return str(name)
    return "dataset"
