"""Beam search on the GPU: a search in a workspace, which the pass owns until its gradient was computed."""

import torch

from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.gpu.beam_gradient import BeamGradient
from beamtree.nn.engine.gpu.cache import CACHE
from beamtree.nn.engine.gpu.replay import SearchWorkspace, replay
from beamtree.nn.engine.gpu.workspace import BeamWorkspace, Size
from beamtree.nn.engine.noise import Noise
from beamtree.nn.engine.request import Request


def encode(request: Request) -> Chart:
    """Same as `beamtree.nn.engine.beam.replay.encode`, with a store of the leaves, then the beams' nodes."""
    size = Size.of(request)
    key = ("beam", size)
    lease = CACHE.acquire(key, size.device, lambda: SearchWorkspace(BeamWorkspace(size, request), BeamGradient))
    memory, gradient = lease.workspace.search, request.wants_gradient()
    with torch.inference_mode():
        memory.search(request, Noise(request))
        chart = memory.look_back(gradient)
    M = request.candidates
    actions, nodes, spans = (field[:, :, :M].clone() for field in (chart.actions, chart.nodes, chart.spans))
    store, scores = replay(request, lease, nodes, chart.scores)
    leaves = len(store) - nodes.numel()
    rows = torch.arange(leaves, len(store), device=store.device).view_as(nodes)
    return Chart(store, scores, actions, rows, spans)
