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

A leaf takes some nine launches for each slot, one after the other. On a CUDA device stretches of leaves can be captured
in graphs, so that launching is not what takes the time; see `beamtree.engine.fused.stretches`.
"""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from beamtree.beams import Beams, Encoding
from beamtree.cells import GRC
from beamtree.checks import check_choice, check_integer, check_rate
from beamtree.encoders.base import Cost, Encoder, in_full
from beamtree.encoders.boundaries import close, one_beam
from beamtree.engine.chain import is_captured
from beamtree.engine.fold import Fold, at, times

# A slot with less than this of the last step's distribution below it is closed, as in the published code.
CLOSED = 1e-5


class Memory(NamedTuple):
    """The slots after a step, the lowest first."""

    finished: Float[Tensor, "slots B D"]  # M
    candidates: Float[Tensor, "slots B D"]  # M̂
    distribution: Float[Tensor, "slots B"]  # p


class Masks(NamedTuple):
    """Of dropout: in a step what to multiply by, in a stretch what is kept; None where nothing is dropped."""

    candidates: Shaped[Tensor, "*T slots B D"] | None  # before W_k
    matches: Shaped[Tensor, "*T slots B D"] | None  # before w
    cells: Shaped[Tensor, "*T slots B 6*D"] | None  # R's children and activation


class OrderedMemory(Encoder):
    """A stack of slots that reads from left to right and holds a larger constituent in each."""

    paper = "Shen et al. 2019"
    cost = Cost("≤ slots·N", "≤ slots·N", "slots·N·D")
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
        engine: str = "auto",
        check_nan: bool = False,
    ) -> None:
        """
        dim: width D of inputs and encodings.
        slots: of the memory; trees of this height can be built.
        dropout: inside the cell, on the children and on the activation.
        memory_dropout: where p is made, on leaves, candidates and activations.
        engine: "torch", on any device; "triton", the same launches in CUDA graphs (which needs that package too); or
            "auto", the best there is for the device.
        check_nan: look for NaN in x before any work (costs a synchronisation on a GPU).
        """
        super().__init__(dim, check_nan)
        check_integer("slots", slots, at_least=1)
        check_rate("dropout", dropout)
        check_rate("memory_dropout", memory_dropout)
        check_choice("engine", engine, ("auto", "torch", "triton"))
        self.slots, self.memory_dropout, self.engine = slots, memory_dropout, engine
        self.cell = GRC(dim, dropout)
        self.leaf = nn.Linear(dim, dim)  # its layer norm is the cell's
        self.query = nn.Sequential(nn.Linear(dim, dim), nn.LayerNorm(dim))
        self.key = nn.Sequential(nn.Linear(dim, dim), nn.LayerNorm(dim))
        self.scorer = nn.Linear(dim, 1)

    def encode(
        self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"], generator: torch.Generator | None
    ) -> Encoding:
        leaves = in_full(self.cell.norm(self.leaf(x.transpose(0, 1))))  # (N, B, D)
        queries = in_full(self.query(self._drop(leaves, generator)))  # (N, B, D)
        first = leaves[:1].expand(self.slots, -1, -1)  # (slots, B, D)
        memory = Memory(torch.zeros_like(first), first, torch.zeros_like(first[..., 0]))
        if is_captured(self.engine, leaves) and len(leaves) > 1:
            from beamtree.engine.fused import stretches  # needs triton, which comes with PyTorch's CUDA builds alone

            inputs = leaves[1:], queries[1:]
            draw = partial(self._masks, leaves=leaves, generator=generator)
            later, p, _ = stretches.run(self, memory, inputs, draw, steps=len(leaves) - 1)
            history = torch.cat((first.unsqueeze(0), later))  # (N, slots, B, D)
            heights = p.argmax(1)  # (M, B)
        else:
            candidates, choices = [first], []
            for step in range(len(leaves) - 1):
                (masks,) = self._scaled(self._masks(range(step, step + 1), leaves, generator), leaves[:1])
                memory = self._step(leaves[step + 1], queries[step + 1], memory, masks, self._closed(step))
                candidates.append(memory.candidates)
                choices.append(memory.distribution.detach().argmax(0))
            history = torch.stack(candidates)  # (N, slots, B, D)
            heights = torch.stack(choices) if choices else lengths.new_zeros(0, len(x))  # (M, B)
        state = history[lengths - 1, -1, torch.arange(len(x), device=x.device)]  # (B, D)
        return Encoding(state, self._beam(leaves.transpose(0, 1), heights.mT, history, lengths))

    def _closed(self, step: int) -> int:
        """Slots that cannot be open yet: at first all but the top one; at each step one more opens at most."""
        return max(self.slots - 1 - step, 0)

    def _step(
        self,
        leaf: Float[Tensor, "B D"],
        query: Float[Tensor, "B D"],
        memory: Memory,
        masks: Masks,
        closed: int = 0,
        made: Float[Tensor, "slots B D"] | None = None,
    ) -> Memory:
        """Read one leaf. The lowest slots can be left out if they are closed; `made` are the candidates, if known."""
        distribution = self._distribution(query, memory, masks)  # (slots, B)
        up_to = distribution.cumsum(0)  # Σ_{j≤i} p_j
        from_here = 1 - up_to + distribution  # Σ_{j≥i} p_j
        finished = torch.lerp(memory.finished, memory.candidates, from_here.unsqueeze(-1))  # (slots, B, D)
        share, mask = up_to[closed:].unsqueeze(-1), at(masks.cells, slice(closed, None))
        above = Fold.apply(self.cell.norm.eps, leaf, finished[closed:], share, mask, made, *self.cell.parameters())
        candidates = torch.cat((leaf.expand(closed, -1, -1), above)) if closed else above
        return Memory(finished, candidates, distribution)

    def _distribution(self, query: Float[Tensor, "B D"], memory: Memory, masks: Masks) -> Float[Tensor, "slots B"]:
        """p, from the leaf and what the step before left."""
        keys = self.key(times(memory.candidates, masks.candidates))  # (slots, B, D)
        matches = times(F.gelu(query + keys), masks.matches)
        scores = self.scorer(matches).squeeze(-1) / self.dim**0.5  # (slots, B)
        below = memory.distribution.cumsum(0)[1:]  # Σ_{j ≤ i+1} of the step before
        is_open = F.pad(below.masked_fill(below < CLOSED, 0), (0, 0, 0, 1), value=1.0)  # (slots, B)
        scores = scores.to(is_open.dtype).masked_fill(is_open == 0, -torch.inf)
        weights = (scores - scores.detach().amax(0)).exp() * is_open
        return weights / weights.sum(0)  # the sum is at least CLOSED

    def stretch(
        self, carry: tuple[Tensor, ...], inputs: tuple[Tensor, ...], masks: Sequence[Tensor | None], made: Tensor | None
    ) -> tuple[Memory, Float[Tensor, "T slots B D"], Float[Tensor, "T slots B"]]:
        """Read T leaves, as a loop of `beamtree.engine.fused.stretches` does: the memory after them, and the candidates
        and p of each. All steps are alike, with no slot left out: where one is closed, p and with it the cell's share
        are 0, so that its candidate is the leaf and nothing else gets its gradient."""
        memory, candidates, distributions = Memory(*carry), [], []
        for t, (leaf, query, scaled) in enumerate(zip(*inputs, self._scaled(Masks(*masks), inputs[0]), strict=True)):
            memory = self._step(leaf, query, memory, scaled, made=at(made, t))
            candidates.append(memory.candidates)
            distributions.append(memory.distribution.detach())
        return memory, torch.stack(candidates), torch.stack(distributions)

    def step_weights(self) -> tuple[Tensor, ...]:
        """Those of what `stretch` computes."""
        return *self.key.parameters(), *self.scorer.parameters(), *self.cell.parameters()

    def step_bytes(self, carry: tuple[Tensor, ...]) -> int:
        """Most of it is of the cells: in backward some 30 numbers for each of the memory's."""
        return 15 * sum(tensor.nbytes for tensor in carry)

    def _drop(self, leaves: Float[Tensor, "N B D"], generator: torch.Generator | None) -> Float[Tensor, "N B D"]:
        if not self.training or self.memory_dropout == 0:
            return leaves
        kept = torch.empty_like(leaves).bernoulli_(1 - self.memory_dropout, generator=generator)
        return leaves * kept / (1 - self.memory_dropout)

    def _masks(self, steps: range, leaves: Float[Tensor, "N B D"], generator: torch.Generator | None) -> Masks:
        """What dropout keeps in these steps. Drawn step by step, so that it is the same in stretches of any size."""
        shape = len(steps), self.slots, leaves.shape[1]
        widths, rates = (self.dim, self.dim, 6 * self.dim), self._rates()
        masks = Masks(*(leaves.new_zeros(*shape, width, dtype=torch.bool) if self.training and rate else None
                        for width, rate in zip(widths, rates, strict=True)))  # fmt: skip
        for t, step in enumerate(steps):
            for mask, rate, closed in zip(masks, rates, (0, 0, self._closed(step)), strict=True):
                if mask is not None:
                    mask[t, closed:].bernoulli_(1 - rate, generator=generator)
        return masks

    def _scaled(self, masks: Masks, leaves: Float[Tensor, "T B D"]) -> list[Masks]:
        """What to multiply by in each step."""
        pairs = zip(masks, self._rates(), strict=True)
        scaled = [None if mask is None else mask.to(leaves.dtype).div_(1 - rate) for mask, rate in pairs]
        return [Masks(*(at(mask, t) for mask in scaled)) for t in range(len(leaves))]

    def _rates(self) -> tuple[float, float, float]:
        return self.memory_dropout, self.memory_dropout, self.cell.dropout

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
        return f"slots={self.slots}, memory_dropout={self.memory_dropout}, engine={self.engine!r}"
