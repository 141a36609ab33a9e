"""The iterations of CRvNN: all positions stay, each with a probability that it still exists.

    s = w · GELU(W [𝓛𝓛h; 𝓛h; h; 𝓡h; 𝓡𝓡h])
    c_i = exp(s_i) / (exp(s_i) + 1 + (𝓛 exp(s))_i + (𝓡 exp(s))_i)       c = exp(s) = 0 for START, END and the last word
    h ← (𝓛c) R(𝓛h, h) + (1 − 𝓛c) h
    e ← e (1 − c)

An iteration is some hundred launches. On a CUDA device segments of iterations are captured in graphs
(`beamtree.nn.engine.gpu.segments`), and kernels go from each position to those beside it until its weight is used up,
in place of products with 𝓛 and 𝓡 (`beamtree.nn.engine.gpu.kernels.windows`).

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
from beamtree.nn.engine.dispatch import Engine, why_not_triton
from beamtree.nn.engine.dropout import NodeDropout
from beamtree.nn.engine.functional import Composite, Layer
from beamtree.nn.function import first_order, save, watched

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


class IterationInputs(NamedTuple):
    """What the T iterations of a segment must know besides. Where all is zero nothing happens."""

    number: Int[Tensor, "T"]  # of the iteration
    may_go: Bool[Tensor, "T B S"]  # all words but the last, in the first n iterations
    mask: Float[Tensor, "T B S mask"] | None  # of dropout


@dataclass(frozen=True)
class ContinuousRequest:
    """A pass of CRvNN."""

    start: Positions
    may_go: Bool[Tensor, "B S"]  # all words but the last
    lengths: Int[Tensor, "B"]
    loop: "ContinuousLoop"
    dropout: NodeDropout | None = None
    halt: bool = True  # stop when all samples are done
    recompute: bool = True  # keep only h and e of each iteration for backward

    @property
    def leaves(self) -> Float[Tensor, "B S D"]:
        return self.start.states


@dataclass(frozen=True)
class ContinuousLoop(Composite):
    """The iterations, as a function of weights."""

    cell: AnyCell
    window: Layer
    scorer: Layer
    threshold: float  # a sample is done when no more than one word exists with more than this
    official_floor: bool  # under c, as in the published code, with which samples depend on their batch mates

    def segment(
        self, carry: tuple[Tensor, ...], inputs: tuple[Tensor, ...], masks: Sequence[Tensor | None], made: Tensor | None
    ) -> tuple[Positions, Float[Tensor, "T B S"], Float[Tensor, "T B S"]]:
        """Some iterations, as a loop of `beamtree.nn.engine.gpu.segments`, and the existence after each."""
        from beamtree.nn.engine.gpu.cells import dense  # needs triton, an optional package

        before, given = Positions(*carry), IterationInputs(*masks)  # type: ignore[arg-type]
        states, existence, after = before.states, before.existence, []
        assert isinstance(self.cell, CellFunction)
        loop = replace(self, cell=dense(self.cell, existence.numel()))
        for t, may_go in enumerate(given.may_go):
            average, goes = by_windows(existence, may_go, self.threshold)
            mask = None if given.mask is None else given.mask[t]
            by_kernels = states.dtype == torch.float32  # as of the cell, in other types PyTorch's operations
            states, existence = loop.iterate(states, existence, goes, mask, average, by_kernels)
            after.append((states, existence))
        all_states, found = (torch.stack(parts) for parts in zip(*after, strict=True))
        return absorb(before, all_states, found, given.number), found, found.detach()

    def step_bytes(self, carry: tuple[Tensor, ...]) -> int:
        """In backward: some 40 values for each of h."""
        return 40 * carry[0].nbytes

    def iterate(
        self,
        states: Float[Tensor, "B S D"],
        existence: Float[Tensor, "B S"],
        goes: Bool[Tensor, "B S"],
        mask: Float[Tensor, "B S mask"] | None,
        average: Average,
        by_kernels: bool = False,
    ) -> tuple[Float[Tensor, "B S D"], Float[Tensor, "B S"]]:
        """One iteration. Where no word of a sample goes, it stays as it is, to the last digit.

        by_kernels: whether c is computed by those for a GPU.
        """
        with torch.autocast(states.device.type, enabled=False):  # averages must not lose digits
            one = average(states)  # 𝓛h, 𝓡h, (B, 2, S, D)
            two = average(one)  # 𝓛𝓛h, 𝓡𝓡h
        (one_left, one_right), (two_left, two_right) = one.unbind(1), two.unbind(1)
        window = torch.cat((two_left, one_left, states, one_right, two_right), dim=-1)  # (B, S, 5D)
        scores = self.scorer(F.gelu(self.window(window))).squeeze(-1)  # (B, S)
        if by_kernels and not self.official_floor:
            from beamtree.nn.engine.gpu.continuous import absorb as absorb_by_kernels

            go, after = absorb_by_kernels(scores, goes, existence, average, LARGEST)
        else:
            go = self._compose_probability(scores, goes, average)  # c
            after = existence * (1 - go.to(existence.dtype))
        parents = self.cell(one_left, states, mask).to(states.dtype)
        with torch.autocast(states.device.type, enabled=False):
            come = average(go.unsqueeze(-1).to(states.dtype))[:, 0]  # 𝓛c, (B, S, 1)
            new_states = states.lerp(parents, come)
        return new_states, after

    def _compose_probability(
        self,
        scores: Float[Tensor, "B S"],
        goes: Bool[Tensor, "B S"],
        average: Average,
    ) -> Float[Tensor, "B S"]:
        """c, in float64: a sigmoid of the score that the neighbours' scores hold down."""
        weights = scores.double().clamp(max=LARGEST).exp()  # (B, S)
        rest = 1 + OFFICIAL_FLOOR * weights.max().clamp(min=1) if self.official_floor else 1
        weights = (weights * goes).unsqueeze(-1)  # (B, S, 1)
        beside = average(weights).sum(1)  # 𝓛 exp(s) + 𝓡 exp(s)
        return (weights / (weights + rest + beside)).squeeze(-1)


def one_by_one(request: ContinuousRequest, recompute: bool, by_autograd: bool = False) -> Positions:
    """All iterations, one after the other. With `recompute` backward computes their intermediate results again; with
    `by_autograd` all gradients are autograd's."""
    positions, loop, dropout, lengths = request.start, request.loop, request.dropout, request.lengths
    # Modules are called once: in backward their weights may be others.
    again = recompute and torch.is_grad_enabled() and loop.is_functional
    if again:
        loop = loop.bind(watched(loop.weights))

    def iterate(
        states: Tensor, existence: Tensor, goes: Tensor, step: int
    ) -> tuple[Float[Tensor, "B S D"], Float[Tensor, "B S"]]:
        mask = None if dropout is None else masks(dropout, range(step, step + 1), request.may_go)[0]
        return loop.iterate(states, existence, goes, mask, by_matrices(existence, states.dtype, by_autograd))

    for step in range(request.may_go.shape[1] - 2):
        goes = request.may_go & (step < lengths).unsqueeze(1) & goes_on(positions.existence, loop.threshold)
        if request.halt and not goes.any():
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


def captured(request: ContinuousRequest) -> Positions:
    """All iterations in CUDA graphs."""
    from beamtree.nn.engine.gpu import segments  # needs triton, an optional package

    loop, lengths, dropout = request.loop, request.lengths, request.dropout

    def draw(steps: range) -> IterationInputs:
        number = torch.arange(steps.start, steps.stop, device=lengths.device)
        mask = None if dropout is None else masks(dropout, steps, request.may_go)
        return IterationInputs(number, request.may_go & (number.view(-1, 1, 1) < lengths.unsqueeze(1)), mask)

    def should_stop(positions: tuple[Tensor, ...]) -> bool:
        return request.halt and not bool(goes_on(Positions(*positions).existence, loop.threshold).any())

    steps = request.may_go.shape[1] - 2
    ran = segments.run(loop, request.start, (), draw, steps, redraw=True, should_stop=should_stop)
    return Positions(*ran.carry)


def masks(dropout: NodeDropout, steps: range, may_go: Bool[Tensor, "B S"]) -> Float[Tensor, "T B S mask"]:
    """Masks that are a function of sample, iteration and position, so that backward sees them again."""
    T, (B, S), device = len(steps), may_go.shape, may_go.device
    step = torch.arange(steps.start, steps.stop, device=device).view(T, 1, 1).expand(T, B, S)
    sample = torch.arange(B, device=device).view(1, B, 1).expand(T, B, S)
    position = torch.arange(S, device=device).expand(T, B, S)
    place = torch.stack((sample, step, position), dim=-1)  # (T, B, S, 3)
    return dropout.mask(place, place)


def goes_on(existence: Float[Tensor, "B S"], threshold: float) -> Bool[Tensor, "B 1"]:
    """Whether more than one word exists, besides START and END."""
    return (existence.detach() > threshold).sum(1, keepdim=True) > 3


def by_windows(
    existence: Float[Tensor, "B S"], may_go: Bool[Tensor, "B S"], threshold: float
) -> tuple[Average, Bool[Tensor, "B S"]]:
    """In kernels that sum up what is near; and the words that go."""
    from beamtree.nn.engine.gpu.continuous import neighbours as by_kernels  # needs triton, an optional package

    return by_kernels(existence, may_go, threshold)


def by_matrices(existence: Float[Tensor, "B S"], dtype: torch.dtype, by_autograd: bool = False) -> Average:
    """By products with 𝓛 and 𝓡."""
    exact = neighbours(existence, by_autograd)
    sides = {torch.float64: exact, dtype: exact.to(dtype)}

    def average(values: Float[Tensor, "B *sides S D"]) -> Float[Tensor, "B 2 S D"]:
        return sides[values.dtype] @ (values.unsqueeze(1) if values.dim() == 3 else values)

    return average


def edges(existence: Float[Tensor, "B S"]) -> Float[Tensor, "B edges"]:
    """Where each position begins, if they lie side by side, each as wide as it exists, and where the last ends."""
    return F.pad(existence.double().cumsum(1), (1, 0))


def neighbours(existence: Float[Tensor, "B S"], by_autograd: bool = False) -> Float[Tensor, "B 2 S S"]:
    """𝓛 and 𝓡, in float64.

    Let C_j be the existence of all positions up to j. What lies between i and j, but at most 1, is
    clamp(C_j − C_i, 0, 1), and 𝓡_ij is what this gains at j: the existence of j where there is room for all of it,
    else what room is left. 𝓛_ij is the same for the room of 1 that ends where i begins.
    """
    total = edges(existence)  # C, from the left edge on, (B, S+1)
    start = torch.stack((total[:, :-1] - 1, total[:, 1:]), dim=1)  # where the room begins, (B, 2, S)
    if by_autograd:
        return (total[:, None, None] - start.unsqueeze(-1)).clamp(0, 1).diff(dim=-1)
    gains: Tensor = Gains.apply(total, start)
    return gains


class Gains(torch.autograd.Function):
    """clamp(C_j − start_i, 0, 1), and what it gains from one j to the next. Backward compares again: autograd would
    keep the differences, and copy matrices for each of the slices."""

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
    exists = now > 0.5
    steps_alive = exists.sum(0, keepdim=True)  # for how many iterations, (1, B, S): existence never grows
    absorbed_now = (steps_alive[0] < T) & before.times.detach().isinf()  # (B, S)
    at = steps_alive.clamp(max=T - 1)  # the iteration in which a word is absorbed
    # The right neighbour: the next word that exists. The last word always does.
    position = torch.arange(S, device=exists.device)
    following = position.where(exists, S - 1).flip(2).cummin(2).values.flip(2)  # (T, B, S); itself where it exists
    batch = torch.arange(B, device=exists.device).unsqueeze(1)
    row = (at * B + batch) * S + following.gather(0, at)  # (1, B, S)
    made = states.flatten(0, 2).index_select(0, row.flatten()).view_as(before.nodes)
    nodes = torch.where(absorbed_now.unsqueeze(-1), made, before.nodes)
    times = torch.where(absorbed_now, (number[at] + now.gather(0, at))[0], before.times)
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
