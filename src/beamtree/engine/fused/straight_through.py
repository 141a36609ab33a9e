"""Straight-through sampling on the fused engine: a sample is a search with one beam, so that none competes.

Search and gradient have their own buffers and graphs, kept together in a room for one size. Whatever a pass needs later
is copied out, so that several may be under way.
"""

import copy
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import torch
import triton
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from beamtree.engine.base import Chart, Noise, Request
from beamtree.engine.fused import kernels, workspaces
from beamtree.engine.fused.compose import COMPOSE
from beamtree.engine.fused.leases import KEPT, too_many
from beamtree.engine.fused.straight_through_gradient import SampleGradient
from beamtree.engine.fused.workspaces import Size, Workspace, rounded
from beamtree.engine.pool import Pool
from beamtree.engine.straight_through import Kept, Nodes, Samples, Trace, Undone, finish


class KeptNoise(Noise):
    """The noise on candidates is kept, as backward needs it."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.kept: list[Tensor] = []

    def stretch(self, step: int) -> tuple[Float[Tensor, "T B K M"], Float[Tensor, "T B K J"]]:
        candidates, beams = super().stretch(step)
        self.kept.append(candidates)
        return candidates, beams


class SampleWorkspace(Workspace):
    """Buffers of one size, whose beams are searches of their own."""

    def __init__(self, size: Size, request: Request) -> None:
        super().__init__(size, request)
        self.own_lengths = torch.zeros(size.B, size.K, dtype=torch.int32, device=size.device)

    def launch(self, steps: int) -> None:
        """Every kernel of so many steps: each beam takes its one best candidate."""
        size, tables = self.size, self.tables
        beams, W = size.beams, size.M + 2
        wide = triton.next_power_of_2(W)
        warps = min(max(wide // 256, 4), 16)
        self.own_lengths.copy_(self.lengths.unsqueeze(1))
        for slot in range(steps):
            half = slot % 2
            kernels.propose[(beams,)](
                self.rows, tables.logits, self.noise, self.columns, self.log_p, self.normalisers, self.base,
                slot, half, beams, size.M, W,
                J=1, NOISY=size.stochastic, BLOCK=wide, num_warps=warps,
            )  # fmt: skip
            kernels.advance[(beams,)](
                self.rows, self.scores, self.own_lengths, tables.children, tables.spans, self.heights, self.beam_noise,
                self.columns, self.log_p, self.normalisers, self.base, *self.records, self.keys, self.present,
                slot, half, size.composed, size.nodes, beams, W,
                K=1, J=1, NOISY=False, BLOCK=wide, CONTINUATIONS=1, num_warps=warps,
            )  # fmt: skip
            COMPOSE[size.cell](self, slot)
        self.base += steps


class Room:
    """A workspace, and that of the gradient once one was taken."""

    def __init__(self, size: Size, request: Request) -> None:
        self.search = SampleWorkspace(size, request)
        self.gradient: SampleGradient | None = None

    @property
    def bytes(self) -> int:
        return self.search.bytes + (self.gradient.bytes if self.gradient else 0)

    def undo(self, nodes: Nodes, *given: Any) -> Undone:
        """As `SampleGradient.undo`."""
        if self.gradient is None:
            with torch.inference_mode(False), torch.no_grad():
                self.gradient = SampleGradient(self.search.size, nodes.cell, nodes.dropout)
            _make_way(self.search.size.device)
        return self.gradient.undo(nodes, *given)


_kept: OrderedDict[Size, Room] = OrderedDict()


def room(request: Request) -> Room:
    """That for a request's size; the one that was not used for longest makes way for a new one."""
    size = Size.of(request)
    if size not in _kept:
        with torch.inference_mode(False), torch.no_grad():  # training may use it too
            _kept[size] = Room(size, request)
        _make_way(size.device)
    _kept.move_to_end(size)
    return _kept[size]


def _make_way(device: torch.device) -> None:
    while too_many([room.bytes for room in _kept.values()], KEPT, device):
        _kept.popitem(last=False)


def release() -> None:
    """Give all memory back that no pass under way holds."""
    _kept.clear()


def encode(request: Samples) -> Chart:
    """Of a request for samples."""
    memory, noise = room(request), KeptNoise(request) if request.wants_gradient() else Noise(request)
    padding = memory.search.size.N - request.leaves.shape[1]
    padded = replace(request, leaves=pad(request.leaves, (0, 0, 0, padding)))
    with torch.inference_mode():
        pool = copy.copy(memory.search.search(request, noise))
    pool.request = padded
    with torch.no_grad():
        trace, kept = copy_out(memory.search, pool, noise)
    return _without_padding(finish(trace, memory.undo, kept), request)


def _without_padding(chart: Chart, request: Request) -> Chart:
    """The chart of a padded request as that of the request itself."""
    B, N, _ = request.leaves.shape
    padding = B * (chart.nodes.shape[2] + 1 - N)
    actions, nodes, spans = (field[:, :, : N - 1] for field in (chart.actions, chart.nodes, chart.spans))
    store = torch.cat((request.leaves.flatten(0, 1), chart.store[B * N + padding :]))
    # What is absent was row 0, and still is.
    return Chart(store, chart.scores, actions, (nodes - padding).clamp(min=0), spans)


def copy_out(memory: SampleWorkspace, pool: Pool, noise: Noise) -> tuple[Trace, Kept]:
    """What a search found, put into this pool, and what `SampleGradient.undo` needs of it. Only the steps that were
    asked for have made nodes; behind these stands the absent one."""
    size, tables, choices = memory.size, memory.tables, pool.request.steps
    steps = rounded(noise.request.steps, workspaces.STRETCH)
    used = size.composed + 2 * size.beams * steps
    pool.absent = used
    pool.states, pool.spans = pad(tables.states[:used], (0, 0, 0, 1)), pad(tables.spans[:used], (0, 0, 0, 1))
    pool.logits = pad(tables.logits[:used], (0, 1), value=-torch.inf)
    pool.children = pad(tables.children[:used], (0, 0, 0, 1), value=used).clamp_(max=used)
    actions, dead = memory.records.action, memory.records.dead
    merges = actions[:choices].movedim(0, 2), dead[:choices, ..., 1].movedim(0, 2).clamp(max=used)  # (B, K, T)
    trace = Trace(pool, *merges, memory.scores[0].clone(), memory.roots.clone())
    if not isinstance(noise, KeptNoise):
        return trace, []
    drawn = torch.cat(noise.kept) if noise.kept else None
    # The number 0 is that of a leaf, which is as absent from a row of candidates.
    return trace, [actions[:steps].int(), dead[:steps].where(dead[:steps] < used, 0).int(), trace.roots, drawn]
