"""The scorer of a candidate's children (Ray Chowdhury & Caragea, *Efficient Beam Tree Recursion*, NeurIPS 2023).

    s(l, r) = w · GELU(V [l[:d]; r[:d]] + c) + b        V: d × 2d

It does not need the parent, so that a candidate is composed only once it is chosen. The plain scorer, an `nn.Linear`,
reads the parent itself.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from beamtree.cells import gelu


class ChildScorer(nn.Linear):
    """Its own weight and bias are w and b; V and c are those of `hidden`."""

    def __init__(self, width: int) -> None:
        """width: d, how many numbers of each child it reads, the first ones."""
        super().__init__(width, 1)
        self.hidden = nn.Linear(2 * width, width)

    def read(self, pairs: Float[Tensor, "*pairs 2 S"]) -> Float[Tensor, "*pairs seen"]:
        return pairs[..., : self.in_features].flatten(-2)  # (…, 2d)

    def logits(self, pairs: Float[Tensor, "*pairs 2 S"]) -> Float[Tensor, "*pairs"]:
        logits: Tensor = self(gelu(self.hidden(self.read(pairs))))
        return logits.squeeze(-1)

    def pull_back(
        self, pairs: Float[Tensor, "n 2 S"], gradient: Float[Tensor, "n"]
    ) -> tuple[Float[Tensor, "n 2 d"], tuple[Tensor, ...]]:
        """From the gradient of the logits to that of what was read, and to those of `parameters()`, in that order."""
        seen = self.read(pairs)  # (n, 2d)
        a = self.hidden(seen).to(seen.dtype)  # (n, d)
        d_a = torch.ops.aten.gelu_backward(gradient.unsqueeze(1) * self.weight.to(seen.dtype), a)  # (n, d)
        down = (d_a @ self.hidden.weight).to(seen.dtype)  # (n, 2d)
        weights = gradient.unsqueeze(0) @ F.gelu(a), gradient.sum(0, keepdim=True), d_a.mT @ seen, d_a.sum(0)
        return down.unflatten(1, (2, self.in_features)), weights
