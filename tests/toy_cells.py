"""A small cell of a user's, as a module and as a function of tensors."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from beamtree.nn.cells import Cell, CellFunction
from beamtree.nn.cells.base import apply_mask


class Tanh(Cell):
    """dropout(tanh(W [l; r])) + (l − r) / 2. Engines call the module."""

    def __init__(self, dim: int, dropout: float = 0.0, mask_dim: int | None = None) -> None:
        super().__init__(dim, dropout)
        self.state_dim, self.mask_dim = dim, dim if mask_dim is None else mask_dim
        self.weight = nn.Parameter(torch.randn(dim, 2 * dim))

    def leaf(self) -> nn.Module:
        return nn.Linear(self.dim, self.dim)

    def forward(self, left: Tensor, right: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.drop(torch.tanh(F.linear(torch.cat((left, right), dim=-1), self.weight)), mask) + (left - right) / 2


class FunctionalTanh(Tanh):
    """The same. Engines compute with its function."""

    def function(self) -> "TanhFunction":
        return TanhFunction(self.dim, (self.weight,))


@dataclass(frozen=True)
class TanhFunction(CellFunction):
    COUNT: ClassVar[int] = 1

    def __call__(self, left: Tensor, right: Tensor, mask: Tensor | None = None) -> Tensor:
        inner = torch.tanh(F.linear(torch.cat((left, right), dim=-1), *self.weights))
        return apply_mask(inner, mask) + (left - right) / 2
