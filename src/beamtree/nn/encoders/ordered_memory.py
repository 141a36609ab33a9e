"""Ordered Memory (Shen et al., *Ordered Memory*, NeurIPS 2019, with the GELU of Ray Chowdhury & Caragea 2021).

A stack of slots reads the input from left to right. The memory M holds finished constituents. The candidate memory M̂
holds what each slot would contain if the constituent at the right edge ended here; higher slots hold larger
constituents. At each step a distribution p over the slots determines where the new leaf x belongs: everything below
that slot is finished, and x starts a new constituent whose left neighbour is in that slot.

    q = LN(W_q x),  κ_i = LN(W_k M̂_i),  β_i = w · GELU(q + κ_i) / √D
    p_i ∝ exp(β_i) · Σ_{j ≤ i+1} p′_j            p′: the step before; the top slot is always open
    M_i = M′_i · Σ_{j<i} p_j + M̂′_i · Σ_{j≥i} p_j
    M̂_i = x · Σ_{j>i} p_j + R(M̂_{i−1}, M_i) · Σ_{j≤i} p_j,    M̂_{−1} = x

The first leaf fills all of M̂. The encoding is the top of M̂ after the last leaf. R is the GRC with additional dropout on
the children; leaves and R share their layer norm. Any other cell whose states are D wide can take its place, with the
leaf transform that belongs to it.

The tree: the most probable slot of a leaf is the height of the boundary before it. Boundaries close from the lowest to
the highest, ties from left to right. If p were one-hot, the slot of a constituent's highest boundary would hold exactly
that constituent after its last leaf; its content is the node's state. The root's state is the encoding.

`beamtree.nn.engine.loops.ordered_memory` implements the steps.
"""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from beamtree.nn.beams import Beams, Encoding
from beamtree.nn.cells import GRC, function_of, make_cell
from beamtree.nn.encoders.base import Cost, Encoder, in_full
from beamtree.nn.encoders.boundaries import close, one_beam
from beamtree.nn.engine.dispatch import check_engine
from beamtree.nn.engine.functional import linear_of, normed_linear_of
from beamtree.nn.engine.loops.ordered_memory import MEMORY, Dropouts, MemoryLoop, MemoryRequest
from beamtree.utils.checks import check_integer, check_rate


class OrderedMemory(Encoder):
    """A stack of slots that reads from left to right; higher slots hold larger constituents.

    Registered as `ordered-memory`. There is one beam: the tree that the most probable slots imply.

    Examples:
        >>> encoder = beamtree.OrderedMemory(dim=8, slots=4)
        >>> encoder(torch.randn(2, 5, 8), lengths=[5, 3]).state.shape
        torch.Size([2, 8])
    """

    paper = "Shen et al. 2019"
    cost = Cost("≤ slots·N", "≤ slots·N", "slots·N·D")
    # Module names of the published code → ours. It has three names for one layer norm.
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
        *,
        cell: str | nn.Module = "grc",
    ) -> None:
        """Create the encoder.

        Args:
            dim: width D of inputs and encodings.
            slots: number of slots of the memory, the maximal height of a tree.
            dropout: dropout rate inside the cell, on the children and on the activation.
            memory_dropout: dropout rate in the computation of p, on leaves, candidates and activations.
            engine: "auto", "reference", "torch" or "triton" (see `beamtree.nn.engine`).
            check_nan: whether to check x for NaN first (synchronises with the host on a GPU).
            cell: the cell R: "grc", or your own module, which maps two states of width D to one. The dropout rate of a
                `Cell` also applies to its children.
        """
        super().__init__(dim, check_nan)
        check_integer("slots", slots, at_least=1)
        check_rate("dropout", dropout)
        check_rate("memory_dropout", memory_dropout)
        check_engine(engine)
        self.slots, self.memory_dropout, self.engine = slots, memory_dropout, engine
        self.cell = make_cell(cell, dim, dropout, state_dim=dim)
        self.shares_norm = type(self.cell) is GRC
        self.leaf = nn.Linear(dim, dim) if self.shares_norm else self.cell.leaf()
        self.query = nn.Sequential(nn.Linear(dim, dim), nn.LayerNorm(dim))
        self.key = nn.Sequential(nn.Linear(dim, dim), nn.LayerNorm(dim))
        self.scorer = nn.Linear(dim, 1)

    def encode(
        self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"], generator: torch.Generator | None
    ) -> Encoding:
        leaves = self.leaf(x.transpose(0, 1))  # (N, B, D)
        leaves = in_full(self.cell.get_submodule("norm")(leaves) if self.shares_norm else leaves)
        queries = in_full(self.query(self._drop(leaves, generator)))  # (N, B, D)
        outside = self.memory_dropout if self.training else 0.0
        rates = Dropouts(outside, outside, self.cell.dropout if self.cell.training else 0.0)
        dropouts = rates if any(rates) else None
        layers = normed_linear_of(self.key), linear_of(self.scorer), function_of(self.cell)
        loop = MemoryLoop(*layers, self.slots, self.cell.mask_dim, dropouts)
        request = MemoryRequest(leaves, queries, loop, generator)
        history, heights = self._engine(MEMORY, request)(request)  # (N, slots, B, D), (M, B)
        state = history[lengths - 1, -1, torch.arange(len(x), device=x.device)]  # (B, D)
        return Encoding(state, self._beam(leaves.transpose(0, 1), heights.mT, history, lengths))

    def _drop(self, leaves: Float[Tensor, "N B D"], generator: torch.Generator | None) -> Float[Tensor, "N B D"]:
        if not self.training or self.memory_dropout == 0:
            return leaves
        kept = torch.empty_like(leaves).bernoulli_(1 - self.memory_dropout, generator=generator)
        return leaves * kept / (1 - self.memory_dropout)

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
