"""The cache that owns all GPU workspaces. A workspace is used by one pass at a time.

A workspace consists of buffers of one size and of the graphs that were captured with their addresses. A pass acquires
one by an explicit key and owns it until it is released: at the end of the call or, if the backward pass reads it, after
the backward pass or when autograd frees the pass. Idle workspaces share one memory budget per device; the least
recently used are evicted first.
"""

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch

from beamtree.utils import memory

BUDGET = 1 / 8  # of the memory that the process may use on a device
MAX_IDLE = 64  # workspaces: enough for all lengths of a training set and its dev set


@runtime_checkable
class Workspace(Protocol):
    """An object that can be cached."""

    @property
    def bytes(self) -> int:
        """The size of its large buffers, which may grow while it is in use."""


W = TypeVar("W", bound=Workspace)


class IdleWorkspace(NamedTuple):
    """An idle workspace."""

    key: Hashable
    device: torch.device
    workspace: Any


class WorkspaceCache:
    """Idle workspaces, acquired by key. Thread-safe, and safe for garbage collection at any moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[IdleWorkspace] = []  # the least recently used first
        # The garbage collector may release a lease while this thread holds the lock. Appending to a deque needs no
        # lock; the next call moves its entries to the idle ones.
        self._released: deque[IdleWorkspace] = deque()

    def acquire(self, key: Hashable, device: torch.device, make: Callable[[], W]) -> "Lease[W]":
        """An idle workspace with this key, or a new one. The key must name everything that its graphs depend on."""
        with self._lock:
            self._collect()
            for index in reversed(range(len(self._idle))):
                if self._idle[index].key == key:
                    return Lease(self, self._idle.pop(index))
        with torch.inference_mode(False), torch.no_grad():  # training may use what inference allocated
            return Lease(self, IdleWorkspace(key, device, make()))

    @contextmanager
    def borrow(self, key: Hashable, device: torch.device, make: Callable[[], W]) -> Iterator[W]:
        """Acquire a workspace during a call."""
        lease = self.acquire(key, device, make)
        try:
            yield lease.workspace
        finally:
            lease.release()

    def release(self, entry: IdleWorkspace) -> None:
        """Called by leases."""
        self._released.append(entry)
        if self._lock.acquire(blocking=False):  # otherwise the thread that holds it, or the next call, collects
            try:
                self._collect()
            finally:
                self._lock.release()

    def clear(self) -> None:
        """Free all workspaces that are not in use."""
        with self._lock:
            self._collect()
            idle, self._idle = self._idle, []
        del idle  # outside of the lock: freeing a workspace may run arbitrary code

    def idle(self) -> list[Any]:
        """The workspaces that are not in use, the least recently used first."""
        with self._lock:
            self._collect()
            return [entry.workspace for entry in self._idle]

    def __len__(self) -> int:
        """The number of workspaces that are not in use."""
        return len(self.idle())

    def _collect(self) -> None:
        """Move released workspaces to the idle ones, and evict those over the budget. The lock must be held."""
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
    """A workspace that one pass owns until it is released or the lease is garbage-collected."""

    def __init__(self, cache: WorkspaceCache, entry: IdleWorkspace) -> None:
        self._cache, self._entry = cache, entry

    @property
    def workspace(self) -> W:
        if self._entry is None:
            raise RuntimeError("the workspace was released: backward through this pass has been done already")
        workspace: W = self._entry.workspace
        return workspace

    def release(self) -> None:
        """Return the workspace to the cache. This pass must not read it any more."""
        if self._entry is not None:
            entry, self._entry = self._entry, None  # type: ignore[assignment]
            self._cache.release(entry)

    def __del__(self) -> None:
        self.release()


def budget(device: torch.device) -> float:
    """Bytes that idle workspaces on a device may hold."""
    if device.type != "cuda":
        return float("inf")
    index = torch.cuda.current_device() if device.index is None else device.index  # PyTorch 2.11 needs an index here
    fraction = torch.cuda.get_per_process_memory_fraction(index)
    return BUDGET * fraction * torch.cuda.get_device_properties(device).total_memory


CACHE = WorkspaceCache()
memory.CACHES.append(CACHE.clear)
