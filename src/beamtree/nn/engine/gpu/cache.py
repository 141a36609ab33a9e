"""The one owner of GPU buffers: a cache that lends a workspace to one pass at a time.

A workspace is buffers of one size, and the graphs that were captured with their addresses. A pass acquires one by an
explicit key, and no other pass gets the same one until it is released: at the end of the call, or, where backward reads
what forward left, after backward, or when autograd frees the pass. All idle workspaces keep to one budget for each
device; the least recently used are evicted first.
"""

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch

BUDGET = 1 / 8  # of a device's memory
MAX_IDLE = 64  # workspaces: enough for all lengths of a training set and its dev set


@runtime_checkable
class Workspace(Protocol):
    """What can be cached."""

    @property
    def bytes(self) -> int:
        """Of its large buffers, which may grow while it is in use."""


W = TypeVar("W", bound=Workspace)


class IdleWorkspace(NamedTuple):
    """An idle workspace."""

    key: Hashable
    device: torch.device
    workspace: Any


class WorkspaceCache:
    """Idle workspaces, to be acquired by key. Safe for threads, and for garbage collection at any moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[IdleWorkspace] = []  # the least recently used first
        # The garbage collector may release a lease while this thread holds the lock. Appending to a deque needs none;
        # the next call moves its entries to the idle ones.
        self._released: deque[IdleWorkspace] = deque()

    def acquire(self, key: Hashable, device: torch.device, make: Callable[[], W]) -> "Lease[W]":
        """An idle workspace with this key, or a new one. The key must name everything that its graphs depend on."""
        with self._lock:
            self._collect()
            for index in reversed(range(len(self._idle))):
                if self._idle[index].key == key:
                    return Lease(self, self._idle.pop(index))
        with torch.inference_mode(False), torch.no_grad():  # training may use what inference made
            return Lease(self, IdleWorkspace(key, device, make()))

    @contextmanager
    def borrow(self, key: Hashable, device: torch.device, make: Callable[[], W]) -> Iterator[W]:
        """A workspace for the time of a call."""
        lease = self.acquire(key, device, make)
        try:
            yield lease.workspace
        finally:
            lease.release()

    def release(self, entry: IdleWorkspace) -> None:
        """Called by leases."""
        self._released.append(entry)
        if self._lock.acquire(blocking=False):  # else whoever holds it, or the next call, collects
            try:
                self._collect()
            finally:
                self._lock.release()

    def clear(self) -> None:
        """Free all workspaces that are not in use."""
        with self._lock:
            self._collect()
            idle, self._idle = self._idle, []
        del idle  # outside of the lock: freeing a workspace may run anything

    def idle(self) -> list[Any]:
        """The workspaces that are not in use, the least recently used first."""
        with self._lock:
            self._collect()
            return [entry.workspace for entry in self._idle]

    def __len__(self) -> int:
        """How many are not in use."""
        return len(self.idle())

    def _collect(self) -> None:
        """Move what was released to the idle ones, and evict what is over the budget. The lock must be held."""
        while self._released:
            entry = self._released.popleft()
            self._idle.append(entry)
            own = [other for other in self._idle if other.device == entry.device]
            used, limit, evicted = sum(other.workspace.bytes for other in own), budget(entry.device), set[int]()
            for other in own[:-1]:  # the last one always stays
                if used <= limit and len(own) - len(evicted) <= MAX_IDLE:
                    break
                used -= other.workspace.bytes
                evicted.add(id(other))
            self._idle = [other for other in self._idle if id(other) not in evicted]


class Lease(Generic[W]):
    """A workspace that belongs to one pass, until it is released or nothing refers to the lease any more."""

    def __init__(self, cache: WorkspaceCache, entry: IdleWorkspace) -> None:
        self._cache, self._entry = cache, entry

    @property
    def workspace(self) -> W:
        if self._entry is None:
            raise RuntimeError("the workspace was released: backward through this pass has been done already")
        workspace: W = self._entry.workspace
        return workspace

    def release(self) -> None:
        """Whatever the next pass writes there, this one no longer reads."""
        if self._entry is not None:
            entry, self._entry = self._entry, None  # type: ignore[assignment]
            self._cache.release(entry)

    def __del__(self) -> None:
        self.release()


def budget(device: torch.device) -> float:
    """Bytes that idle workspaces on a device may hold."""
    if device.type != "cuda":
        return float("inf")
    return BUDGET * torch.cuda.get_device_properties(device).total_memory


CACHE = WorkspaceCache()
