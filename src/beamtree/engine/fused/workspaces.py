"""The memory of fused searches, and their launches, captured once and replayed for every stretch of steps.

A workspace fits searches of one size: so many samples, beams and tokens. Its buffers stay where they are, as a captured
graph holds their addresses; the request is copied in before each search. What a search found lies in the workspace
until the next one starts.
"""

import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.cells import Cell
from beamtree.engine.base import Chart, Noise, Request
from beamtree.engine.fused import kernels
from beamtree.engine.fused.capture import Captured, stream_of
from beamtree.engine.fused.compose import COMPOSE
from beamtree.engine.fused.products import lay_out, method, precision, room_for
from beamtree.engine.lineage import make_chart
from beamtree.engine.pool import Pool, new_tables
from beamtree.engine.replay import History, look_back, mark
from beamtree.engine.search import Step, Trace, first_rows, roots

# Steps in a graph: even numbers, so that each begins with the same half of the rows. Most are run in stretches, and the
# last few in short ones.
STRETCH, SHORT = Noise.STEPS, 4


@dataclass(frozen=True)
class Size:
    """What a workspace, and the graphs in it, are made for."""

    device: torch.device
    stream: int  # searches on two streams may run at the same time
    B: int
    N: int
    K: int
    D: int
    cell: type[Cell]
    stochastic: bool
    dropout: float | None  # the threshold and scale of the masks follow from it
    precision: str  # of products

    @classmethod
    def of(cls, request: Request) -> "Size":
        """That of a request, once it is padded."""
        B, N, _ = request.leaves.shape
        device = request.leaves.device
        rate = None if request.dropout is None else float(request.dropout.scale)
        kind = (type(request.cell), request.stochastic, rate, precision(device))
        return cls(device, stream_of(device), B, padded_length(N), request.beam_size, request.cell.dim, *kind)

    @property
    def M(self) -> int:
        return self.N - 1

    @property
    def beams(self) -> int:
        return self.B * self.K

    @property
    def steps(self) -> int:
        """Rounded up to whole stretches; in the steps too many nothing moves."""
        return rounded(self.N - 2, STRETCH)

    @property
    def composed(self) -> int:
        """The number of the first node that a step makes."""
        return self.B * (self.N + self.M)

    @property
    def nodes(self) -> int:
        return self.composed + 2 * self.beams * self.steps


class Survivors(NamedTuple):
    """What a gradient must know of a search: which nodes have one, and the part of candidates in the scores. All shapes
    follow from the size alone."""

    order: Int[Tensor, "P"]  # candidates that were not chosen, then chosen nodes by height; last those without gradient
    ends: Int[Tensor, "G"]  # where each group ends there: leaves (0), candidates, each height, and the rest
    candidates: Int[Tensor, "B K C"]  # of each final beam, as in `beamtree.engine.replay.History`
    coefficients: Float[Tensor, "B K C"]


class Workspace:
    """Buffers of one size."""

    def __init__(self, size: Size, request: Request) -> None:
        self.size = size
        B, N, K, M, D, n = size.B, size.N, size.K, size.M, size.D, 2 * size.beams
        device: dict[str, Any] = {"device": size.device}
        small, whole = {**device, "dtype": torch.int32}, {**device, "dtype": torch.long}
        self.request = self._own(request)
        self.tables = new_tables(self.request, size.nodes)
        self.pool: Pool
        self.J = self.request.branching
        self.heights = torch.zeros(size.nodes + 1, **small)
        self.heights[B * N : size.composed] = 1  # the candidates of the leaves
        self.base = torch.zeros(1, **small)
        self.seed = self.request.dropout.offsets[:1] if self.request.dropout else torch.zeros(1, **small)
        self.lengths = self.request.lengths
        self.rows = torch.zeros(2, B, K, M + 2, **small)
        self.scores = torch.zeros(2, B, K, **device)
        noisy = STRETCH if size.stochastic else 1
        self.noise = torch.zeros(noisy, B, K, M, **device)
        self.beam_noise = torch.zeros(noisy, B, K, self.J, **device)
        self.columns = torch.zeros(B, K, self.J, **small)
        self.log_p = torch.zeros(B, K, self.J, **device)
        self.normalisers = torch.zeros(B, K, **device)
        self.keys = torch.zeros(n, **small)
        self.present = torch.zeros(n, dtype=torch.int8, **device)
        self.inner = torch.zeros(n, 4 * D, **device)
        self.gates = torch.zeros(n, 5 * D, **device)  # the Tree-LSTM has five, the GRC four
        T = size.steps
        self.roots = torch.zeros(B, K, **whole)
        self.records = Step(
            torch.zeros(T, B, K, **whole),
            torch.zeros(T, B, K, **whole),
            torch.zeros(T, B, K, 3, **whole),
            torch.zeros(T, B, K, 2, **whole),
            torch.zeros(T, B, K, **device),
        )
        # As the kernels read them: a matrix by its inputs, each a row of outputs.
        self.method = method(n, size.precision)
        cell = [w if w.dim() == 1 else room_for(w.mT, self.method) for w in self.request.cell.parameters()]
        self.weights = [*cell, *self.request.scorer.parameters()]
        self.beginning: Captured[None] = Captured(size.device)
        self.stretches = {steps: Captured[None](size.device) for steps in (STRETCH, SHORT)}
        self.ending: dict[bool, Captured[Chart]] = {gradient: Captured(size.device) for gradient in (False, True)}
        self._survivors: Survivors | None = None  # until a gradient is wanted
        # Where their groups end, copied to the host while the device goes on.
        on_gpu = size.device.type == "cuda"
        self._ends = torch.zeros(size.N + 2, dtype=torch.long, pin_memory=on_gpu)
        self._copied = torch.cuda.Event() if on_gpu else None

    def _own(self, request: Request) -> Request:
        """A copy of the request in buffers of this workspace."""
        leaves = request.leaves.new_zeros(self.size.B, self.size.N, request.leaves.shape[2])
        lengths = torch.zeros(self.size.B, dtype=torch.int32, device=self.size.device)
        cell, scorer, dropout = copy.deepcopy(request.cell), copy.deepcopy(request.scorer), copy.copy(request.dropout)
        if dropout:
            dropout.offsets = dropout.offsets.clone()
        cell.requires_grad_(False).eval()  # without a mask it drops nothing
        scorer.requires_grad_(False)
        return replace(
            request, leaves=leaves, lengths=lengths, cell=cell, scorer=scorer, dropout=dropout, generator=None
        )

    @property
    def bytes(self) -> int:
        """Of all that is not small."""
        large = (*self.tables, *self.records, self.rows, self.noise, self.beam_noise, self.inner, self.gates)
        return sum(tensor.nbytes for tensor in large)

    def search(self, request: Request, noise: Noise) -> Pool:
        """As `beamtree.engine.search.search`; what was found lies in this workspace."""
        own, N = self.request, request.leaves.shape[1]
        own.leaves[:, :N].copy_(request.leaves)
        own.leaves[:, N:].zero_()
        own.lengths.copy_(request.lengths)
        torch._foreach_copy_(list(own.weights), list(request.weights))
        if own.dropout and request.dropout:
            own.dropout.offsets.copy_(request.dropout.offsets)
        self.beginning.run(self._begin)
        last = 0
        for step in range(0, request.steps, STRETCH):
            drawn = noise.stretch(step) if request.stochastic else ()
            steps = STRETCH if request.steps - step > STRETCH - SHORT else SHORT
            for first in range(0, min(request.steps - step, STRETCH), steps):
                for buffer, values in zip((self.noise, self.beam_noise), drawn, strict=False):
                    here = values[first : first + steps]
                    buffer[: len(here), ..., : here.shape[-1]].copy_(here)
                self.stretches[steps].run(partial(self.launch, steps))
                last = step + first + steps
        self._rest(last)
        self.roots.copy_(roots(self.pool, self.rows[0].long()))
        return self.pool

    def _begin(self) -> None:
        """The leaves, and their candidates."""
        for room, weight in zip(self.weights, self.request.weights, strict=True):
            if room is not weight:
                lay_out(room, weight.mT)
        self.pool = Pool(self.request, self.size.nodes, self.tables)
        self.base.zero_()
        self.rows[0].copy_(first_rows(self.pool))
        self.scores[0].copy_(self.request.start_scores())

    def launch(self, steps: int) -> None:
        """Every kernel of so many steps."""
        size, tables = self.size, self.tables
        beams, W = size.beams, size.M + 2
        compose = COMPOSE[size.cell]
        wide = triton.next_power_of_2(W)
        warps = min(max(wide // 256, 4), 16)
        for slot in range(steps):
            half = slot % 2
            kernels.propose[(beams,)](
                self.rows, tables.logits, self.noise, self.columns, self.log_p, self.normalisers, self.base,
                slot, half, beams, size.M, W,
                J=self.J, NOISY=size.stochastic, BLOCK=wide, num_warps=warps,
            )  # fmt: skip
            kernels.advance[(beams,)](
                self.rows, self.scores, self.lengths, tables.children, tables.spans, self.heights, self.beam_noise,
                self.columns, self.log_p, self.normalisers, self.base, *self.records, self.keys, self.present,
                slot, half, size.composed, size.nodes, beams, W,
                K=size.K, J=self.J, NOISY=size.stochastic, BLOCK=wide,
                CONTINUATIONS=triton.next_power_of_2(size.K * self.J), num_warps=warps,
            )  # fmt: skip
            compose(self, slot)
        self.base += steps

    def _rest(self, first: int) -> None:
        """The records of the steps from here on: nothing moves, and nothing is left of an earlier search."""
        if first >= self.size.steps:
            return
        source, action, dead, born, normaliser = (field[first:] for field in self.records)
        source.copy_(self.tables.numbers[: self.size.K])
        action.fill_(self.size.M + 1)
        dead.fill_(self.size.nodes)
        born.fill_(self.size.nodes)
        normaliser.fill_(torch.inf)
        self.tables.states[self.size.composed + 2 * self.size.beams * first :].zero_()

    @property
    def survivors(self) -> Survivors:
        assert self._survivors is not None, "no gradient was wanted"
        return self._survivors

    def look_back(self, gradient: bool) -> Chart:
        """The chart of the search, as it was padded; and `survivors`, if a gradient is wanted."""
        chart = self.ending[gradient].run(lambda: self._look_back(gradient))
        if gradient:
            self._ends.copy_(self.survivors.ends, non_blocking=True)
            if self._copied is not None:
                self._copied.record()
        return chart

    def levels(self) -> list[int]:
        """Where the groups end that have a gradient: without the heights above the highest, and all other nodes."""
        if self._copied is not None:
            self._copied.synchronize()
        ends: list[int] = self._ends[:-1].tolist()
        return ends[: max(ends.index(ends[-1]), 1) + 1]

    def _look_back(self, gradient: bool) -> Chart:
        records = Step(*(field[: self.request.steps] for field in self.records))
        trace = Trace(self.pool, records, [], self.scores[0], self.roots)
        history = look_back(trace, gradient)
        if gradient:
            found = self._survivors_of(trace, history)
            if self._survivors is None:
                with torch.inference_mode(False):
                    self._survivors = Survivors(*(torch.empty_like(field) for field in found))
            for own, field in zip(self._survivors, found, strict=True):
                own.copy_(field)
        return make_chart(self.pool, history.lineages.action, history.lineages.node, trace.scores, trace.roots)

    def _survivors_of(self, trace: Trace, history: History) -> Survivors:
        """By a stable sort: leaves have the key 0, candidates that were not chosen 1, chosen nodes their height and 1,
        all others the highest."""
        assert history.candidates is not None
        assert history.coefficients is not None
        leaves, rest = self.size.B * self.size.N, self.size.N + 1
        exists = trace.scores.isfinite()[..., None]  # (B, K, 1)
        chosen = mark(self.pool, history.lineages.node.where(exists, self.pool.absent), trace.roots)
        standing = mark(self.pool, history.candidates)
        key = (self.heights + 1).where(chosen, torch.full_like(self.heights, rest).where(~standing, 1))
        key[:leaves] = 0
        order = key.sort(stable=True).indices[leaves:]
        counts = key.new_zeros(rest + 1).scatter_add_(0, key.long(), torch.ones_like(key))
        return Survivors(order, counts.cumsum(0) - leaves, history.candidates, history.coefficients)


def padded_length(length: int) -> int:
    """The length that a workspace is made for: one of a few, an eighth more at most beyond 256 tokens.

    It is such that a row, which has two places more than candidates, is a multiple of 16.
    """
    return rounded(length + 1, max(16, 1 << length.bit_length() >> 4)) - 1


def rounded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
