"""Plain beams on the fused engine: a search in a workspace, which is lent to the pass until its gradient was taken."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.engine.base import Chart, Noise, Request
from beamtree.engine.fused.leases import Room, Rooms, replay
from beamtree.engine.fused.plain_gradient import PlainGradient
from beamtree.engine.fused.workspaces import Size, Workspace


class PlainRoom(Room):
    def __init__(self, size: Size, request: Request) -> None:
        self.size, self.device = size, size.device
        self.search = Workspace(size, request)
        self.states = self.search.tables.states
        self.gradient: PlainGradient | None = None
        # Where the search's levels end, copied to the host while that goes on.
        on_gpu = size.device.type == "cuda"
        self.ends = torch.zeros(size.N + 2, dtype=torch.long, pin_memory=on_gpu)
        self.copied = torch.cuda.Event() if on_gpu else None

    @property
    def bytes(self) -> int:
        return self.search.bytes + (self.gradient.bytes if self.gradient else 0)

    def look_back(self, gradient: bool) -> Chart:
        """The chart, as it was padded."""
        chart = self.search.look_back(gradient)
        if gradient:
            self.ends.copy_(self.search.survivors.ends, non_blocking=True)
            if self.copied is not None:
                self.copied.record()
        return chart

    def pull_back(
        self,
        leaves: Float[Tensor, "B N S"],
        nodes: Int[Tensor, "n"],
        states: Float[Tensor, "n S"],
        scores: Float[Tensor, "B K"],
    ) -> tuple[Tensor, ...]:
        if self.gradient is None:
            self.gradient = PlainGradient(self.search)
        if self.copied is not None:
            self.copied.synchronize()
        return self.gradient.pull_back(leaves, nodes, states, scores, self._levels())

    def _levels(self) -> list[int]:
        """Without the heights above the highest, and the nodes that have no gradient."""
        ends: list[int] = self.ends[:-1].tolist()
        return ends[: max(ends.index(ends[-1]), 1) + 1]


rooms: Rooms[PlainRoom] = Rooms()


def encode(request: Request) -> Chart:
    """As `beamtree.engine.replay.encode`, with a store of its own: the leaves, then the beams' nodes."""
    size = Size.of(request)
    lease = rooms.lend(size, lambda: PlainRoom(size, request))
    room, gradient = lease.room, request.wants_gradient()
    with torch.inference_mode():
        room.search.search(request, Noise(request))
        chart = room.look_back(gradient)
    M = request.candidates
    actions, nodes, spans = (field[:, :, :M].clone() for field in (chart.actions, chart.nodes, chart.spans))
    store, scores = replay(request, lease, nodes, chart.scores)
    leaves = len(store) - nodes.numel()
    rows = torch.arange(leaves, len(store), device=store.device).view_as(nodes)
    return Chart(store, scores, actions, rows, spans)
