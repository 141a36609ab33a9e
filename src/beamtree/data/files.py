"""Your own files as a task: a .tsv, .csv or .jsonl file, or a folder of them. Each file is a split of the same name.

    load("reviews.tsv")                             # one split, "reviews": all rows, for evaluation
    load("reviews.tsv", dev=0.1, test=500, seed=1)  # train, dev and test, for training
    load("reviews", dev=0.1)                        # a folder of train.tsv and test.tsv: dev is held out of train

`tables` documents the file formats, `division` how a file is divided. Options:

tokenizer: "words" for English, tokenised as in the paper; "spaces" to split at whitespace, for formal languages and
texts that are tokenised already; or anything else that `beamtree.data.tokenizers.make_tokenizer` accepts.
dev, test: the share of the samples that is held out for the split, as a fraction or a number; 0: none.
seed: seed of the division.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from beamtree.data import tables
from beamtree.data.division import DEFAULT_SHARE, DEV, TEST, TRAIN, Division, check_share, divide
from beamtree.data.raw import File, Folder, Source
from beamtree.data.raw.reading import readable
from beamtree.data.samples import Sample, located
from beamtree.data.task import Column, Option, Part, PartInputs, Task, slug
from beamtree.data.tokenizers import Tokenizer, make_tokenizer

OPTIONS: dict[str, Option] = {"tokenizer": "words", "seed": 0, DEV: 0.0, TEST: 0.0}

_OTHER_NAMES = {"validation": DEV, "valid": DEV, "val": DEV}


def task(path: Path, options: Mapping[str, Any]) -> Task:
    """Create the task of a file, or of a folder of files."""
    name, about = slug(path.name) or "data", f"own data: {path}"
    tokenizer, settings = _settings(Task(name, about, (), (), OPTIONS), options)
    files = _files(path)
    folder = path if path.is_dir() else path.parent
    shares = {split: settings[split] for split in (DEV, TEST) if settings[split]}
    if not shares:
        settings = {"tokenizer": settings["tokenizer"]}
    divided = _divided(path, files, shares) if shares else None
    parts = (TRAIN, *shares) if divided else ()
    others = tuple(split for split in files if split != divided)
    raw = Folder(Source("own", "", "", (), (), (), tuple(File(file) for file in files.values())), folder)

    def make(inputs: PartInputs) -> Mapping[str, Iterable[Sample]]:
        made: dict[str, Iterable[Sample]] = {}
        for split, file in files.items():
            rows = tables.read_rows(raw.lines(file), folder / file, tables.kind_of(file))
            if split != divided:
                made[split] = (row.sample(tokenizer) for row in rows)
                continue
            every = list(rows)
            with located(str(folder / file)):
                places = divide([row.label for row in every], [row.key for row in every], shares, settings["seed"])
            made |= {part: [every[place].sample(tokenizer) for place in places[part]] for part in parts}
        return made

    part = Part(
        tuple(map(Column, (*parts, *others))),
        make,
        options=tuple(settings),
        found={str(folder.resolve()): raw},  # by path: files in two folders may agree in name, size and time
        fingerprint=tokenizer.fingerprint,
    )
    division = Division(files[divided], parts, settings["seed"]) if divided else None
    return Task(name, about, (), (part,), settings, tokenizer=tokenizer, division=division)


def training_options(path: Path, options: Mapping[str, Any]) -> dict[str, Option]:
    """The options, with defaults for `dev` and `test` if these splits have to be held out for training.

    A single file is divided into train, dev and test. In a folder that has train and no dev, dev is held out of train.
    """
    files = _files(path)
    shares: dict[str, Option] = {}
    if len(files) == 1 and (path.is_file() or TRAIN not in files):
        shares = {DEV: DEFAULT_SHARE, TEST: DEFAULT_SHARE}
    elif TRAIN in files and DEV not in files:
        shares = {DEV: DEFAULT_SHARE}
    return dict(task(path, {**shares, **options}).options)


def label_names(labels: Iterable[str]) -> tuple[str, ...]:
    """The distinct labels, in numerical order if all are numbers, otherwise in alphabetical order."""
    different = set(labels)
    numeric = all(label.isdecimal() for label in different)
    return tuple(sorted(different, key=lambda label: (int(label), label) if numeric else (0, label)))


def split_name(name: str) -> str:
    """Normalise the name of a split: "validation", "valid" and "val" become "dev"."""
    return _OTHER_NAMES.get(slug(name), slug(name)) or "data"


def _settings(bare: Task, options: Mapping[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer, and all options, with defaults. A tokenizer that is an object is represented by its name."""
    given = options.get("tokenizer", OPTIONS["tokenizer"])
    tokenizer = None if isinstance(given, Option) else make_tokenizer(given)
    if tokenizer is not None:
        options = {**options, "tokenizer": tokenizer.name}
    settings = bare.settings(options)
    for split in (DEV, TEST):
        check_share(f"{bare.name}: the option {split}", settings[split])
    return tokenizer or make_tokenizer(str(given)), settings


def _divided(path: Path, files: Mapping[str, str], shares: Iterable[str]) -> str:
    """The split from which the others are held out."""
    if len(files) == 1:
        return next(iter(files))
    if TRAIN not in files:
        raise ValueError(
            f"{path}: there is no file train to hold out {' and '.join(shares)} from: rename one of the files"
        )
    for split in shares:
        if split in files:
            raise ValueError(f"{path}: {split} cannot be held out of {TRAIN}, since it already exists: {files[split]}")
    return TRAIN


def _files(path: Path) -> dict[str, str]:
    """The file name of each split."""
    if path.is_file():
        tables.kind_of(path)
        return {_stem(path.name): path.name}
    found: dict[str, str] = {}
    with readable(str(path)):
        names = [entry.name for entry in path.iterdir() if entry.is_file() and not entry.name.startswith(".")]
    for file in sorted(names):
        try:
            tables.kind_of(file)
        except ValueError:
            continue  # a folder may contain other files
        if _stem(file) in found:
            raise ValueError(f"{path}: {found[_stem(file)]} and {file} are both the split {_stem(file)!r}")
        found[_stem(file)] = file
    if not found:
        raise ValueError(f"{path}: there is no .tsv, .csv or .jsonl file in the folder")
    return dict(sorted(found.items(), key=lambda item: (item[0] != TRAIN, item[0])))


def _stem(file: str) -> str:
    return split_name(file.partition(".")[0])
