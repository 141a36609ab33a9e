"""Gumbel noise of a search."""

from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from beamtree.nn.topk.operators import gumbel

if TYPE_CHECKING:
    from beamtree.nn.engine.request import Request


class Noise:
    """Gumbel noise for the selection of candidates and of continuations.

    It is on the candidates of each beam, and on the continuations of all beams, unless OneSoft is the second operator.
    Without noise both are None.

    All engines draw it here and for the full width, so that they use the same noise for the same seed. It is drawn for
    many steps at once, which saves most of the calls and costs little memory.
    """

    STEPS = 16  # drawn at once, or a multiple of them …
    ELEMENTS = 2**20  # … with about this many elements

    def __init__(self, request: "Request") -> None:
        self.request, self.like = request, request.start_scores()
        row = self.like.numel() * request.candidates
        self.block = self.STEPS * max(1, self.ELEMENTS // max(self.STEPS * row, 1))
        self.drawn: tuple[Tensor, Tensor]
        self.current: tuple[Tensor, Tensor]

    def at(self, step: int) -> tuple[Float[Tensor, "B K M"] | None, Float[Tensor, "B K J"] | None]:
        """The noise of one step. Call for all steps in order."""
        if not self.request.stochastic:
            return None, None
        if step % self.STEPS == 0:
            self.current = self.segment(step)
        candidates, beams = (noise[step % self.STEPS] for noise in self.current)
        return candidates, None if self.request.soft else beams

    def segment(self, step: int) -> tuple[Float[Tensor, "T B K M"], Float[Tensor, "T B K J"]]:
        """The noise of the next STEPS steps, or of those that are left. Call for all segments in order."""
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
