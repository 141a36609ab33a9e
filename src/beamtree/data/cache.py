"""Cache of prepared data: arrays on disk that are memory-mapped, so opening them takes milliseconds.

    prepared = stored("imdb", {"split": "train", "max_length": 200}, make)
    prepared.arrays["tokens"], prepared.about["labels"]

An entry is a folder `prepared/<name>-<key>` of the cache; the key is a hash of the parameters. It is written under a
temporary name and renamed, so an entry is either complete or absent. A lock lets one process prepare an entry while
the others wait. On a system without locks all of them prepare it, and all read the entry of the first to finish.
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

_FORMAT = 1  # part of every key: a new value invalidates all entries
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_STALE_AFTER = 24 * 3600  # seconds after which a temporary folder is stale, on a system without locks


@dataclass(frozen=True, eq=False)
class Prepared:
    """Arrays by name, and metadata in types of JSON."""

    arrays: dict[str, np.ndarray]
    about: dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """An entry of the cache; `parameters` is None if it is damaged."""

    name: str
    path: Path
    bytes: int
    parameters: dict[str, Any] | None


def cache_folder() -> Path:
    """The folder in BEAMTREE_CACHE if that is set, otherwise `beamtree` in the user's cache folder."""
    if configured := os.environ.get("BEAMTREE_CACHE"):
        return Path(configured).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "beamtree"


def stored(
    name: str, parameters: Mapping[str, Any], make: Callable[[], Prepared], folder: str | os.PathLike[str] | None = None
) -> Prepared:
    """Open the entry of these parameters read-only. If it is missing or damaged, it is first created by `make`.

    `folder` is by default `cache_folder()`. The order of the parameters does not matter.
    """
    path = _prepared(folder) / f"{_checked('name', name)}-{_key(name, parameters)}"
    if (found := _opened(path)) is not None:
        return found
    with _storing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
    with locked(_lock(path)):
        if (found := _opened(path)) is not None:
            return found  # created by the process that held the lock
        prepared = make()
        for array in prepared.arrays:
            _checked("the name of an array", array)
        with _storing(path.parent):
            _write(path, name, parameters, prepared)
    found = _opened(path)
    return prepared if found is None else found  # it may have been removed in the meantime


def entries(folder: str | os.PathLike[str] | None = None) -> list[Entry]:
    """List all entries, sorted by name."""
    found = []
    for path in sorted(_prepared(folder).glob("[!.]*-*/")):
        size = sum(file.stat().st_size for file in path.iterdir())
        described = _described(path)
        parameters = None if described is None else described["parameters"]
        found.append(Entry(path.name.rpartition("-")[0], path, size, parameters))
    return found


def remove(entry: Entry) -> None:
    """Remove an entry. Processes that have it open can still read it."""
    with _storing(entry.path.parent):
        _discard(entry.path)


def _lock(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def _sweep(folder: Path) -> None:
    """Remove temporary folders and locks that killed processes left behind."""
    left: dict[Path, list[Path]] = {lock: [] for lock in folder.glob(".*.lock")}
    for temporary in folder.glob(".*.tmp"):
        entry = temporary.name[1:].rsplit(".", 2)[0]
        left.setdefault(_lock(folder / entry), []).append(temporary)
    for lock, temporaries in left.items():
        with contextlib.suppress(BlockingIOError), locked(lock, wait=False) as held:
            for temporary in temporaries:
                with contextlib.suppress(FileNotFoundError):  # another process may be removing it, too
                    if held or time.time() - temporary.stat().st_mtime > _STALE_AFTER:
                        shutil.rmtree(temporary, ignore_errors=True)


def _discard(path: Path) -> None:
    """Remove an entry atomically, so that no process sees a part of it."""
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
        shutil.rmtree(temporary, ignore_errors=True)  # if it was not renamed


def _write_array(path: Path, array: np.ndarray) -> int:
    with open(path, "wb") as file:
        np.save(file, array, allow_pickle=False)
        _to_disk(file)
        return file.tell()


def _to_disk(file: BinaryIO) -> None:
    """Flush to disk; otherwise the rename could survive a power failure without the data."""
    file.flush()
    os.fsync(file.fileno())


def _put(temporary: Path, path: Path) -> None:
    """Rename into place, unless there is already a complete entry. A damaged one is replaced."""
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
    """The content of the entry's about.json, or None if it is missing or damaged."""
    try:
        document = json.loads((path / "about.json").read_bytes())
        whole = all(isinstance(document[key], dict) for key in ("parameters", "arrays", "about"))
        return document if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _opened(path: Path) -> Prepared | None:
    """The entry, or None if it is missing or damaged."""
    document = _described(path)
    if document is None:
        return None
    try:
        arrays = {}
        for key, expected in document["arrays"].items():
            file = path / f"{key}.npy"
            if file.stat().st_size != expected["bytes"]:
                return None
            # Some versions of NumPy cannot memory-map an empty array.
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
        raise ValueError(f"the parameters of {name} cannot be part of a key: {error}") from None
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _checked(what: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{what} is {name!r}: it must consist of letters, digits, '.', '_' and '-', as it names a file"
        )
    return name


@contextlib.contextmanager
def _storing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(
            f"{folder}: prepared data cannot be stored there ({reason}): "
            "free some space, or set BEAMTREE_CACHE to another folder"
        ) from None
