"""Chains: states that take in one leaf after the other, h_t = R(h_{t−1}, leaf_t).

Nothing is stored but the states. What a leaf brings into R is known before its turn, so that it is one product for
many leaves. Backward composes many steps again in one batch, as all states are known, and only the gradient runs step
by step. On a CUDA device a stretch of steps can be one captured graph (see `fused.chain`).

Letters: N steps, T steps of a stretch, B batch, D width of a state.
"""

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from beamtree.cells import GRC, gelu
from beamtree.dropout import NodeDropout
from beamtree.engine.adjoint import GRCAdjoint
from beamtree.engine.autocast import Autocast

STRETCH = 64  # steps that are composed again at once; the fewer, the less memory and the more calls


def chain(
    leaves: Float[Tensor, "N B D"],
    start: Float[Tensor, "B D"],
    cell: GRC,
    dropout: NodeDropout | None = None,
    captured: bool = False,
) -> Float[Tensor, "N B D"]:
    """The states h_1 to h_N, with h_0 = `start`; `captured`, in CUDA graphs."""
    states: Tensor = Chain.apply(cell, dropout, captured, leaves, start, *cell.parameters())
    return states


def is_captured(engine: str, leaves: Float[Tensor, "*shape D"]) -> bool:
    """Whether a loop over leaves runs in CUDA graphs: with "triton"; with "auto" on a CUDA device, where it can."""
    if engine == "auto":
        return leaves.is_cuda and why_not_captured(leaves) is None
    if engine == "triton" and (reason := why_not_captured(leaves)):
        raise ValueError(f"engine 'triton' cannot do this: {reason}; engine 'torch' can")
    return engine == "triton"


def why_not_captured(leaves: Float[Tensor, "*shape D"]) -> str | None:
    """Why a loop cannot be captured; None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    import triton

    if not leaves.is_cuda and not triton.knobs.runtime.interpret:
        return f"it runs on a CUDA device, not on {leaves.device}"
    return None if leaves.dtype == torch.float32 else f"it computes in float32, not in {leaves.dtype}"


class Down(NamedTuple):
    """What backward gives for a stretch."""

    leaves: Float[Tensor, "T B D"]
    start: Float[Tensor, "B D"]  # the state before the stretch
    weights: tuple[Tensor, ...]


def go(
    cell: GRC, start: Float[Tensor, "B D"], leaves: Float[Tensor, "T B D"], mask: Float[Tensor, "T B E"] | None
) -> Float[Tensor, "T B D"]:
    """The states of a stretch: the cell's equations with [l; r] W1 + b1 = l W1_l + (r W1_r + b1)."""
    W1_left, W1_right = cell.expand.weight.chunk(2, dim=1)  # (4D, D)
    ready = F.linear(leaves, W1_right, cell.expand.bias)  # (T, B, 4D)
    states, h = torch.empty_like(leaves), start
    for step, leaf in enumerate(leaves.unbind(0)):
        inner = gelu(torch.addmm(ready[step], h, W1_left.mT))  # (B, 4D)
        if mask is not None:
            inner = inner * mask[step]
        gates = cell.gates(inner).view(len(h), 4, cell.dim)  # (B, 4, D)
        left, right, update = gates[:, :3].sigmoid().unbind(1)
        h = cell.norm(torch.addcmul(torch.addcmul(left * h, right, leaf), update, gates[:, 3]))
        states[step] = h
    return states


def come_back(
    adjoint: Callable[..., GRCAdjoint],
    cell: GRC,
    before: Float[Tensor, "T B D"],
    leaves: Float[Tensor, "T B D"],
    mask: Float[Tensor, "T B E"] | None,
    gradient: Float[Tensor, "T B D"],
) -> Down:
    """From the gradient of a stretch's states to that of all it was made from; `before` are the states it met."""
    T, B, D = leaves.shape
    children = torch.stack((before, leaves), dim=2).view(T * B, 2, D)
    nodes = adjoint(cell, children, None if mask is None else mask.flatten(0, 1))
    down, carry = torch.empty_like(leaves), torch.zeros_like(leaves[0])
    for step in reversed(range(T)):
        carry, down[step] = nodes.pull_back(slice(step * B, (step + 1) * B), gradient[step] + carry).unbind(1)
    return Down(down, carry, nodes.weight_gradients())


class Chain(torch.autograd.Function):
    """(leaves, start, weights) → states."""

    @staticmethod
    def forward(
        ctx: Any,
        cell: GRC,
        dropout: NodeDropout | None,
        captured: bool,
        leaves: Float[Tensor, "N B D"],
        start: Float[Tensor, "B D"],
        *weights: Tensor,
    ) -> Float[Tensor, "N B D"]:
        run = _graphs(cell, leaves) if captured else None
        states = torch.empty_like(leaves)
        for first in range(0, len(leaves), STRETCH):
            part = leaves[first : first + STRETCH]
            h = states[first - 1] if first else start
            mask = _masks(dropout, first, part)
            states[first : first + STRETCH] = run.go(h, part, mask) if run else go(cell, h, part, mask)
        ctx.cell, ctx.dropout, ctx.captured, ctx.autocast = cell, dropout, captured, Autocast(leaves.device.type)
        # The weights too, so that PyTorch objects if they change before backward.
        ctx.save_for_backward(leaves, start, states, *weights)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, state_gradient: Float[Tensor, "N B D"]) -> tuple[Tensor | None, ...]:
        leaves, start, states, *weights = ctx.saved_tensors
        gradient, down = state_gradient.clone(), torch.empty_like(leaves)
        weight_gradients = [torch.zeros_like(weight) for weight in weights]
        run = _graphs(ctx.cell, leaves) if ctx.captured else None
        d_start = torch.zeros_like(start)
        # In inference mode, which is faster; whatever is returned was made outside of it.
        with torch.inference_mode(), ctx.autocast.again():
            for first in reversed(range(0, len(leaves), STRETCH)):
                rows = slice(first, first + STRETCH)
                h = states[first - 1] if first else start
                before = torch.cat((h.unsqueeze(0), states[rows][:-1]))  # (T, B, D)
                given = before, leaves[rows], _masks(ctx.dropout, first, leaves[rows]), gradient[rows]
                found = run.come_back(*given) if run else come_back(GRCAdjoint, ctx.cell, *given)
                down[rows] = found.leaves
                (gradient[first - 1] if first else d_start).add_(found.start)
                for total, part in zip(weight_gradients, found.weights, strict=True):
                    total += part
        return None, None, None, down, d_start, *weight_gradients


def _masks(dropout: NodeDropout | None, first: int, leaves: Float[Tensor, "T B D"]) -> Float[Tensor, "T B E"] | None:
    """Of the steps from `first` on; a step joins all that was read and one leaf."""
    if dropout is None:
        return None
    T, B, _ = leaves.shape
    step = torch.arange(first, first + T, device=leaves.device).view(T, 1).expand(T, B)
    sample = torch.arange(B, device=leaves.device).expand(T, B)
    left = torch.stack((sample, torch.zeros_like(step), step), dim=2)  # (T, B, 3)
    return dropout.mask(left, torch.stack((sample, step, step + 1), dim=2))


def _graphs(cell: GRC, leaves: Float[Tensor, "N B D"]) -> Any:
    from beamtree.engine.fused import chain as fused  # needs triton, which comes with PyTorch's CUDA builds alone

    return fused.graphs(cell, leaves)
