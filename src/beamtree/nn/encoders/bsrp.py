"""Beam Shift-Reduce Parser with a Gated Recursive Cell (Maillard & Clark 2018).

Maillard & Clark, *Latent Tree Learning with Differentiable Parsers: Shift-Reduce Parsing and Chart Parsing*, 2018; as
BSRP-GRC in Ray Chowdhury & Caragea, *Beam Tree Recursive Cells*, ICML 2023.

A beam is a stack, a queue and a score a, initially 0; the stack begins with the first two words. At each step a beam
reduces, which merges the top two states of its stack into their parent R(s₂, s₁), or shifts the next word q onto it:

    p(reduce) = σ(w · GELU(W [s₂; s₁; q] + b) + b′),   p(shift) = 1 − p(reduce) .

Without a q a beam can only reduce, without an s₂ only shift; then p = 1. (The published code substitutes a learned
vector START for a missing s₂. That decision is forced, so START has no effect; it is here to load published weights.)
Each beam is continued by both actions, each adds its log-probability to a, and the K best continuations are kept. After
2n−3 steps one state o_b is left in each beam b, and the encoding is

    Σ_b softmax(a)_b · o_b .

The published code replaces a by the last step's log-probability, which is always 0, so the scorer is never trained.
Here a is the sum, as in both papers.

As for beam search, the engines search over integers without gradients and then replay the nodes that survived; see
`beamtree.nn.engine.shift_reduce`.
"""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from beamtree.nn.beams import Encoding
from beamtree.nn.cells import function_of, make_cell
from beamtree.nn.encoders.base import OFFICIAL_CELL, Cost, Encoder, average, in_full, node_dropout
from beamtree.nn.engine.dispatch import check_engine
from beamtree.nn.engine.functional import linear_of
from beamtree.nn.engine.shift_reduce import SHIFT_REDUCE, Decision, ParserRequest
from beamtree.utils.checks import check_deviation, check_integer, check_rate


class BSRP(Encoder):
    """A shift-reduce parser with a beam.

    Registered as `bsrp-grc`.

    Examples:
        >>> encoder = beamtree.BSRP(dim=8, beam_size=3)
        >>> encoder(torch.randn(2, 5, 8), lengths=[5, 3]).beams.log_probs.shape
        torch.Size([2, 3])
    """

    paper = "Maillard & Clark 2018"
    cost = Cost("K(2N−3)", "2N−3", "K·N·D")
    OFFICIAL: ClassVar[dict[str, str]] = OFFICIAL_CELL | {
        "conv_layer": "features",
        "scorer": "scorer",
        "START": "start",
    }

    def __init__(
        self,
        dim: int,
        beam_size: int = 5,
        dropout: float = 0.0,
        engine: str = "auto",
        check_nan: bool = False,
        *,
        cell: str | nn.Module = "grc",
        state_noise: float = 0.0,
    ) -> None:
        """Create the encoder.

        Args:
            dim: width D of inputs and encodings.
            beam_size: K, the number of beams.
            dropout: dropout rate inside the cell; each node keeps its mask (see `beamtree.nn.engine.dropout`).
            engine: "auto", "reference", "torch" or "triton" (see `beamtree.nn.engine`).
            check_nan: whether to check x for NaN first (synchronises with the host on a GPU).
            cell: the cell R: "grc", or your own module, which maps two states of width D to one.
            state_noise: standard deviation of the noise that is added to each composed state during training; only for
                the cell "grc".
        """
        super().__init__(dim, check_nan)
        check_integer("beam_size", beam_size, at_least=1)
        check_rate("dropout", dropout)
        check_deviation("state_noise", state_noise)
        check_engine(engine)
        self.beam_size, self.engine = beam_size, engine
        self.cell = make_cell(cell, dim, dropout, state_dim=dim, state_noise=state_noise)
        self.leaf = self.cell.leaf()
        self.features = nn.Linear(3 * dim, dim)
        self.scorer = nn.Linear(dim, 1)
        self.start = nn.Parameter(torch.randn(dim))

    def encode(
        self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"], generator: torch.Generator | None
    ) -> Encoding:
        leaves = in_full(self.leaf(x))  # (B, N, D)
        dropout = node_dropout(self.cell, leaves, generator)
        decision = Decision(linear_of(self.features), linear_of(self.scorer), self.start)
        request = ParserRequest(
            leaves, lengths, function_of(self.cell), None, self.beam_size, dropout=dropout, decision=decision
        )
        chart = self._engine(SHIFT_REDUCE, request)(request)  # best first
        return average(chart, chart.scores.log_softmax(1), lengths, self.dim)

    def extra_repr(self) -> str:
        return f"beam_size={self.beam_size}, engine={self.engine!r}"
