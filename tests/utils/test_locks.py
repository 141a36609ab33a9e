"""Locks between processes: one holder at a time, no file left behind, and no lock that outlives its process."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from beamtree.utils import locks
from beamtree.utils.locks import locked
from subprocesses import NoLocks, starting, until

Start = Callable[[str], subprocess.Popen[str]]

PREFACE = """
from pathlib import Path
from beamtree.utils.locks import locked
folder = Path(folder)
"""
HOLD = """
with locked(folder / "lock"):
    say("held")
    time.sleep(60)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path, PREFACE) as run:
        yield run


def test_a_lock_has_one_holder_at_a_time_and_leaves_no_file(tmp_path: Path, start: Start) -> None:
    code = """
count = folder / "count"
for _ in range(50):
    with locked(folder / "lock") as held:
        assert held
        number = int(count.read_text())
        count.write_text(str(number + 1))
"""
    (tmp_path / "count").write_text("0")
    for process in [start(code) for _ in range(3)]:
        assert process.wait(timeout=30) == 0
    assert (tmp_path / "count").read_text() == "150"
    assert os.listdir(tmp_path) == ["count"]


def test_a_process_that_has_waited_for_a_lock_holds_it_alone(tmp_path: Path) -> None:
    """Even though the previous holder has removed the file that it waited for."""
    lock, has_it, done = tmp_path / "lock", threading.Event(), threading.Event()

    def wait() -> None:
        with locked(lock):
            has_it.set()
            done.wait(10)

    waiting = threading.Thread(target=wait)
    with locked(lock):
        waiting.start()
        assert not has_it.wait(0.1)
    assert has_it.wait(10)
    with pytest.raises(BlockingIOError), locked(lock, wait=False):
        pass
    done.set()
    waiting.join()


def test_without_waiting_a_lock_of_another_process_is_an_error(tmp_path: Path, start: Start) -> None:
    lock = tmp_path / "lock"
    holder = start(HOLD)
    until(holder, "held")
    with pytest.raises(BlockingIOError, match="another process holds the lock"), locked(lock, wait=False):
        raise AssertionError("two processes hold the lock")
    assert lock.exists()  # it is still the holder's
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with locked(lock, wait=False) as held:  # the lock ended with the process
        assert held
    assert not lock.exists()


@pytest.mark.parametrize("keep_file", [True, False])
def test_the_lock_file_stays_if_asked_for(tmp_path: Path, keep_file: bool) -> None:
    for _ in range(2):
        with locked(tmp_path / "lock", keep_file=keep_file) as held:
            assert held
            assert os.listdir(tmp_path) == ["lock"]
        assert os.listdir(tmp_path) == (["lock"] if keep_file else [])


@pytest.mark.parametrize("keep_file", [True, False])
def test_the_lock_is_released_if_the_block_raises(tmp_path: Path, keep_file: bool) -> None:
    with pytest.raises(KeyError), locked(tmp_path / "lock", keep_file=keep_file):
        raise KeyError
    with locked(tmp_path / "lock", wait=False) as held:
        assert held


def test_in_a_folder_that_does_not_exist_there_is_no_lock(tmp_path: Path) -> None:
    with locked(tmp_path / "no" / "such" / "folder") as held:
        assert not held
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("wait", [True, False])
def test_without_locks_nothing_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: bool) -> None:
    monkeypatch.setattr(locks.filelock, "FileLock", NoLocks)
    with locked(tmp_path / "lock", wait=wait) as held, locked(tmp_path / "lock", wait=wait) as again:
        assert not held
        assert not again
    assert os.listdir(tmp_path) == []
