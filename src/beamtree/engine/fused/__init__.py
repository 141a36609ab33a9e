"""The fused engine: the search of `beamtree.engine.search` in Triton kernels and CUDA graphs, with its replay.

It takes float32 on a CUDA device and plain beams; see `reason_not`.
"""

from dataclasses import replace

import torch
import triton

from beamtree.cells import GRC
from beamtree.engine import replay
from beamtree.engine.adjoint import adjoint
from beamtree.engine.base import Chart, Request
from beamtree.engine.fused.compose import COMPOSE
from beamtree.engine.fused.gradient import FusedGRCAdjoint
from beamtree.engine.fused.workspaces import release, workspace
from beamtree.engine.pool import take

MAX_LENGTH = 16_384  # tokens: a row of candidates is held by one program

__all__ = ["encode", "reason_not", "release"]


def reason_not(request: Request) -> str | None:
    """Why a request cannot be fused; None if it can."""
    if request.leaves.device.type != "cuda" and not triton.knobs.runtime.interpret:
        return f"it runs on a CUDA device, not on {request.leaves.device}"
    if request.leaves.dtype != torch.float32:
        return f"it computes in float32, not in {request.leaves.dtype}"
    if torch.is_autocast_enabled(request.leaves.device.type):
        return "it computes in float32, not under autocast"
    if type(request.cell) not in COMPOSE:
        return f"it knows the cells {', '.join(cell.__name__ for cell in COMPOSE)}, not {type(request.cell).__name__}"
    if request.soft or request.duplicates != "keep":
        return "it has plain beams: no OneSoft, and duplicates are kept"
    if request.leaves.shape[1] > MAX_LENGTH:
        return f"it takes up to {MAX_LENGTH} tokens, not {request.leaves.shape[1]}"
    return None


def encode(request: Request) -> Chart:
    """Search in a workspace, and replay where a gradient is wanted."""
    if request.steps < 1:
        return replay.encode(request)
    memory = workspace(request)
    with torch.inference_mode():
        trace = memory.search(request)
    pull_back = FusedGRCAdjoint if type(request.cell) is GRC else adjoint
    chart = replay.encode_trace(request, trace, pull_back, memory.look_back)
    if request.wants_gradient():
        return chart
    # The next search in the workspace overwrites the pool.
    leaves = request.leaves.flatten(0, 1)
    store = torch.cat((leaves, take(trace.pool.states, chart.nodes.flatten())))
    return replace(
        chart, store=store, nodes=torch.arange(len(leaves), len(store), device=store.device).view_as(chart.nodes)
    )
