"""Checkpoints of a run: complete and verified, or not there at all.

A file is a line that names its format, a line with the SHA-256 of the rest, and what `torch.save` wrote. It is written
beside its place and renamed into it; the one before it is removed only after the next one, so that two are kept.
Loading runs no code of the file's.
"""

import hashlib
import io
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO

from beamtree import runs

KEPT = 2  # the newest, and one should that be damaged
_FORMAT = b"beamtree checkpoint 1\n"
_DIGEST = 64  # hexadecimal digits


class CheckpointFiles(CheckpointIO):
    """How Lightning writes and reads them."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any | None = None
    ) -> None:
        buffer = io.BytesIO()  # torch's own errors would not tell a full disk from any other
        torch.save(checkpoint, buffer)
        payload = buffer.getvalue()
        runs.write_atomically(path, b"".join((_FORMAT, hashlib.sha256(payload).hexdigest().encode(), b"\n", payload)))

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        payload = _verified(Path(path))
        try:
            return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
        except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
            raise ValueError(f"{path}: it is no checkpoint that this version can read ({error})") from None

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        Path(path).unlink(missing_ok=True)


def path_of(folder: Path, step: int) -> Path:
    """Of the checkpoint after so many steps of the optimiser."""
    return folder / f"step-{step:09}.ckpt"


def newest(folder: Path, say: Callable[[str], None]) -> Path | None:
    """The last checkpoint that is whole; `say` is told of one that is not."""
    found = all_of(folder)
    for path in reversed(found):
        try:
            _verified(path)
        except ValueError as error:
            say(f"{error}: the one before it is taken")
            continue
        return path
    if found:
        raise ValueError(
            f"{folder}: all {len(found)} checkpoints are damaged: restore one, or remove the folder to begin anew"
        )
    return None


def all_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.ckpt"))


def prune(folder: Path) -> None:
    """Remove all but the newest."""
    for path in all_of(folder)[:-KEPT]:
        path.unlink(missing_ok=True)


def remove_after(folder: Path, last: Path | None) -> None:
    """Remove what is newer than the checkpoint that a run goes on from, and what killed processes left half-written."""
    for path in all_of(folder):
        if last is None or path > last:
            path.unlink(missing_ok=True)
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def _verified(path: Path) -> bytes:
    """What is in the file, if that is what was written."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: it cannot be read ({error.strerror})") from None
    begin = len(_FORMAT) + _DIGEST + 1
    payload = content[begin:]
    if not content.startswith(_FORMAT) or content[len(_FORMAT) : begin - 1].decode("ascii", "replace") != (
        hashlib.sha256(payload).hexdigest()
    ):
        raise ValueError(f"{path}: the checkpoint is damaged")
    return payload


def seed_all(*seeds: int) -> None:
    """All generators of random numbers; a zero at the end of the seeds is as none."""
    number = int(np.random.SeedSequence(seeds).generate_state(1)[0])
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)  # those of the GPUs too


def random_state(device: torch.device) -> dict[str, Any]:
    """Where all generators stand, in types that are loaded without running code."""
    name, keys, place, has_gauss, gauss = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (str(name), torch.from_numpy(np.asarray(keys).astype(np.int64)), place, has_gauss, gauss),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def restore_random_state(state: dict[str, Any], device: torch.device) -> None:
    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
