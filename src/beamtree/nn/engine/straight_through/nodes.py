"""The nodes of straight-through sampling, recomposed in batches for the backward pass."""

import itertools
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from beamtree.nn.cells.adjoint import Adjoint, batch_size
from beamtree.nn.engine.beam.replay import Functions
from beamtree.nn.engine.pool import take
from beamtree.nn.engine.scorers import ParentScorerFunction


class Sides(NamedTuple):
    """What a step needs of each candidate P = R(l, r); 0 for leaves and for the absent node."""

    rise: Float[Tensor, "*shape S"]  # P − r
    run: Float[Tensor, "*shape S"]  # r − l
    left: Float[Tensor, "*shape S"]  # ∂ℓ/∂l, ℓ the logit of P
    right: Float[Tensor, "*shape S"]  # ∂ℓ/∂r

    def take(self, ids: Int[Tensor, "B K m"]) -> "Sides":
        return Sides(*(take(table, ids) for table in self))


class SampleNodes:
    """The nodes of the pool, to be recomposed: first the leaves, then the candidates, then the absent node."""

    def __init__(
        self,
        functions: Functions,
        states: Float[Tensor, "P S"],
        logits: Float[Tensor, "P"],
        children: Int[Tensor, "P 2"],
        spans: Int[Tensor, "P 3"],
        lengths: Int[Tensor, "B"],
        leaves: int,
    ) -> None:
        self.cell, scorer, self.dropout = functions.cell, functions.scorer, functions.dropout
        assert isinstance(scorer, ParentScorerFunction)
        self.scorer = scorer
        with torch.inference_mode(False):  # autograd tracks these weights, even if the user has frozen them
            self.tracked = self.cell.bind([weight.detach().requires_grad_() for weight in self.cell.weights])
        self.states, self.logits, self.children, self.spans, self.lengths = states, logits, children, spans, lengths
        self.size = batch_size(states.device)
        ends = (*range(leaves, len(states) - 1, self.size), len(states) - 1)
        self.parts = [slice(*pair) for pair in itertools.pairwise(ends)]  # all candidates
        self.latest: tuple[slice, tuple[Tensor, Tensor, Tensor]] | None = None

    def mask(self, pairs: Int[Tensor, "n 2"]) -> Float[Tensor, "n width"] | None:
        return self.dropout.mask(*take(self.spans, pairs).unbind(1)) if self.dropout else None

    def adjoint(self, ids: Int[Tensor, "n"]) -> Adjoint:
        pairs = take(self.children, ids)  # (n, 2)
        return self.cell.adjoint(take(self.states, pairs), self.mask(pairs))

    def compose(self, part: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Left children, right children and parents, under autograd.

        The latest part is cached, so that a single part is composed only once for `sides` and `add_weight_gradients`.
        """
        if self.latest is None or self.latest[0] != part:
            self.latest = None  # frees its memory
            with torch.inference_mode(False), torch.enable_grad():
                pairs = self.children[part]  # (n, 2)
                left, right = (side.requires_grad_() for side in take(self.states, pairs.mT))  # (n, S)
                self.latest = part, (left, right, self.tracked(left, right, self.mask(pairs)))
        return self.latest[1]

    def sides(self, sides: Sides) -> Sides:
        """Fill in the rows of all candidates."""
        for part in self.parts:
            left, right, parent = self.compose(part)
            torch.sub(self.states[part], right.detach(), out=sides.rise[part])
            torch.sub(right.detach(), left.detach(), out=sides.run[part])
            gradient = self.from_logits(self.states.new_ones(len(left))).to(parent.dtype)
            found = torch.autograd.grad(parent, (left, right), gradient, retain_graph=True)
            sides.left[part], sides.right[part] = found
        return sides

    def add_weight_gradients(self, weight_gradients: list[Tensor], gradient: Float[Tensor, "P S"]) -> None:
        for part in reversed(self.parts):
            parent = self.compose(part)[2]
            found = torch.autograd.grad(parent, self.tracked.weights, gradient[part].to(parent.dtype))
            torch._foreach_add_(weight_gradients, found)
            self.latest = None

    def from_logits(self, gradient: Float[Tensor, "n"]) -> Float[Tensor, "n S"]:
        """The gradient of nodes' states, given that of their logits."""
        weight = self.scorer.weights[0].squeeze(0).to(self.states.dtype)
        weight = nn.functional.pad(weight, (0, self.states.shape[1] - len(weight)))  # a Tree-LSTM's c is not scored
        return gradient.to(weight.dtype).unsqueeze(1) * weight
