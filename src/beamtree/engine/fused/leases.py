"""Rooms: memory for passes of one size, each of which belongs to one pass until its gradient has been taken.

Backward reads what the search left in its room, so nothing has to be copied out. Another pass of that size, while the
first is under way, gets another room.
"""

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from beamtree.engine.autocast import Autocast
from beamtree.engine.base import Request
from beamtree.engine.pool import Tables, take

KEPT = 64  # idle rooms at most, those used last: enough for all lengths of a training set and its dev set
SHARE = 1 / 8  # of a device's memory that they may hold


@runtime_checkable
class Search(Protocol):
    """A workspace."""

    size: Any  # equal for searches that fit one room; names its device
    tables: Tables

    @property
    def bytes(self) -> int:
        """Of all that is not small."""


@runtime_checkable
class Gradient(Protocol):
    """That of the search that a workspace holds."""

    @property
    def bytes(self) -> int: ...

    def pull_back(
        self,
        leaves: Float[Tensor, "B N S"],
        nodes: Int[Tensor, "n"],
        states: Float[Tensor, "n S"],
        scores: Float[Tensor, "B K"],
    ) -> tuple[Tensor, ...]:
        """From gradients of the leaves, of these nodes and of the scores to those of the leaves and of all weights."""


S = TypeVar("S", bound=Search)


class Room(Generic[S]):
    """A search's memory, and that of its gradient once one was taken."""

    def __init__(self, search: S, make_gradient: Callable[[S], Gradient]) -> None:
        self.search, self.make_gradient = search, make_gradient

    @cached_property
    def gradient(self) -> Gradient:
        return self.make_gradient(self.search)

    @property
    def bytes(self) -> int:
        return self.search.bytes + (self.gradient.bytes if "gradient" in vars(self) else 0)


class Rooms(Generic[S]):
    """Those that no pass is using. The one used last is at the end."""

    def __init__(self) -> None:
        self.idle: list[Room[S]] = []

    def lend(self, size: Hashable, make: Callable[[], Room[S]]) -> "Lease[S]":
        """A room of this size, or a new one."""
        for place in reversed(range(len(self.idle))):
            if self.idle[place].search.size == size:
                return Lease(self, self.idle.pop(place))
        with torch.inference_mode(False), torch.no_grad():  # training may use it too
            return Lease(self, make())

    def take_back(self, room: Room[S]) -> None:
        """Those that were not used for longest make way."""
        self.idle.append(room)
        while too_many([other.bytes for other in self.idle], KEPT, room.search.size.device):
            self.idle.pop(0)

    def release(self) -> None:
        """Give all memory back that no pass under way holds."""
        self.idle.clear()


class Lease(Generic[S]):
    """A room that belongs to one pass, until the lease ends or is forgotten."""

    def __init__(self, rooms: Rooms[S], room: Room[S]) -> None:
        self.rooms = rooms
        self._room: Room[S] | None = room

    @property
    def room(self) -> Room[S]:
        assert self._room is not None, "the lease has ended"
        return self._room

    def end(self) -> None:
        """Whatever the next pass of this size writes there, this one no longer reads."""
        if self._room is not None:
            room, self._room = self._room, None
            self.rooms.take_back(room)

    def __del__(self) -> None:
        self.end()


class Replay(torch.autograd.Function):
    """(leaves, weights) → (states of the leaves and of these nodes, scores), with values from the search in a room."""

    @staticmethod
    def forward(
        ctx: Any,
        lease: Lease[Any],
        nodes: Int[Tensor, "n"],
        scores: Float[Tensor, "B K"],
        leaves: Float[Tensor, "B N S"],
        *weights: Tensor,
    ) -> tuple[Float[Tensor, "rows S"], Float[Tensor, "B K"]]:
        ctx.lease, ctx.shape, ctx.autocast = lease, leaves.shape, Autocast(leaves.device.type)
        # The weights too, so that PyTorch objects if they change before backward.
        ctx.save_for_backward(nodes, *weights)
        return torch.cat((leaves.flatten(0, 1), take(lease.room.search.tables.states, nodes))), scores.clone()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, store_gradient: Float[Tensor, "rows S"], score_gradient: Float[Tensor, "B K"]
    ) -> tuple[Tensor | None, ...]:
        nodes, *_ = ctx.saved_tensors
        leaves, states = store_gradient.tensor_split([len(store_gradient) - len(nodes)])
        with torch.no_grad(), ctx.autocast.again():
            found = ctx.lease.room.gradient.pull_back(leaves.view(ctx.shape), nodes, states, score_gradient)
        if not torch._C._autograd._get_current_graph_task_keep_graph():  # else it may be asked for once more
            ctx.lease.end()
        return (None, None, None, *found)


def replay(
    request: Request, lease: Lease[Any], nodes: Int[Tensor, "B K M"], scores: Float[Tensor, "B K"]
) -> tuple[Float[Tensor, "rows S"], Float[Tensor, "B K"]]:
    """A store of the leaves, then these nodes, and the scores; with gradients where they are wanted."""
    if request.wants_gradient():
        found: tuple[Tensor, Tensor] = Replay.apply(lease, nodes.flatten(), scores, request.leaves, *request.weights)
        return found
    store = torch.cat((request.leaves.flatten(0, 1), take(lease.room.search.tables.states, nodes.flatten())))
    scores = scores.clone()
    lease.end()
    return store, scores


def too_many(sizes: list[int], kept: int, device: torch.device) -> bool:
    """Whether memories of these sizes are more than may be kept. One may always."""
    if len(sizes) <= 1 or device.type != "cuda":
        return len(sizes) > kept
    return len(sizes) > kept or sum(sizes) > SHARE * torch.cuda.get_device_properties(device).total_memory
