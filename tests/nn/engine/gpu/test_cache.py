"""A workspace belongs to one pass at a time, and all of them keep to a budget."""

import gc
import threading
import time

import pytest
import torch

pytest.importorskip("triton")  # the package of the captured engines needs it

from beamtree.nn.engine.gpu import cache
from beamtree.nn.engine.gpu.cache import WorkspaceCache

CPU = torch.device("cpu")


class Buffers:
    def __init__(self, size=1):
        self.bytes, self.users = size, 0


def borrow(workspaces, key, size=1, device=CPU):
    with workspaces.borrow(key, device, lambda: Buffers(size)) as found:
        return found


def test_what_was_released_is_lent_again_by_its_key():
    workspaces = WorkspaceCache()
    first = borrow(workspaces, "a")
    assert borrow(workspaces, "b") is not first
    assert borrow(workspaces, "a") is first
    assert len(workspaces) == 2


def test_a_workspace_in_use_is_nobody_elses():
    workspaces = WorkspaceCache()
    first, second = (workspaces.acquire("a", CPU, Buffers) for _ in range(2))
    assert first.workspace is not second.workspace
    assert len(workspaces) == 0
    first.release()
    first.release()  # only once
    assert len(workspaces) == 1


def test_a_lease_that_is_forgotten_is_released():
    workspaces = WorkspaceCache()
    lease = workspaces.acquire("a", CPU, Buffers)
    cycle = [lease]
    cycle.append(cycle)
    del lease, cycle
    gc.collect()
    assert len(workspaces) == 1


def test_a_released_workspace_is_out_of_reach():
    lease = WorkspaceCache().acquire("a", CPU, Buffers)
    lease.release()
    with pytest.raises(RuntimeError, match="was released"):
        lease.workspace  # noqa: B018


def test_the_least_recently_used_is_evicted_first(monkeypatch):
    monkeypatch.setattr(cache, "MAX_IDLE", 2)
    workspaces = WorkspaceCache()
    a, b = borrow(workspaces, "a"), borrow(workspaces, "b")
    assert borrow(workspaces, "a") is a
    c = borrow(workspaces, "c")
    assert workspaces.idle() == [a, c]
    assert borrow(workspaces, "b") is not b


def test_all_workspaces_of_a_device_share_one_budget(monkeypatch):
    monkeypatch.setattr(cache, "budget", lambda device: 100)
    workspaces = WorkspaceCache()
    for size in (60, 40):
        borrow(workspaces, f"kind {size}", size)
    assert [found.bytes for found in workspaces.idle()] == [60, 40]
    borrow(workspaces, "one more", 1)
    assert [found.bytes for found in workspaces.idle()] == [40, 1]
    borrow(workspaces, "elsewhere", 90, torch.device("meta"))  # another device has its own
    assert [found.bytes for found in workspaces.idle()] == [40, 1, 90]
    borrow(workspaces, "too large", 500)  # the last one always stays
    assert [found.bytes for found in workspaces.idle()] == [90, 500]


def test_the_budget_is_a_share_of_the_card(monkeypatch):
    class Card:
        total_memory = 800

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Card)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 1.0)
    assert cache.budget(torch.device("cuda", 0)) == 100
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 0.25)
    assert cache.budget(torch.device("cuda", 0)) == 25
    assert cache.budget(CPU) == float("inf")


def test_clearing_leaves_what_is_in_use():
    workspaces = WorkspaceCache()
    lease, _ = workspaces.acquire("a", CPU, Buffers), borrow(workspaces, "b")
    workspaces.clear()
    assert len(workspaces) == 0
    held = lease.workspace
    lease.release()
    assert workspaces.idle() == [held]


def test_threads_never_share_a_workspace():
    workspaces, clashes = WorkspaceCache(), []

    def work(seed):
        for step in range(200):
            with workspaces.borrow((seed + step) % 3, CPU, Buffers) as found:
                found.users += 1
                time.sleep(0)
                if found.users != 1:
                    clashes.append(step)
                found.users -= 1

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not clashes
    assert len(workspaces) <= 12


def test_a_lease_may_be_collected_while_the_cache_is_locked():
    """As the garbage collector does whenever it likes."""
    workspaces = WorkspaceCache()
    lease = workspaces.acquire("a", CPU, Buffers)
    with workspaces._lock:
        del lease
    assert len(workspaces) == 1
