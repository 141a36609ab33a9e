import sys
from types import SimpleNamespace

import torch

from beamtree.utils import memory


def test_saved_counts_a_storage_once_and_neither_weights_nor_input():
    weight, x = torch.ones(1000, requires_grad=True), torch.ones(1000, requires_grad=True)
    sizes = {}
    with memory.watch_saved(sizes, [weight, x]):
        y = x * weight  # saves both, which are known
        z = (y * y[:500].repeat(2)).sum() + y.sin().sum()  # saves y, twice, and the repeated half
    z.backward()
    assert sorted(sizes.values()) == [4000, 4000]
    assert x.grad is not None


def test_the_peak_is_what_the_work_needs_at_most():
    def work():
        for _ in range(3):  # each is freed before the next but one
            torch.ones(2**26)  # 256 MiB, much more than the error of the kernel's counters

    torch.ones(2**28)  # 1 GiB, an earlier peak
    peak = memory.peak_bytes(work, "cpu")
    if not sys.platform.startswith("linux"):
        assert peak is None
    else:
        assert 248 * 2**20 < peak < 528 * 2**20


def test_releasing_memory_clears_every_registered_cache(monkeypatch):
    calls = []
    monkeypatch.setattr(memory, "CACHES", [lambda: calls.append("first"), lambda: calls.append("second")])
    memory.release_memory()
    assert calls == ["first", "second"]


def test_the_workspaces_of_the_gpu_are_a_registered_cache():
    from beamtree.nn.engine.gpu.cache import CACHE

    CACHE.acquire("key", torch.device("cpu"), lambda: SimpleNamespace(bytes=1)).release()
    assert len(CACHE) == 1
    memory.release_memory()
    assert len(CACHE) == 0
