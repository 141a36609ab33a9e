"""The folder of a run: the files of its model, and the files of training.

`metrics.jsonl` has a line for each epoch, `environment.json` the versions, the hardware and the fingerprints of the
data, and `checkpoints/` the state that is needed to resume. `results.json` is written last and marks a finished run.
"""

import contextlib
import importlib.metadata
import platform
from collections.abc import Iterable
from typing import Any

import torch

from beamtree import __version__
from beamtree.data.loading import Data
from beamtree.models import storage
from beamtree.models.config import config_error
from beamtree.runs.settings import Settings
from beamtree.utils.devices import device_name
from beamtree.utils.files import StrPath

METRICS = "metrics.jsonl"
ENVIRONMENT = "environment.json"
CHECKPOINTS = "checkpoints"

_PACKAGES = ("torch", "numpy", "lightning", "torchmetrics", "safetensors")  # whose versions may affect results


def read_settings(folder: StrPath) -> Settings:
    """Read the settings of a run.

    Args:
        folder: the folder of the run.

    Returns:
        Its settings.

    Raises:
        ValueError: if the folder contains no run, or if its config.yaml is invalid.

    Examples:
        >>> from beamtree.runs.folder import read_settings
        >>> read_settings("runs/listops-tiny/bt-grc-seed0").training.batch_size  # doctest: +SKIP
    """
    config = storage.read_config(folder)
    try:
        return Settings.from_dict(config.settings, where=str(storage.file_of(folder, storage.CONFIG)))
    except ValueError as error:
        raise config_error(str(error), config.document) from None


def environment(device: torch.device | str) -> dict[str, Any]:
    """The versions and the hardware, which may affect results."""
    versions = {"beamtree": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "versions": versions,
        "cuda": torch.version.cuda,
        "system": platform.platform(),
        "device": device_name(device),
        "threads": torch.get_num_threads(),
    }


def fingerprint(data: Data, splits: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of each split: of its tokens, its labels and their order."""
    return {split: data[split].fingerprint for split in splits}
