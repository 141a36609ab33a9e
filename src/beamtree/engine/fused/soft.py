"""OneSoft on the fused engine: a search in a workspace, which is lent to the pass until its gradient has been taken."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from beamtree.engine.autocast import Autocast
from beamtree.engine.base import Chart, Noise, Request
from beamtree.engine.fused.capture import stream_of
from beamtree.engine.fused.compose import precision
from beamtree.engine.fused.soft_gradient import SoftGradient
from beamtree.engine.fused.soft_workspaces import SoftSize, SoftWorkspace
from beamtree.engine.fused.workspaces import rounded, too_many
from beamtree.engine.lineage import along, make_chart, slots_after
from beamtree.engine.pool import take

KEPT = 64  # idle rooms at most, as of `workspaces`


class Room:
    """A workspace, and that of the gradient once one was taken."""

    def __init__(self, size: SoftSize, request: Request) -> None:
        self.search = SoftWorkspace(size, request)
        self.gradient: SoftGradient | None = None

    @property
    def bytes(self) -> int:
        return self.search.bytes + (self.gradient.bytes if self.gradient else 0)


_idle: list[Room] = []  # the one used last is at the end


class Lease:
    """A room that belongs to one pass, until the lease ends or is forgotten."""

    def __init__(self, size: SoftSize, request: Request) -> None:
        places = [place for place, room in enumerate(_idle) if room.search.size == size]
        if places:
            self.room: Room | None = _idle.pop(places[-1])
            return
        with torch.inference_mode(False), torch.no_grad():
            self.room = Room(size, request)

    def end(self) -> None:
        """Whatever the next pass of this size writes there, this one no longer reads."""
        if self.room is not None:
            _idle.append(self.room)
            self.room = None
            while too_many([room.bytes for room in _idle], KEPT, _idle[-1].search.size.device):
                _idle.pop(0)  # the one that was not used for longest

    def __del__(self) -> None:
        self.end()


def padded_length(length: int) -> int:
    """The length that a room is made for. As the work grows with its square, it is never much more."""
    return rounded(length, max(4, 1 << length.bit_length() >> 6))


def release() -> None:
    """Give all memory back that no pass under way holds."""
    _idle.clear()


def encode(request: Request, noise: Noise) -> Chart:
    """Of a request that was padded; the noise is that of the request as it was asked.

    As in `beamtree.engine.soft_replay.encode`, with a store of its own: the leaves, then the beams' nodes.
    """
    B, N, D = request.leaves.shape
    device = request.leaves.device
    rate = None if request.dropout is None else float(request.dropout.scale)
    assert request.soft is not None
    kind = (request.stochastic, rate, precision(device), request.soft)
    size = SoftSize(device, stream_of(device), B, N, request.beam_size, D, *kind)
    lease = Lease(size, request)
    assert lease.room is not None
    with torch.inference_mode():
        trace = lease.room.search.search(request, noise)
    slots = slots_after(trace.source)
    chart = make_chart(
        trace.pool, along(slots, trace.action), along(slots, trace.node), trace.scores.clone(), trace.roots.clone()
    )
    leaves, nodes = request.leaves.flatten(0, 1), chart.nodes.flatten()
    if request.wants_gradient():
        store, scores = SoftReplay.apply(request, lease, nodes, chart.scores, leaves, *request.weights)
    else:
        store, scores = torch.cat((leaves, take(trace.pool.states, nodes))), chart.scores
        lease.end()
    rows = torch.arange(len(leaves), len(store), device=device).view_as(chart.nodes)
    return replace(chart, store=store, scores=scores, nodes=rows)


class SoftReplay(torch.autograd.Function):
    """(leaves, weights) → (states of the leaves and of the beams' nodes, scores), with values from the search."""

    @staticmethod
    def forward(
        ctx: Any,
        request: Request,
        lease: Lease,
        nodes: Int[Tensor, "n"],
        scores: Float[Tensor, "B K"],
        leaves: Float[Tensor, "L S"],
        *weights: Tensor,
    ) -> tuple[Float[Tensor, "rows S"], Float[Tensor, "B K"]]:
        assert lease.room is not None
        ctx.lease, ctx.leaves, ctx.autocast = lease, len(leaves), Autocast(leaves.device.type)
        # The weights too, so that PyTorch objects if they change before backward.
        ctx.save_for_backward(nodes, *weights)
        return torch.cat((leaves, take(lease.room.search.tables.states, nodes))), scores.clone()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, store_gradient: Float[Tensor, "rows S"], score_gradient: Float[Tensor, "B K"]
    ) -> tuple[Tensor | None, ...]:
        nodes, *_ = ctx.saved_tensors
        room = ctx.lease.room
        with torch.no_grad(), ctx.autocast.again():
            if room.gradient is None:
                room.gradient = SoftGradient(room.search)
            leaves, states = store_gradient[: ctx.leaves], store_gradient[ctx.leaves :]
            found = room.gradient.pull_back(leaves, nodes, states, score_gradient)
        if not torch._C._autograd._get_current_graph_task_keep_graph():  # else it may be asked for once more
            ctx.lease.end()
        return (None, None, None, None, *found)
