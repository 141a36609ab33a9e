"""The folder of a run in training: whether to start, continue or leave it, and that its data stays the same.

Of several processes that train together, only the first one calls these functions.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path

from beamtree.data.tokenizers import HuggingFace
from beamtree.data.vocabulary import Vocabulary
from beamtree.models import storage
from beamtree.models.config import Config
from beamtree.runs import checkpoints
from beamtree.runs.folder import CHECKPOINTS, ENVIRONMENT, METRICS, environment, fingerprint, read_settings
from beamtree.runs.settings import Settings
from beamtree.training.loading import DEV, TRAIN, TrainingData
from beamtree.utils import files
from beamtree.utils.locks import locked
from beamtree.utils.mappings import flatten

_LOCK = ".lock"
_MAX_EPOCHS = "training.max_epochs"


class Status(Enum):
    """What is to be done in a folder."""

    NEW = "new"
    CONTINUE = "continue"
    FINISHED = "finished"


def status(folder: Path, settings: Settings) -> Status:
    """Find out what is in the folder. Other settings, and files that are not of a run, raise a `ValueError`.

    A finished run is to be continued if the settings allow it more epochs than it had.
    """
    if not storage.is_run(folder):
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is a file: a run needs a folder")
        if _files(folder) or _files(folder / CHECKPOINTS):
            raise ValueError(f"{folder} is not empty, and no run: choose another folder")
        return Status.NEW
    known, wanted = (flatten(each.to_dict()) for each in (read_settings(folder), settings))
    more_epochs = wanted[_MAX_EPOCHS] > known[_MAX_EPOCHS]
    for key in {**known, **wanted}:
        if known.get(key) != wanted.get(key) and not (key == _MAX_EPOCHS and more_epochs):
            raise ValueError(
                f"{folder} holds a run with {key} {known.get(key)!r}, not {wanted.get(key)!r}: choose another folder, "
                "or the same settings"
            )
    if storage.is_finished(folder) and not (more_epochs and _ended_by_epochs(folder, known[_MAX_EPOCHS])):
        return Status.FINISHED
    if not checkpoints.all_of(folder / CHECKPOINTS) and (folder / storage.WEIGHTS).exists():
        what = "a finished run" if storage.is_finished(folder) else "a model that was trained elsewhere"
        why = f"it has no {METRICS}" if not (folder / METRICS).exists() else "it has no checkpoints"
        raise ValueError(f"{folder} is {what}: {why} to continue from; choose another folder")
    return Status.CONTINUE


def finished_at(folder: Path) -> str:
    """Date and time at which the results were written."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime((folder / storage.RESULTS).stat().st_mtime))


def _ended_by_epochs(folder: Path, max_epochs: int) -> bool:
    """Whether a finished run ended because it had all its epochs, and not because it no longer improved."""
    return bool(storage.read_results(folder).get("epochs", 0) >= max_epochs)


def _files(folder: Path) -> list[Path]:
    """The contents of a folder, without what a killed start may have left."""
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if not path.name.startswith(".") and path.name != CHECKPOINTS]


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other processes from training in this folder. A start that fails leaves no folder behind."""
    place = folder / CHECKPOINTS
    with files.writing(place):
        place.mkdir(parents=True, exist_ok=True)
    try:
        with locked(place / _LOCK, wait=False, keep_file=True):
            try:
                yield
            finally:
                if not storage.is_run(folder):
                    (place / _LOCK).unlink(missing_ok=True)
    except BlockingIOError:
        raise ValueError(f"{folder}: another process is training there: wait for it, or stop it") from None
    finally:
        if not storage.is_run(folder):
            with contextlib.suppress(OSError):  # not empty
                place.rmdir()
                folder.rmdir()


def write_or_verify(folder: Path, data: TrainingData, device: str) -> None:
    """Write config and vocabulary of a new run, or verify that the data of a resumed one has not changed."""
    if storage.is_run(folder):
        if _identity(storage.read_config(folder)) != _identity(data.config):
            raise ValueError(f"{folder}: the data has other labels, or other texts, than when the run was started")
        (folder / storage.RESULTS).unlink(missing_ok=True)  # of a finished run that gets more epochs
    storage.write_config(folder, data.config)
    path = folder / storage.VOCABULARY
    if not path.exists():
        with files.writing(path):
            data.vocabulary.save(path)
    elif Vocabulary.load(path, data.vocabulary.closed) != data.vocabulary:
        raise ValueError(f"{path}: the words of the data are others now than when the run was started")
    if isinstance(data.data.tokenizer, HuggingFace):  # others are known by their names, or cannot be stored
        storage.write_tokenizer(folder, data.data.tokenizer)
    note_data(folder, data, (TRAIN, DEV), device)


def _identity(config: Config) -> tuple[object, ...]:
    """What the data determines of a model."""
    return config.labels, config.pair, config.closed_vocabulary


def note_data(folder: Path, data: TrainingData, splits: Iterable[str], device: str) -> None:
    """Write the fingerprints of these splits to the environment. A split that has changed raises a `ValueError`."""
    path = folder / ENVIRONMENT
    noted = files.read_json(path) if path.exists() else {**environment(device), "data": {}}
    for split, digest in fingerprint(data.data, splits).items():
        if noted["data"].setdefault(split, digest) != digest:
            raise ValueError(f"{folder}: the split {split} is not the one that the run was started with")
    files.write_json(path, noted)
