"""Checkpoints of a run, written atomically and verified by a checksum.

A file consists of a line that names the format, a line with the SHA-256 of the rest, and the output of `torch.save`. It
is written under a temporary name and renamed. The two newest checkpoints are kept, in case one is damaged.
"""

import hashlib
import io
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from beamtree.utils import files

KEPT = 2
_FORMAT = b"beamtree checkpoint 2\n"
_DIGEST = 64  # hexadecimal digits


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint. `state` consists of tensors, numbers, strings, and lists and dicts of them."""
    buffer = io.BytesIO()  # torch.save does not distinguish a full disk from other errors
    torch.save(state, buffer)
    payload = buffer.getvalue()
    with files.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomically(path, b"".join((_FORMAT, hashlib.sha256(payload).hexdigest().encode(), b"\n", payload)))


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint to the CPU, without executing code from it."""
    payload = _verified(path)
    try:
        return dict(torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True))
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise ValueError(f"{path}: it is not a checkpoint that this version can read ({error})") from None


def path_of(folder: Path, step: int) -> Path:
    """The path of the checkpoint after this many steps of the optimizer."""
    return folder / f"step-{step:09}.ckpt"


def newest(folder: Path, say: Callable[[str], None]) -> Path | None:
    """The newest checkpoint that is not damaged. `say` receives a warning for each one that is."""
    found = all_of(folder)
    for path in reversed(found):
        try:
            _verified(path)
        except ValueError as error:
            say(f"{error}: using the previous one")
            continue
        return path
    if found:
        raise ValueError(
            f"{folder}: all {len(found)} checkpoints are damaged: restore one, or remove the folder to start over"
        )
    return None


def all_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.ckpt"))


def prune(folder: Path, kept: int = KEPT) -> None:
    """Remove all but the newest checkpoints."""
    for path in all_of(folder)[:-kept]:
        path.unlink(missing_ok=True)


def remove_after(folder: Path, last: Path | None) -> None:
    """Remove checkpoints newer than the one a run resumes from, and temporary files of killed processes."""
    for path in all_of(folder):
        if last is None or path > last:
            path.unlink(missing_ok=True)
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def _verified(path: Path) -> bytes:
    """The content of the file, after verifying its checksum."""
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
    """Seed all random number generators. Trailing zeros among the seeds have no effect."""
    seed = int(np.random.SeedSequence(seeds).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # also those of the GPUs


def random_state(device: torch.device) -> dict[str, Any]:
    """The states of all random number generators, in types that can be loaded without executing code."""
    name, keys, position, has_gauss, gauss = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (str(name), torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, gauss),
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
