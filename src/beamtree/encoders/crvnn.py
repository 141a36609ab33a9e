"""CRvNN (Ray Chowdhury & Caragea, *Modeling Hierarchical Structures with Continuous Recursive Neural Networks*, ICML
2021), in the form the Beam Tree paper compares with: no transition features, no halting penalty.

All positions stay, each with a probability e_i that it still exists. Neighbours are those that exist: row i of the
matrix 𝓡 spreads a weight of 1 over the positions to the right of i, as much to each as exists, until it is used up;
𝓛 is its mirror image. START and END stand around the sample. At each iteration

    s = w · GELU(W [𝓛𝓛h; 𝓛h; h; 𝓡h; 𝓡𝓡h])
    c_i = exp(s_i) / (exp(s_i) + 1 + (𝓛 exp(s))_i + (𝓡 exp(s))_i)       c = exp(s) = 0 for START, END and the last word
    h ← (𝓛c) R(𝓛h, h) + (1 − 𝓛c) h
    e ← e (1 − c)

where c_i is the probability that i is absorbed by its right neighbour. A sample of n words is done when at most one of
them exists with more than the threshold, or after n iterations; the encoding is the state of its last word.

The published code adds 1e-8 to each of the four terms of the denominator, after it has divided them by the largest
exponential of the batch: there a sample depends on its batch mates. `floor="official"` does the same.

The tree: a word is absorbed, and the boundary behind it closes, once it exists with less than one half; among those of
one iteration the one that exists least comes first, and words that are never absorbed come last. A node's state is
that of its last word when this happens, that of the root the encoding.
"""

from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from beamtree.beams import Beams, Encoding
from beamtree.cells import GRC
from beamtree.checks import check_choice, check_flag, check_rate
from beamtree.dropout import NodeDropout
from beamtree.encoders.base import OFFICIAL_CELL, Cost, Encoder, in_full, inside, node_dropout, surround
from beamtree.encoders.boundaries import close, one_beam

# exp(s) is taken in float64, where up to here there is no overflow, nor in the sum over all positions.
LARGEST = 600.0
# Of the published code, for each of the four terms of the denominator.
OFFICIAL_FLOOR = 4e-8


class Sequence(NamedTuple):
    """The S = N+2 positions of each sample: START, the words, END, padding."""

    states: Float[Tensor, "B S D"]  # h
    existence: Float[Tensor, "B S"]  # e; 0 for padding


class CRvNN(Encoder):
    """Continuous recursion: all neighbours are joined at once, each to some extent."""

    paper = "Ray Chowdhury & Caragea 2021"
    cost = Cost("≤ N(N+2)", "≤ N", "N²·D")
    # Names of the published code, of modules and of parameters, → ours.
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
        check_nan: bool = False,
    ) -> None:
        """
        dim: width D of inputs and encodings.
        dropout: inside the cell.
        halt: stop when all samples are done, for which the host looks at each iteration. Without it there are always N
            iterations, in which samples that are done do not change: the same result, at the cost of the worst case.
        threshold: a sample is done when no more than one word exists with more than this.
        recompute: keep only h and e of each iteration for backward and compute the rest again: more time, and a small
            part of the memory.
        floor: "official": that of the published code under c, with which samples depend on their batch mates.
        check_nan: look for NaN in x before any work (costs a synchronisation on a GPU).
        """
        super().__init__(dim, check_nan)
        check_rate("dropout", dropout)
        check_flag("halt", halt)
        check_rate("threshold", threshold)
        check_flag("recompute", recompute)
        check_choice("floor", floor, ("none", "official"))
        self.halt, self.threshold, self.recompute, self.floor = halt, threshold, recompute, floor
        self.cell = GRC(dim, dropout)
        self.leaf = self.cell.leaf()
        self.start, self.end = nn.Parameter(torch.randn(dim)), nn.Parameter(torch.randn(dim))
        self.window = nn.Linear(5 * dim, dim)
        self.scorer = nn.Linear(dim, 1)

    def encode(
        self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"], generator: torch.Generator | None
    ) -> Encoding:
        B, N, D = x.shape
        sequence = self._surround(x, lengths)
        leaves = sequence.states[:, 1 : N + 1]  # (B, N, D)
        words = inside(lengths - 1, N + 1)  # not the last one, (B, N+1)
        may_go = F.pad(words, (1, 0))  # START may not either, (B, S)
        dropout = node_dropout(self.cell, leaves, generator)
        active = torch.ones_like(lengths, dtype=torch.bool)  # (B,)
        falls = Falls(sequence)
        for step in range(N):
            if self.halt and not active.any():
                break
            arguments = (*sequence, may_go, active, dropout, step)
            if self.recompute and torch.is_grad_enabled():  # nothing in an iteration draws from a generator
                new = checkpoint(self._iterate, *arguments, use_reentrant=False, preserve_rng_state=False)
            else:
                new = self._iterate(*arguments)
            sequence = Sequence(*new)
            falls.update(sequence, step)
            exist = (sequence.existence.detach() > self.threshold).sum(1) - 2  # without START and END
            active = (exist > 1) & (step + 1 < lengths)
        last = lengths.view(B, 1, 1).expand(B, 1, D)
        state = sequence.states.gather(1, last).squeeze(1)  # (B, D)
        return Encoding(state, falls.beam(leaves, sequence, lengths))

    def _surround(self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"]) -> Sequence:
        """Leaf states, with START before the words and END right behind them."""
        states = in_full(self.leaf(surround(x, lengths, self.start, self.end)))  # (B, S, D)
        exists = inside(lengths + 2, states.shape[1])
        return Sequence(states * exists.unsqueeze(-1), exists.to(states.dtype))

    def _iterate(
        self,
        states: Float[Tensor, "B S D"],
        existence: Float[Tensor, "B S"],
        may_go: Bool[Tensor, "B S"],
        active: Bool[Tensor, "B"],
        dropout: NodeDropout | None,
        step: int,
    ) -> tuple[Float[Tensor, "B S D"], Float[Tensor, "B S"]]:
        """One iteration, for the samples that are active."""
        left, right = neighbours(existence)  # (B, S, S)
        with torch.autocast(states.device.type, enabled=False):  # averages must not lose digits
            to_left, to_right = left.to(states.dtype), right.to(states.dtype)
            one_left, one_right = to_left @ states, to_right @ states  # (B, S, D)
            two_left, two_right = to_left @ one_left, to_right @ one_right
        window = torch.cat((two_left, one_left, states, one_right, two_right), dim=-1)  # (B, S, 5D)
        scores = self.scorer(F.gelu(self.window(window))).squeeze(-1)  # (B, S)
        go = self._compose_probability(scores, may_go, left, right)  # c
        parents = self.cell(one_left, states, self._mask(dropout, states, step)).to(states.dtype)
        come = (left @ go.unsqueeze(-1)).to(states.dtype)  # 𝓛c, (B, S, 1)
        changed = active.unsqueeze(1)
        new_states = torch.where(changed.unsqueeze(-1), states + come * (parents - states), states)
        return new_states, torch.where(changed, existence * (1 - go.to(existence.dtype)), existence)

    def _compose_probability(
        self,
        scores: Float[Tensor, "B S"],
        may_go: Bool[Tensor, "B S"],
        left: Float[Tensor, "B S S"],
        right: Float[Tensor, "B S S"],
    ) -> Float[Tensor, "B S"]:
        """c, in float64: a sigmoid of the score that the neighbours' scores hold down."""
        weights = scores.double().clamp(max=LARGEST).exp()  # (B, S)
        rest = 1 + OFFICIAL_FLOOR * weights.max().clamp(min=1) if self.floor == "official" else 1
        weights = weights.masked_fill(~may_go, 0).unsqueeze(-1)  # (B, S, 1)
        return (weights / (weights + rest + left @ weights + right @ weights)).squeeze(-1)

    def _mask(
        self, dropout: NodeDropout | None, states: Float[Tensor, "B S D"], step: int
    ) -> Float[Tensor, "B S mask"] | None:
        """Masks that are a function of sample, iteration and position, so that backward sees them again."""
        if dropout is None:
            return None
        B, S, _ = states.shape
        sample = torch.arange(B, device=states.device).view(B, 1).expand(B, S)
        position = torch.arange(S, device=states.device).expand(B, S)
        place = torch.stack((sample, torch.full_like(position, step), position), dim=-1)  # (B, S, 3)
        return dropout.mask(place, place)

    def extra_repr(self) -> str:
        return f"halt={self.halt}, threshold={self.threshold}, recompute={self.recompute}, floor={self.floor!r}"


def neighbours(existence: Float[Tensor, "B S"]) -> tuple[Float[Tensor, "B S S"], Float[Tensor, "B S S"]]:
    """𝓛 and 𝓡, in float64.

    Let C_j be the existence of all positions up to j. What lies between i and j, but at most 1, is
    clamp(C_j − C_i, 0, 1), and 𝓡_ij is what this gains at j: the existence of j where there is room for all of it,
    else what room is left.
    """
    total = F.pad(existence.double().cumsum(1), (1, 0))  # C, from the left edge on, (B, S+1)
    between = total.unsqueeze(1) - total.unsqueeze(2)  # C_j − C_i, (B, S+1, S+1)
    right = between[:, 1:].clamp(0, 1).diff(dim=2)  # (B, S, S)
    left = between[:, :-1].clamp(-1, 0).diff(dim=2)
    return left, right


class Falls:
    """When each word was absorbed, and the state of the node that this made."""

    def __init__(self, start: Sequence) -> None:
        self.times = torch.full_like(start.existence, torch.inf, dtype=torch.float64)  # iteration + e, (B, S)
        self.nodes = start.states  # (B, S, D)

    def update(self, sequence: Sequence, step: int) -> None:
        existence = sequence.existence.detach().double()
        stands = existence > 0.5
        falls = ~stands & self.times.isinf()
        self.times = torch.where(falls, step + existence, self.times)
        # The right neighbour: the next word that stands. The last word always does.
        S = stands.shape[1]
        position = torch.arange(S, device=stands.device)
        following = position.where(stands, S - 1).flip(1).cummin(1).values.flip(1)  # (B, S); itself where it stands
        index = following.unsqueeze(-1).expand_as(self.nodes)
        self.nodes = torch.where(falls.unsqueeze(-1), sequence.states.gather(1, index), self.nodes)

    def beam(self, leaves: Float[Tensor, "B N D"], end: Sequence, lengths: Int[Tensor, "B"]) -> Beams:
        B, N, D = leaves.shape
        absorbed = self.times.isfinite()
        times = torch.where(absorbed, self.times, N + end.existence.detach().double())
        merges = close(times[:, 1:N], lengths)  # word i, at position i+1, and the boundary behind it
        place = merges.boundaries + 1  # (B, M)
        is_root = merges.spans[..., 1] - merges.spans[..., 0] == lengths.unsqueeze(1)
        at_once = (absorbed.gather(1, place) & ~is_root).unsqueeze(-1)  # (B, M, 1)
        shape = (B, N - 1, D)
        then = self.nodes.gather(1, place.unsqueeze(-1).expand(shape))
        at_last = end.states.gather(1, merges.spans[..., 1:].expand(shape))  # its last word has the position `end`
        return one_beam(leaves, merges, torch.where(at_once, then, at_last), lengths)
