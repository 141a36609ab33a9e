"""The fused engine: the search of `beamtree.engine.search` in Triton kernels and CUDA graphs, with its replay.

It takes float32 on a CUDA device, with products in float32, TF32 or bfloat16; see `reason_not`.
"""

import torch
import triton

from beamtree.engine import replay, soft_replay
from beamtree.engine.base import Chart, Request
from beamtree.engine.fused import chain, plain, soft, straight_through, stretches
from beamtree.engine.fused.compose import COMPOSE
from beamtree.engine.straight_through import Samples
from beamtree.engine.straight_through import encode as sample

MAX_LENGTH = 16_384  # tokens: a row of candidates is held by one program

__all__ = ["encode", "reason_not", "release"]


def reason_not(request: Request) -> str | None:
    """Why a request cannot be fused; None if it can."""
    if request.leaves.device.type != "cuda" and not triton.knobs.runtime.interpret:
        return f"it runs on a CUDA device, not on {request.leaves.device}"
    if request.leaves.dtype != torch.float32:
        return f"it computes in float32, not in {request.leaves.dtype}"
    kind = request.leaves.device.type
    if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) != torch.bfloat16:
        return f"under autocast it takes bfloat16, not {torch.get_autocast_dtype(kind)}"
    if type(request.cell) not in COMPOSE:
        return f"it knows the cells {', '.join(cell.__name__ for cell in COMPOSE)}, not {type(request.cell).__name__}"
    if request.duplicates != "keep":
        return "it keeps duplicates"
    if request.leaves.shape[1] > MAX_LENGTH:
        return f"it takes up to {MAX_LENGTH} tokens, not {request.leaves.shape[1]}"
    return None


def release() -> None:
    """Give back all memory that no pass under way holds."""
    plain.rooms.release()
    soft.rooms.release()
    straight_through.release()
    chain.release()
    stretches.release()


def encode(request: Request) -> Chart:
    """Search, and replay where a gradient is wanted."""
    if request.steps < 1:
        if isinstance(request, Samples):
            return sample(request)
        return soft_replay.encode(request) if request.soft else replay.encode(request)
    if isinstance(request, Samples):
        return straight_through.encode(request)
    return soft.encode(request) if request.soft else plain.encode(request)
