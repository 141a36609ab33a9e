"""The fold of Ordered Memory: a chain of cells from slot to slot, which dominates its run time."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from beamtree.nn.engine.autocast import Autocast
from beamtree.nn.function import first_order, save

aten = torch.ops.aten  # for PyTorch's own derivatives of GELU and LayerNorm


class Fold(torch.autograd.Function):
    """The candidates M̂ of a step: h_i = x + s_i (R(h_{i−1}, M_i) − x), h_{−1} = x, from the lowest open slot up.

    With a = [k ⊙ (l; r)] W1 + b1, g = k′ ⊙ GELU(a), [z; h; c; u] = g W2 + b2 and t = σ(z) l + σ(h) r + σ(c) u, as in
    `beamtree.nn.cells.GRC`, where k and k′ are the parts of the mask. The product of M_i with W1 is computed for all
    slots in one batch. All l and r are known in the backward pass: it recomputes all activations in one batch, and only
    dt, da and the gradient of the states run from slot to slot. The weight gradients are one product for all slots. So
    no activations are saved, and a slot takes nine launches in the forward pass and seven in the backward pass. If the
    candidates are already known, as `made`, the forward pass returns them. Under autocast the products are in half
    precision, in both passes; all else is in the dtype of the leaf.
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
        expand, expand_bias, gates_weight, gates_bias, norm, norm_bias = weights
        D, dtype = finished.shape[-1], leaf.dtype
        k_left, k_right, k_inner = split(mask, D)
        with ctx.autocast.again():
            left = torch.cat((leaf.unsqueeze(0), candidates[:-1]))
            children = torch.cat((times(left, k_left), times(finished, k_right)), dim=-1)  # (open, B, 2D)
            a = F.linear(children, expand, expand_bias).to(dtype)  # (open, B, 4D)
            inner = times(F.gelu(a), k_inner)
            gates = F.linear(inner, gates_weight, gates_bias).to(dtype)
            z, h, c = gates[..., : 3 * D].sigmoid().chunk(3, dim=-1)  # (open, B, D) each
            u = gates[..., 3 * D :]
            total = torch.addcmul(torch.addcmul(z * left, h, finished), c, u)
            parents, mean, scale = aten.native_layer_norm(total, [D], norm, norm_bias, ctx.eps)
            # Derivatives from LN to the gates, from LN to the left child, and from g to a. The first two include the
            # share of the parent in the state, since LN's derivative is linear.
            through_gates = torch.stack((z * (1 - z) * left, h * (1 - h) * finished, c * (1 - c) * u, c), dim=2)
            through_gates *= share.unsqueeze(-1)  # (open, B, 4, D)
            through_left = z * share
            through_inner = times(aten.gelu_backward(torch.ones_like(a), a), k_inner)

            d_state, d_gates, d_a = torch.empty_like(finished), torch.empty_like(through_gates), torch.empty_like(a)
            to_left, carried, unshared = expand[:, :D], torch.zeros_like(leaf), []
            for i in reversed(range(len(finished))):
                torch.add(gradient[i], carried, out=d_state[i])
                d_total, _, _ = aten.native_layer_norm_backward(
                    d_state[i], total[i], [D], mean[i], scale[i], norm, norm_bias, [True, False, False]
                )
                torch.mul(through_gates[i], d_total.unsqueeze(1), out=d_gates[i])
                torch.mul(d_gates[i].flatten(1) @ gates_weight, through_inner[i], out=d_a[i])
                from_inner = times((d_a[i] @ to_left).to(dtype), at(k_left, i))
                carried = torch.addcmul(from_inner, d_total, through_left[i])
                unshared.append(d_total)

            d_parents = d_state * share
            d_leaf = carried + (d_state - d_parents).sum(0)
            from_inner = times((d_a @ expand[:, D:]).to(dtype), k_right)
            d_finished = torch.addcmul(from_inner, torch.stack(unshared[::-1]), h * share)
            d_share = (d_state * (parents - leaf)).sum(-1, keepdim=True)
            d_norm = (d_parents * (total - mean) * scale).sum((0, 1)), d_parents.sum((0, 1))
            d_a, d_gates = d_a.flatten(0, 1), d_gates.flatten(2).flatten(0, 1)
            d_expand, d_gates_weight = d_a.mT @ children.flatten(0, 1), d_gates.mT @ inner.flatten(0, 1)
            d_weights = d_expand.to(dtype), d_a.sum(0), d_gates_weight.to(dtype), d_gates.sum(0)
            return None, d_leaf, d_finished, d_share, None, None, *d_weights, *d_norm


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
    expand, expand_bias, gates_weight, gates_bias, norm, norm_bias = weights
    k_left, k_right, k_inner = split(mask, D)
    before = F.linear(times(finished, k_right), expand[:, D:], expand_bias)  # (open, B, 4D)
    to_inner, to_gates = expand[:, :D].mT, gates_weight.mT
    candidates = torch.empty_like(finished)
    state = leaf
    for i, candidate in enumerate(candidates):
        a = torch.addmm(before[i], times(state, at(k_left, i)), to_inner).to(leaf.dtype)  # (B, 4D)
        gates = torch.addmm(gates_bias, times(F.gelu(a), at(k_inner, i)), to_gates).to(leaf.dtype)
        z, h, c = gates[:, : 3 * D].sigmoid().chunk(3, dim=1)  # (B, D) each
        total = torch.addcmul(torch.addcmul(z * state, h, finished[i]), c, gates[:, 3 * D :])
        state = torch.lerp(leaf, F.layer_norm(total, [D], norm, norm_bias, eps), share[i], out=candidate)
    return candidates


def split(mask: Tensor | None, dim: int) -> tuple[Tensor, ...] | tuple[None, None, None]:
    """The parts of a mask for the left children, the right ones and the activation."""
    return (None, None, None) if mask is None else mask.split((dim, dim, 4 * dim), dim=-1)


def times(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x * mask


def at(x: Tensor | None, index: int | slice) -> Tensor | None:
    return None if x is None else x[index]
