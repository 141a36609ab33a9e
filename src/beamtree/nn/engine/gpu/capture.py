"""Sequences of launches, captured in a CUDA graph.

PyTorch gives cuBLAS one buffer for each stream, and the address of that buffer becomes part of a graph with matrix
products. So graphs that were captured on one stream must not run at the same time: work on each stream is captured on a
stream of its own.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Generic, TypeVar

import torch

T = TypeVar("T")

_capturing = threading.Lock()  # a stream can hold one capture at a time


def stream_of(device: torch.device) -> int:
    """The id of the current stream. Work on two streams may run at the same time, and must not share buffers."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


@cache
def multiprocessors(device: torch.device) -> int:
    """The number of multiprocessors; 1 where kernels run in the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@cache
def _capturing_stream(device: torch.device, stream: int) -> torch.cuda.Stream:
    """The stream on which work on a stream is captured. PyTorch's own is on the device that was used first."""
    return torch.cuda.Stream(device)


@contextmanager
def _own_cublas_buffer() -> Iterator[None]:
    """Capture with a buffer for cuBLAS that belongs to the graph.

    From PyTorch 2.12 on, a graph that is freed also frees the buffer of the stream on which it was captured, which
    other graphs still use (PyTorch's issue 193402). Without a buffer to begin with, a capture allocates one in the
    memory of the graph. It takes 32 MiB on Hopper GPUs and 8 MiB on others.
    """
    if torch.__version__ < "2.12":  # compared by its numbers
        yield
        return
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


class Captured(Generic[T]):
    """A sequence of launches.

    The first run launches it directly, which compiles the kernels; the second run captures it, so that a sequence that
    runs only once costs no graph.

    It must read and write the same memory each time. Its result is in the memory of the graph and is overwritten by the
    next run.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.launched = device, False
        self.kept: tuple[torch.cuda.CUDAGraph, T] | None = None

    def run(self, launch: Callable[[], T]) -> T:
        """Launch the sequence, or replay it. The calling thread must own the workspace."""
        if self.device.type != "cuda" or not self.launched:
            self.launched = True
            return launch()
        if self.kept is None:
            graph = torch.cuda.CUDAGraph()
            # Other threads, such as one that loads data, may use CUDA during the capture.
            stream, mode = _capturing_stream(self.device, stream_of(self.device)), "thread_local"
            with (
                _capturing,
                _own_cublas_buffer(),
                torch.cuda.graph(graph, stream=stream, capture_error_mode=mode),
            ):
                result = launch()
            self.kept = graph, result
        graph, result = self.kept
        graph.replay()
        return result
