"""Checkpoints are complete or absent; damaged ones are skipped; reading one executes no code."""

import errno
import hashlib
import io
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from beamtree.runs import checkpoints
from beamtree.runs.checkpoints import load, path_of, save


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the checkpoints of three steps."""
    for step in (5, 50, 500):
        save(path_of(tmp_path, step), {"step": step, "weights": torch.arange(100.0) + step})
    return tmp_path


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def damage_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


def damage_foreign(path: Path) -> None:
    torch.save({"step": 500}, path)


def test_what_was_saved_is_loaded(folder):
    loaded = load(path_of(folder, 50))
    assert loaded["step"] == 50
    assert torch.equal(loaded["weights"], torch.arange(100.0) + 50)


@pytest.mark.parametrize("damage", [damage_cut, damage_bit, damage_empty, damage_foreign])
def test_of_a_damaged_one_the_one_before_is_taken(folder, damage):
    messages: list[str] = []
    assert checkpoints.newest(folder, messages.append) == path_of(folder, 500)
    assert messages == []
    damage(path_of(folder, 500))
    assert checkpoints.newest(folder, messages.append) == path_of(folder, 50)
    assert messages == [f"{path_of(folder, 500)}: the checkpoint is damaged: using the previous one"]
    with pytest.raises(ValueError, match="the checkpoint is damaged"):
        load(path_of(folder, 500))
    for step in (5, 50):
        damage(path_of(folder, step))
    with pytest.raises(ValueError, match=r"all 3 checkpoints are damaged: restore one, or remove the folder"):
        checkpoints.newest(folder, messages.append)


def test_without_checkpoints_there_is_no_newest(tmp_path):
    assert checkpoints.newest(tmp_path / "nowhere", pytest.fail) is None


def test_the_newest_two_are_kept(folder):
    checkpoints.prune(folder)
    assert checkpoints.all_of(folder) == [path_of(folder, 50), path_of(folder, 500)]


def test_going_on_from_one_removes_those_after_it_and_what_was_not_finished(folder):
    (folder / ".step-000000501.ckpt.x.tmp").write_bytes(b"half")
    checkpoints.remove_after(folder, path_of(folder, 50))
    assert sorted(folder.iterdir()) == [path_of(folder, 5), path_of(folder, 50)]
    checkpoints.remove_after(folder, None)
    assert list(folder.iterdir()) == []


def test_a_full_disk_leaves_what_was_there(folder, monkeypatch):
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = {path: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(os, "fsync", full)
    for step in (500, 5000):
        with pytest.raises(ValueError, match=r"step-0*\d+\.ckpt: it cannot be written \(No space left on device\)"):
            save(path_of(folder, step), {"step": step})
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_loading_runs_no_code(tmp_path):
    class Code:
        def __reduce__(self):
            return (Path(tmp_path / "harm").touch, ())

    buffer = io.BytesIO()
    torch.save({"state_dict": Code()}, buffer)
    payload = buffer.getvalue()
    content = b"beamtree checkpoint 2\n" + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload
    path = path_of(tmp_path, 1)
    path.write_bytes(content)
    with pytest.raises(ValueError, match="it is not a checkpoint that this version can read"):
        load(path)
    assert not (tmp_path / "harm").exists()


def draw() -> list[float]:
    return [random.random(), float(np.random.rand()), float(np.random.randn()), float(torch.rand(()))]


def test_random_numbers_go_on_after_a_checkpoint(tmp_path):
    cpu = torch.device("cpu")
    checkpoints.seed_all(7)
    np.random.randn()  # samples two values and caches the second
    save(path_of(tmp_path, 1), {"random": checkpoints.random_state(cpu)})
    expected = draw()
    assert draw() != expected
    checkpoints.restore_random_state(load(path_of(tmp_path, 1))["random"], cpu)
    assert draw() == expected


def test_seeds_differ_by_every_number():
    found = []
    for seeds in ((1,), (2,), (1, 1), (1, 2), (1, 1, 5)):
        checkpoints.seed_all(*seeds)
        found.append(tuple(draw()))
    assert len(set(found)) == len(found)
