"""Engines: ways to compute one and the same function, its outputs and its gradients.

`reference` is the paper's algorithm as written. `torch` searches without gradients and replays only what survived
(see `search` and `replay`), in plain PyTorch on any device.
"""

from collections.abc import Callable

from beamtree.engine import reference, replay, soft_replay
from beamtree.engine.base import Chart, Request


def _torch(request: Request) -> Chart:
    return soft_replay.encode(request) if request.soft else replay.encode(request)


ENGINES: dict[str, Callable[[Request], Chart]] = {"reference": reference.encode, "torch": _torch}


def encode(request: Request, engine: str = "auto") -> Chart:
    """Run a request on the named engine; "auto" is the fastest there is."""
    return ENGINES["torch" if engine == "auto" else engine](request)
