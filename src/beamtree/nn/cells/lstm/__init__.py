"""Binary Tree-LSTM (Tai et al. 2015, as in Choi et al. 2018). A state is [h; c], 2D wide.

    [i; f_l; f_r; u; o] = [h_l; h_r] W + b
    c = σ(f_l + 1) ⊙ c_l + σ(f_r + 1) ⊙ c_r + σ(i) ⊙ dropout(tanh u)
    h = σ(o) ⊙ tanh c

W is orthogonal and b zero at the start. The paper's cell has no dropout, which is the default here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from beamtree.nn.cells.adjoint import Adjoint
from beamtree.nn.cells.base import Cell, CellFunction, apply_mask, is_plain, plain_tensors

if TYPE_CHECKING:
    from beamtree.nn.engine.gpu.cells import CellKernels


class TreeLSTM(Cell):
    """The binary Tree-LSTM: c = σ(f_l + 1) ⊙ c_l + σ(f_r + 1) ⊙ c_r + σ(i) ⊙ tanh u, h = σ(o) ⊙ tanh c.

    A state [h; c] is 2D wide; its first half is the encoding.

    Args:
        dim: width D of inputs and encodings.
        dropout: dropout rate of tanh u.

    Examples:
        >>> cell = beamtree.TreeLSTM(dim=8)
        >>> left, right = torch.randn(5, 16), torch.randn(5, 16)
        >>> cell(left, right).shape
        torch.Size([5, 16])
    """

    def __init__(self, dim: int, dropout: float = 0.0) -> None:
        super().__init__(dim, dropout)
        self.state_dim, self.mask_dim = 2 * dim, dim
        self.gates = nn.Linear(2 * dim, 5 * dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weights: W orthogonal, b zero."""
        nn.init.orthogonal_(self.gates.weight)
        nn.init.zeros_(self.gates.bias)

    def leaf(self) -> nn.Module:
        return nn.Linear(self.dim, 2 * self.dim)

    def forward(
        self,
        left: Float[Tensor, "*nodes state"],
        right: Float[Tensor, "*nodes state"],
        mask: Float[Tensor, "*nodes mask"] | None = None,
    ) -> Float[Tensor, "*nodes state"]:
        return compose(left, right, self.gates, partial(self.drop, mask=mask))

    def function(self) -> "TreeLSTMFunction | None":
        shapes = ((5 * self.dim, 2 * self.dim), (5 * self.dim,))
        weights = plain_tensors(self, {self.gates: ("weight", "bias")}, shapes)
        return None if weights is None or not is_plain(self, TreeLSTM) else TreeLSTMFunction(self.dim, weights)


def compose(
    left: Float[Tensor, "*nodes state"],
    right: Float[Tensor, "*nodes state"],
    gates: Callable[[Tensor], Tensor],
    drop: Callable[[Tensor], Tensor],
) -> Float[Tensor, "*nodes state"]:
    """[h; c], from the layer of the gates and dropout."""
    (h_left, c_left), (h_right, c_right) = left.chunk(2, dim=-1), right.chunk(2, dim=-1)
    i, f_left, f_right, u, o = gates(torch.cat((h_left, h_right), dim=-1)).chunk(5, dim=-1)  # (…, D) each
    update = drop(u.tanh())
    c = (f_left + 1).sigmoid() * c_left + (f_right + 1).sigmoid() * c_right + i.sigmoid() * update
    return torch.cat((o.sigmoid() * c.tanh(), c), dim=-1)


@dataclass(frozen=True)
class TreeLSTMFunction(CellFunction):
    """Its weights are W and b."""

    COUNT: ClassVar[int] = 2

    @property
    def state_dim(self) -> int:
        return 2 * self.dim

    def __call__(
        self,
        left: Float[Tensor, "*nodes state"],
        right: Float[Tensor, "*nodes state"],
        mask: Float[Tensor, "*nodes mask"] | None = None,
    ) -> Float[Tensor, "*nodes state"]:
        weight, bias = self.weights
        # Not nested functions, which run-time type checking would decorate again at each call.
        gates = partial(F.linear, weight=weight, bias=bias)
        return compose(left, right, gates, partial(apply_mask, mask=mask))

    def adjoint(
        self, children: Float[Tensor, "rows 2 S"], mask: Float[Tensor, "rows width"] | None
    ) -> "TreeLSTMAdjoint":
        return TreeLSTMAdjoint(self, children, mask)

    def kernels(self) -> "CellKernels | None":
        from beamtree.nn.cells.lstm.gpu import TreeLSTMKernels

        return TreeLSTMKernels()


class TreeLSTMAdjoint(Adjoint):
    """The gradients of the cell, by its equations.

    dc' = dc + dh ⊙ σ(o) (1 − tanh² c)
    d[i; f_l; f_r; u] = dc' ⊙ [σ'(i) tanh u; σ'(f_l + 1) c_l; σ'(f_r + 1) c_r; σ(i) (1 − tanh² u)]
    do = dh ⊙ σ'(o) tanh c
    d[h_l; h_r] = d[i; f_l; f_r; u; o] Wᵀ,  dc_l = dc' ⊙ σ(f_l + 1),  dc_r = dc' ⊙ σ(f_r + 1)
    """

    def __init__(self, cell: TreeLSTMFunction, children: Tensor, mask: Tensor | None) -> None:
        self.weight, bias = cell.weights
        self.children = children[..., : cell.dim].flatten(1)  # [h_l; h_r], (R, 2D)
        c_left, c_right = children[..., cell.dim :].unbind(1)  # (R, D)
        gates = F.linear(self.children, self.weight, bias).to(children.dtype)
        i, f_left, f_right, u, o = gates.chunk(5, dim=-1)
        i, f_left, f_right, o = i.sigmoid(), (f_left + 1).sigmoid(), (f_right + 1).sigmoid(), o.sigmoid()
        u = u.tanh()
        keep = torch.ones_like(u) if mask is None else mask
        tanh_c = (f_left * c_left + f_right * c_right + i * u * keep).tanh()
        self.through = o * (1 - tanh_c**2)  # (R, D)
        self.direct = torch.stack((f_left, f_right), dim=1)  # (R, 2, D)
        self.d_gates = torch.stack(
            (
                i * (1 - i) * u * keep,
                f_left * (1 - f_left) * c_left,
                f_right * (1 - f_right) * c_right,
                (1 - u**2) * i * keep,
                o * (1 - o) * tanh_c,
            ),
            dim=1,
        )  # (R, 5, D): local derivatives, which `pull_back` multiplies by the gradient

    def pull_back(self, rows: slice, gradient: Float[Tensor, "rows S"]) -> Float[Tensor, "rows 2 S"]:
        d_h, d_c = gradient.chunk(2, dim=-1)  # (R, D)
        d_c = torch.addcmul(d_c, d_h, self.through[rows]).unsqueeze(1)  # (R, 1, D)
        gates = self.d_gates[rows]  # (R, 5, D)
        gates[:, :4] *= d_c
        gates[:, 4] *= d_h
        hidden = (gates.flatten(1) @ self.weight).to(gradient.dtype)  # (R, 2D)
        return torch.cat((hidden.view(len(hidden), 2, -1), d_c * self.direct[rows]), dim=-1)

    def weight_gradients(self) -> tuple[Tensor, ...]:
        d_gates = self.d_gates.flatten(1)
        return d_gates.mT @ self.children, d_gates.sum(0)
