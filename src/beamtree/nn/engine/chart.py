"""The output of an engine. Letters: B batch, K beams, M = N−1 merges, S width of a state."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Chart:
    """All states an engine kept, and the beams as references into them. Beams are in no particular order.

    Attributes:
        store: states of nodes, (rows, S); the first B·N rows are the leaves.
        scores: scores of the beams, (B, K); −inf if there is no such beam.
        actions: merges of each beam, (B, K, N−1); action j joins elements j and j+1 of the sequence at that time.
        nodes: the row of `store` that each action made, (B, K, N−1).
        spans: the [start, end) of that node, (B, K, N−1, 2).

    Examples:
        >>> chart = beamtree.encoder("bt-grc", dim=8)(torch.randn(1, 4, 8)).beams.chart
        >>> chart.actions.shape
        torch.Size([1, 5, 3])
    """

    store: Float[Tensor, "rows S"]
    scores: Float[Tensor, "B K"]
    actions: Int[Tensor, "B K M"]
    nodes: Int[Tensor, "B K M"]
    spans: Int[Tensor, "B K M 2"]
