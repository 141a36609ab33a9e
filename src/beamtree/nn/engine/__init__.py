"""Engines: implementations of the same function, with the same outputs and gradients.

`reference` is the paper's algorithm as written. `torch` searches without gradients and replays only the surviving nodes
(see `beam.search` and `beam.replay`), in plain PyTorch on any device. `triton` does the same with fused kernels on a
CUDA device (see `gpu`). `dispatch.select` selects an engine for a request.
"""

import sys

from beamtree.nn.engine.beam import reference, replay
from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.dispatch import ENGINES, Engine, EngineError, select, why_not_triton
from beamtree.nn.engine.onesoft import replay as onesoft
from beamtree.nn.engine.randomness import why_not_twice
from beamtree.nn.engine.request import Request
from beamtree.nn.engine.straight_through import reference as straight_through_reference
from beamtree.nn.engine.straight_through import replay as straight_through
from beamtree.nn.engine.straight_through.search import Samples

__all__ = ["BEAM", "ENGINES", "SAMPLES", "EngineError", "release_memory", "select"]


def _why_not_gpu(request: Request) -> str | None:
    if reason := why_not_triton(request.leaves):
        return reason
    from beamtree.nn.engine.gpu import engine  # needs triton, an optional package

    return engine.why_not(request)


def _on_gpu(request: Request) -> Chart:
    from beamtree.nn.engine.gpu import engine

    return engine.encode(request)


def _torch(request: Request) -> Chart:
    return onesoft.encode(request) if request.soft else replay.encode(request)


# Fastest first.
BEAM: tuple[Engine[Request], ...] = (
    Engine("triton", _on_gpu, _why_not_gpu),
    Engine("torch", _torch, why_not_twice),
    Engine("reference", reference.encode),
)
SAMPLES: tuple[Engine[Samples], ...] = (
    Engine("triton", _on_gpu, _why_not_gpu),
    Engine("torch", straight_through.encode, why_not_twice),
    Engine("reference", straight_through_reference.encode),
)


def release_memory() -> None:
    """Free the GPU buffers that engines cache for later passes.

    Passes in progress keep theirs.

    Examples:
        >>> beamtree.release_memory()
    """
    if (gpu := sys.modules.get("beamtree.nn.engine.gpu.cache")) is not None:  # otherwise there are none
        gpu.CACHE.clear()
