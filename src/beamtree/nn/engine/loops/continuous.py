"""The iterations of CRvNN: all positions are kept, each with a probability that it still exists.

    s = w · GELU(W [𝓛𝓛h; 𝓛h; h; 𝓡h; 𝓡𝓡h])
    c_i = exp(s_i) / (exp(s_i) + 1 + (𝓛 exp(s))_i + (𝓡 exp(s))_i)       c = exp(s) = 0 for START, END and the last word
    h ← (𝓛c) R(𝓛h, h) + (1 − 𝓛c) h
    e ← e (1 − c)

An iteration takes about a hundred kernel launches. On a CUDA device segments of iterations are captured in graphs
(`beamtree.nn.engine.gpu.segments`). Instead of products with 𝓛 and 𝓡, kernels visit the neighbours of each position
until its weight is used up (`beamtree.nn.engine.gpu.kernels.windows`).

Letters: B batch, S = N+2 positions, T iterations of a segment, D width of a state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from beamtree.nn.cells import AnyCell, CellFunction
from beamtree.nn.cells.base import Layer
from beamtree.nn.engine.dispatch import Engine, why_not_triton
from beamtree.nn.engine.dropout import NodeDropout
from beamtree.nn.engine.functional import Composite
from beamtree.nn.function import first_order, save, watched
from beamtree.utils.interrupts import check_interrupt

# Weighted averages to the left and to the right of each position, of the same values or of one set for each side.
NeighbourAverage = Callable[[Float[Tensor, "B *sides S D"]], Float[Tensor, "B 2 S D"]]
# Upper bound on s. Up to it neither exp(s) nor its sum over all positions overflows in float64.
LARGEST = 600.0
# From the published code: 1e-8 for each of the four terms of the denominator.
OFFICIAL_FLOOR = 4e-8


class Positions(NamedTuple):
    """The S = N+2 positions of each sample: START, the words, END, padding."""

    states: Float[Tensor, "B S D"]  # h
    existence: Float[Tensor, "B S"]  # e; 0 for padding
    nodes: Float[Tensor, "B S D"]  # created when each word was absorbed
    times: Float[Tensor, "B S"]  # of the absorption: index of the iteration plus e after it; inf: not absorbed


class IterationInputs(NamedTuple):
    """Further inputs of the T iterations of a segment. An iteration whose inputs are zero has no effect."""

    step: Int[Tensor, "T"]  # index of the iteration
    absorbable: Bool[Tensor, "T B S"]  # may be absorbed: all words but the last, in the first n iterations
    mask: Float[Tensor, "T B S mask"] | None  # dropout mask


@dataclass(frozen=True)
class ContinuousRequest:
    """One forward pass of CRvNN."""

    start: Positions
    absorbable: Bool[Tensor, "B S"]  # may be absorbed: all words but the last
    lengths: Int[Tensor, "B"]
    loop: "ContinuousLoop"
    dropout: NodeDropout | None = None
    halt: bool = True  # stop when all samples are finished
    recompute: bool = True  # save only h and e of each iteration for the backward pass

    @property
    def leaves(self) -> Float[Tensor, "B S D"]:
        return self.start.states


@dataclass(frozen=True)
class ContinuousLoop(Composite):
    """The iterations, as a function of weights."""

    cell: AnyCell
    window: Layer
    scorer: Layer
    threshold: float  # a sample is finished when e exceeds this for at most one word
    official_floor: bool  # in c, as in the published code; makes samples depend on the rest of their batch

    def segment(
        self, carry: tuple[Tensor, ...], inputs: tuple[Tensor, ...], masks: Sequence[Tensor | None], made: Tensor | None
    ) -> tuple[Positions, Float[Tensor, "T B S"], Float[Tensor, "T B S"]]:
        """T iterations, as a loop for `beamtree.nn.engine.gpu.segments`, and the existence after each."""
        from beamtree.nn.engine.gpu.cells import dense  # needs triton, an optional package

        before, given = Positions(*carry), IterationInputs(*masks)  # type: ignore[arg-type]
        states, existence, after = before.states, before.existence, []
        assert isinstance(self.cell, CellFunction)
        loop = replace(self, cell=dense(self.cell, existence.numel()))
        for t, absorbable in enumerate(given.absorbable):
            average, active = by_windows(existence, absorbable, self.threshold)
            mask = None if given.mask is None else given.mask[t]
            by_kernels = states.dtype == torch.float32  # other dtypes use PyTorch's operations, as in the cell
            states, existence = loop.iterate(states, existence, active, mask, average, by_kernels)
            after.append((states, existence))
        all_states, found = (torch.stack(parts) for parts in zip(*after, strict=True))
        return absorb(before, all_states, found, given.step), found, found.detach()

    def step_bytes(self, carry: tuple[Tensor, ...]) -> int:
        """The backward pass holds about 40 values for each value of h."""
        return 40 * carry[0].nbytes

    def iterate(
        self,
        states: Float[Tensor, "B S D"],
        existence: Float[Tensor, "B S"],
        active: Bool[Tensor, "B S"],
        mask: Float[Tensor, "B S mask"] | None,
        average: NeighbourAverage,
        by_kernels: bool = False,
    ) -> tuple[Float[Tensor, "B S D"], Float[Tensor, "B S"]]:
        """One iteration. A sample is bitwise unchanged if `active` is False for all its words.

        active: words that may be absorbed in this iteration.
        by_kernels: whether to compute c with the Triton kernels.
        """
        with torch.autocast(states.device.type, enabled=False):  # keep averages in full precision
            one = average(states)  # 𝓛h, 𝓡h, (B, 2, S, D)
            two = average(one)  # 𝓛𝓛h, 𝓡𝓡h
        (one_left, one_right), (two_left, two_right) = one.unbind(1), two.unbind(1)
        window = torch.cat((two_left, one_left, states, one_right, two_right), dim=-1)  # (B, S, 5D)
        scores = self.scorer(F.gelu(self.window(window))).squeeze(-1).to(states.dtype)  # (B, S)
        if by_kernels and not self.official_floor:
            from beamtree.nn.engine.gpu.continuous import absorb as absorb_by_kernels

            probability, after = absorb_by_kernels(scores, active, existence, average, LARGEST)
        else:
            probability = self._compose_probability(scores, active, average)  # c
            after = existence * (1 - probability.to(existence.dtype))
        parents = self.cell(one_left, states, mask).to(states.dtype)
        with torch.autocast(states.device.type, enabled=False):
            left_probability = average(probability.unsqueeze(-1).to(states.dtype))[:, 0]  # 𝓛c, (B, S, 1)
            new_states = states.lerp(parents, left_probability)
        return new_states, after

    def _compose_probability(
        self,
        scores: Float[Tensor, "B S"],
        active: Bool[Tensor, "B S"],
        average: NeighbourAverage,
    ) -> Float[Tensor, "B S"]:
        """c, in float64: a sigmoid of the score, reduced by the scores of the neighbours."""
        weights = scores.double().clamp(max=LARGEST).exp()  # (B, S)
        rest = 1 + OFFICIAL_FLOOR * weights.max().clamp(min=1) if self.official_floor else 1
        weights = (weights * active).unsqueeze(-1)  # (B, S, 1)
        beside = average(weights).sum(1)  # 𝓛 exp(s) + 𝓡 exp(s)
        return (weights / (weights + rest + beside)).squeeze(-1)


def one_by_one(request: ContinuousRequest, recompute: bool, by_autograd: bool = False) -> Positions:
    """All iterations, one by one.

    If `recompute`, the backward pass recomputes their intermediate results; if `by_autograd`, autograd computes all
    gradients.
    """
    positions, loop, dropout, lengths = request.start, request.loop, request.dropout, request.lengths
    # Modules are not recomputed: their weights may have changed before the backward pass.
    recomputes = recompute and torch.is_grad_enabled() and loop.is_functional
    if recomputes:
        loop = loop.bind(watched(loop.weights))

    def iterate(
        states: Tensor, existence: Tensor, active: Tensor, step: int
    ) -> tuple[Float[Tensor, "B S D"], Float[Tensor, "B S"]]:
        mask = None if dropout is None else masks(dropout, range(step, step + 1), request.absorbable)[0]
        return loop.iterate(states, existence, active, mask, by_matrices(existence, states.dtype, by_autograd))

    for step in range(request.absorbable.shape[1] - 2):
        check_interrupt()
        active = request.absorbable & (step < lengths).unsqueeze(1) & is_unfinished(positions.existence, loop.threshold)
        if request.halt and not active.any():
            break
        arguments = (positions.states, positions.existence, active, step)
        new: tuple[Tensor, Tensor]
        if recomputes:  # an iteration does not draw random numbers
            new = checkpoint(iterate, *arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            new = iterate(*arguments)
        states, existence = (part.unsqueeze(0) for part in new)
        positions = absorb(positions, states, existence, torch.full((1,), step, device=lengths.device))
    return positions


def captured(request: ContinuousRequest) -> Positions:
    """All iterations in CUDA graphs."""
    from beamtree.nn.engine.gpu import segments  # needs triton, an optional package

    loop, lengths, dropout = request.loop, request.lengths, request.dropout

    def draw(steps: range) -> IterationInputs:
        step = torch.arange(steps.start, steps.stop, device=lengths.device)
        mask = None if dropout is None else masks(dropout, steps, request.absorbable)
        return IterationInputs(step, request.absorbable & (step.view(-1, 1, 1) < lengths.unsqueeze(1)), mask)

    def should_stop(positions: tuple[Tensor, ...]) -> bool:
        return request.halt and not bool(is_unfinished(Positions(*positions).existence, loop.threshold).any())

    steps = request.absorbable.shape[1] - 2
    result = segments.run(loop, request.start, (), draw, steps, redraw=True, should_stop=should_stop)
    return Positions(*result.carry)


def masks(dropout: NodeDropout, steps: range, absorbable: Bool[Tensor, "B S"]) -> Float[Tensor, "T B S mask"]:
    """Dropout masks as a function of sample, iteration and position, so that the backward pass gets the same masks."""
    T, (B, S), device = len(steps), absorbable.shape, absorbable.device
    step = torch.arange(steps.start, steps.stop, device=device).view(T, 1, 1).expand(T, B, S)
    sample = torch.arange(B, device=device).view(1, B, 1).expand(T, B, S)
    position = torch.arange(S, device=device).expand(T, B, S)
    place = torch.stack((sample, step, position), dim=-1)  # (T, B, S, 3)
    return dropout.mask(place, place)


def is_unfinished(existence: Float[Tensor, "B S"], threshold: float) -> Bool[Tensor, "B 1"]:
    """Whether more than one word exists in a sample, not counting START and END."""
    return (existence.detach() > threshold).sum(1, keepdim=True) > 3


def by_windows(
    existence: Float[Tensor, "B S"], absorbable: Bool[Tensor, "B S"], threshold: float
) -> tuple[NeighbourAverage, Bool[Tensor, "B S"]]:
    """Averages by kernels that sum over the neighbours, and the words that may be absorbed."""
    from beamtree.nn.engine.gpu.continuous import neighbours as by_kernels  # needs triton, an optional package

    return by_kernels(existence, absorbable, threshold)


def by_matrices(existence: Float[Tensor, "B S"], dtype: torch.dtype, by_autograd: bool = False) -> NeighbourAverage:
    """Averages by products with 𝓛 and 𝓡."""
    exact = neighbours(existence, by_autograd)
    sides = {torch.float64: exact, dtype: exact.to(dtype)}

    def average(values: Float[Tensor, "B *sides S D"]) -> Float[Tensor, "B 2 S D"]:
        return sides[values.dtype] @ (values.unsqueeze(1) if values.dim() == 3 else values)

    return average


def edges(existence: Float[Tensor, "B S"]) -> Float[Tensor, "B edges"]:
    """Start of each position on a line where position i has width e_i, and the end of the last position."""
    return F.pad(existence.double().cumsum(1), (1, 0))


def neighbours(existence: Float[Tensor, "B S"], by_autograd: bool = False) -> Float[Tensor, "B 2 S S"]:
    """𝓛 and 𝓡, in float64.

    Let C_j be the total existence of the positions up to j. The weight that i gives to the positions up to j is
    clamp(C_j − C_i, 0, 1), and 𝓡_ij is its increase at j: the existence of j, or the weight that is left if this is
    smaller. 𝓛_ij is the same for the window of width 1 that ends at the start of i.
    """
    total = edges(existence)  # C, with a leading 0, (B, S+1)
    start = torch.stack((total[:, :-1] - 1, total[:, 1:]), dim=1)  # start of the window, (B, 2, S)
    if by_autograd:
        return (total[:, None, None] - start.unsqueeze(-1)).clamp(0, 1).diff(dim=-1)
    gains: Tensor = Gains.apply(total, start)
    return gains


class Gains(torch.autograd.Function):
    """Increase of clamp(C_j − start_i, 0, 1) from one j to the next.

    The backward pass repeats the comparisons, while autograd would save the differences and copy a matrix for each
    slice.
    """

    @staticmethod
    def forward(ctx: Any, total: Float[Tensor, "B edges"], start: Float[Tensor, "B 2 S"]) -> Float[Tensor, "B 2 S S"]:
        save(ctx, (total, start))
        return (total[:, None, None] - start.unsqueeze(-1)).clamp_(0, 1).diff(dim=-1)

    @staticmethod
    @first_order
    def backward(
        ctx: Any, inputs: Sequence[Tensor], others: Sequence[Any], gradient: Float[Tensor, "B 2 S S"]
    ) -> tuple[Tensor | None, ...]:
        total, start = inputs
        offset = total[:, None, None] - start.unsqueeze(-1)  # (B, 2, S, S+1)
        d_offset = F.pad(gradient, (1, 0))
        d_offset[..., :-1] -= gradient
        d_offset.masked_fill_((offset < 0) | (offset > 1), 0)
        return d_offset.sum((1, 2)), -d_offset.sum(3)


def absorb(
    before: Positions, states: Float[Tensor, "T B S D"], existence: Float[Tensor, "T B S"], step: Int[Tensor, "T"]
) -> Positions:
    """The positions after T iterations with these results, including the nodes of the words that were absorbed."""
    T, B, S = existence.shape
    now = existence.detach().double()
    exists = now > 0.5
    steps_alive = exists.sum(0, keepdim=True)  # number of iterations, (1, B, S): existence never increases
    absorbed_now = (steps_alive[0] < T) & before.times.detach().isinf()  # (B, S)
    at = steps_alive.clamp(max=T - 1)  # iteration in which a word is absorbed
    # The right neighbour is the next word that exists. The last word always exists.
    position = torch.arange(S, device=exists.device)
    following = position.where(exists, S - 1).flip(2).cummin(2).values.flip(2)  # (T, B, S); itself where it exists
    batch = torch.arange(B, device=exists.device).unsqueeze(1)
    row = (at * B + batch) * S + following.gather(0, at)  # (1, B, S)
    made = states.flatten(0, 2).index_select(0, row.flatten()).view_as(before.nodes)
    nodes = torch.where(absorbed_now.unsqueeze(-1), made, before.nodes)
    times = torch.where(absorbed_now, (step[at] + now.gather(0, at))[0], before.times)
    return Positions(states[-1], existence[-1], nodes, times)


def _why_not(request: ContinuousRequest) -> str | None:
    if not request.loop.is_functional:
        return "its layers are not plain: hooks, a subclass or a wrapper"
    return why_not_triton(request.leaves)


CONTINUOUS: tuple[Engine[ContinuousRequest], ...] = (
    Engine("triton", captured, _why_not),
    Engine("torch", lambda request: one_by_one(request, request.recompute)),
    Engine("reference", partial(one_by_one, recompute=False, by_autograd=True)),
)
