"""Memory: what autograd saves, the most that some work needs, and what is free."""

import contextlib
import ctypes
import gc
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor


def watch_saved(sizes: dict[int, int], known: Sequence[Tensor]) -> torch.autograd.graph.saved_tensors_hooks:
    """Within it, the sizes of the distinct storages that autograd saves, by address; those of `known` do not count."""
    ignored = {tensor.untyped_storage().data_ptr() for tensor in known}

    def pack(tensor: Tensor) -> Tensor:  # notes numbers only: a reference would keep alive what autograd lets go
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in ignored:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)


def peak_bytes(work: Callable[[], None], device: str) -> int | None:
    """How far memory rises at most during the work; None where the system does not tell."""
    release_memory()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return torch.cuda.max_memory_allocated() - before
    resident = highest = None
    with exact_allocation():
        with contextlib.suppress(OSError):  # not Linux
            Path("/proc/self/clear_refs").write_text("5")  # forget the highest resident memory so far
            resident = _kernel_bytes("/proc/self/status", "VmRSS")
        work()
        if resident is not None:
            highest = _kernel_bytes("/proc/self/status", "VmHWM")
    return None if resident is None or highest is None else max(highest - resident, 0)


@contextlib.contextmanager
def exact_allocation() -> Iterator[None]:
    """Every tensor of some size has pages of its own, which go back to the system with it.

    By default glibc learns while a program runs to keep freed memory, and then up to half of what is resident is gaps:
    the peak would depend on what was measured before.
    """
    set_option = getattr(_libc(), "mallopt", lambda option, value: None)
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
    set_option(trim_threshold, 128 * 1024)  # where glibc starts
    set_option(mmap_threshold, 128 * 1024)
    try:
        yield
    finally:
        # There is no way back to learning. From here on times are taken, and what is freed stays with the process: to
        # get pages from the system again takes a time of its own, which depends on what ran before, here and elsewhere.
        set_option(trim_threshold, 2**31 - 1)
        set_option(mmap_threshold, 32 * 2**20)


def available_bytes(device: str | torch.device) -> int | None:
    """Memory that is free now. Beyond it the CPU's system may end the process instead of raising an error."""
    device = torch.device(device)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    with contextlib.suppress(OSError):
        return _kernel_bytes("/proc/meminfo", "MemAvailable")
    with contextlib.suppress(AttributeError, ValueError, OSError):  # not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def release_memory() -> None:
    """Give back what is no longer used, so that the next measurement starts from what is really there."""
    gpu = sys.modules.get("beamtree.nn.engine.gpu.cache")
    if gpu is not None:  # its buffers outlive their encoder, and those of an earlier case would hide this one's
        gpu.CACHE.clear()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    getattr(_libc(), "malloc_trim", lambda keep: None)(0)


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(words in str(error) for words in ("not enough memory", "can't allocate memory", "out of memory"))


def _libc() -> ctypes.CDLL | None:
    """The C library where it is glibc, which can be told how to manage memory."""
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None


def _kernel_bytes(file: str, field: str) -> int | None:
    """A field of one of Linux's files of the form "VmRSS:   1234 kB"."""
    for line in Path(file).read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None
