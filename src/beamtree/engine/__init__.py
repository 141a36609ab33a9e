"""Engines: ways to compute one and the same function, its outputs and its gradients.

`reference` is the paper's algorithm as written. `torch` searches without gradients and replays only what survived
(see `search` and `replay`), in plain PyTorch on any device. `triton` does the same with fused kernels on a CUDA device
(see `fused`).
"""

import importlib.util
from collections.abc import Callable

from beamtree.engine import reference, replay, soft_replay
from beamtree.engine.base import Chart, Request


def _torch(request: Request) -> Chart:
    return soft_replay.encode(request) if request.soft else replay.encode(request)


def _triton(request: Request) -> Chart:
    from beamtree.engine import fused  # needs triton, which comes with PyTorch's CUDA builds alone

    return fused.encode(request)


ENGINES: dict[str, Callable[[Request], Chart]] = {"reference": reference.encode, "torch": _torch, "triton": _triton}


def encode(request: Request, engine: str = "auto") -> Chart:
    """Run a request on the named engine; "auto" is the fastest there is for it."""
    if engine == "auto":
        engine = "triton" if request.leaves.is_cuda and not why_not_triton(request) else "torch"
    elif engine == "triton" and (reason := why_not_triton(request)):
        raise ValueError(f"engine 'triton' cannot do this: {reason}; engine 'torch' can")
    return ENGINES[engine](request)


def why_not_triton(request: Request) -> str | None:
    """Why the engine `triton` cannot run a request; None if it can."""
    if request.scores_children:
        return "it scores candidates by their parents, not by their children"
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    from beamtree.engine import fused

    return fused.reason_not(request)
