"""The gradient of a fused beam search: of its scores, then of the forest of nodes that survived."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.nn.cells import CellFunction
from beamtree.nn.engine.beam.score_gradient import from_children, from_parents, linear
from beamtree.nn.engine.gpu.capture import Captured
from beamtree.nn.engine.gpu.forest import ForestGradient, ForestSource
from beamtree.nn.engine.gpu.workspace import BeamWorkspace
from beamtree.nn.engine.scorers import ParentScorerFunction, ScorerFunction


class BeamGradient:
    """Buffers for the gradient of the search that a workspace holds."""

    def __init__(self, memory: BeamWorkspace) -> None:
        self.memory, request, size = memory, memory.request, memory.size
        assert isinstance(request.cell, CellFunction)
        survivors = memory.survivors
        source = ForestSource(
            request.cell, request.dropout, memory.seed, memory.tables, survivors.order, survivors.ends
        )
        self.forest = ForestGradient(source, size.stream, size.precision)
        self.score_gradient = torch.zeros_like(memory.scores[0])
        self.scorer_gradients = [torch.zeros_like(weight) for weight in memory.scorer_weights]
        self.beginning: Captured[None] = Captured(size.device)

    @property
    def bytes(self) -> int:
        return self.forest.bytes

    def pull_back(
        self,
        leaves: Float[Tensor, "B N S"],
        nodes: Int[Tensor, "n"],
        states: Float[Tensor, "n S"],
        scores: Float[Tensor, "B K"],
    ) -> tuple[Tensor, ...]:
        """As `beamtree.nn.engine.gpu.replay.Gradient.pull_back`."""
        size, N, gradient = self.memory.size, leaves.shape[1], self.forest.gradient
        own = gradient[: size.B * size.N].view(size.B, size.N, -1)[:, :N]
        gradient.zero_()
        own.copy_(leaves)
        gradient.index_add_(0, nodes, states)
        self.score_gradient.copy_(scores)
        with self.forest.chunk.lock, torch.autocast(size.device.type, enabled=False):
            self.beginning.run(self._through_scores)
            self.forest.pull_back(self.memory.levels())
            return own.clone(), *(total.clone() for total in (*self.forest.totals, *self.scorer_gradients))

    def _through_scores(self) -> None:
        """To the logits of all candidates, to the states they were read from, and to the scorer's weights."""
        self.forest.prepare()
        memory, (states, logits, *_) = self.memory, self.memory.tables
        found = linear(self.score_gradient, len(logits), memory.survivors.candidates, memory.survivors.coefficients)
        scorer, first = memory.request.scorer, memory.size.B * memory.size.N
        if isinstance(scorer, ParentScorerFunction):
            weights = from_parents(scorer, found, states, self.forest.gradient)
        else:  # the leaves are no candidates; those that do not matter get zeros
            assert isinstance(scorer, ScorerFunction)
            pairs = memory.tables.children[first:]
            weights = from_children(scorer, pairs, found[first:], states, self.forest.gradient)
        torch._foreach_copy_(self.scorer_gradients, list(weights))
