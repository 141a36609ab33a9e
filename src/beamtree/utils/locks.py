"""Locks between processes. A lock is released when its process exits, even if the process is killed.

with locked(folder / ".lock"):                      # waits for other processes
    ...
"""

import contextlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock

# No fallback to a soft lock, a mere file that would outlive a killed process. filelock 3 has no fallback.
_PARAMETERS = inspect.signature(filelock.BaseFileLock.__init__).parameters
_OPTIONS: dict[str, Any] = {"fallback_to_soft": False} if "fallback_to_soft" in _PARAMETERS else {}


@contextlib.contextmanager
def locked(path: Path, wait: bool = True, keep_file: bool = False) -> Iterator[bool]:
    """Hold a lock inside the block.

    Args:
        path: the lock file, in an existing and writable folder on a file system that supports locks.
        wait: whether to wait if another process holds the lock, or to raise `BlockingIOError` at once.
        keep_file: whether to leave the lock file in place. Otherwise it is removed before the lock is released.

    Yields:
        Whether the lock is held; False if no lock can be created there.
    """
    lock = _acquire(path, wait)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            if not keep_file:
                with contextlib.suppress(OSError):  # Windows cannot remove an open file: it stays
                    path.unlink()  # while the lock is held: a waiting process notices, and locks a new file
            lock.release()


def _acquire(path: Path, wait: bool) -> filelock.BaseFileLock | None:
    if not path.parent.is_dir():  # filelock would create it
        return None
    lock = filelock.FileLock(path, **_OPTIONS)
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except filelock.Timeout:
        raise BlockingIOError(f"another process holds the lock {path}") from None
    except (OSError, NotImplementedError):
        return None
    return lock
