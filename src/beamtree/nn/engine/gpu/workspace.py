"""Workspaces for fused beam searches. Launches are captured once and replayed for every segment of steps.

A workspace fits searches of one size: samples, beams and tokens. Its buffers have fixed addresses, as captured graphs
require; the request, including its weights, is copied in before each search. The results of a search stay in the
workspace until the next one starts.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.nn.cells import CellFunction
from beamtree.nn.engine.beam.replay import FinalBeams, look_back, mark
from beamtree.nn.engine.beam.search import Step, Trace, first_rows, roots
from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.gpu.capture import Captured, stream_of
from beamtree.nn.engine.gpu.cells import NewNodes
from beamtree.nn.engine.gpu.kernels import search as kernels
from beamtree.nn.engine.gpu.precision import buffer_for, lay_out, method, precision, tile
from beamtree.nn.engine.lineage import make_chart
from beamtree.nn.engine.noise import Noise
from beamtree.nn.engine.pool import Pool, new_tables
from beamtree.nn.engine.request import Request
from beamtree.nn.engine.scorers import ScorerFunction

# Steps per graph: even numbers, so that each graph begins with the same half of the rows. Most steps run in whole
# segments, and the last few in short ones.
SEGMENT, SHORT = Noise.STEPS, 4


@dataclass(frozen=True)
class Size:
    """What a workspace and its graphs are specialised for: its key."""

    device: torch.device
    stream: int  # searches on two streams may run at the same time
    B: int
    N: int
    K: int
    cell: CellFunction  # unbound
    scorer: ScorerFunction  # unbound
    stochastic: bool
    dropout: tuple[float, bool] | None  # see `NodeDropout.settings`
    precision: str  # of products

    @classmethod
    def of(cls, request: Request) -> "Size":
        """The size of a request after padding."""
        B, N, _ = request.leaves.shape
        device = request.leaves.device
        assert isinstance(request.cell, CellFunction)
        assert isinstance(request.scorer, ScorerFunction)
        dropout = None if request.dropout is None else request.dropout.settings
        kind = (request.cell.unbound, request.scorer.unbound, request.stochastic, dropout, precision(device))
        return cls(device, stream_of(device), B, padded_length(N), request.beam_size, *kind)

    @property
    def D(self) -> int:
        return self.cell.dim

    @property
    def M(self) -> int:
        return self.N - 1

    @property
    def beams(self) -> int:
        return self.B * self.K

    @property
    def steps(self) -> int:
        """Rounded up to whole segments; the padding steps change nothing."""
        return rounded(self.N - 2, SEGMENT)

    @property
    def composed(self) -> int:
        """The id of the first node that a step adds."""
        return self.B * (self.N + self.M)

    @property
    def nodes(self) -> int:
        return self.composed + 2 * self.beams * self.steps


class Survivors(NamedTuple):
    """What the backward pass needs of a search.

    These are the nodes that have a gradient, and the coefficients of candidates in the scores. All shapes depend on the
    size alone.
    """

    order: Int[Tensor, "P"]  # candidates that were not chosen, chosen nodes by height, nodes without gradient
    ends: Int[Tensor, "G"]  # where each group ends in `order`: leaves (0), candidates, each height, and the rest
    candidates: Int[Tensor, "B K C"]  # of each final beam, as in `beamtree.nn.engine.beam.replay.FinalBeams`
    coefficients: Float[Tensor, "B K C"]


class BeamWorkspace:
    """Buffers of one size."""

    def __init__(self, size: Size, request: Request) -> None:
        self.size = size
        B, N, K, M, n = size.B, size.N, size.K, size.M, 2 * size.beams
        device: dict[str, Any] = {"device": size.device}
        int32, int64 = {**device, "dtype": torch.int32}, {**device, "dtype": torch.long}
        self.request = self._request_buffers(request)
        self.tables = new_tables(self.request, size.nodes)
        self.pool: Pool
        self.J = self.request.branching
        self.heights = torch.zeros(size.nodes + 1, **int32)
        self.heights[B * N : size.composed] = 1  # the candidates of the leaves
        self.base = torch.zeros(1, **int32)
        self.seed = self.request.dropout.offsets[:1] if self.request.dropout else torch.zeros(1, **int32)
        self.lengths = self.request.lengths
        self.rows = torch.zeros(2, B, K, M + 2, **int32)
        self.scores = torch.zeros(2, B, K, **device)
        noisy = SEGMENT if size.stochastic else 1
        self.noise = torch.zeros(noisy, B, K, M, **device)
        self.beam_noise = torch.zeros(noisy, B, K, self.J, **device)
        self.columns = torch.zeros(B, K, self.J, **int32)
        self.log_p = torch.zeros(B, K, self.J, **device)
        self.normalisers = torch.zeros(B, K, **device)
        # New candidates of a step, and the nodes that it composes: the same, or the chosen ones if children are scored.
        self.added, self.present = torch.zeros(n, **int64), torch.zeros(n, dtype=torch.int8, **device)
        self.ids = torch.zeros(size.beams, **int64) if size.scorer.reads_children else self.added
        self.keys = torch.zeros(len(self.ids), **int32)
        kernels_of_cell = size.cell.kernels()
        assert kernels_of_cell is not None
        self.cell_kernels = kernels_of_cell
        self.inner = torch.zeros(len(self.ids), self.cell_kernels.inner_width * size.D, **device)
        self.gates = torch.zeros(len(self.ids), self.cell_kernels.gates_width * size.D, **device)
        T = size.steps
        self.roots = torch.zeros(B, K, **int64)
        self.records = Step(
            torch.zeros(T, B, K, **int64),
            torch.zeros(T, B, K, **int64),
            torch.zeros(T, B, K, 3, **int64),
            torch.zeros(T, B, K, 2, **int64),
            torch.zeros(T, B, K, **device),
        )
        # In the layout that the kernels read: a row of outputs for each input.
        self.method = method(n, size.precision)
        self.laid_out = [w if w.dim() == 1 else buffer_for(w.mT, self.method) for w in self.request.cell.weights]
        # A scorer of parents is one row, which is used directly; a scorer of children has a matrix.
        self.laid_out_scorer = list(self.scorer_weights)
        if size.scorer.reads_children:
            self.laid_out_scorer[2] = buffer_for(self.scorer_weights[2].mT, self.method)
        self.beginning: Captured[None] = Captured(size.device)
        self.segments = {steps: Captured[None](size.device) for steps in (SEGMENT, SHORT)}
        self.ending: dict[bool, Captured[Chart]] = {gradient: Captured(size.device) for gradient in (False, True)}
        self._survivors: Survivors | None = None  # until a gradient is needed
        # Where their groups end, copied to the host asynchronously.
        on_gpu = size.device.type == "cuda"
        self._ends = torch.zeros(size.N + 2, dtype=torch.long, pin_memory=on_gpu)
        self._copied = torch.cuda.Event() if on_gpu else None

    def _request_buffers(self, request: Request) -> Request:
        """The request with buffers of this workspace in place of its tensors."""
        leaves = request.leaves.new_zeros(self.size.B, self.size.N, request.leaves.shape[2])
        lengths = torch.zeros(self.size.B, dtype=torch.int32, device=self.size.device)
        cell = self.size.cell.bind([torch.empty_like(weight).contiguous() for weight in request.cell.weights])
        given = request.weights[self.size.cell.COUNT :]
        scorer = self.size.scorer.bind([torch.empty_like(weight).contiguous() for weight in given])
        dropout = request.dropout and request.dropout.duplicate()
        return replace(
            request, leaves=leaves, lengths=lengths, cell=cell, scorer=scorer, dropout=dropout, generator=None
        )

    @property
    def scorer_weights(self) -> tuple[Tensor, ...]:
        return self.request.weights[self.size.cell.COUNT :]

    @property
    def bytes(self) -> int:
        large = (*self.tables, *self.records, self.rows, self.noise, self.beam_noise, self.inner, self.gates)
        return sum(tensor.nbytes for tensor in large)

    def search(self, request: Request, noise: Noise) -> Pool:
        """Same as `beamtree.nn.engine.beam.search.search`; the results stay in this workspace."""
        own, N = self.request, request.leaves.shape[1]
        own.leaves[:, :N].copy_(request.leaves)
        own.leaves[:, N:].zero_()
        own.lengths.copy_(request.lengths)
        torch._foreach_copy_(list(own.weights), list(request.weights))
        if own.dropout and request.dropout:
            own.dropout.copy_(request.dropout)
        self.beginning.run(self._begin)
        last = 0
        for step in range(0, request.steps, SEGMENT):
            drawn = noise.segment(step) if request.stochastic else ()
            steps = SEGMENT if request.steps - step > SEGMENT - SHORT else SHORT
            for first in range(0, min(request.steps - step, SEGMENT), steps):
                for buffer, values in zip((self.noise, self.beam_noise), drawn, strict=False):
                    here = values[first : first + steps]
                    buffer[: len(here), ..., : here.shape[-1]].copy_(here)
                self.segments[steps].run(partial(self.launch, steps))
                last = step + first + steps
        self._clear_records(last)
        rows = self.rows[0].long()
        self.pool.compose_chosen(rows[..., 1])
        self.roots.copy_(roots(self.pool, rows))
        return self.pool

    def _begin(self) -> None:
        """Write the leaves and their candidates."""
        pairs = (
            *zip(self.laid_out, self.request.cell.weights, strict=True),
            *zip(self.laid_out_scorer, self.scorer_weights, strict=True),
        )
        for buffer, weight in pairs:
            if buffer is not weight:
                lay_out(buffer, weight.mT)
        self.pool = Pool(self.request, self.size.nodes, self.tables)
        self.base.zero_()
        self.rows[0].copy_(first_rows(self.pool))
        self.scores[0].copy_(self.request.start_scores())

    @property
    def new_nodes(self) -> NewNodes:
        """The nodes that each step composes."""
        scorer = () if self.size.scorer.reads_children else self.laid_out_scorer
        cell, dropout = self.request.cell, self.request.dropout
        assert isinstance(cell, CellFunction)
        buffers = (self.tables, self.ids, self.keys, self.present, self.inner, self.gates)
        return NewNodes(cell, self.laid_out, self.method, scorer, dropout, self.seed, *buffers)

    def launch(self, steps: int, lengths: Tensor | None = None, K: int | None = None, J: int | None = None) -> None:
        """Launch every kernel of the given number of steps. K beams at a time compete; by default all of a sample."""
        size, tables = self.size, self.tables
        K, J = K or size.K, J or self.J
        competing = K > 1
        beams, W = size.beams, size.M + 2
        wide = triton.next_power_of_2(W)
        warps = min(max(wide // 256, 4), 16)
        nodes = self.new_nodes
        for slot in range(steps):
            half = slot % 2
            kernels.propose[(beams,)](
                self.rows, tables.logits, self.noise, self.columns, self.log_p, self.normalisers, self.base,
                slot, half, beams, size.M, W,
                J=J, NOISY=size.stochastic, BLOCK=wide, num_warps=warps,
            )  # fmt: skip
            kernels.advance[(beams,)](
                self.rows, self.scores, self.lengths if lengths is None else lengths, tables.children, tables.spans,
                self.heights, self.beam_noise, self.columns, self.log_p, self.normalisers, self.base, *self.records,
                self.ids, self.keys, self.added, self.present,
                slot, half, size.composed, size.nodes, beams, W,
                K=K, J=J, NOISY=size.stochastic and competing, CHILDREN=size.scorer.reads_children, BLOCK=wide,
                CONTINUATIONS=triton.next_power_of_2(K * J), num_warps=warps,
            )  # fmt: skip
            self.cell_kernels.compose(nodes)
            if size.scorer.reads_children:
                self._score_pairs()
        self.base += steps

    def _score_pairs(self) -> None:
        """Compute the logits of the new candidates from their children."""
        tables, n, d = self.tables, len(self.added), self.size.scorer.width
        weight, bias, hidden, hidden_bias = self.laid_out_scorer
        sizes = tile(n, self.method) | {"BM": 16, "BN": triton.next_power_of_2(max(d, 16))}
        kernels.score_pairs[(triton.cdiv(n, 16),)](
            tables.states, tables.children, self.added, self.present, weight, bias, hidden, hidden_bias, tables.logits,
            n, d, tables.states.shape[1], **sizes,
        )  # fmt: skip

    def _clear_records(self, first: int) -> None:
        """Reset the records of the steps from `first` on, which an earlier search may have written: no beam changes."""
        if first >= self.size.steps:
            return
        source, action, removed, added, normaliser = (field[first:] for field in self.records)
        source.copy_(self.tables.ids[: self.size.K])
        action.fill_(self.size.M + 1)
        removed.fill_(self.size.nodes)
        added.fill_(self.size.nodes)
        normaliser.fill_(torch.inf)
        self.tables.states[self.size.composed + 2 * self.size.beams * first :].zero_()

    @property
    def survivors(self) -> Survivors:
        assert self._survivors is not None, "no gradient was wanted"
        return self._survivors

    def look_back(self, gradient: bool) -> Chart:
        """The chart of the padded search. Also sets `survivors` if a gradient is needed."""
        chart = self.ending[gradient].run(lambda: self._look_back(gradient))
        if gradient:
            self._ends.copy_(self.survivors.ends, non_blocking=True)
            if self._copied is not None:
                self._copied.record()
        return chart

    def levels(self) -> list[int]:
        """Where each group that has a gradient ends, up to the greatest height that occurs."""
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

    def _survivors_of(self, trace: Trace, history: FinalBeams) -> Survivors:
        """Sorts the nodes, stably.

        The key of a leaf is 0, of a candidate that was not chosen 1, of a chosen node its height plus 1, of all others
        N + 1. Candidates that were only scored have no state, and so no gradient of it.
        """
        assert history.candidates is not None
        assert history.coefficients is not None
        leaves, rest = self.size.B * self.size.N, self.size.N + 1
        exists = trace.scores.isfinite()[..., None]  # (B, K, 1)
        chosen = mark(self.pool, history.lineages.node.where(exists, self.pool.absent), trace.roots)
        key = torch.full_like(self.heights, rest)
        if not self.size.scorer.reads_children:
            key.masked_fill_(mark(self.pool, history.candidates), 1)
        key = (self.heights + 1).where(chosen, key)
        key[:leaves] = 0
        order = key.sort(stable=True).indices[leaves:]
        counts = key.new_zeros(rest + 1).scatter_add_(0, key.long(), torch.ones_like(key))
        return Survivors(order, counts.cumsum(0) - leaves, history.candidates, history.coefficients)


def padded_length(length: int) -> int:
    """The length that a workspace is allocated for: one of a few, at most an eighth longer beyond 256 tokens.

    The width of a row, two more than the number of candidates, is then a multiple of 16.
    """
    return rounded(length + 1, max(16, 1 << length.bit_length() >> 4)) - 1


def rounded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
