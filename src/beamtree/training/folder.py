"""The folder of a run that is being trained: whose it is, and that its data stays what it was."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from beamtree import runs
from beamtree.data.vocabulary import Vocabulary
from beamtree.recipes.settings import Settings
from beamtree.training.loading import DEV, TRAIN, Materials

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LOCK = ".lock"


def is_finished(folder: Path, settings: Settings, first: bool = True) -> bool:
    """Whether a run of these settings is there and done; other settings, or other files, are refused.

    Of several processes only the first refuses anything: while it writes what the run is, the others may see a folder
    that holds files and is no run yet.
    """
    if not first:
        return runs.is_run(folder) and runs.is_finished(folder)
    if not runs.is_run(folder):
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is a file: a run needs a folder")
        if _files(folder) or _files(folder / runs.CHECKPOINTS):
            raise ValueError(f"{folder} is not empty, and no run: choose another folder")
        return False
    known, wanted = (_flat(each.to_dict()) for each in (runs.read_config(folder).settings, settings))
    for key in {**known, **wanted}:
        if known.get(key) != wanted.get(key):
            raise ValueError(
                f"{folder} holds a run with {key} {known.get(key)!r}, not {wanted.get(key)!r}: choose another folder, "
                "or the same settings"
            )
    return runs.is_finished(folder)


def _files(folder: Path) -> list[Path]:
    """What a folder holds, apart from what a start that was killed may have left."""
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if not path.name.startswith(".") and path.name != runs.CHECKPOINTS]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"data": {"task": "listops"}} → {"data.task": "listops"}"""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Within it no other process trains in this folder. The lock of a process ends with it, however it ends."""
    place = folder / runs.CHECKPOINTS  # which goes when the run is finished, and the lock with it
    with runs.writing(place):
        place.mkdir(parents=True, exist_ok=True)
        handle = os.open(place / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if fcntl is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"{folder}: another process is training there: wait for it, or stop it") from None
            except OSError:
                pass  # a file system without locks
        yield
    finally:
        os.close(handle)


def write_or_verify(folder: Path, materials: Materials, device: str) -> None:
    """Write the config and vocabulary of a new run, or verify that the data of a resumed one has not changed."""
    if runs.is_run(folder):
        before = runs.read_config(folder)
        if before != materials.config:
            raise ValueError(f"{folder}: the data has other labels, or other texts, than when the run was begun")
    else:
        runs.write_config(folder, materials.config)
    path = folder / runs.VOCABULARY
    if not path.exists():
        with runs.writing(path):
            materials.vocabulary.save(path)
    elif Vocabulary.load(path, materials.vocabulary.closed) != materials.vocabulary:
        raise ValueError(f"{path}: the words of the data are others now than when the run was begun")
    note_data(folder, materials, (TRAIN, DEV), device)


def note_data(folder: Path, materials: Materials, splits: Iterable[str], device: str) -> None:
    """Write what these splits are, and with what the run was begun; a split that was another then is refused."""
    path = folder / runs.ENVIRONMENT
    noted = runs.read_json(path) if path.exists() else {**runs.environment(device), "data": {}}
    for split, digest in runs.fingerprint(materials.data, splits).items():
        if noted["data"].setdefault(split, digest) != digest:
            raise ValueError(f"{folder}: the split {split} is not the one that the run was begun with")
    runs.write_json(path, noted)
