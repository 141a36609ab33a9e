"""The fused engine: the search of `beamtree.engine.search` in Triton kernels and CUDA graphs, with its replay.

It takes float32 on a CUDA device, with products in float32, TF32 or bfloat16; see `reason_not`.
"""

from dataclasses import replace

import torch
import triton
from torch.nn.functional import pad

from beamtree.cells import GRC
from beamtree.engine import replay, soft_replay
from beamtree.engine.adjoint import adjoint
from beamtree.engine.base import Chart, Noise, Request
from beamtree.engine.fused import chain, soft, straight_through, stretches, workspaces
from beamtree.engine.fused.compose import COMPOSE
from beamtree.engine.fused.gradient import FusedGRCAdjoint
from beamtree.engine.fused.workspaces import padded_length, workspace
from beamtree.engine.pool import take
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
    workspaces.release()
    soft.release()
    straight_through.release()
    chain.release()
    stretches.release()


def encode(request: Request) -> Chart:
    """Search in a workspace, and replay where a gradient is wanted."""
    if request.steps < 1:
        if isinstance(request, Samples):
            return sample(request)
        return soft_replay.encode(request) if request.soft else replay.encode(request)
    length = soft.padded_length(request.leaves.shape[1]) if request.soft else padded_length(request.leaves.shape[1])
    padding = length - request.leaves.shape[1]
    padded = replace(request, leaves=pad(request.leaves, (0, 0, 0, padding)))
    if isinstance(request, Samples):
        chart = straight_through.encode(padded, request)
    else:
        chart = soft.encode(padded, Noise(request)) if request.soft else _encode_plain(padded, Noise(request))
    return _without_padding(chart, request)


def _encode_plain(request: Request, noise: Noise) -> Chart:
    memory = workspace(request)
    with torch.inference_mode():
        trace = memory.search(request, noise)
    pull_back = FusedGRCAdjoint if type(request.cell) is GRC else adjoint
    chart = replay.encode_trace(request, trace, pull_back, memory.look_back)
    if request.wants_gradient():
        return chart
    # Copied out of the workspace, which the next search overwrites.
    leaves, nodes = request.leaves.flatten(0, 1), chart.nodes.flatten()
    store = torch.cat((leaves, take(trace.pool.states, nodes)))
    return replace(
        chart, store=store, nodes=torch.arange(len(leaves), len(store), device=store.device).view_as(chart.nodes)
    )


def _without_padding(chart: Chart, request: Request) -> Chart:
    """The chart of a padded request as that of the request itself."""
    B, N, _ = request.leaves.shape
    padding = B * (chart.nodes.shape[2] + 1 - N)
    actions, nodes, spans = (field[:, :, : N - 1] for field in (chart.actions, chart.nodes, chart.spans))
    store = torch.cat((request.leaves.flatten(0, 1), chart.store[B * N + padding :]))
    # What is absent was row 0, and still is.
    return Chart(store, chart.scores, actions, (nodes - padding).clamp(min=0), spans)
