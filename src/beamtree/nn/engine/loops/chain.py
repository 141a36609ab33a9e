"""Chains: states that read one leaf after another, h_t = R(h_{t−1}, leaf_t).

Only the states are saved for the backward pass. The contribution of the leaves to R does not depend on the states, so
it is one product for many leaves. All states are known in the backward pass, so it recomposes many steps in one batch,
and only the gradient runs step by step. On a CUDA device a segment of steps can be one captured graph (see
`beamtree.nn.engine.gpu.chain`).

Letters: N steps, T steps of a segment, B batch, D width of a state.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from beamtree.nn.cells import AnyCell, gelu
from beamtree.nn.cells.base import apply_mask
from beamtree.nn.cells.grc import GRCAdjoint, GRCFunction, compose_activated
from beamtree.nn.engine.autocast import Autocast
from beamtree.nn.engine.dispatch import Engine, why_not_triton
from beamtree.nn.engine.dropout import NodeDropout
from beamtree.nn.function import first_order, save

SEGMENT = 64  # steps recomposed in one batch; fewer steps take less memory and more calls


@dataclass(frozen=True)
class ChainRequest:
    """The leaves of a chain, and the state before the first leaf."""

    leaves: Float[Tensor, "N B D"]
    start: Float[Tensor, "B D"]
    cell: AnyCell
    dropout: NodeDropout | None = None


class SegmentGradients(NamedTuple):
    """The gradients of a segment's inputs."""

    leaves: Float[Tensor, "T B D"]
    start: Float[Tensor, "B D"]  # the state before the segment
    weights: tuple[Tensor, ...]


@runtime_checkable
class Segments(Protocol):
    """A way to run segments of a chain."""

    def forward_segment(
        self, start: Float[Tensor, "B D"], leaves: Float[Tensor, "T B D"], mask: Float[Tensor, "T B E"] | None
    ) -> Float[Tensor, "T B D"]: ...

    def backward_segment(
        self,
        before: Float[Tensor, "T B D"],
        leaves: Float[Tensor, "T B D"],
        mask: Float[Tensor, "T B E"] | None,
        gradient: Float[Tensor, "T B D"],
    ) -> SegmentGradients: ...


def forward_segment(
    cell: GRCFunction, start: Float[Tensor, "B D"], leaves: Float[Tensor, "T B D"], mask: Float[Tensor, "T B E"] | None
) -> Float[Tensor, "T B D"]:
    """The states of a segment: the cell's equations with [l; r] W1 + b1 = l W1_l + (r W1_r + b1)."""
    W1, b1, *_ = cell.weights
    _, gates, norm = cell.layers()
    W1_left, W1_right = W1.chunk(2, dim=1)  # (4D, D)
    ready = F.linear(leaves, W1_right, b1)  # (T, B, 4D)
    states, h = torch.empty_like(leaves), start
    for step, leaf in enumerate(leaves.unbind(0)):
        inner = gelu(torch.addmm(ready[step], h, W1_left.mT))  # (B, 4D)
        h = compose_activated(h, leaf, apply_mask(inner, None if mask is None else mask[step]), gates, norm)
        states[step] = h
    return states


def backward_segment(
    adjoint: Callable[..., GRCAdjoint],
    cell: GRCFunction,
    before: Float[Tensor, "T B D"],
    leaves: Float[Tensor, "T B D"],
    mask: Float[Tensor, "T B E"] | None,
    gradient: Float[Tensor, "T B D"],
) -> SegmentGradients:
    """The gradients of a segment's inputs, given that of its states. `before` holds the state before each step."""
    T, B, D = leaves.shape
    children = torch.stack((before, leaves), dim=2).view(T * B, 2, D)
    nodes = adjoint(cell, children, None if mask is None else mask.flatten(0, 1))
    down, carry = torch.empty_like(leaves), torch.zeros_like(leaves[0])
    for step in reversed(range(T)):
        carry, down[step] = nodes.pull_back(slice(step * B, (step + 1) * B), gradient[step] + carry).unbind(1)
    return SegmentGradients(down, carry, nodes.weight_gradients())


class PlainSegments(NamedTuple):
    """Segments run as individual operations, not captured."""

    cell: GRCFunction

    def forward_segment(
        self, start: Float[Tensor, "B D"], leaves: Float[Tensor, "T B D"], mask: Float[Tensor, "T B E"] | None
    ) -> Float[Tensor, "T B D"]:
        return forward_segment(self.cell, start, leaves, mask)

    def backward_segment(
        self,
        before: Float[Tensor, "T B D"],
        leaves: Float[Tensor, "T B D"],
        mask: Float[Tensor, "T B E"] | None,
        gradient: Float[Tensor, "T B D"],
    ) -> SegmentGradients:
        return backward_segment(GRCAdjoint, self.cell, before, leaves, mask, gradient)


class Chain(torch.autograd.Function):
    """(leaves, start, weights) → states."""

    @staticmethod
    def forward(
        ctx: Any,
        cell: GRCFunction,
        dropout: NodeDropout | None,
        captured: bool,
        leaves: Float[Tensor, "N B D"],
        start: Float[Tensor, "B D"],
        *weights: Tensor,
    ) -> Float[Tensor, "N B D"]:
        states = torch.empty_like(leaves)
        with _segments(cell.bind(weights), leaves, captured) as run:
            for first in range(0, len(leaves), SEGMENT):
                part = leaves[first : first + SEGMENT]
                h = states[first - 1] if first else start
                states[first : first + SEGMENT] = run.forward_segment(h, part, _masks(dropout, first, part))
        ctx.cell, ctx.dropout, ctx.captured, ctx.autocast = cell, dropout, captured, Autocast(leaves.device.type)
        save(ctx, (leaves, start, *weights), states)
        return states

    @staticmethod
    @first_order
    def backward(
        ctx: Any, inputs: Sequence[Tensor], kept: Sequence[Any], state_gradient: Float[Tensor, "N B D"]
    ) -> tuple[Tensor | None, ...]:
        (leaves, start, *weights), (states,) = inputs, kept
        gradient, down = state_gradient.clone(), torch.empty_like(leaves)
        weight_gradients = [torch.zeros_like(weight) for weight in weights]
        d_start = torch.zeros_like(start)
        cell = ctx.cell.bind(weights)
        # Operations have less overhead in inference mode; all returned tensors are allocated outside. The captured
        # segments are those for the precision under autocast.
        with ctx.autocast.again(), _segments(cell, leaves, ctx.captured) as run, torch.inference_mode():
            for first in reversed(range(0, len(leaves), SEGMENT)):
                rows = slice(first, first + SEGMENT)
                h = states[first - 1] if first else start
                before = torch.cat((h.unsqueeze(0), states[rows][:-1]))  # (T, B, D)
                masks = _masks(ctx.dropout, first, leaves[rows])
                found = run.backward_segment(before, leaves[rows], masks, gradient[rows])
                down[rows] = found.leaves
                (gradient[first - 1] if first else d_start).add_(found.start)
                for total, part in zip(weight_gradients, found.weights, strict=True):
                    total += part
        return None, None, None, down, d_start, *weight_gradients


def _masks(dropout: NodeDropout | None, first: int, leaves: Float[Tensor, "T B D"]) -> Float[Tensor, "T B E"] | None:
    """Dropout masks of the steps from `first` on; a step merges everything read so far with one leaf."""
    if dropout is None:
        return None
    T, B, _ = leaves.shape
    step = torch.arange(first, first + T, device=leaves.device).view(T, 1).expand(T, B)
    sample = torch.arange(B, device=leaves.device).expand(T, B)
    left = torch.stack((sample, torch.zeros_like(step), step), dim=2)  # (T, B, 3)
    return dropout.mask(left, torch.stack((sample, step, step + 1), dim=2))


@contextmanager
def _segments(cell: GRCFunction, leaves: Float[Tensor, "N B D"], captured: bool) -> Iterator[Segments]:
    """A way to run segments during one pass."""
    if not captured:
        yield PlainSegments(cell)
        return
    from beamtree.nn.engine.gpu.chain import captured_chain  # needs triton, an optional package

    with captured_chain(cell, leaves) as segments:
        yield segments


def reference(request: ChainRequest) -> Float[Tensor, "N B D"]:
    """The states h_1 to h_N, computed step by step under autograd."""
    states, h = [], request.start
    masks = _masks(request.dropout, 0, request.leaves)
    for step, leaf in enumerate(request.leaves):
        h = request.cell(h, leaf, None if masks is None else masks[step]).to(leaf.dtype)
        states.append(h)
    return torch.stack(states)


def _run(request: ChainRequest, captured: bool) -> Float[Tensor, "N B D"]:
    cell = request.cell
    if not isinstance(cell, GRCFunction):
        return reference(request)
    states: Tensor = Chain.apply(cell.unbound, request.dropout, captured, request.leaves, request.start, *cell.weights)
    return states


def _why_not_captured(request: ChainRequest) -> str | None:
    if not isinstance(request.cell, GRCFunction):
        return "its cell is not a plain GRC"
    return why_not_triton(request.leaves)


CHAIN: tuple[Engine[ChainRequest], ...] = (
    Engine("triton", lambda request: _run(request, captured=True), _why_not_captured),
    Engine("torch", lambda request: _run(request, captured=False)),
    Engine("reference", reference),
)
