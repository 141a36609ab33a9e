"""Shift-reduce parsing with a beam: a search without gradients, then a replay of the surviving nodes."""

from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.dispatch import Engine, why_not_triton
from beamtree.nn.engine.randomness import why_not_twice
from beamtree.nn.engine.shift_reduce import reference, replay
from beamtree.nn.engine.shift_reduce.request import Decision, ParserRequest

__all__ = ["SHIFT_REDUCE", "Decision", "ParserRequest"]


def _why_not_gpu(request: ParserRequest) -> str | None:
    if reason := why_not_triton(request.leaves):
        return reason
    from beamtree.nn.engine.gpu import engine  # needs triton, an optional package

    return engine.why_not(request)


def _on_gpu(request: ParserRequest) -> Chart:
    from beamtree.nn.engine.gpu import shift_reduce

    return shift_reduce.encode(request)


# Fastest first.
SHIFT_REDUCE: tuple[Engine[ParserRequest], ...] = (
    Engine("triton", _on_gpu, _why_not_gpu),
    Engine("torch", replay.encode, why_not_twice),
    Engine("reference", reference.encode),
)
