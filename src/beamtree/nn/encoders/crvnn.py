"""CRvNN: Continuous Recursive Neural Networks (Ray Chowdhury & Caragea 2021).

Ray Chowdhury & Caragea, *Modeling Hierarchical Structures with Continuous Recursive Neural Networks*, ICML 2021, in the
variant that the Beam Tree paper compares with: no transition features, no halting penalty.

All positions are kept, each with a probability e_i that it still exists. Only positions that exist are neighbours: row
i of the matrix 𝓡 distributes a weight of 1 over the positions j to the right of i, nearest first, e_j to each until the
weight is used up; 𝓛 is its mirror image. START and END surround the sample. At each iteration

    s = w · GELU(W [𝓛𝓛h; 𝓛h; h; 𝓡h; 𝓡𝓡h])
    c_i = exp(s_i) / (exp(s_i) + 1 + (𝓛 exp(s))_i + (𝓡 exp(s))_i)       c = exp(s) = 0 for START, END and the last word
    h ← (𝓛c) R(𝓛h, h) + (1 − 𝓛c) h
    e ← e (1 − c)

where c_i is the probability that i is absorbed by its right neighbour. A sample of n words is finished when e exceeds
the threshold for at most one of them, or after n iterations. The encoding is the state of its last word.

The published code adds 1e-8 to each of the four terms of the denominator, after dividing them by the largest
exponential of the batch, so a sample depends on the rest of its batch. `floor="official"` does the same.

The tree: a word is absorbed, and the boundary after it closes, when its e falls below one half. Within an iteration the
word with the smallest e comes first; words that are never absorbed come last. A node's state is the state of its last
word at that time; the root's is the encoding.

`beamtree.nn.engine.loops.continuous` implements the iterations.
"""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from beamtree.nn.beams import Beams, Encoding
from beamtree.nn.cells import function_of, make_cell
from beamtree.nn.encoders.base import OFFICIAL_CELL, Cost, Encoder, in_full, inside, node_dropout, surround
from beamtree.nn.encoders.boundaries import close, one_beam
from beamtree.nn.engine.dispatch import check_engine
from beamtree.nn.engine.functional import linear_of
from beamtree.nn.engine.loops.continuous import CONTINUOUS, ContinuousLoop, ContinuousRequest, Positions
from beamtree.utils.checks import check_choice, check_flag, check_rate


class CRvNN(Encoder):
    """Continuous recursion: all neighbours are merged at once, each to a degree.

    Registered as `crvnn`. There is one beam: the tree that the probabilities imply.

    Examples:
        >>> encoder = beamtree.CRvNN(dim=8)
        >>> encoder(torch.randn(2, 5, 8), lengths=[5, 3]).beams.log_probs.shape
        torch.Size([2, 1])
    """

    paper = "Ray Chowdhury & Caragea 2021"
    cost = Cost("≤ N(N+2)", "≤ N", "N²·D")
    # Module and parameter names of the published code → ours.
    OFFICIAL: ClassVar[dict[str, str]] = OFFICIAL_CELL | {
        "START": "start",
        "END": "end",
        "conv_layer": "window",
        "scorer": "scorer",
    }

    def __init__(
        self,
        dim: int,
        dropout: float = 0.0,
        halt: bool = True,
        threshold: float = 0.1,
        recompute: bool = True,
        floor: Literal["none", "official"] = "none",
        engine: str = "auto",
        check_nan: bool = False,
        *,
        cell: str | nn.Module = "grc",
    ) -> None:
        """Create the encoder.

        Args:
            dim: width D of inputs and encodings.
            dropout: dropout rate inside the cell.
            halt: whether to stop when all samples are finished. The host checks at each iteration (engine "triton":
                once per segment). Otherwise all N iterations run; finished samples do not change, so the result is the
                same.
            threshold: a sample is finished when e exceeds this for at most one word.
            recompute: whether to save only h and e of each iteration for the backward pass, and recompute the rest.
                This trades time for memory. The engine "triton" always recomputes, and saves even less.
            floor: "none", or "official" for the published code's floor in the denominator of c, which makes samples
                depend on the rest of their batch.
            engine: "auto", "reference", "torch" or "triton" (see `beamtree.nn.engine`).
            check_nan: whether to check x for NaN first (synchronises with the host on a GPU).
            cell: the cell R: "grc", or your own module, which maps two states of width D to one.
        """
        super().__init__(dim, check_nan)
        check_rate("dropout", dropout)
        check_flag("halt", halt)
        check_rate("threshold", threshold)
        check_flag("recompute", recompute)
        check_choice("floor", floor, ("none", "official"))
        check_engine(engine)
        self.halt, self.threshold, self.recompute, self.floor = halt, threshold, recompute, floor
        self.engine = engine
        self.cell = make_cell(cell, dim, dropout, state_dim=dim)
        self.leaf = self.cell.leaf()
        self.start, self.end = nn.Parameter(torch.randn(dim)), nn.Parameter(torch.randn(dim))
        self.window = nn.Linear(5 * dim, dim)
        self.scorer = nn.Linear(dim, 1)

    def encode(
        self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"], generator: torch.Generator | None
    ) -> Encoding:
        B, N, D = x.shape
        start = self._surround(x, lengths)
        leaves = start.states[:, 1 : N + 1]  # (B, N, D)
        absorbable = F.pad(inside(lengths - 1, N + 1), (1, 0))  # (B, S); False for START and the last word
        dropout = node_dropout(self.cell, leaves, generator)
        loop = ContinuousLoop(
            function_of(self.cell),
            linear_of(self.window),
            linear_of(self.scorer),
            self.threshold,
            self.floor == "official",
        )
        request = ContinuousRequest(start, absorbable, lengths, loop, dropout, self.halt, self.recompute)
        positions = self._engine(CONTINUOUS, request)(request)
        last = lengths.view(B, 1, 1).expand(B, 1, D)
        state = positions.states.gather(1, last).squeeze(1)  # (B, D)
        return Encoding(state, make_beam(leaves, positions, lengths))

    def _surround(self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"]) -> Positions:
        """Leaf states, with START before the words and END after them."""
        states = in_full(self.leaf(surround(x, lengths, self.start, self.end)))  # (B, S, D)
        exists = inside(lengths + 2, states.shape[1])
        never = torch.full_like(exists, torch.inf, dtype=torch.float64)
        states = states * exists.unsqueeze(-1)
        return Positions(states, exists.to(states.dtype), states, never)

    def extra_repr(self) -> str:
        options = {name: getattr(self, name) for name in ("halt", "threshold", "recompute", "floor", "engine")}
        return ", ".join(f"{name}={value!r}" for name, value in options.items())


def make_beam(leaves: Float[Tensor, "B N D"], end: Positions, lengths: Int[Tensor, "B"]) -> Beams:
    """The induced tree."""
    B, N, D = leaves.shape
    when = end.times.detach()
    absorbed = when.isfinite()
    when = torch.where(absorbed, when, N + end.existence.detach().double())
    merges = close(when[:, 1:N], lengths)  # word i, at position i+1, and the boundary after it
    place = merges.boundaries + 1  # (B, M)
    is_root = merges.spans[..., 1] - merges.spans[..., 0] == lengths.unsqueeze(1)
    at_once = (absorbed.gather(1, place) & ~is_root).unsqueeze(-1)  # (B, M, 1)
    shape = (B, N - 1, D)
    then = end.nodes.gather(1, place.unsqueeze(-1).expand(shape))
    at_last = end.states.gather(1, merges.spans[..., 1:].expand(shape))  # the last word's position is `end`
    return one_beam(leaves, merges, torch.where(at_once, then, at_last), lengths)
