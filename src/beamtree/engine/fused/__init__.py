"""The fused engine: the search of `beamtree.engine.search` in Triton kernels and CUDA graphs, with its replay.

It takes float32 on a CUDA device and plain beams; see `reason_not`.
"""

from dataclasses import replace

import torch
import triton
from torch.nn.functional import pad

from beamtree.cells import GRC
from beamtree.engine import replay
from beamtree.engine.adjoint import adjoint
from beamtree.engine.base import Chart, Noise, Request
from beamtree.engine.fused.compose import COMPOSE
from beamtree.engine.fused.gradient import FusedGRCAdjoint
from beamtree.engine.fused.workspaces import padded_length, release, workspace
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
    B, N, _ = request.leaves.shape
    padding = padded_length(N) - N
    padded = replace(request, leaves=pad(request.leaves, (0, 0, 0, padding)))
    memory = workspace(padded)
    with torch.inference_mode():
        trace = memory.search(padded, Noise(request))
    pull_back = FusedGRCAdjoint if type(request.cell) is GRC else adjoint
    chart = replay.encode_trace(padded, trace, pull_back, memory.look_back)
    # Without the padding, and copied out of the workspace, which the next search overwrites.
    actions, nodes, spans = (field[:, :, : N - 1] for field in (chart.actions, chart.nodes, chart.spans))
    leaves = B * N
    if request.wants_gradient():
        inner = chart.store[leaves + B * padding :]
        nodes = (nodes - B * padding).clamp(min=0)  # what is absent was row 0, and still is
    else:
        inner = take(trace.pool.states, nodes.flatten())
        nodes = torch.arange(leaves, leaves + len(inner), device=inner.device).view_as(nodes)
    return Chart(torch.cat((request.leaves.flatten(0, 1), inner)), chart.scores, actions, nodes, spans)
