"""One's own files as a task: a .tsv, .csv or .jsonl file, or a folder of them, each a split of the name of its file.

`tables` says what a file may look like. Texts are tokenised as the paper's English ones are (`tokenizer="words"`), or
cut at whitespace (`tokenizer="spaces"`), as formal languages and texts that are tokenised already should be.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from beamtree.data import tables
from beamtree.data.originals import File, Folder, Source
from beamtree.data.originals.reading import readable
from beamtree.data.samples import Sample
from beamtree.data.task import Column, Materials, Part, Task, slug
from beamtree.data.words import tokenize
from beamtree.utils.checks import check_choice

_TOKENIZERS: dict[str, Callable[[str], Sequence[str]]] = {"words": tokenize, "spaces": str.split}


def task(path: Path) -> Task:
    """The task that a file, or a folder of files, is."""
    files = _files(path)
    folder = path if path.is_dir() else path.parent
    source = Source("own", "", "", (), (), (), tuple(File(file) for file in files.values()))
    originals = Folder(source, folder)

    def make(m: Materials) -> Mapping[str, Iterable[Sample]]:
        check_choice("tokenizer", m.options["tokenizer"], tuple(_TOKENIZERS))
        tokenizer = _TOKENIZERS[m.options["tokenizer"]]
        return {
            title: tables.read(originals.lines(file), folder / file, tables.kind_of(file), tokenizer)
            for title, file in files.items()
        }

    # By its path: two folders may hold files of one name, size and time that are not the same.
    found = {str(folder.resolve()): originals}
    part = Part(tuple(map(Column, files)), make, options=("tokenizer",), found=found)
    return Task(slug(path.name) or "data", f"own data: {path}", (), (part,), {"tokenizer": "words"})


def label_names(labels: Iterable[str]) -> tuple[str, ...]:
    """The different labels: as numbers in their order if all are, else by the alphabet."""
    different = set(labels)
    numeric = all(label.isdecimal() for label in different)
    return tuple(sorted(different, key=lambda label: (int(label), label) if numeric else (0, label)))


def _files(path: Path) -> dict[str, str]:
    """The name of each split's file."""
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
            continue  # a folder may hold other files too
        if _stem(file) in found:
            raise ValueError(f"{path}: {found[_stem(file)]} and {file} are both the split {_stem(file)!r}")
        found[_stem(file)] = file
    if not found:
        raise ValueError(f"{path}: there is no .tsv, .csv or .jsonl file in the folder")
    return dict(sorted(found.items(), key=lambda item: (item[0] != "train", item[0])))


def _stem(file: str) -> str:
    return slug(file.partition(".")[0]) or "data"
