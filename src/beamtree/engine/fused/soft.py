"""OneSoft on the fused engine: a search in a workspace, which is lent to the pass until its gradient has been taken."""

from dataclasses import replace

import torch
from torch.nn.functional import pad

from beamtree.engine.base import Chart, Noise, Request
from beamtree.engine.fused.capture import stream_of
from beamtree.engine.fused.leases import Room, Rooms, replay
from beamtree.engine.fused.products import precision
from beamtree.engine.fused.soft_gradient import SoftGradient
from beamtree.engine.fused.soft_workspaces import SoftSize, SoftWorkspace
from beamtree.engine.fused.workspaces import rounded
from beamtree.engine.lineage import along, make_chart, slots_after

rooms: Rooms[SoftWorkspace] = Rooms()


def padded_length(length: int) -> int:
    """The length that a room is made for. As the work grows with its square, it is never much more."""
    return rounded(length, max(4, 1 << length.bit_length() >> 6))


def encode(request: Request) -> Chart:
    """As in `beamtree.engine.soft_replay.encode`, with a store of its own: the leaves, then the beams' nodes."""
    B, N, D = request.leaves.shape
    length, device = padded_length(N), request.leaves.device
    rate = None if request.dropout is None else float(request.dropout.scale)
    assert request.soft is not None
    kind = (request.stochastic, rate, precision(device), request.soft)
    size = SoftSize(device, stream_of(device), B, length, request.beam_size, D, *kind)
    padded = replace(request, leaves=pad(request.leaves.detach(), (0, 0, 0, length - N)))
    lease = rooms.lend(size, lambda: Room(SoftWorkspace(size, padded), SoftGradient))
    with torch.inference_mode():
        trace = lease.room.search.search(padded, Noise(request))
    slots = slots_after(trace.source)
    actions, nodes = along(slots, trace.action), along(slots, trace.node)
    chart = make_chart(trace.pool, actions, nodes, trace.scores, trace.roots.clone())
    actions, nodes, spans = (field[:, :, : N - 1].contiguous() for field in (chart.actions, chart.nodes, chart.spans))
    store, scores = replay(request, lease, nodes, trace.scores)
    rows = torch.arange(B * N, len(store), device=device).view_as(nodes)
    return Chart(store, scores, actions, rows, spans)
