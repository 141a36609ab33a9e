"""OneSoft on the GPU: a search in a workspace, which the pass owns until its gradient was computed."""

from dataclasses import replace

import torch
from torch.nn.functional import pad

from beamtree.nn.cells import CellFunction
from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.gpu.cache import CACHE
from beamtree.nn.engine.gpu.capture import stream_of
from beamtree.nn.engine.gpu.onesoft_gradient import SoftGradient
from beamtree.nn.engine.gpu.onesoft_workspace import SoftSize, SoftWorkspace
from beamtree.nn.engine.gpu.precision import precision
from beamtree.nn.engine.gpu.replay import SearchWorkspace, replay
from beamtree.nn.engine.gpu.workspace import rounded
from beamtree.nn.engine.lineage import along, make_chart, slots_after
from beamtree.nn.engine.noise import Noise
from beamtree.nn.engine.request import Request


def padded_soft_length(length: int) -> int:
    """The length that a workspace is allocated for. The work grows with its square, so there is little padding."""
    return rounded(length, max(4, 1 << length.bit_length() >> 6))


def encode(request: Request) -> Chart:
    """Same as `beamtree.nn.engine.onesoft.replay.encode`, with a store of the leaves, then the beams' nodes."""
    B, N, _ = request.leaves.shape
    length, device = padded_soft_length(N), request.leaves.device
    rate = None if request.dropout is None else float(request.dropout.scale)
    assert request.soft is not None
    assert isinstance(request.cell, CellFunction)
    kind = (request.cell.unbound, request.stochastic, rate, precision(device), request.soft)
    size = SoftSize(device, stream_of(device), B, length, request.beam_size, *kind)
    padded = replace(request, leaves=pad(request.leaves.detach(), (0, 0, 0, length - N)))
    lease = CACHE.acquire(("onesoft", size), device, lambda: SearchWorkspace(SoftWorkspace(size, padded), SoftGradient))
    with torch.inference_mode():
        trace = lease.workspace.search.search(padded, Noise(request))
    slots = slots_after(trace.source)
    actions, nodes = along(slots, trace.action), along(slots, trace.node)
    chart = make_chart(trace.pool, actions, nodes, trace.scores, trace.roots.clone())
    actions, nodes, spans = (field[:, :, : N - 1].contiguous() for field in (chart.actions, chart.nodes, chart.spans))
    store, scores = replay(request, lease, nodes, trace.scores)
    rows = torch.arange(B * N, len(store), device=device).view_as(nodes)
    return Chart(store, scores, actions, rows, spans)
