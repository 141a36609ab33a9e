"""Ordered Memory (Shen et al., *Ordered Memory*, NeurIPS 2019, with the GELU of Ray Chowdhury & Caragea 2021).

A stack of slots reads the input from left to right. The memory M holds finished constituents, the candidate memory M̂
what each slot would hold if the constituent at the right edge ended here; a higher slot holds a larger one. At each
step a distribution p over the slots says where the new leaf x belongs: everything below was finished by the leaves
before it, and x starts a new constituent whose left neighbour lies in that slot.

    q = LN(W_q x),  κ_i = LN(W_k M̂_i),  β_i = w · GELU(q + κ_i) / √D
    p_i ∝ exp(β_i) · Σ_{j ≤ i+1} p′_j            p′: the step before; the top slot is always open
    M_i = M′_i · Σ_{j<i} p_j + M̂′_i · Σ_{j≥i} p_j
    M̂_i = x · Σ_{j>i} p_j + R(M̂_{i−1}, M_i) · Σ_{j≤i} p_j,    M̂_{−1} = x

The first leaf fills all of M̂. The encoding is the top of M̂ after the last leaf. R is the GRC with one more dropout, on
the children; leaves and R share their layer norm.

The tree: the most probable slot of a leaf is the height of the boundary before it. Boundaries close from the lowest
up, among equal ones from the left. Were p hard, the slot of a constituent's highest boundary would hold just that
constituent after its last leaf; so this is the node's state. That of the root is the encoding.
"""

from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from beamtree.beams import Beams, Encoding
from beamtree.cells import GRC
from beamtree.checks import check_integer, check_rate
from beamtree.encoders.base import Encoder, in_full
from beamtree.encoders.boundaries import close, one_beam

aten = torch.ops.aten  # for PyTorch's own derivatives of GELU and LayerNorm

# A slot with less than this of the last step's distribution below it is closed, as in the published code.
CLOSED = 1e-5


class Memory(NamedTuple):
    """The slots after a step, the lowest first."""

    finished: Float[Tensor, "slots B D"]  # M
    candidates: Float[Tensor, "slots B D"]  # M̂
    distribution: Float[Tensor, "slots B"]  # p


class OrderedMemory(Encoder):
    """An Ordered Memory encoder."""

    # Module names of the published code → ours. Its one layer norm has three names there.
    OFFICIAL: ClassVar[dict[str, str]] = {
        "OM_forward.activation": "cell.norm",
        "OM_forward.input_projection.0": "leaf",
        "OM_forward.input_projection.1": "cell.norm",
        "OM_forward.distribution.query.1": "query.0",
        "OM_forward.distribution.query.2": "query.1",
        "OM_forward.distribution.key.1": "key.0",
        "OM_forward.distribution.key.2": "key.1",
        "OM_forward.distribution.beta.2": "scorer",
        "OM_forward.cell.input_t.1": "cell.expand",
        "OM_forward.cell.input_t.4": "cell.gates",
        "OM_forward.cell.activation": "cell.norm",
    }

    def __init__(
        self,
        dim: int,
        slots: int = 21,
        dropout: float = 0.0,
        memory_dropout: float = 0.0,
        check_nan: bool = False,
    ) -> None:
        """
        dim: width D of inputs and encodings.
        slots: of the memory; trees of this height can be built.
        dropout: inside the cell, on the children and on the activation.
        memory_dropout: where p is made, on leaves, candidates and activations.
        check_nan: look for NaN in x before any work (costs a synchronisation on a GPU).
        """
        super().__init__(dim, check_nan)
        check_integer("slots", slots, at_least=1)
        check_rate("dropout", dropout)
        check_rate("memory_dropout", memory_dropout)
        self.slots, self.memory_dropout = slots, memory_dropout
        self.cell = GRC(dim, dropout)
        self.leaf = nn.Linear(dim, dim)  # its layer norm is the cell's
        self.query = nn.Sequential(nn.Linear(dim, dim), nn.LayerNorm(dim))
        self.key = nn.Sequential(nn.Linear(dim, dim), nn.LayerNorm(dim))
        self.scorer = nn.Linear(dim, 1)

    def encode(
        self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"], generator: torch.Generator | None
    ) -> Encoding:
        leaves = in_full(self.cell.norm(self.leaf(x.transpose(0, 1))))  # (N, B, D)
        queries = self.query(self._drop(leaves, generator))  # (N, B, D)
        first = leaves[:1].expand(self.slots, -1, -1)  # (slots, B, D)
        memory = Memory(torch.zeros_like(first), first, torch.zeros_like(first[..., 0]))
        candidates, heights = [memory.candidates], []
        for step in range(1, len(leaves)):
            memory = self._step(leaves[step], queries[step], memory, step, generator)
            candidates.append(memory.candidates)
            heights.append(memory.distribution.detach().argmax(0))
        history = torch.stack(candidates)  # (N, slots, B, D)
        state = history[lengths - 1, -1, torch.arange(len(x), device=x.device)]  # (B, D)
        boundaries = torch.stack(heights, dim=1) if heights else lengths.new_zeros(len(x), 0)  # (B, M)
        return Encoding(state, self._beam(leaves.transpose(0, 1), boundaries, history, lengths))

    def _step(
        self,
        leaf: Float[Tensor, "B D"],
        query: Float[Tensor, "B D"],
        memory: Memory,
        step: int,
        generator: torch.Generator | None,
    ) -> Memory:
        """Read one leaf."""
        distribution = self._distribution(query, memory, generator)  # (slots, B)
        up_to = distribution.cumsum(0)  # Σ_{j≤i} p_j
        from_here = 1 - up_to + distribution  # Σ_{j≥i} p_j
        finished = torch.lerp(memory.finished, memory.candidates, from_here.unsqueeze(-1))  # (slots, B, D)
        # One more slot opens at each step at most: the lower ones hold the leaf itself.
        closed = max(self.slots - step, 0)
        shape = (self.slots - closed, len(leaf), 6 * self.dim)
        mask = self._mask(shape, self.cell.dropout, leaf, generator)
        share = up_to[closed:].unsqueeze(-1)
        above = Fold.apply(self.cell.norm.eps, leaf, finished[closed:], share, mask, *self.cell.parameters())
        candidates = torch.cat((leaf.expand(closed, -1, -1), above))
        return Memory(finished, candidates, distribution)

    def _distribution(
        self, query: Float[Tensor, "B D"], memory: Memory, generator: torch.Generator | None
    ) -> Float[Tensor, "slots B"]:
        """p, from the leaf and what the step before left."""
        keys = self.key(self._drop(memory.candidates, generator))  # (slots, B, D)
        matches = self._drop(F.gelu(query + keys), generator)
        scores = self.scorer(matches).squeeze(-1) / self.dim**0.5  # (slots, B)
        below = memory.distribution.cumsum(0)[1:]  # Σ_{j ≤ i+1} of the step before
        is_open = F.pad(below.masked_fill(below < CLOSED, 0), (0, 0, 0, 1), value=1.0)  # (slots, B)
        scores = scores.to(is_open.dtype).masked_fill(is_open == 0, -torch.inf)
        weights = (scores - scores.detach().amax(0)).exp() * is_open
        return weights / weights.sum(0)  # the sum is at least CLOSED

    def _drop(self, activation: Tensor, generator: torch.Generator | None) -> Tensor:
        mask = self._mask(activation.shape, self.memory_dropout, activation, generator)
        return activation if mask is None else activation * mask

    def _mask(
        self, shape: tuple[int, ...], rate: float, like: Tensor, generator: torch.Generator | None
    ) -> Tensor | None:
        """A dropout mask, scaled by 1 / (1 − rate); None where nothing is dropped."""
        if not self.training or rate == 0:
            return None
        mask = torch.empty(shape, dtype=like.dtype, device=like.device)
        return mask.bernoulli_(1 - rate, generator=generator).div_(1 - rate)

    def _beam(
        self,
        leaves: Float[Tensor, "B N D"],
        heights: Int[Tensor, "B M"],
        history: Float[Tensor, "N slots B D"],
        lengths: Int[Tensor, "B"],
    ) -> Beams:
        merges = close(heights, lengths)
        slot = heights.gather(1, merges.boundaries)  # (B, M)
        batch = torch.arange(len(leaves), device=leaves.device).unsqueeze(1)
        states = history[merges.spans[..., 1] - 1, slot, batch]  # (B, M, D)
        return one_beam(leaves, merges, states, lengths)

    def extra_repr(self) -> str:
        return f"slots={self.slots}, memory_dropout={self.memory_dropout}"


class Fold(torch.autograd.Function):
    """The candidates M̂ of a step: h_i = x + s_i (R(h_{i−1}, M_i) − x), h_{−1} = x, from the lowest open slot up.

    With a = [k ⊙ (l; r)] W1 + b1, g = k′ ⊙ GELU(a), [z; h; c; u] = g W2 + b2 and t = σ(z) l + σ(h) r + σ(c) u, as in
    `beamtree.cells.GRC`, k and k′ being the parts of the mask. What is before M_i is known first, for all slots at
    once. Backward knows all l and r too: it computes all activations again in one batch, and only dt, da and the
    gradient of the states run from slot to slot. The weights' gradients are one product for all slots. So nothing of
    the cells is stored, and a slot takes nine launches in forward and seven in backward.
    """

    @staticmethod
    def forward(
        ctx: Any,
        eps: float,
        leaf: Float[Tensor, "B D"],
        finished: Float[Tensor, "open B D"],
        share: Float[Tensor, "open B 1"],
        mask: Float[Tensor, "open B 6*D"] | None,
        *weights: Tensor,
    ) -> Float[Tensor, "open B D"]:
        D = leaf.shape[1]
        expand, expand_bias, gates_weight, gates_bias, norm, norm_bias = weights
        k_left, k_right, k_inner = split(mask, D)
        with torch.autocast(leaf.device.type, enabled=False):
            before = F.linear(times(finished, k_right), expand[:, D:], expand_bias)  # (open, B, 4D)
            to_inner, to_gates = expand[:, :D].mT, gates_weight.mT
            candidates = torch.empty_like(finished)
            state = leaf
            for i, candidate in enumerate(candidates):
                a = torch.addmm(before[i], times(state, at(k_left, i)), to_inner)  # (B, 4D)
                gates = torch.addmm(gates_bias, times(F.gelu(a), at(k_inner, i)), to_gates)
                z, h, c = gates[:, : 3 * D].sigmoid().chunk(3, dim=1)  # (B, D) each
                total = torch.addcmul(torch.addcmul(z * state, h, finished[i]), c, gates[:, 3 * D :])
                state = torch.lerp(leaf, F.layer_norm(total, [D], norm, norm_bias, eps), share[i], out=candidate)
        ctx.eps = eps
        ctx.save_for_backward(leaf, finished, share, mask, candidates, *weights)
        return candidates

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "open B D"]) -> tuple[Tensor | None, ...]:
        leaf, finished, share, mask, candidates, *weights = ctx.saved_tensors
        expand, expand_bias, gates_weight, gates_bias, norm, norm_bias = weights
        D = finished.shape[-1]
        k_left, k_right, k_inner = split(mask, D)
        with torch.autocast(leaf.device.type, enabled=False):
            left = torch.cat((leaf.unsqueeze(0), candidates[:-1]))
            children = torch.cat((times(left, k_left), times(finished, k_right)), dim=-1)  # (open, B, 2D)
            a = F.linear(children, expand, expand_bias)  # (open, B, 4D)
            inner = times(F.gelu(a), k_inner)
            gates = F.linear(inner, gates_weight, gates_bias)
            z, h, c = gates[..., : 3 * D].sigmoid().chunk(3, dim=-1)  # (open, B, D) each
            u = gates[..., 3 * D :]
            total = torch.addcmul(torch.addcmul(z * left, h, finished), c, u)
            parents, mean, scale = aten.native_layer_norm(total, [D], norm, norm_bias, ctx.eps)
            # The derivatives that a gradient meets on its way from LN to the gates, to the left child, and from g to a;
            # the share of the parent in the state is put in here, since LN's derivative is linear.
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
                carried = torch.addcmul(times(d_a[i] @ to_left, at(k_left, i)), d_total, through_left[i])
                unshared.append(d_total)

            d_parents = d_state * share
            d_leaf = carried + (d_state - d_parents).sum(0)
            d_finished = torch.addcmul(times(d_a @ expand[:, D:], k_right), torch.stack(unshared[::-1]), h * share)
            d_share = (d_state * (parents - leaf)).sum(-1, keepdim=True)
            d_norm = (d_parents * (total - mean) * scale).sum((0, 1)), d_parents.sum((0, 1))
            d_a, d_gates = d_a.flatten(0, 1), d_gates.flatten(2).flatten(0, 1)
            d_weights = d_a.mT @ children.flatten(0, 1), d_a.sum(0), d_gates.mT @ inner.flatten(0, 1), d_gates.sum(0)
            return None, d_leaf, d_finished, d_share, None, *d_weights, *d_norm


def split(mask: Tensor | None, dim: int) -> tuple[Tensor, ...] | tuple[None, None, None]:
    """The parts of a mask for the left children, the right ones and the activation."""
    return (None, None, None) if mask is None else mask.split((dim, dim, 4 * dim), dim=-1)


def times(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x * mask


def at(mask: Tensor | None, slot: int) -> Tensor | None:
    return None if mask is None else mask[slot]
