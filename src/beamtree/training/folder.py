"""The folder of a run during training: its status, its lock, and checks that a resumed run has the same data.

In distributed training, only the first process calls these functions.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path

import torch

from beamtree.data.tokenizers import HuggingFace
from beamtree.data.vocabulary import Vocabulary
from beamtree.models import storage
from beamtree.models.config import Config
from beamtree.models.parser import load_parser
from beamtree.models.pretrained import Pretrained, folder_of
from beamtree.runs import checkpoints
from beamtree.runs.folder import CHECKPOINTS, ENVIRONMENT, METRICS, environment, fingerprint, read_settings
from beamtree.runs.settings import Settings
from beamtree.training.loading import DEV, TRAIN, TrainingData
from beamtree.utils import files
from beamtree.utils.locks import locked
from beamtree.utils.mappings import flatten

_LOCK = ".lock"
_MAX_EPOCHS, _PARSER = "training.max_epochs", "data.parser"


class Status(Enum):
    """What `train` has to do with a folder."""

    NEW = "new"
    CONTINUE = "continue"
    FINISHED = "finished"


def status(folder: Path, settings: Settings) -> Status:
    """Return whether the run is new, to be continued, or finished.

    A finished run is continued if the settings allow more epochs than it was trained for.

    Raises:
        ValueError: if the folder holds a run with other settings, or files that do not belong to a run.
    """
    if not storage.is_run(folder):
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is a file: a run needs a folder")
        if _files(folder) or _files(folder / CHECKPOINTS):
            raise ValueError(f"{folder} is not empty, but not a run: choose another folder")
        return Status.NEW
    known, wanted = (flatten(each.to_dict()) for each in (read_settings(folder), settings))
    more_epochs = wanted[_MAX_EPOCHS] > known[_MAX_EPOCHS]
    if _is_same_parser(folder, known.get(_PARSER), wanted.get(_PARSER)):
        wanted[_PARSER] = known[_PARSER]
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


def _is_same_parser(folder: Path, known: str | None, wanted: str | None) -> bool:
    """Whether two names, or paths, mean the model that the run uses, of which its folder has a copy."""
    copy = folder / storage.PARSER
    if known is None or wanted is None or not storage.is_run(copy):
        return False
    found = folder_of(wanted)
    return storage.same_model(copy, found) if storage.is_run(found) else os.path.abspath(wanted) == known


def finished_at(folder: Path) -> str:
    """Date and time at which the results were written."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime((folder / storage.RESULTS).stat().st_mtime))


def _ended_by_epochs(folder: Path, max_epochs: int) -> bool:
    """Whether a finished run was stopped by the maximum number of epochs, and not by early stopping."""
    return bool(storage.read_results(folder).get("epochs", 0) >= max_epochs)


def _files(folder: Path) -> list[Path]:
    """The contents of a folder, except for what a process that was killed at its start may have left."""
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if not path.name.startswith(".") and path.name != CHECKPOINTS]


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Lock the folder against other processes. If no run was created in the block, the folder is removed again."""
    checkpoint_folder = folder / CHECKPOINTS
    with files.writing(checkpoint_folder):
        checkpoint_folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(checkpoint_folder / _LOCK, wait=False, keep_file=True):
            try:
                yield
            finally:
                if not storage.is_run(folder):
                    (checkpoint_folder / _LOCK).unlink(missing_ok=True)
    except BlockingIOError:
        raise ValueError(f"{folder}: another process is training in this folder: wait for it, or stop it") from None
    finally:
        if not storage.is_run(folder):
            with contextlib.suppress(OSError):  # not empty
                checkpoint_folder.rmdir()
                folder.rmdir()


def write_or_verify(folder: Path, data: TrainingData, device: str) -> None:
    """Write the config and vocabulary of a new run, or verify that the data of a resumed run has not changed."""
    if storage.is_run(folder):
        if _identity(storage.read_config(folder)) != _identity(data.config):
            raise ValueError(
                f"{folder}: the labels or the form of the data have changed since the run was started: restore the data"
            )
        with files.writing(folder / storage.RESULTS):  # of a finished run that is trained for more epochs
            (folder / storage.RESULTS).unlink(missing_ok=True)
    storage.write_config(folder, data.config)
    path = folder / storage.VOCABULARY
    if not path.exists():
        with files.writing(path):
            data.vocabulary.save(path)
    elif Vocabulary.load(path, data.vocabulary.closed) != data.vocabulary:
        raise ValueError(f"{path}: the vocabulary of the data has changed since the run was started: restore the data")
    if data.parser is not None and not storage.is_run(folder / storage.PARSER):
        data.parser.save_pretrained(folder / storage.PARSER)
    if isinstance(data.data.tokenizer, HuggingFace):  # others are identified by their names, or cannot be stored
        storage.write_tokenizer(folder, data.data.tokenizer)
    record_data(folder, data, (TRAIN, DEV), device)


def stored_parser(settings: Settings, folder: Path, device: torch.device) -> Pretrained | None:
    """Load the parser of a run: the copy in its folder if there is one, which the original may have outdated."""
    if settings.data.parser is None:
        return None
    copy = folder / storage.PARSER
    return load_parser(copy if storage.is_run(copy) else settings.data.parser, device)


def _identity(config: Config) -> tuple[object, ...]:
    """The parts of a model's config that the data determines."""
    return config.labels, config.pair, config.closed_vocabulary


def record_data(folder: Path, data: TrainingData, splits: Iterable[str], device: str) -> None:
    """Write versions, hardware and the fingerprints of splits. Raises a `ValueError` if a split has changed.

    A run that is resumed with other versions, or on other hardware, has those as well, in the list "resumed".
    """
    path, here = folder / ENVIRONMENT, environment(device)
    recorded = files.read_json(path) if path.exists() else {**here, "data": {}}
    latest = [recorded, *recorded.get("resumed", ())][-1]
    if any(latest.get(key) != value for key, value in here.items()):
        recorded.setdefault("resumed", []).append(here)
    for split, digest in fingerprint(data.data, splits).items():
        if recorded["data"].setdefault(split, digest) != digest:
            raise ValueError(f"{folder}: the split {split} has changed since the run was started: restore the data")
    files.write_json(path, recorded)
