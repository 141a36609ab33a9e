"""Plain beams on the fused engine: a search in a workspace, which is lent to the pass until its gradient was taken."""

import torch

from beamtree.engine.base import Chart, Noise, Request
from beamtree.engine.fused.leases import Room, Rooms, replay
from beamtree.engine.fused.plain_gradient import PlainGradient
from beamtree.engine.fused.workspaces import Size, Workspace

rooms: Rooms[Workspace] = Rooms()


def encode(request: Request) -> Chart:
    """As `beamtree.engine.replay.encode`, with a store of its own: the leaves, then the beams' nodes."""
    size = Size.of(request)
    lease = rooms.lend(size, lambda: Room(Workspace(size, request), PlainGradient))
    memory, gradient = lease.room.search, request.wants_gradient()
    with torch.inference_mode():
        memory.search(request, Noise(request))
        chart = memory.look_back(gradient)
    M = request.candidates
    actions, nodes, spans = (field[:, :, :M].clone() for field in (chart.actions, chart.nodes, chart.spans))
    store, scores = replay(request, lease, nodes, chart.scores)
    leaves = len(store) - nodes.numel()
    rows = torch.arange(leaves, len(store), device=store.device).view_as(nodes)
    return Chart(store, scores, actions, rows, spans)
