"""The fold of Ordered Memory: a chain of cells from slot to slot, which dominates its run time."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from beamtree.nn.cells.base import Layer
from beamtree.nn.cells.grc import GRCAdjoint, GRCFunction, compose_activated
from beamtree.nn.engine.autocast import Autocast
from beamtree.nn.function import first_order, save


class Fold(torch.autograd.Function):
    """The candidates M̂ of a step: h_i = x + s_i (R(h_{i−1}, M_i) − x), h_{−1} = x, from the lowest open slot up.

    R is `beamtree.nn.cells.GRC` with dropout on its children too,

        a = [k ⊙ (l; r)] W1 + b1 ,  g = k′ ⊙ GELU(a) ,  [z; h; c; u] = g W2 + b2 ,  t = σ(z) l + σ(h) r + σ(c) u ,

    where k and k′ are the parts of the mask, and its result is LN(t).

    The product of M_i with W1 is computed for all slots in one batch. All l and r are known in the backward pass: it
    recomputes all activations in one batch, and only dt, da and the gradient of the states run from slot to slot. The
    weight gradients are one product for all slots. So no activations are saved, and a slot takes nine launches in the
    forward pass and seven in the backward pass. If the candidates are already known, as `made`, the forward pass
    returns them. Under autocast the products are in half precision, in both passes; all else is in the dtype of the
    leaf.
    """

    @staticmethod
    def forward(
        ctx: Any,
        eps: float,
        leaf: Float[Tensor, "B D"],
        finished: Float[Tensor, "open B D"],
        share: Float[Tensor, "open B 1"],
        mask: Float[Tensor, "open B 6*D"] | None,
        made: Float[Tensor, "open B D"] | None,
        *weights: Tensor,
    ) -> Float[Tensor, "open B D"]:
        # Detached: autocast would cache the casts without gradient and reuse them where a gradient is required.
        own = tuple(weight.detach() for weight in weights)
        candidates = fold(eps, leaf, finished, share, mask, own) if made is None else made
        ctx.eps, ctx.autocast = eps, Autocast(leaf.device.type)
        save(ctx, (leaf, finished, share, *weights), mask, candidates)
        return candidates

    @staticmethod
    @first_order
    def backward(
        ctx: Any, inputs: Sequence[Tensor], kept: Sequence[Any], gradient: Float[Tensor, "open B D"]
    ) -> tuple[Tensor | None, ...]:
        (leaf, finished, share, *weights), (mask, candidates) = inputs, kept
        (slots, B, D), dtype = finished.shape, leaf.dtype
        k_left, k_right, k_inner = split(None if mask is None else mask.flatten(0, 1), D)  # (open · B, …)
        with ctx.autocast.again():
            left, right = torch.cat((leaf.unsqueeze(0), candidates[:-1])).flatten(0, 1), finished.flatten(0, 1)
            cell = GRCFunction(D, tuple(weights), ctx.eps)
            dropped = torch.cat((times(left, k_left), times(right, k_right)), dim=1)  # (open · B, 2D)
            nodes = GRCAdjoint(cell, torch.stack((left, right), dim=1), k_inner, dropped)
            # Not `pull_back`, with which this takes a third longer for one sample on a CPU. A slot needs the gradient
            # of the left child of the slot above only, so that of the right children is one product at the end. And all
            # derivatives include the share of the parent in the state, since LN's derivative is linear.
            shares = share.flatten(0, 1)  # (open · B, 1)
            gate_slopes, left_slopes = nodes.gate_slopes().mul_(shares.unsqueeze(1)), nodes.open[:, 0] * shares
            W1_left, W1_right = nodes.W1.chunk(2, dim=1)  # (4D, D)
            d_state, carried, totals = torch.empty_like(finished), torch.zeros_like(leaf), []
            for i in reversed(range(slots)):
                rows = slice(i * B, (i + 1) * B)
                torch.add(gradient[i], carried, out=d_state[i])
                d_total = nodes.to_total(rows, d_state[i])
                torch.mul(gate_slopes[rows], d_total.unsqueeze(1), out=nodes.d_gates[rows])
                to_left = times((nodes.to_inner(rows) @ W1_left).to(dtype), at(k_left, rows))
                carried = torch.addcmul(to_left, d_total, left_slopes[rows])
                totals.append(d_total)

            d_parents = torch.mul(d_state, share, out=nodes.gradient.view_as(d_state))
            d_leaf = carried + (d_state - d_parents).sum(0)
            to_right, right_slopes = times((nodes.d_inner @ W1_right).to(dtype), k_right), nodes.open[:, 1] * shares
            d_right = torch.addcmul(to_right, torch.cat(totals[::-1]), right_slopes)
            _, _, norm = cell.layers()
            d_share = (d_state * (norm(nodes.total).view_as(finished) - leaf)).sum(-1, keepdim=True)
            d_weights = (gradient.to(dtype) for gradient in nodes.weight_gradients())
            return None, d_leaf, d_right.view_as(finished), d_share, None, None, *d_weights


def in_dtype(x: Tensor, layer: Layer, dtype: torch.dtype) -> Tensor:
    """The layer's result in this dtype, also under autocast."""
    return layer(x).to(dtype)


def fold(
    eps: float,
    leaf: Float[Tensor, "B D"],
    finished: Float[Tensor, "open B D"],
    share: Float[Tensor, "open B 1"],
    mask: Float[Tensor, "open B 6*D"] | None,
    weights: tuple[Tensor, ...],
) -> Float[Tensor, "open B D"]:
    """The candidates, slot by slot."""
    D = leaf.shape[1]
    W1, b1, *_ = weights
    _, gates, norm = GRCFunction(D, weights, eps).layers()
    to_gates = partial(in_dtype, layer=gates, dtype=leaf.dtype)
    k_left, k_right, k_inner = split(mask, D)
    before = F.linear(times(finished, k_right), W1[:, D:], b1)  # (open, B, 4D)
    to_inner = W1[:, :D].mT
    candidates = torch.empty_like(finished)
    state = leaf
    for i, candidate in enumerate(candidates):
        a = torch.addmm(before[i], times(state, at(k_left, i)), to_inner).to(leaf.dtype)  # (B, 4D)
        parent = compose_activated(state, finished[i], times(F.gelu(a), at(k_inner, i)), to_gates, norm)
        state = torch.lerp(leaf, parent, share[i], out=candidate)
    return candidates


def split(mask: Tensor | None, dim: int) -> tuple[Tensor, ...] | tuple[None, None, None]:
    """The parts of a mask for the left children, the right ones and the activation."""
    return (None, None, None) if mask is None else mask.tensor_split((dim, 2 * dim), dim=-1)


def times(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x * mask


def at(x: Tensor | None, index: int | slice) -> Tensor | None:
    return None if x is None else x[index]
