"""The backward pass of a search in a workspace, which the pass owns until its gradient was computed."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.nn.engine.autocast import Autocast
from beamtree.nn.engine.gpu.cache import Lease
from beamtree.nn.engine.pool import Tables, take
from beamtree.nn.engine.request import Request
from beamtree.nn.function import first_order, save


@runtime_checkable
class Gradient(Protocol):
    """Buffers and graphs for the gradient of the search that a workspace holds."""

    @property
    def bytes(self) -> int: ...

    def pull_back(
        self,
        leaves: Float[Tensor, "B N S"],
        nodes: Int[Tensor, "n"],
        states: Float[Tensor, "n S"],
        scores: Float[Tensor, "B K"],
    ) -> tuple[Tensor, ...]:
        """The gradients of the leaves and of all weights, given those of the leaves, these nodes and the scores."""


@runtime_checkable
class Search(Protocol):
    """Buffers and graphs of a search."""

    tables: Tables

    @property
    def bytes(self) -> int: ...


S = TypeVar("S", bound=Search)


class SearchWorkspace(Generic[S]):
    """The buffers of a search, and those of its gradient once one was computed."""

    def __init__(self, search: S, make_gradient: Callable[[S], Gradient]) -> None:
        self.search, self.make_gradient = search, make_gradient

    @cached_property
    def gradient(self) -> Gradient:
        return self.make_gradient(self.search)

    @property
    def bytes(self) -> int:
        return self.search.bytes + (self.gradient.bytes if "gradient" in vars(self) else 0)


class LeasedReplay(torch.autograd.Function):
    """(leaves, weights) → (states of the leaves and of these nodes, scores).

    The values come from the leased workspace, which has a copy of the weights.
    """

    @staticmethod
    def forward(
        ctx: Any,
        lease: Lease[SearchWorkspace[Any]],
        nodes: Int[Tensor, "n"],
        scores: Float[Tensor, "B K"],
        leaves: Float[Tensor, "B N S"],
        *weights: Tensor,
    ) -> tuple[Float[Tensor, "rows S"], Float[Tensor, "B K"]]:
        ctx.lease, ctx.shape, ctx.autocast = lease, leaves.shape, Autocast(leaves.device.type)
        save(ctx, (leaves, *weights), nodes)
        return torch.cat((leaves.flatten(0, 1), take(lease.workspace.search.tables.states, nodes))), scores.clone()

    @staticmethod
    @first_order
    def backward(
        ctx: Any,
        inputs: Sequence[Tensor],
        kept: Sequence[Any],
        store_gradient: Float[Tensor, "rows S"],
        score_gradient: Float[Tensor, "B K"],
    ) -> tuple[Tensor | None, ...]:
        (nodes,) = kept
        leaves, states = store_gradient.tensor_split([len(store_gradient) - len(nodes)])
        with ctx.autocast.again():
            found = ctx.lease.workspace.gradient.pull_back(leaves.view(ctx.shape), nodes, states, score_gradient)
        if not torch._C._autograd._get_current_graph_task_keep_graph():  # with retain_graph, backward may run again
            ctx.lease.release()
        return (None, None, None, *found)


def replay(
    request: Request, lease: Lease[SearchWorkspace[Any]], nodes: Int[Tensor, "B K M"], scores: Float[Tensor, "B K"]
) -> tuple[Float[Tensor, "rows S"], Float[Tensor, "B K"]]:
    """A store of the leaves, then these nodes; and the scores. Both are differentiable if a gradient is needed."""
    if request.wants_gradient():
        found: tuple[Tensor, Tensor] = LeasedReplay.apply(
            lease, nodes.flatten(), scores, request.leaves, *request.weights
        )
        return found
    states = take(lease.workspace.search.tables.states, nodes.flatten())
    store, scores = torch.cat((request.leaves.flatten(0, 1), states)), scores.clone()
    lease.release()
    return store, scores
