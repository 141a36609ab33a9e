"""What an engine is asked, and what it answers. Every engine is a function from a `Request` to a `Chart`.

Letters: B batch, K beams, N length, S width of a state, D width of an encoding (its first D numbers).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from beamtree.cells import Cell
from beamtree.dropout import NodeDropout
from beamtree.engine.child_scorer import ChildScorer
from beamtree.topk import gumbel, rank

Mix = Literal["paper", "official"]
Duplicates = Literal["keep", "drop", "merge"]


@dataclass(frozen=True)
class Request:
    """One forward pass: leaf states in, with everything the search must know."""

    leaves: Float[Tensor, "B N S"]
    lengths: Int[Tensor, "B"]
    cell: Cell
    scorer: nn.Linear  # of parents; a `ChildScorer` reads the children, and then only what is chosen is composed
    beam_size: int
    soft: Mix | None = None  # OneSoft's second operator, and what it mixes; None: the plain one
    stochastic: bool = False  # Gumbel noise on the selection
    duplicates: Duplicates = "keep"
    dropout: NodeDropout | None = None
    generator: torch.Generator | None = None

    @property
    def steps(self) -> int:
        """Merges that are a choice: all N−1 but the last."""
        return max(self.leaves.shape[1] - 2, 0)

    @property
    def candidates(self) -> int:
        """N−1, the candidates of a whole sequence."""
        return self.leaves.shape[1] - 1

    @property
    def branching(self) -> int:
        """How many candidates the first operator keeps for each beam."""
        return min(self.beam_size, self.candidates)

    @property
    def weights(self) -> tuple[nn.Parameter, ...]:
        """What a gradient is wanted for, besides the leaves: the cell's parameters, then the scorer's."""
        return (*self.cell.parameters(), *self.scorer.parameters())

    def wants_gradient(self) -> bool:
        return torch.is_grad_enabled() and any(t.requires_grad for t in (self.leaves, *self.weights))

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
        """One beam to begin with: score 0; the other places are empty: −inf."""
        shape, device = (len(self.leaves), self.beam_size), self.leaves.device
        scores = torch.full(shape, -torch.inf, dtype=self.score_dtype, device=device)
        scores[:, 0].zero_()
        return scores

    @property
    def scores_children(self) -> bool:
        return isinstance(self.scorer, ChildScorer)

    def score(self, states: Float[Tensor, "*nodes S"]) -> Float[Tensor, "*nodes"]:
        """The scorer reads a node's encoding."""
        return self.scorer(states[..., : self.cell.dim]).squeeze(-1).to(self.score_dtype)

    def score_children(self, pairs: Float[Tensor, "*pairs 2 S"]) -> Float[Tensor, "*pairs"]:
        """Or it reads those of the two that a node would join."""
        assert isinstance(self.scorer, ChildScorer)
        return self.scorer.logits(pairs).to(self.score_dtype)

    def close(self, history: Int[Tensor, "B K T *rest"], last: Int[Tensor, "B K *rest"]) -> Int[Tensor, "B K M *rest"]:
        """A history of the T choices with the last merge put right behind a sample's own last choice."""
        last = last.unsqueeze(2)
        columns = torch.arange(self.candidates, device=last.device)
        here = (columns == (self.lengths - 2).unsqueeze(1)).unsqueeze(1)  # (B, 1, M)
        here = here.view(*here.shape, *(1 for _ in last.shape[3:]))
        return last.where(here, torch.cat((history, last), dim=2)[:, :, : self.candidates])


class Noise:
    """Gumbel noise for the selection: on the candidates of each beam, and on the continuations of all beams, unless
    OneSoft is the second operator. Without noise both are None.

    Engines draw it here and for the full width, so that they meet the same noise under the same seed. It is drawn for
    many steps at a time, which saves most of the calls and costs little memory.
    """

    STEPS = 16  # or a multiple of it …
    NUMBERS = 2**20  # … that takes about so many numbers

    def __init__(self, request: Request) -> None:
        self.request, self.like = request, request.start_scores()
        row = self.like.numel() * request.candidates
        self.block = self.STEPS * max(1, self.NUMBERS // max(self.STEPS * row, 1))
        self.drawn: tuple[Tensor, Tensor]
        self.near: tuple[Tensor, Tensor]

    def at(self, step: int) -> tuple[Float[Tensor, "B K M"] | None, Float[Tensor, "B K J"] | None]:
        """For one step; steps must be asked for in order."""
        if not self.request.stochastic:
            return None, None
        if step % self.STEPS == 0:
            self.near = self.stretch(step)
        candidates, beams = (noise[step % self.STEPS] for noise in self.near)
        return candidates, None if self.request.soft else beams

    def stretch(self, step: int) -> tuple[Float[Tensor, "T B K M"], Float[Tensor, "T B K J"]]:
        """For the next STEPS steps, or those that are left; stretches must be asked for in order."""
        request, first = self.request, step % self.block
        if first == 0:
            steps = min(self.block, request.steps - step)
            candidates, beams = (
                gumbel((steps, *self.like.shape, width), self.like, request.generator)
                for width in (request.candidates, request.branching)
            )
            self.drawn = candidates, beams
        candidates, beams = (noise[first : first + self.STEPS] for noise in self.drawn)
        return candidates, beams


def choose(
    scores: Float[Tensor, "*batch m"], k: int, noise: Float[Tensor, "*batch width"] | None
) -> Int[Tensor, "*batch k"]:
    """Indices of the k best, under noise if there is any (which may be wider than the scores)."""
    if noise is None:
        return rank(scores.detach(), k)
    return (scores.detach() + noise[..., : scores.shape[-1]]).topk(k).indices  # noise leaves no ties


@dataclass(frozen=True)
class Chart:
    """All states an engine kept, and the beams as references into them. Beams are in no order."""

    store: Float[Tensor, "rows S"]  # the first B·N rows are the leaves
    scores: Float[Tensor, "B K"]  # −inf: no such beam
    actions: Int[Tensor, "B K M"]  # M = N−1; action j joins elements j and j+1 of the sequence at that time
    nodes: Int[Tensor, "B K M"]  # the row of `store` that each action made
    spans: Int[Tensor, "B K M 2"]  # its [start, end)
