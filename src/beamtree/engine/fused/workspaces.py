"""The memory of fused searches, and their launches, captured once and replayed for every stretch of steps.

A workspace fits searches of one size: so many samples, beams and tokens. Its buffers stay where they are, as a captured
graph holds their addresses; the weights are copied in before each search. What a search found must be copied out before
the next one starts.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from beamtree.cells import Cell
from beamtree.engine.base import Noise, Request
from beamtree.engine.fused import kernels
from beamtree.engine.fused.capture import Captured, stream_of
from beamtree.engine.fused.compose import COMPOSE, precision
from beamtree.engine.pool import Pool, new_tables
from beamtree.engine.replay import History, look_back
from beamtree.engine.search import Step, Trace, first_rows, roots

STRETCH = Noise.STEPS  # steps in a graph: an even number, so that each begins with the same half of the rows
KEPT = 64  # workspaces at most, those used last: enough for all lengths of a training set and its dev set
SHARE = 1 / 8  # of a device's memory that they may hold


@dataclass(frozen=True)
class Size:
    """What a workspace, and the graph in it, is made for."""

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
        B, N, _ = request.leaves.shape
        device = request.leaves.device
        rate = None if request.dropout is None else float(request.dropout.scale)
        kind = (type(request.cell), request.stochastic, rate, precision(device))
        return cls(device, stream_of(device), B, N, request.beam_size, request.cell.dim, *kind)

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
    def nodes(self) -> int:
        return self.B * (self.N + self.M) + 2 * self.beams * self.steps


class Workspace:
    """Buffers of one size."""

    def __init__(self, size: Size, request: Request) -> None:
        self.size = size
        self.tables = new_tables(request, size.nodes)
        B, K, M, D, n = size.B, size.K, size.M, size.D, 2 * size.beams
        device: dict[str, Any] = {"device": size.device}
        self.J = request.branching
        self.heights = torch.zeros(size.nodes + 1, dtype=torch.int32, **device)
        self.heights[B * size.N : B * (size.N + M)] = 1  # the candidates of the leaves
        self.base = torch.zeros(1, dtype=torch.int32, **device)
        self.seed = torch.zeros(1, dtype=torch.int32, **device)
        self.lengths = torch.zeros(B, dtype=torch.int32, **device)
        self.rows = torch.zeros(2, B, K, M + 2, dtype=torch.int32, **device)
        self.scores = torch.zeros(2, B, K, **device)
        noisy = STRETCH if size.stochastic else 1
        self.noise = torch.zeros(noisy, B, K, M, **device)
        self.beam_noise = torch.zeros(noisy, B, K, self.J, **device)
        self.columns = torch.zeros(B, K, self.J, dtype=torch.int32, **device)
        self.log_p = torch.zeros(B, K, self.J, **device)
        self.normalisers = torch.zeros(B, K, **device)
        self.keys = torch.zeros(n, dtype=torch.int32, **device)
        self.present = torch.zeros(n, dtype=torch.int8, **device)
        self.inner = torch.zeros(n, 4 * D, **device)
        self.gates = torch.zeros(n, 5 * D, **device)  # the Tree-LSTM has five, the GRC four
        T, whole = size.steps, {**device, "dtype": torch.long}
        self.roots = torch.zeros(B, K, **whole)
        self.records = Step(
            torch.zeros(T, B, K, **whole),
            torch.zeros(T, B, K, **whole),
            torch.zeros(T, B, K, 3, **whole),
            torch.zeros(T, B, K, 2, **whole),
            torch.zeros(T, B, K, **device),
        )
        # Copies in any case: what is contiguous already would otherwise be the encoder's own weight.
        self.weights = [torch.empty_like(_laid_out(weight), memory_format=torch.contiguous_format)
                        for weight in request.weights]  # fmt: skip
        self.stretch: Captured[None] = Captured(size.device)
        self.history: Captured[History] = Captured(size.device)

    @property
    def bytes(self) -> int:
        """Of all that is not small."""
        large = (*self.tables, *self.records, self.rows, self.noise, self.beam_noise, self.inner, self.gates)
        return sum(tensor.nbytes for tensor in large)

    def search(self, request: Request, noise: Noise) -> Trace:
        """As `beamtree.engine.search.search`, of a request that was padded; the trace lies in this workspace.

        The noise is that of the request as it was asked, whose steps are all that are run.
        """
        size, asked = self.size, noise.request
        pool = Pool(request, size.nodes, self.tables)
        pool.heights = self.heights
        for own, weight in zip(self.weights, request.weights, strict=True):
            own.copy_(_laid_out(weight))
        if request.dropout:
            self.seed.copy_(request.dropout.offsets[:1])
        self.base.zero_()
        self.lengths.copy_(request.lengths)
        self.rows[0].copy_(first_rows(pool))
        self.scores[0].copy_(request.start_scores())
        step = 0
        for step in range(0, asked.steps, STRETCH):
            if request.stochastic:
                for buffer, values in zip((self.noise, self.beam_noise), noise.stretch(step), strict=True):
                    buffer[: len(values), ..., : values.shape[-1]].copy_(values)
            self.stretch.run(lambda: self.launch(request))
        self.rest(step + STRETCH)
        self.roots.copy_(roots(pool, self.rows[0].long()))
        records = Step(*(field[: request.steps] for field in self.records))
        return Trace(pool, records, [], self.scores[0], self.roots)

    def rest(self, first: int) -> None:
        """The records of the steps from here on: nothing moves."""
        if first >= self.size.steps:
            return
        source, action, dead, born, normaliser = (field[first:] for field in self.records)
        source.copy_(self.tables.numbers[: self.size.K])
        action.fill_(self.size.M + 1)
        dead.fill_(self.size.nodes)
        born.fill_(self.size.nodes)
        normaliser.fill_(torch.inf)

    def look_back(self, trace: Trace) -> History:
        """As `beamtree.engine.replay.look_back`, captured too; what it gives lies in this workspace."""
        if not trace.pool.request.wants_gradient():
            return look_back(trace)
        return self.history.run(lambda: look_back(trace))

    def launch(self, request: Request) -> None:
        """Every kernel of STRETCH steps."""
        size, tables = self.size, self.tables
        beams, W, first = size.beams, size.M + 2, size.B * (size.N + size.M)
        compose = COMPOSE[size.cell]
        wide = triton.next_power_of_2(W)
        warps = min(max(wide // 256, 4), 16)
        for slot in range(STRETCH):
            half = slot % 2
            kernels.propose[(beams,)](
                self.rows, tables.logits, self.noise, self.columns, self.log_p, self.normalisers, self.base,
                slot, half, beams, size.M, W,
                J=self.J, NOISY=size.stochastic, BLOCK=wide, num_warps=warps,
            )  # fmt: skip
            kernels.advance[(beams,)](
                self.rows, self.scores, self.lengths, tables.children, tables.spans, self.heights, self.beam_noise,
                self.columns, self.log_p, self.normalisers, self.base, *self.records, self.keys, self.present,
                slot, half, first, size.nodes, beams, W,
                K=size.K, J=self.J, NOISY=size.stochastic, BLOCK=wide,
                CONTINUATIONS=triton.next_power_of_2(size.K * self.J), num_warps=warps,
            )  # fmt: skip
            compose(self, request, slot)
        self.base += STRETCH


def _laid_out(weight: Tensor) -> Tensor:
    """As the kernels read it: a matrix by its inputs, each a row of outputs."""
    return weight.detach().mT if weight.dim() == 2 else weight.detach()


_kept: OrderedDict[Hashable, Workspace] = OrderedDict()


def padded_length(length: int) -> int:
    """The length that a workspace is made for: one of a few, an eighth more at most beyond 256 tokens.

    It is such that a row, which has two places more than candidates, is a multiple of 16.
    """
    return rounded(length + 1, max(16, 1 << length.bit_length() >> 4)) - 1


def rounded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def workspace(request: Request) -> Workspace:
    """That for a request's size; the one that was not used for longest makes way for a new one."""
    size = Size.of(request)
    if size not in _kept:
        with torch.inference_mode(False):  # training may use it too
            _kept[size] = Workspace(size, request)
        while too_many([memory.bytes for memory in _kept.values()], KEPT, size.device):
            _kept.popitem(last=False)
    _kept.move_to_end(size)
    return _kept[size]


def too_many(sizes: list[int], kept: int, device: torch.device) -> bool:
    """Whether memories of these sizes are more than may be kept. One may always."""
    if len(sizes) <= 1 or device.type != "cuda":
        return len(sizes) > kept
    return len(sizes) > kept or sum(sizes) > SHARE * torch.cuda.get_device_properties(device).total_memory


def release() -> None:
    """Give all memory back."""
    _kept.clear()
