"""The output of an engine. Letters: B batch, K beams, M = N−1 merges, S width of a state."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Chart:
    """All states an engine kept, and the beams as references into them. Beams are in no particular order."""

    store: Float[Tensor, "rows S"]  # the first B·N rows are the leaves
    scores: Float[Tensor, "B K"]  # −inf: no such beam
    actions: Int[Tensor, "B K M"]  # action j joins elements j and j+1 of the sequence at that time
    nodes: Int[Tensor, "B K M"]  # the row of `store` that each action made
    spans: Int[Tensor, "B K M 2"]  # its [start, end)
