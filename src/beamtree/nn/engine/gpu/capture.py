"""Sequences of launches, captured in a CUDA graph."""

import threading
from collections.abc import Callable
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
def _capturing_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream per device: PyTorch's own capture stream is on the device that was used first."""
    return torch.cuda.Stream(device)


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
            stream, mode = _capturing_stream(self.device), "thread_local"
            with _capturing, torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
                result = launch()
            self.kept = graph, result
        graph, result = self.kept
        graph.replay()
        return result
