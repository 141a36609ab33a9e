"""Prepared data, made once and kept: arrays that are memory-mapped, so that opening them takes milliseconds.

    prepared = stored("imdb", {"split": "train", "max_length": 200}, make)
    prepared.arrays["tokens"], prepared.about["labels"]

An entry is a folder `prepared/<name>-<key>` of the cache, its key drawn from the parameters. It is written beside its
place and renamed into it, so it is there as a whole or not at all. A lock lets one process prepare it while the others
wait; where the system has no locks they all prepare it, and the first to finish is read by all.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from beamtree.utils.locks import locked

_FORMAT = 1  # part of every key: a new layout makes all entries anew
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FORGOTTEN = 24 * 3600  # seconds after which a temporary folder without a lock to ask is nobody's any more


@dataclass(frozen=True, eq=False)
class Prepared:
    """Arrays by name, and what else is to be known of them: anything that JSON can hold."""

    arrays: dict[str, np.ndarray]
    about: dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """One prepared data set in the cache; of a damaged one the parameters are not known."""

    name: str
    path: Path
    bytes: int
    parameters: dict[str, Any] | None


def cache_folder() -> Path:
    """BEAMTREE_CACHE where it is set, else `beamtree` in the user's folder for caches."""
    if own := os.environ.get("BEAMTREE_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "beamtree"


def stored(
    name: str, parameters: Mapping[str, Any], make: Callable[[], Prepared], folder: str | os.PathLike[str] | None = None
) -> Prepared:
    """The entry of these parameters, opened read-only; where there is none, or a damaged one, `make` is called first.

    `folder` stands for `cache_folder()`. Equal parameters in another order are the same entry.
    """
    path = _prepared(folder) / f"{_checked('name', name)}-{_key(name, parameters)}"
    if (found := _opened(path)) is not None:
        return found
    with _storing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
    with locked(_lock(path)):
        if (found := _opened(path)) is not None:
            return found  # made by the process that we waited for
        prepared = make()
        for array in prepared.arrays:
            _checked("the name of an array", array)
        with _storing(path.parent):
            _write(path, name, parameters, prepared)
    found = _opened(path)
    return prepared if found is None else found  # it may have been removed again in between


def entries(folder: str | os.PathLike[str] | None = None) -> list[Entry]:
    """All entries, by name."""
    found = []
    for path in sorted(_prepared(folder).glob("[!.]*-*/")):
        size = sum(file.stat().st_size for file in path.iterdir())
        described = _described(path)
        parameters = None if described is None else described["parameters"]
        found.append(Entry(path.name.rpartition("-")[0], path, size, parameters))
    return found


def remove(entry: Entry) -> None:
    """Remove an entry; who has it open keeps what it has."""
    with _storing(entry.path.parent):
        _discard(entry.path)


def _lock(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def _sweep(folder: Path) -> None:
    """Remove what killed processes left behind: temporary folders, and locks, of entries that nobody is preparing."""
    left: dict[Path, list[Path]] = {lock: [] for lock in folder.glob(".*.lock")}
    for temporary in folder.glob(".*.tmp"):
        entry = temporary.name[1:].rsplit(".", 2)[0]
        left.setdefault(_lock(folder / entry), []).append(temporary)
    for lock, temporaries in left.items():
        with contextlib.suppress(BlockingIOError), locked(lock, wait=False) as held:
            for temporary in temporaries:
                with contextlib.suppress(FileNotFoundError):  # another process may be sweeping too
                    if held or time.time() - temporary.stat().st_mtime > _FORGOTTEN:
                        shutil.rmtree(temporary, ignore_errors=True)


def _discard(path: Path) -> None:
    """Remove an entry in one step, so that nobody sees a part of it."""
    aside = _temporary(path)
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, aside)
    shutil.rmtree(aside, ignore_errors=True)


def _write(path: Path, name: str, parameters: Mapping[str, Any], prepared: Prepared) -> None:
    temporary = _temporary(path)
    temporary.mkdir()
    try:
        described: dict[str, Any] = {}
        for key, array in prepared.arrays.items():
            size = _write_array(temporary / f"{key}.npy", array)
            described[key] = {"dtype": str(array.dtype), "shape": list(array.shape), "bytes": size}
        document = {"name": name, "parameters": dict(parameters), "arrays": described, "about": prepared.about}
        with open(temporary / "about.json", "wb") as file:
            file.write(json.dumps(document, indent=1).encode())
            _to_disk(file)
        _put(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # where it is still there


def _write_array(path: Path, array: np.ndarray) -> int:
    with open(path, "wb") as file:
        np.save(file, array, allow_pickle=False)
        _to_disk(file)
        return file.tell()


def _to_disk(file: BinaryIO) -> None:
    """A rename may otherwise outlive a power cut that the data does not."""
    file.flush()
    os.fsync(file.fileno())


def _put(temporary: Path, path: Path) -> None:
    """Rename into place, unless a whole entry is there already; a damaged one makes way."""
    for _ in range(2):
        try:
            os.rename(temporary, path)
            return
        except OSError:
            if not path.exists():
                raise
            if _opened(path) is not None:
                return
            _discard(path)
    raise OSError(f"{path.name} cannot be replaced")


def _described(path: Path) -> dict[str, Any] | None:
    """What the entry's about.json says, or None where it is missing or damaged."""
    try:
        document = json.loads((path / "about.json").read_bytes())
        whole = all(isinstance(document[key], dict) for key in ("parameters", "arrays", "about"))
        return document if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _opened(path: Path) -> Prepared | None:
    """The entry, or None where it is missing or damaged."""
    document = _described(path)
    if document is None:
        return None
    try:
        arrays = {}
        for key, expected in document["arrays"].items():
            file = path / f"{key}.npy"
            if file.stat().st_size != expected["bytes"]:
                return None
            # Not every numpy can map an array without elements.
            array = np.load(file, mmap_mode=None if 0 in expected["shape"] else "r", allow_pickle=False)
            if str(array.dtype) != expected["dtype"] or list(array.shape) != expected["shape"]:
                return None
            arrays[key] = array
        return Prepared(arrays, document["about"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile):
        return None


def _prepared(folder: str | os.PathLike[str] | None) -> Path:
    return (cache_folder() if folder is None else Path(folder)) / "prepared"


def _key(name: str, parameters: Mapping[str, Any]) -> str:
    try:
        text = json.dumps([_FORMAT, name, dict(parameters)], sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the parameters of {name} cannot be a key: {error}") from None
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _checked(what: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{what} is {name!r}: it must be letters, digits, '.', '_' and '-', as it names a file")
    return name


@contextlib.contextmanager
def _storing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(
            f"{folder}: prepared data cannot be kept there ({reason}): "
            "make room, or name another folder with BEAMTREE_CACHE"
        ) from None
