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

An iteration is some hundred launches. On a CUDA device stretches of iterations are captured in graphs, so that
launching is not what takes the time (see `beamtree.engine.fused.stretches`), and kernels go from each position to those
beside it until its weight is used up, in place of products with 𝓛 and 𝓡 (`beamtree.engine.fused.windows`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from beamtree.beams import Beams, Encoding
from beamtree.cells import GRC
from beamtree.checks import check_choice, check_flag, check_rate
from beamtree.dropout import NodeDropout
from beamtree.encoders.base import OFFICIAL_CELL, Cost, Encoder, in_full, inside, node_dropout, surround
from beamtree.encoders.boundaries import close, one_beam
from beamtree.engine.chain import is_captured

# Of values to the left and to the right of each position; or of some to the left, others to the right.
Average = Callable[[Float[Tensor, "B *sides S D"]], Float[Tensor, "B 2 S D"]]
# exp(s) is taken in float64, where up to here there is no overflow, nor in the sum over all positions.
LARGEST = 600.0
# Of the published code, for each of the four terms of the denominator.
OFFICIAL_FLOOR = 4e-8


class Positions(NamedTuple):
    """The S = N+2 of each sample: START, the words, END, padding."""

    states: Float[Tensor, "B S D"]  # h
    existence: Float[Tensor, "B S"]  # e; 0 for padding
    nodes: Float[Tensor, "B S D"]  # that were made when each word was absorbed
    times: Float[Tensor, "B S"]  # when that was: the iteration, and e after it; inf: not yet


class Surroundings(NamedTuple):
    """What the T iterations of a stretch must know besides. Where all is zero nothing happens."""

    number: Int[Tensor, "T"]  # of the iteration
    may_go: Bool[Tensor, "T B S"]  # all words but the last, in the first n iterations
    mask: Float[Tensor, "T B S mask"] | None  # of dropout


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
        engine: str = "auto",
        check_nan: bool = False,
    ) -> None:
        """
        dim: width D of inputs and encodings.
        dropout: inside the cell.
        halt: stop when all samples are done, for which the host looks at each iteration (the engine "triton": from time
            to time). Without it there are always N iterations, in which samples that are done do not change: the same
            result, at the cost of the worst case.
        threshold: a sample is done when no more than one word exists with more than this.
        recompute: keep only h and e of each iteration for backward and compute the rest again: more time, and a small
            part of the memory. The engine "triton" always does so, and keeps even less.
        floor: "official": that of the published code under c, with which samples depend on their batch mates.
        engine: "torch", on any device; "triton", the same launches in CUDA graphs (which needs that package too); or
            "auto", the second where it can be.
        check_nan: look for NaN in x before any work (costs a synchronisation on a GPU).
        """
        super().__init__(dim, check_nan)
        check_rate("dropout", dropout)
        check_flag("halt", halt)
        check_rate("threshold", threshold)
        check_flag("recompute", recompute)
        check_choice("floor", floor, ("none", "official"))
        check_choice("engine", engine, ("auto", "torch", "triton"))
        self.halt, self.threshold, self.recompute, self.floor = halt, threshold, recompute, floor
        self.engine = engine
        self.cell = GRC(dim, dropout)
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
        may_go = F.pad(inside(lengths - 1, N + 1), (1, 0))  # neither START nor the last word, (B, S)
        dropout = node_dropout(self.cell, leaves, generator)
        if is_captured(self.engine, leaves):
            from beamtree.engine.fused import stretches  # needs triton, which comes with PyTorch's CUDA builds alone

            def draw(steps: range) -> Surroundings:
                return self._around(steps, may_go, lengths, dropout)

            def enough(positions: tuple[Tensor, ...]) -> bool:
                return self.halt and not self._goes_on(Positions(*positions).existence).any()

            positions = Positions(*stretches.run(self, start, (), draw, N, redraw=True, enough=enough).carry)
        else:
            positions = self._loop(start, may_go, lengths, dropout)
        last = lengths.view(B, 1, 1).expand(B, 1, D)
        state = positions.states.gather(1, last).squeeze(1)  # (B, D)
        return Encoding(state, make_beam(leaves, positions, lengths))

    def _surround(self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"]) -> Positions:
        """Leaf states, with START before the words and END right behind them."""
        states = in_full(self.leaf(surround(x, lengths, self.start, self.end)))  # (B, S, D)
        exists = inside(lengths + 2, states.shape[1])
        never = torch.full_like(exists, torch.inf, dtype=torch.float64)
        states = states * exists.unsqueeze(-1)
        return Positions(states, exists.to(states.dtype), states, never)

    def _loop(
        self,
        positions: Positions,
        may_go: Bool[Tensor, "B S"],
        lengths: Int[Tensor, "B"],
        dropout: NodeDropout | None,
    ) -> Positions:
        """All iterations, one after the other."""
        again = self.recompute and torch.is_grad_enabled()

        def iterate(
            states: Tensor, existence: Tensor, goes: Tensor, step: int
        ) -> tuple[Float[Tensor, "B S D"], Float[Tensor, "B S"]]:
            mask = None if dropout is None else self._masks(dropout, range(step, step + 1), may_go)[0]
            return self._iterate(states, existence, goes, mask, by_matrices(existence, states.dtype))

        for step in range(may_go.shape[1] - 2):
            goes = may_go & (step < lengths).unsqueeze(1) & self._goes_on(positions.existence)
            if self.halt and not goes.any():
                break
            arguments = (positions.states, positions.existence, goes, step)
            new: tuple[Tensor, Tensor]
            if again:  # nothing in an iteration draws from a generator
                new = checkpoint(iterate, *arguments, use_reentrant=False, preserve_rng_state=False)
            else:
                new = iterate(*arguments)
            states, existence = (part.unsqueeze(0) for part in new)
            positions = absorb(positions, states, existence, torch.full((1,), step, device=lengths.device))
        return positions

    def stretch(
        self, carry: tuple[Tensor, ...], inputs: tuple[Tensor, ...], masks: Sequence[Tensor | None], made: Tensor | None
    ) -> tuple[Positions, Float[Tensor, "T B S"], Float[Tensor, "T B S"]]:
        """Some iterations, as a loop of `beamtree.engine.fused.stretches` has them, and the existence after each."""
        before, around = Positions(*carry), Surroundings(*masks)  # type: ignore[arg-type]
        states, existence, after = before.states, before.existence, []
        for t, may_go in enumerate(around.may_go):
            goes = may_go & self._goes_on(existence)
            mask = None if around.mask is None else around.mask[t]
            states, existence = self._iterate(states, existence, goes, mask, by_windows(existence))
            after.append((states, existence))
        all_states, found = (torch.stack(parts) for parts in zip(*after, strict=True))
        return absorb(before, all_states, found, around.number), found, found.detach()

    def step_weights(self) -> tuple[Tensor, ...]:
        """Those of what `stretch` computes."""
        return *self.cell.parameters(), *self.window.parameters(), *self.scorer.parameters()

    def step_bytes(self, carry: tuple[Tensor, ...]) -> int:
        """In backward: some 40 numbers for each of h."""
        return 40 * carry[0].nbytes

    def _around(
        self, steps: range, may_go: Bool[Tensor, "B S"], lengths: Int[Tensor, "B"], dropout: NodeDropout | None
    ) -> Surroundings:
        number = torch.arange(steps.start, steps.stop, device=lengths.device)
        mask = None if dropout is None else self._masks(dropout, steps, may_go)
        return Surroundings(number, may_go & (number.view(-1, 1, 1) < lengths.unsqueeze(1)), mask)

    def _goes_on(self, existence: Float[Tensor, "B S"]) -> Bool[Tensor, "B 1"]:
        """Whether more than one word exists, besides START and END."""
        return (existence.detach() > self.threshold).sum(1, keepdim=True) > 3

    def _iterate(
        self,
        states: Float[Tensor, "B S D"],
        existence: Float[Tensor, "B S"],
        goes: Bool[Tensor, "B S"],
        mask: Float[Tensor, "B S mask"] | None,
        average: Average,
    ) -> tuple[Float[Tensor, "B S D"], Float[Tensor, "B S"]]:
        """One iteration. Where no word of a sample goes, it stays as it is, to the last digit."""
        with torch.autocast(states.device.type, enabled=False):  # averages must not lose digits
            one = average(states)  # 𝓛h, 𝓡h, (B, 2, S, D)
            two = average(one)  # 𝓛𝓛h, 𝓡𝓡h
        (one_left, one_right), (two_left, two_right) = one.unbind(1), two.unbind(1)
        window = torch.cat((two_left, one_left, states, one_right, two_right), dim=-1)  # (B, S, 5D)
        scores = self.scorer(F.gelu(self.window(window))).squeeze(-1)  # (B, S)
        go = self._compose_probability(scores, goes, average)  # c
        parents = self.cell(one_left, states, mask).to(states.dtype)
        with torch.autocast(states.device.type, enabled=False):
            come = average(go.unsqueeze(-1).to(states.dtype))[:, 0]  # 𝓛c, (B, S, 1)
            new_states = states.lerp(parents, come)
        return new_states, existence * (1 - go.to(existence.dtype))

    def _compose_probability(
        self,
        scores: Float[Tensor, "B S"],
        goes: Bool[Tensor, "B S"],
        average: Average,
    ) -> Float[Tensor, "B S"]:
        """c, in float64: a sigmoid of the score that the neighbours' scores hold down."""
        weights = scores.double().clamp(max=LARGEST).exp()  # (B, S)
        rest = 1 + OFFICIAL_FLOOR * weights.max().clamp(min=1) if self.floor == "official" else 1
        weights = (weights * goes).unsqueeze(-1)  # (B, S, 1)
        beside = average(weights).sum(1)  # 𝓛 exp(s) + 𝓡 exp(s)
        return (weights / (weights + rest + beside)).squeeze(-1)

    def _masks(self, dropout: NodeDropout, steps: range, may_go: Bool[Tensor, "B S"]) -> Float[Tensor, "T B S mask"]:
        """Masks that are a function of sample, iteration and position, so that backward sees them again."""
        T, (B, S), device = len(steps), may_go.shape, may_go.device
        step = torch.arange(steps.start, steps.stop, device=device).view(T, 1, 1).expand(T, B, S)
        sample = torch.arange(B, device=device).view(1, B, 1).expand(T, B, S)
        position = torch.arange(S, device=device).expand(T, B, S)
        place = torch.stack((sample, step, position), dim=-1)  # (T, B, S, 3)
        return dropout.mask(place, place)

    def extra_repr(self) -> str:
        options = {name: getattr(self, name) for name in ("halt", "threshold", "recompute", "floor", "engine")}
        return ", ".join(f"{name}={value!r}" for name, value in options.items())


def by_windows(existence: Float[Tensor, "B S"]) -> Average:
    """In kernels that sum up what is near."""
    from beamtree.engine.fused.windows import averages  # needs triton, which comes with PyTorch's CUDA builds alone

    total = edges(existence)
    return partial(averages, total, total.detach().cummax(1).values)


def by_matrices(existence: Float[Tensor, "B S"], dtype: torch.dtype) -> Average:
    """By products with 𝓛 and 𝓡."""
    exact = neighbours(existence)
    sides = {torch.float64: exact, dtype: exact.to(dtype)}

    def average(values: Float[Tensor, "B *sides S D"]) -> Float[Tensor, "B 2 S D"]:
        return sides[values.dtype] @ (values.unsqueeze(1) if values.dim() == 3 else values)

    return average


def edges(existence: Float[Tensor, "B S"]) -> Float[Tensor, "B edges"]:
    """Where each position begins, if they lie side by side, each as wide as it exists, and where the last ends."""
    return F.pad(existence.double().cumsum(1), (1, 0))


def neighbours(existence: Float[Tensor, "B S"]) -> Float[Tensor, "B 2 S S"]:
    """𝓛 and 𝓡, in float64.

    Let C_j be the existence of all positions up to j. What lies between i and j, but at most 1, is
    clamp(C_j − C_i, 0, 1), and 𝓡_ij is what this gains at j: the existence of j where there is room for all of it,
    else what room is left. 𝓛_ij is the same for the room of 1 that ends where i begins.
    """
    total = edges(existence)  # C, from the left edge on, (B, S+1)
    start = torch.stack((total[:, :-1] - 1, total[:, 1:]), dim=1)  # where the room begins, (B, 2, S)
    gains: Tensor = Gains.apply(total, start)
    return gains


class Gains(torch.autograd.Function):
    """clamp(C_j − start_i, 0, 1), and what it gains from one j to the next. Backward compares again: autograd would
    keep the differences, and copy matrices for each of the slices."""

    @staticmethod
    def forward(ctx: Any, total: Float[Tensor, "B edges"], start: Float[Tensor, "B 2 S"]) -> Float[Tensor, "B 2 S S"]:
        ctx.save_for_backward(total, start)
        return (total[:, None, None] - start.unsqueeze(-1)).clamp_(0, 1).diff(dim=-1)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: Float[Tensor, "B 2 S S"]
    ) -> tuple[Float[Tensor, "B edges"], Float[Tensor, "B 2 S"]]:
        total, start = ctx.saved_tensors
        lies = total[:, None, None] - start.unsqueeze(-1)  # (B, 2, S, S+1)
        d_lies = F.pad(gradient, (1, 0))
        d_lies[..., :-1] -= gradient
        d_lies.masked_fill_((lies < 0) | (lies > 1), 0)
        return d_lies.sum((1, 2)), -d_lies.sum(3)


def absorb(
    before: Positions, states: Float[Tensor, "T B S D"], existence: Float[Tensor, "T B S"], number: Int[Tensor, "T"]
) -> Positions:
    """After iterations that have made these, one after the other: with the nodes of the words that were absorbed."""
    T, B, S = existence.shape
    now = existence.detach().double()
    stands = now > 0.5
    stood = stands.sum(0, keepdim=True)  # for how many iterations, (1, B, S): existence never grows
    falls = (stood[0] < T) & before.times.detach().isinf()  # (B, S)
    at = stood.clamp(max=T - 1)  # the iteration in which a word falls
    # The right neighbour: the next word that stands. The last word always does.
    position = torch.arange(S, device=stands.device)
    following = position.where(stands, S - 1).flip(2).cummin(2).values.flip(2)  # (T, B, S); itself where it stands
    batch = torch.arange(B, device=stands.device).unsqueeze(1)
    row = (at * B + batch) * S + following.gather(0, at)  # (1, B, S)
    made = states.flatten(0, 2).index_select(0, row.flatten()).view_as(before.nodes)
    nodes = torch.where(falls.unsqueeze(-1), made, before.nodes)
    times = torch.where(falls, (number[at] + now.gather(0, at))[0], before.times)
    return Positions(states[-1], existence[-1], nodes, times)


def make_beam(leaves: Float[Tensor, "B N D"], end: Positions, lengths: Int[Tensor, "B"]) -> Beams:
    """The induced tree."""
    B, N, D = leaves.shape
    when = end.times.detach()
    absorbed = when.isfinite()
    when = torch.where(absorbed, when, N + end.existence.detach().double())
    merges = close(when[:, 1:N], lengths)  # word i, at position i+1, and the boundary behind it
    place = merges.boundaries + 1  # (B, M)
    is_root = merges.spans[..., 1] - merges.spans[..., 0] == lengths.unsqueeze(1)
    at_once = (absorbed.gather(1, place) & ~is_root).unsqueeze(-1)  # (B, M, 1)
    shape = (B, N - 1, D)
    then = end.nodes.gather(1, place.unsqueeze(-1).expand(shape))
    at_last = end.states.gather(1, merges.spans[..., 1:].expand(shape))  # its last word has the position `end`
    return one_beam(leaves, merges, torch.where(at_once, then, at_last), lengths)
