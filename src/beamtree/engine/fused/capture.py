"""Sequences of launches, captured in a CUDA graph."""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


def stream_of(device: torch.device) -> int:
    """The number of the stream that is in use: what runs on two of them may run at the same time, and must not share
    buffers."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


class Captured(Generic[T]):
    """Launches that are made one by one the first time, which compiles the kernels, and captured then.

    They must read and write the same memory each time. What they return lies where the capture put it, and is
    overwritten by the next run.
    """

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.kept: tuple[torch.cuda.CUDAGraph, T] | None = None

    def run(self, launch: Callable[[], T]) -> T:
        if self.kept is not None:
            graph, result = self.kept
            graph.replay()
            return result
        result = launch()
        if self.on_gpu:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = launch()
            self.kept = graph, captured
        return result
