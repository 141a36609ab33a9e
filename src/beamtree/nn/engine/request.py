"""The input of an engine. Every engine is a function from a `Request` to a `Chart`.

A request holds tensors and Python scalars. Cell and scorer are functions of tensors too, or else modules that engines
only call under autograd (see `beamtree.nn.cells.base`).

Letters: B batch, K beams, N length, S width of a state, D width of an encoding (its first D elements).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from beamtree.nn.cells import AnyCell, CellFunction, ModuleCell
from beamtree.nn.engine.dropout import NodeDropout
from beamtree.nn.engine.scorers import AnyScorer, ModuleScorer
from beamtree.nn.topk.operators import TopKOperator, rank

Mix = Literal["paper", "official"]
Duplicates = Literal["keep", "drop", "merge"]


@dataclass(frozen=True)
class Request:
    """One forward pass: the leaf states, and everything else the search needs."""

    leaves: Float[Tensor, "B N S"]
    lengths: Int[Tensor, "B"]
    cell: AnyCell
    scorer: AnyScorer | None  # None: nodes are not scored
    beam_size: int
    soft: Mix | None = None  # OneSoft as second operator, and how it mixes; None: plain top-k
    stochastic: bool = False  # Gumbel noise on the selection
    duplicates: Duplicates = "keep"
    dropout: NodeDropout | None = None
    generator: torch.Generator | None = None
    topk: TopKOperator | None = None  # a user's operator, which chooses candidates and continuations

    @property
    def steps(self) -> int:
        """The number of merges that are a choice: all N−1 but the last."""
        return max(self.leaves.shape[1] - 2, 0)

    @property
    def candidates(self) -> int:
        """N−1, the candidates of a whole sequence."""
        return self.leaves.shape[1] - 1

    @property
    def branching(self) -> int:
        """The number of candidates that the first operator keeps for each beam."""
        return min(self.beam_size, self.candidates)

    @property
    def is_functional(self) -> bool:
        """Whether cell and scorer are functions of tensors. Otherwise gradients come from autograd alone."""
        return isinstance(self.cell, CellFunction) and not isinstance(self.scorer, ModuleScorer)

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """The weights that gradients are computed for, besides the leaves: the cell's, then the scorer's."""
        return (*self.cell.weights, *(self.scorer.weights if self.scorer else ()))

    @property
    def scores_children(self) -> bool:
        """Whether candidates are scored before they are composed."""
        return self.scorer is not None and self.scorer.reads_children

    def wants_gradient(self) -> bool:
        if not torch.is_grad_enabled():
            return False
        return not self.is_functional or any(t.requires_grad for t in (self.leaves, *self.weights))

    def module_calls(self) -> dict[str, Callable[[], Tensor]]:
        """A call of each part that is known only as a module, by name. `randomness` tries them beforehand."""
        nodes, calls = self._trial_nodes(), dict[str, Callable[[], Tensor]]()
        if isinstance(self.cell, ModuleCell):
            mask = None if self.dropout is None else nodes.new_ones(len(nodes), self.dropout.width)
            calls["cell"] = partial(self.cell, nodes, nodes, mask)
        if isinstance(self.scorer, ModuleScorer):
            read = torch.stack((nodes, nodes), dim=1) if self.scores_children else nodes
            calls["scorer"] = partial(self.scorer.logits, read)
        return calls

    def _trial_nodes(self) -> Float[Tensor, "2 S"]:
        """The first leaf, twice: in training a batch norm refuses a single row."""
        return self.leaves[0, :1].detach().expand(2, -1)

    @property
    def active(self) -> Bool[Tensor, "B T"]:
        """Whether a sample still has a choice at a step. A finished sample does not change."""
        steps = torch.arange(self.steps, device=self.leaves.device)
        return steps < self.lengths.unsqueeze(1) - 2

    @property
    def score_dtype(self) -> torch.dtype:
        """Scores and logits are never below float32."""
        return torch.promote_types(self.leaves.dtype, torch.float32)

    def start_scores(self) -> Float[Tensor, "B K"]:
        """The scores before the first step: 0 for one beam, −inf for the other, empty places."""
        shape, device = (len(self.leaves), self.beam_size), self.leaves.device
        scores = torch.full(shape, -torch.inf, dtype=self.score_dtype, device=device)
        scores[:, 0].zero_()
        return scores

    def score(self, x: Float[Tensor, "*nodes S"]) -> Float[Tensor, "..."]:
        """Logits of nodes, or of pairs of children (…, 2, S) where the scorer reads those."""
        assert self.scorer is not None
        return self.scorer.logits(x).to(self.score_dtype)

    def choose(
        self, scores: Float[Tensor, "*batch m"], k: int, noise: Float[Tensor, "*batch width"] | None
    ) -> Int[Tensor, "*batch k"]:
        """Indices of the k entries to keep: by the user's operator, or the k best.

        If noise is given, it is added to the scores; it may be wider than they are.
        """
        scores = scores.detach()
        if self.topk is not None:
            return checked_choice(self.topk(scores.clone(), k), scores, k)
        if noise is None:
            return rank(scores, k)
        return (scores + noise[..., : scores.shape[-1]]).topk(k).indices  # noise leaves no ties

    def close(self, history: Int[Tensor, "B K T *rest"], last: Int[Tensor, "B K *rest"]) -> Int[Tensor, "B K M *rest"]:
        """A history of the T choices, with the last merge inserted directly after each sample's last choice."""
        last = last.unsqueeze(2)
        columns = torch.arange(self.candidates, device=last.device)
        here = (columns == (self.lengths - 2).unsqueeze(1)).unsqueeze(1)  # (B, 1, M)
        here = here.view(*here.shape, *(1 for _ in last.shape[3:]))
        return last.where(here, torch.cat((history, last), dim=2)[:, :, : self.candidates])


def checked_choice(chosen: object, scores: Float[Tensor, "*batch m"], k: int) -> Int[Tensor, "*batch k"]:
    """The indices in the result of a user's operator, which need not be what its interface demands."""
    if getattr(chosen, "weights", None) is not None:
        raise ValueError(
            "the top-k operator returned mixture weights, but this search only selects: the encoders 'bt-grc-onesoft' "
            "and 'bt-grc-soft' mix beams"
        )
    indices, wanted = getattr(chosen, "indices", None), (*scores.shape[:-1], k)
    if not isinstance(indices, Tensor) or indices.shape != wanted:
        kind = type(chosen).__name__
        found = f"indices of shape {tuple(indices.shape)}" if isinstance(indices, Tensor) else f"a {kind}"
        raise ValueError(f"the top-k operator returned {found}: it must return a TopK with indices of shape {wanted}")
    present = ~scores.isneginf()
    if (present.gather(-1, indices).sum(-1) < present.sum(-1).clamp(max=k)).any():
        raise ValueError("the top-k operator chose an entry with a score of −inf, which is absent, and left others")
    return indices
