"""The request to a shift-reduce parser, and the decision that it makes at each step.

    p(reduce) = σ(w · GELU(W [s₂; s₁; q] + b) + b′),   p(shift) = 1 − p(reduce)

where s₂ and s₁ are the top two states of the stack, and q is the next word of the queue.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from beamtree.nn.cells import gelu
from beamtree.nn.cells.base import Layer
from beamtree.nn.engine.functional import Composite
from beamtree.nn.engine.request import Request

REDUCE, SHIFT = range(2)  # actions


@dataclass(frozen=True)
class Decision(Composite):
    """The decision as a function of tensors, or of modules if these are not plain layers."""

    features: Layer  # W and b
    scorer: Layer  # w and b′
    start: Float[Tensor, "D"]  # replaces a missing s₂

    def __call__(
        self, states: Float[Tensor, "*beams 3 D"], possible: Bool[Tensor, "*beams 2"]
    ) -> Float[Tensor, "*beams 2"]:
        """Log-probabilities of reducing and shifting, from s₂, s₁ and q.

        They are 0 for a forced action, and −inf for one that is impossible because s₂ or q is missing.
        """
        second, top, word = states.unbind(-2)  # (…, D)
        second = second.where(possible[..., REDUCE, None], self.start)
        word = word.where(possible[..., SHIFT, None], 0)
        return log_probabilities(self.logits(torch.cat((second, top, word), dim=-1)), ~possible)

    def logits(self, seen: Float[Tensor, "*beams seen"]) -> Float[Tensor, "*beams"]:
        """Logits of reducing, from [s₂; s₁; q]."""
        rows = seen.flatten(0, -2)  # (n, 3D)
        logits: Tensor = self.scorer(gelu(self.features(rows)))  # (n, 1)
        return logits.to(seen.dtype).view(seen.shape[:-1])


def log_probabilities(
    logits: Float[Tensor, "*beams"], impossible: Bool[Tensor, "*beams 2"]
) -> Float[Tensor, "*beams 2"]:
    """Log-probabilities of reducing and shifting, from the logits of reducing."""
    log_p = F.logsigmoid(torch.stack((logits, -logits), dim=-1))  # (…, 2)
    forced = impossible.flip(-1)
    return log_p.masked_fill(forced, 0).masked_fill(impossible, -torch.inf)


@dataclass(frozen=True, kw_only=True)
class ParserRequest(Request):
    """One forward pass of a parser. It scores actions instead of nodes, so `scorer` is None."""

    decision: Decision

    @property
    def steps(self) -> int:
        """Number of actions for a full-length sequence, 2N−3: its first two words start on the stack."""
        return max(2 * self.leaves.shape[1] - 3, 0)

    @property
    def active(self) -> Bool[Tensor, "B T"]:
        """Whether a sample still acts at a step. A finished sample does not change."""
        steps = torch.arange(self.steps, device=self.leaves.device)
        return steps < 2 * self.lengths.unsqueeze(1) - 3

    @property
    def is_functional(self) -> bool:
        return super().is_functional and self.decision.is_functional

    def module_calls(self) -> dict[str, Callable[[], Tensor]]:
        calls = super().module_calls()
        if not self.decision.is_functional:
            calls["features or scorer"] = partial(self.decision.logits, self._trial_nodes().repeat(1, 3))
        return calls

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """The cell's, then the decision's."""
        return (*self.cell.weights, *self.decision.weights, self.decision.start)
