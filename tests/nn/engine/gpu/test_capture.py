"""Captures, with a stand-in for CUDA: which stream they are made on, and what surrounds them."""

from contextlib import contextmanager

import pytest
import torch

pytest.importorskip("triton")  # the package of the captured engines needs it
from beamtree.nn.engine.gpu import capture
from beamtree.nn.engine.gpu.capture import Captured

CUDA = torch.device("cuda", 0)


@pytest.fixture
def events(monkeypatch):
    """What happens, in order."""
    happened = []

    class Graph:
        def replay(self):
            happened.append("replay")

    @contextmanager
    def graph(graph, stream, capture_error_mode):
        happened.append(("capture on", stream))
        yield

    capture._capturing_stream.cache_clear()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: object())
    clear = "_cuda_clearCublasWorkspaces"
    monkeypatch.setattr(torch._C, clear, lambda: happened.append("clear"), raising=False)
    yield happened
    capture._capturing_stream.cache_clear()


def run_on(stream, monkeypatch, captured=None, times=2):
    captured = captured or Captured(CUDA)
    monkeypatch.setattr(capture, "stream_of", lambda device: stream)
    for _ in range(times):
        captured.run(lambda: None)
    return captured


def capture_streams(events):
    return [event[1] for event in events if isinstance(event, tuple)]


def test_graphs_of_two_streams_are_captured_on_two_streams(events, monkeypatch):
    """Their buffers for cuBLAS differ, so both may run at the same time."""
    for stream in (1, 2, 1):
        run_on(stream, monkeypatch)
    first, second, third = capture_streams(events)
    assert first is third
    assert first is not second


def test_a_graph_is_captured_once(events, monkeypatch):
    run_on(1, monkeypatch, times=4)
    assert len(capture_streams(events)) == 1
    assert events.count("replay") == 3


@pytest.mark.parametrize(("version", "owned"), [("2.11.0+cu130", False), ("2.12.0", True), ("2.13.0+cpu", True)])
def test_a_graph_owns_its_buffer_where_freeing_another_would_free_it(version, owned, events, monkeypatch):
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion(version))
    run_on(1, monkeypatch)
    kinds = [event if isinstance(event, str) else "capture" for event in events]
    assert kinds == (["clear", "capture", "clear", "replay"] if owned else ["capture", "replay"])
