"""Time and memory of every engine, with the reference beside it in the same run.

    results = run(grid(["bt-grc"], lengths=[200], batch_sizes=[4], engines=["torch"]))
    ratios(results)  # how many times less each needs than the reference

A training step is forward and backward of Σ sin(state) over full-length random inputs; inference is forward in eval
mode without gradients. A factor is worth something only between numbers of one run on one machine.
"""

import contextlib
import ctypes
import gc
import itertools
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beamtree.checks import check_choice, check_integer, check_rate
from beamtree.encoders import encoder, encoders
from beamtree.engine import ENGINES

REFERENCE = "reference"
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16-autocast": torch.float32}  # of the weights
REPEATS = 5
BUDGET = 10.0  # seconds; a slow case is timed once rather than for minutes
# What the reference holds of one candidate until backward, in vectors of width D, rounded up from what `measure`
# counts: 25 with the GRC, 16 with the LSTM; OneSoft copies all continuations twice, K for each candidate.
KEPT, KEPT_ONESOFT = 26, 2


@dataclass(frozen=True)
class Case:
    """What is measured."""

    encoder: str = "bt-grc"
    engine: str = REFERENCE
    length: int = 200
    batch_size: int = 4
    dim: int = 64
    beam_size: int = 5
    dropout: float = 0.1
    device: str = "cpu"
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("encoder", self.encoder, tuple(encoders()))
        check_choice("engine", self.engine, tuple(ENGINES))
        for name in ("length", "batch_size", "dim", "beam_size"):
            check_integer(name, getattr(self, name), at_least=1)
        check_rate("dropout", self.dropout)
        check_choice("dtype", self.dtype, tuple(DTYPES))
        check_integer("seed", self.seed, at_least=0)
        object.__setattr__(self, "device", find_device(self.device))  # a result names where it ran, never "auto"


@dataclass(frozen=True)
class Result:
    """What came out. None: not measured; the note says why, or the system does not tell."""

    case: Case
    train_seconds: float | None = None
    inference_seconds: float | None = None
    saved_bytes: int | None = None  # what autograd holds between forward and backward
    peak_bytes: int | None = None  # the most a training step needs at any time
    note: str = ""


@dataclass(frozen=True)
class Ratios:
    """How many times less than the reference: 2 is twice as fast, or half the memory. None: one of them is unknown."""

    train_seconds: float | None
    inference_seconds: float | None
    saved_bytes: float | None
    peak_bytes: float | None


def find_device(name: str) -> str:
    """The device "cpu" or "cuda"; "auto" is the GPU where there is one."""
    check_choice("device", name, ("auto", "cpu", "cuda"))
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but PyTorch finds no CUDA device here: choose 'cpu' or 'auto'")
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


def grid(
    names: Iterable[str],
    lengths: Iterable[int],
    batch_sizes: Iterable[int],
    engines: Iterable[str] = tuple(ENGINES),
    **common: Any,
) -> list[Case]:
    """All combinations. The engines of one case follow each other, the reference first, which the ratios need."""
    engines = dict.fromkeys((REFERENCE, *engines))  # each once
    return [
        Case(encoder=name, length=length, batch_size=batch_size, engine=engine, **common)
        for name, length, batch_size in itertools.product(names, lengths, batch_sizes)
        for engine in engines
    ]


def run(
    cases: Sequence[Case],
    progress: Callable[[Case, Result | None], None] = lambda case, result: None,
    repeats: int = REPEATS,
    budget: float = BUDGET,
) -> list[Result]:
    """Measure them all. `progress` hears of each case twice: before it, with None, and after it, with its result."""
    results = []
    for case in cases:
        progress(case, None)
        results.append(measure(case, repeats, budget))
        progress(case, results[-1])
    return results


def ratios(results: Sequence[Result]) -> list[Ratios]:
    """For each result its factors against the reference of the same case."""
    references = {result.case: result for result in results if result.case.engine == REFERENCE}

    def factor(result: Result, quantity: str) -> float | None:
        reference = references.get(replace(result.case, engine=REFERENCE))
        theirs, ours = getattr(reference, quantity, None), getattr(result, quantity)
        return theirs / ours if theirs and ours else None

    return [Ratios(*(factor(result, field.name) for field in fields(Ratios))) for result in results]


def records(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Results and their ratios as flat dictionaries of JSON's types."""
    rows = [(asdict(result), asdict(ratio)) for result, ratio in zip(results, ratios(results), strict=True)]
    return [{**row.pop("case"), **row, "ratios": ratio} for row, ratio in rows]


def measure(case: Case, repeats: int = REPEATS, budget: float = BUDGET) -> Result:
    """Median times of `repeats` passes, fewer where they would take more than `budget` seconds, and memory.

    A case that does not fit into memory is a result too, with a note.
    """
    check_integer("repeats", repeats, at_least=1)
    release_memory()
    needed, available = needed_bytes(case), available_bytes(case.device)
    if available is not None and needed > available:
        return Result(case, note=f"skipped: would need about {needed / 2**30:,.1f} GiB")
    devices = [torch.cuda.current_device()] if case.device == "cuda" else []
    try:
        with torch.random.fork_rng(devices):
            return _measure(case, repeats, budget)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    return Result(case, note="out of memory")


def _measure(case: Case, repeats: int, budget: float) -> Result:
    torch.manual_seed(case.seed)  # the same weights, inputs and noise for every engine
    dtype, half = DTYPES[case.dtype], case.dtype == "bfloat16-autocast"
    model = encoder(case.encoder, dim=case.dim, beam_size=case.beam_size, dropout=case.dropout, engine=case.engine).to(
        case.device, dtype
    )
    x = torch.randn(case.batch_size, case.length, case.dim, dtype=dtype).to(case.device).requires_grad_()  # (B, N, D)
    known = [*model.parameters(), x]

    def forward(x: Tensor) -> Tensor:
        lengths = torch.full((len(x),), x.shape[1], device=x.device)
        with torch.autocast(case.device, torch.bfloat16, enabled=half):
            return model(x, lengths).state.sin().sum()

    def train_step() -> None:
        for tensor in known:
            tensor.grad = None
        forward(x).backward()

    saved: dict[int, int] = {}

    def watched_step() -> None:
        with watch_saved(saved, known):
            loss = forward(x)
        loss.backward()  # unwatched: what an engine composes again here is not kept

    @torch.no_grad()
    def infer() -> None:
        forward(x)

    # What a library sets up at its first use, such as threads and workspaces, is not the case's memory.
    forward(x[:1, :3]).backward()
    for tensor in known:
        tensor.grad = None
    # The first full step warms up and is watched, so that buffers an engine keeps from step to step count as its own.
    peak = peak_bytes(watched_step, case.device)
    train_seconds = median_seconds(train_step, case.device, repeats, budget)
    model.eval()
    infer()
    inference_seconds = median_seconds(infer, case.device, repeats, budget)
    return Result(case, train_seconds, inference_seconds, sum(saved.values()), peak)


def median_seconds(work: Callable[[], None], device: str, repeats: int, budget: float) -> float:
    """At least one time is taken, and none that is likely to end beyond the budget."""
    times: list[float] = []
    while len(times) < repeats and (not times or sum(times) + times[-1] < budget):
        _synchronize(device)
        start = time.perf_counter()
        work()
        _synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


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
    finally:  # there is no way back to learning: take what a long training arrives at
        set_option(trim_threshold, 64 * 2**20)
        set_option(mmap_threshold, 32 * 2**20)


def needed_bytes(case: Case) -> int:
    """About what a training step needs. Only the reference's K·N²/2 cells are worth an estimate."""
    if case.engine != REFERENCE:
        return 0
    candidates = case.batch_size * case.beam_size * case.length**2 // 2
    kept = KEPT + (KEPT_ONESOFT * case.beam_size if "onesoft" in case.encoder else 0)
    return candidates * kept * case.dim * DTYPES[case.dtype].itemsize


def available_bytes(device: str) -> int | None:
    """Memory that is free now. Beyond it the CPU's system may end the process instead of raising an error."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    with contextlib.suppress(OSError):
        return _kernel_bytes("/proc/meminfo", "MemAvailable")
    with contextlib.suppress(AttributeError, ValueError, OSError):  # not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def release_memory() -> None:
    """Give back what is no longer used, so that the next measurement starts from what is really there."""
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


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _kernel_bytes(file: str, field: str) -> int | None:
    """A field of one of Linux's files of the form "VmRSS:   1234 kB"."""
    for line in Path(file).read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None
