"""The gradient of a fused beam search: through its scores, then through the forest of surviving nodes."""

import torch
from jaxtyping import Float
from torch import Tensor

from beamtree.nn.cells import CellFunction
from beamtree.nn.engine.beam.score_gradient import from_children, from_parents, linear
from beamtree.nn.engine.gpu.capture import Captured
from beamtree.nn.engine.gpu.forest import ForestSource, PaddedForest
from beamtree.nn.engine.gpu.workspace import BeamWorkspace
from beamtree.nn.engine.scorers import ParentScorerFunction, ScorerFunction


class BeamGradient(PaddedForest):
    """Buffers for the gradient of the search that a workspace holds."""

    def __init__(self, memory: BeamWorkspace) -> None:
        self.memory, request, size, survivors = memory, memory.request, memory.size, memory.survivors
        assert isinstance(request.cell, CellFunction)
        source = ForestSource(
            request.cell, request.dropout, memory.seed, memory.tables, survivors.order, survivors.ends
        )
        super().__init__(source, size.stream, size.precision, memory.levels, size.B, size.N)
        self.score_gradient = torch.zeros_like(memory.scores[0])
        self.scorer_gradients = [torch.zeros_like(weight) for weight in memory.scorer_weights]
        self.beginning: Captured[None] = Captured(size.device)

    def begin(self, scores: Float[Tensor, "B K"]) -> None:
        self.score_gradient.copy_(scores)
        self.beginning.run(self._through_scores)

    @property
    def totals(self) -> list[Tensor]:
        return [*self.forest.totals, *self.scorer_gradients]

    def _through_scores(self) -> None:
        """Propagate to the logits of all candidates, the states they were computed from, and the scorer's weights."""
        self.forest.prepare()
        memory, (states, logits, *_) = self.memory, self.memory.tables
        found = linear(self.score_gradient, len(logits), memory.survivors.candidates, memory.survivors.coefficients)
        scorer, first = memory.request.scorer, memory.size.B * memory.size.N
        if isinstance(scorer, ParentScorerFunction):
            weights = from_parents(scorer, found, states, self.forest.gradient)
        else:  # leaves are not candidates; candidates without a coefficient get zeros
            assert isinstance(scorer, ScorerFunction)
            pairs = memory.tables.children[first:]
            weights = from_children(scorer, pairs, found[first:], states, self.forest.gradient)
        torch._foreach_copy_(self.scorer_gradients, list(weights))
