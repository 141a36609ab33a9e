"""Pooling: one state for each sample from the states of all its positions."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.nn.encoders.base import inside


def pool(states: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"], pooling: str) -> Float[Tensor, "B D"]:
    """The "max" or "mean" of each element over the positions of a sample, or the state of its "first" position."""
    if pooling == "first":
        return states[:, 0]
    padding = ~inside(lengths, states.shape[1]).unsqueeze(2)  # (B, N, 1)
    if pooling == "max":
        return states.masked_fill(padding, -torch.inf).amax(1)
    return states.masked_fill(padding, 0).sum(1) / lengths.unsqueeze(1)
