"""Sequences of launches, captured in a CUDA graph."""

from collections.abc import Callable
from functools import cache
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


def stream_of(device: torch.device) -> int:
    """The number of the stream that is in use: what runs on two of them may run at the same time, and must not share
    buffers."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


@cache
def _capturing_stream(device: torch.device) -> torch.cuda.Stream:
    """PyTorch's own is on the device that was used first, whichever this one is."""
    return torch.cuda.Stream(device)


class Captured(Generic[T]):
    """Launches that are made one by one the first time, which compiles the kernels, and captured the second time, so
    that what runs only once costs no graph.

    They must read and write the same memory each time. What they return lies where the capture put it, and is
    overwritten by the next run.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.launched = device, False
        self.kept: tuple[torch.cuda.CUDAGraph, T] | None = None

    def run(self, launch: Callable[[], T]) -> T:
        if self.device.type != "cuda" or not self.launched:
            self.launched = True
            return launch()
        if self.kept is None:
            graph = torch.cuda.CUDAGraph()
            # Other threads, such as one that loads data, may go on meanwhile.
            stream, mode = _capturing_stream(self.device), "thread_local"
            with torch.cuda.device(self.device), torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
                result = launch()
            self.kept = graph, result
        graph, result = self.kept
        graph.replay()
        return result
