"""Memory: tensors saved by autograd, peak memory, and available memory."""

import contextlib
import ctypes
import gc
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

# Functions that clear a cache of buffers, registered by the modules that own one. Cached buffers outlive an encoder,
# and would hide those of the next measurement.
CACHES: list[Callable[[], None]] = []


def watch_saved(sizes: dict[int, int], known: Sequence[Tensor]) -> torch.autograd.graph.saved_tensors_hooks:
    """Context manager that records in `sizes` the storages that autograd saves, by address, except those of `known`."""
    ignored = {tensor.untyped_storage().data_ptr() for tensor in known}

    def pack(tensor: Tensor) -> Tensor:  # records sizes only: a reference would keep tensors alive
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in ignored:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)


def peak_bytes(work: Callable[[], None], device: str) -> int | None:
    """Peak increase of memory during the work; None if the system does not report it."""
    release_memory()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return torch.cuda.max_memory_allocated() - before
    resident = highest = None
    with exact_allocation():
        with contextlib.suppress(OSError):  # not Linux
            Path("/proc/self/clear_refs").write_text("5")  # reset the peak resident memory
            resident = _kernel_bytes("/proc/self/status", "VmRSS")
        work()
        if resident is not None:
            highest = _kernel_bytes("/proc/self/status", "VmHWM")
    return None if resident is None or highest is None else max(highest - resident, 0)


@contextlib.contextmanager
def exact_allocation() -> Iterator[None]:
    """Allocate every large tensor in its own pages, which return to the system when it is freed.

    By default glibc adapts at run time and keeps freed memory; then up to half of the resident memory is gaps, and the
    peak would depend on earlier measurements.
    """
    set_option = getattr(_libc(), "mallopt", lambda option, value: None)
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
    set_option(trim_threshold, 128 * 1024)  # glibc's initial value
    set_option(mmap_threshold, 128 * 1024)
    try:
        yield
    finally:
        # The adaptive mode cannot be restored. Timings follow, so let the process keep freed memory: getting pages from
        # the system takes time, which depends on what ran before, in this process and in others.
        set_option(trim_threshold, 2**31 - 1)
        set_option(mmap_threshold, 32 * 2**20)


def available_bytes(device: str | torch.device) -> int | None:
    """Memory that is free now. On a CPU, exceeding it may kill the process instead of raising an error."""
    device = torch.device(device)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    with contextlib.suppress(OSError):
        return _kernel_bytes("/proc/meminfo", "MemAvailable")
    with contextlib.suppress(AttributeError, ValueError, OSError):  # not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def release_memory() -> None:
    """Free unused memory, so the next measurement starts from the memory in use."""
    for clear in CACHES:
        clear()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    getattr(_libc(), "malloc_trim", lambda keep: None)(0)


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(words in str(error) for words in ("not enough memory", "can't allocate memory", "out of memory"))


def _libc() -> ctypes.CDLL | None:
    """The C library if it is glibc, whose allocator can be configured."""
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None


def _kernel_bytes(file: str, field: str) -> int | None:
    """A field of a Linux proc file, in the form "VmRSS:   1234 kB"."""
    for line in Path(file).read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None
