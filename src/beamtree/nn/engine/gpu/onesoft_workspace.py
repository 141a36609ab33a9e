"""Workspaces for fused searches with OneSoft. A whole search is captured in one graph.

The pool of a workspace holds

    B·N leaves | B·(N−1) first candidates | the candidates of all steps | the soft states of all steps | the absent node

so that the candidates of several steps are contiguous, and the backward pass recomposes them in one batch.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.nn.cells import CellFunction
from beamtree.nn.engine.beam.search import first_rows, roots
from beamtree.nn.engine.gpu.capture import Captured
from beamtree.nn.engine.gpu.cells import NewNodes
from beamtree.nn.engine.gpu.kernels import onesoft as soft_kernels
from beamtree.nn.engine.gpu.kernels import search as kernels
from beamtree.nn.engine.gpu.precision import buffer_for, lay_out, method
from beamtree.nn.engine.noise import Noise
from beamtree.nn.engine.pool import Pool, new_tables
from beamtree.nn.engine.request import Mix, Request
from beamtree.nn.engine.scorers import ParentScorerFunction


class StepBlock(NamedTuple):
    """The nodes that a step adds, and where they are in the pool."""

    t: int
    m: int  # candidates of a row before the step; soft states after it
    composed: int
    made: int  # candidates composed
    elements: int


@dataclass(frozen=True)
class SoftSize:
    """What a workspace is specialised for: its key."""

    device: torch.device
    stream: int
    B: int
    N: int
    K: int
    cell: CellFunction  # unbound
    stochastic: bool
    dropout: float | None
    precision: str
    mix: Mix

    @property
    def M(self) -> int:
        return self.N - 1

    @property
    def D(self) -> int:
        return self.cell.dim

    @property
    def S(self) -> int:
        return self.cell.state_dim

    @cached_property
    def blocks(self) -> list[StepBlock]:
        counts = [self.B * (2 * (self.K - 1) + m - 1) for m in range(self.M, 1, -1)]
        composed = self.B * (self.N + self.M)
        elements = composed + sum(counts)
        found = []
        for t, count in enumerate(counts):
            found.append(StepBlock(t, self.M - t, composed, count, elements))
            composed += count
            elements += self.B * (self.M - t)
        return found

    @property
    def nodes(self) -> int:
        last = self.blocks[-1]
        return last.elements + self.B * last.m


class FusedSoftTrace(NamedTuple):
    """A finished search, in the buffers of the workspace."""

    pool: Pool
    source: Int[Tensor, "T B K"]
    action: Int[Tensor, "T B K"]
    node: Int[Tensor, "T B K"]
    scores: Float[Tensor, "B K"]
    roots: Int[Tensor, "B K"]


class SoftWorkspace:
    """Buffers of one size. The backward pass reads what a search has left in them."""

    def __init__(self, size: SoftSize, request: Request) -> None:
        self.size, self.J = size, request.branching
        self.tables = new_tables(request, size.nodes)
        B, K, M, D, T, J = size.B, size.K, size.M, size.D, len(size.blocks), self.J
        device: dict[str, Any] = {"device": size.device}
        int32, int64 = {**device, "dtype": torch.int32}, {**device, "dtype": torch.long}
        widest = size.blocks[0].made
        self.base = torch.zeros(1, **int32)
        self.lengths = torch.zeros(B, **int32)
        self.rows = torch.full((T + 1, B, K, M + 2), size.nodes, **int32)
        self.scores = torch.zeros(T + 1, B, K, **device)
        self.noise = torch.zeros(T if size.stochastic else 1, B, K, M, **device)
        self.columns, self.log_p = torch.zeros(B, K, J, **int32), torch.zeros(B, K, J, **device)
        self.normalisers = torch.zeros(B, K, **device)
        self.keys, self.present = torch.zeros(widest, **int32), torch.zeros(widest, dtype=torch.int8, **device)
        found = size.cell.kernels()
        assert found is not None
        self.cell_kernels = found
        self.inner, self.gates = (
            torch.zeros(widest, width * D, **device) for width in (found.inner_width, found.gates_width)
        )
        # The records of all steps.
        self.all_columns = torch.ones(T, B, K, J, **int32)
        self.continuations, self.weights = torch.zeros(T, B, K * J, **device), torch.zeros(T, B, K * J, **device)
        self.order = torch.zeros(T, B, K, **int32)
        self.source, self.action, self.node = (torch.zeros(T, B, K, **int64) for _ in range(3))
        # Copies of the weights and of the dropout seed, since a graph needs fixed addresses.
        self.cell = size.cell.bind([torch.empty_like(weight).contiguous() for weight in request.cell.weights])
        assert isinstance(request.scorer, ParentScorerFunction)
        self.scorer = request.scorer.bind([torch.empty_like(weight).contiguous() for weight in request.scorer.weights])
        self.dropout = request.dropout and request.dropout.duplicate()
        self.seed = self.dropout.offsets[:1] if self.dropout else torch.zeros(1, **int32)
        self.method = method(widest, size.precision)
        self.laid_out = [w if w.dim() == 1 else buffer_for(w.mT, self.method) for w in self.cell.weights]
        self.captured: Captured[None] = Captured(size.device)

    @property
    def matrices(self) -> list[Tensor]:
        return [weight for weight in self.cell.weights if weight.dim() == 2]

    @property
    def bytes(self) -> int:
        tables = (*self.tables, self.rows, self.noise, self.inner, self.gates, self.weights, self.continuations)
        return sum(tensor.nbytes for tensor in tables)

    def search(self, request: Request, noise: Noise) -> FusedSoftTrace:
        """Same as `beamtree.nn.engine.onesoft.search.search`, for a padded request.

        The noise is that of the original request.
        """
        pool = Pool(request, self.size.nodes, self.tables)
        torch._foreach_copy_([*self.cell.weights, *self.scorer.weights], list(request.weights))
        for buffer, weight in zip(self.laid_out, self.cell.weights, strict=True):
            if buffer is not weight:
                lay_out(buffer, weight.mT)
        if self.dropout and request.dropout:
            self.dropout.copy_(request.dropout)
        self.lengths.copy_(request.lengths)
        self.rows[0].copy_(first_rows(pool))
        self.scores[0].copy_(request.start_scores())
        if request.stochastic:
            for step in range(0, noise.request.steps, noise.STEPS):
                drawn, _ = noise.segment(step)
                self.noise[step : step + len(drawn), ..., : drawn.shape[-1]].copy_(drawn)
        self.captured.run(self._launch)
        last = roots(pool, self.rows[-1].long())
        return FusedSoftTrace(pool, self.source, self.action, self.node, self.scores[-1].clone(), last)

    def _launch(self) -> None:
        """Launch every kernel of a search."""
        size, tables, W = self.size, self.tables, self.size.M + 2
        beams, wide = size.B * size.K, triton.next_power_of_2(W)
        warps = min(max(wide // 256, 4), 16)
        operator = {"K": size.K, "J": self.J}
        several = triton.next_power_of_2(size.K * self.J)
        for t, m, composed, made, elements in size.blocks:
            kernels.propose[(beams,)](
                self.rows, tables.logits, self.noise, self.columns, self.log_p, self.normalisers, self.base,
                t, t, beams, size.M, W,
                J=self.J, NOISY=size.stochastic, BLOCK=wide, num_warps=warps,
            )  # fmt: skip
            soft_kernels.choose[(beams,)](
                self.rows, self.scores, self.lengths, tables.children, tables.spans, self.columns, self.log_p,
                self.all_columns, self.continuations, self.weights, self.order, self.source, self.action, self.node,
                self.keys, self.present,
                t, m, composed, elements, size.nodes, size.B, W,
                **operator, BLOCK=wide, CONTINUATIONS=several, num_warps=warps,
            )  # fmt: skip
            soft_kernels.average[(size.B * m,)](
                self.rows, tables.states, tables.children, tables.spans, self.lengths, self.all_columns, self.weights,
                self.source, self.action, self.keys, self.present,
                t, m, composed, elements, size.B, W, size.S,
                **operator, OFFICIAL=size.mix == "official", BLOCK=triton.next_power_of_2(size.S), num_warps=1,
            )  # fmt: skip
            self._compose(composed, made)

    def _compose(self, first: int, n: int) -> None:
        """Compose the `n` new nodes of a step, from `first` on."""
        buffers = (self.tables, self.tables.ids[first : first + n], self.keys, self.present, self.inner, self.gates)
        scorer = self.scorer.weights
        self.cell_kernels.compose(
            NewNodes(self.cell, self.laid_out, self.method, scorer, self.dropout, self.seed, *buffers)
        )
