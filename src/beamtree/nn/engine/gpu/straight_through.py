"""Straight-through sampling on the GPU: each sample is a search with one beam, so samples do not compete.

Search and gradient have separate workspaces, each borrowed during a call. What a pass needs later is copied out, so
that several passes can be in progress.
"""

import copy
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.gpu import workspace
from beamtree.nn.engine.gpu.cache import CACHE
from beamtree.nn.engine.gpu.straight_through_gradient import SampleGradient
from beamtree.nn.engine.gpu.workspace import BeamWorkspace, Size, rounded
from beamtree.nn.engine.noise import Noise
from beamtree.nn.engine.pool import Pool
from beamtree.nn.engine.request import Request
from beamtree.nn.engine.straight_through.nodes import SampleNodes
from beamtree.nn.engine.straight_through.replay import SampleGradients, finish
from beamtree.nn.engine.straight_through.search import Kept, Samples, SampleTrace


class KeptNoise(Noise):
    """Keeps the noise on candidates for the backward pass."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.kept: list[Tensor] = []

    def segment(self, step: int) -> tuple[Float[Tensor, "T B K M"], Float[Tensor, "T B K J"]]:
        candidates, beams = super().segment(step)
        self.kept.append(candidates)
        return candidates, beams


class SampleWorkspace(BeamWorkspace):
    """Buffers of one size. Each beam is a separate search."""

    def __init__(self, size: Size, request: Request) -> None:
        super().__init__(size, request)
        self.beam_lengths = torch.zeros(size.B, size.K, dtype=torch.int32, device=size.device)

    def launch(self, steps: int, lengths: Tensor | None = None, K: int | None = None, J: int | None = None) -> None:
        """Launch every kernel of the given number of steps. Each beam takes its best candidate."""
        self.beam_lengths.copy_(self.lengths.unsqueeze(1))
        super().launch(steps, self.beam_lengths, K=1, J=1)


def encode(request: Samples) -> Chart:
    """Same as `beamtree.nn.engine.straight_through.replay.encode`."""
    size = Size.of(request)
    noise = KeptNoise(request) if request.wants_gradient() else Noise(request)
    padding = size.N - request.leaves.shape[1]
    padded = replace(request, leaves=pad(request.leaves, (0, 0, 0, padding)))
    with CACHE.borrow(("samples", size), size.device, lambda: SampleWorkspace(size, request)) as memory:
        with torch.inference_mode():
            pool = copy.copy(memory.search(request, noise))
        pool.request = padded
        with torch.no_grad():
            trace, kept = copy_out(memory, pool, noise)

    def backward_steps(nodes: SampleNodes, *given: Any) -> SampleGradients:
        def make() -> SampleGradient:
            return SampleGradient(size, nodes.cell, nodes.dropout)

        with CACHE.borrow(("samples backward", size), size.device, make) as memory:
            return memory.backward_steps(nodes, *given).copied()  # before another pass gets the workspace

    return _without_padding(finish(trace, backward_steps, kept), request)


def _without_padding(chart: Chart, request: Request) -> Chart:
    """Convert the chart of a padded request to that of the original request."""
    B, N, _ = request.leaves.shape
    padding = B * (chart.nodes.shape[2] + 1 - N)
    actions, nodes, spans = (field[:, :, : N - 1] for field in (chart.actions, chart.nodes, chart.spans))
    store = torch.cat((request.leaves.flatten(0, 1), chart.store[B * N + padding :]))
    # The absent node stays row 0.
    return Chart(store, chart.scores, actions, (nodes - padding).clamp(min=0), spans)


def copy_out(memory: SampleWorkspace, pool: Pool, noise: Noise) -> tuple[SampleTrace, Kept]:
    """Copy the results of a search into this pool, and return them with what `SampleGradient.backward_steps` needs.

    Only the requested steps have added nodes; the absent node follows them.
    """
    size, tables, choices = memory.size, memory.tables, pool.request.steps
    steps = rounded(noise.request.steps, workspace.SEGMENT)
    used = size.composed + 2 * size.beams * steps
    pool.absent = used
    pool.states, pool.spans = pad(tables.states[:used], (0, 0, 0, 1)), pad(tables.spans[:used], (0, 0, 0, 1))
    pool.logits = pad(tables.logits[:used], (0, 1), value=-torch.inf)
    pool.children = pad(tables.children[:used], (0, 0, 0, 1), value=used).clamp_(max=used)
    actions, removed = memory.records.action, memory.records.removed
    merges = actions[:choices].movedim(0, 2).clone(), removed[:choices, ..., 1].movedim(0, 2).clamp(max=used)
    trace = SampleTrace(pool, *merges, memory.scores[0].clone(), memory.roots.clone())
    if not isinstance(noise, KeptNoise):
        return trace, []
    drawn = torch.cat(noise.kept) if noise.kept else None
    # The absent node becomes id 0, that of a leaf, which no row of candidates contains.
    return trace, [actions[:steps].int(), removed[:steps].where(removed[:steps] < used, 0).int(), trace.roots, drawn]
