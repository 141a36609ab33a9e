"""Gated Recursive Cell (Shen et al. 2019, with the GELU of Ray Chowdhury & Caragea 2021).

    g = dropout(GELU([l; r] W1 + b1))
    [z; h; c; u] = g W2 + b2
    R(l, r) = LN(σ(z) ⊙ l + σ(h) ⊙ r + σ(c) ⊙ u)

W1 is 2D × 4D and W2 is 4D × 4D (the paper prints 4D × D, which cannot give four gates).
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from beamtree.nn.cells.adjoint import Adjoint
from beamtree.nn.cells.base import (
    Cell,
    CellFunction,
    Layer,
    apply_mask,
    gelu,
    is_plain,
    plain_tensors,
    split_mask,
    uniform_noise,
)

if TYPE_CHECKING:
    from beamtree.nn.engine.gpu.cells import CellKernels

aten = torch.ops.aten  # for PyTorch's own derivatives of GELU, sigmoid and LayerNorm


class GRC(Cell):
    """The Gated Recursive Cell: R(l, r) = LN(σ(z) ⊙ l + σ(h) ⊙ r + σ(c) ⊙ u).

    A state is D wide.

    Args:
        dim: width D of inputs and encodings.
        dropout: dropout rate of the activation g.
        state_noise: standard deviation of the uniform noise that is added to R(l, r) during training.

    Examples:
        >>> cell = beamtree.GRC(dim=8)
        >>> left, right = torch.randn(5, 8), torch.randn(5, 8)
        >>> cell(left, right).shape
        torch.Size([5, 8])
    """

    def __init__(self, dim: int, dropout: float = 0.0, state_noise: float = 0.0) -> None:
        super().__init__(dim, dropout)
        self.state_noise = state_noise
        self.state_dim, self.mask_dim = dim, 4 * dim
        self.expand = nn.Linear(2 * dim, 4 * dim)
        self.gates = nn.Linear(4 * dim, 4 * dim)
        self.norm = nn.LayerNorm(dim)

    def leaf(self) -> nn.Module:
        return nn.Sequential(nn.Linear(self.dim, self.dim), nn.LayerNorm(self.dim))

    def forward(
        self,
        left: Float[Tensor, "*nodes state"],
        right: Float[Tensor, "*nodes state"],
        mask: Float[Tensor, "*nodes mask"] | None = None,
    ) -> Float[Tensor, "*nodes state"]:
        mask, noise = split_mask(mask, self.mask_dim)
        parent = compose(left, right, self.expand, self.gates, self.norm, partial(self.drop, mask=mask))
        if noise is not None:
            return parent + noise
        if mask is None and self.training and self.state_noise:
            return parent + uniform_noise(parent, self.state_noise)
        return parent

    def function(self) -> "GRCFunction | None":
        both, D = ("weight", "bias"), self.dim
        layers: dict[nn.Module, tuple[str, ...]] = {self.expand: both, self.gates: both, self.norm: both}
        shapes = ((4 * D, 2 * D), (4 * D,), (4 * D, 4 * D), (4 * D,), (D,), (D,))
        weights = plain_tensors(self, layers, shapes) if isinstance(self.norm, nn.LayerNorm) else None
        if weights is None or not is_plain(self, GRC):
            return None
        return GRCFunction(self.dim, weights, self.norm.eps)


def compose(
    left: Float[Tensor, "*nodes D"],
    right: Float[Tensor, "*nodes D"],
    expand: Layer,
    gates: Layer,
    norm: Layer,
    drop: Layer,
) -> Float[Tensor, "*nodes D"]:
    """R(l, r), from its three layers and dropout."""
    return compose_activated(left, right, drop(gelu(expand(torch.cat((left, right), dim=-1)))), gates, norm)


def compose_activated(
    left: Float[Tensor, "*nodes D"],
    right: Float[Tensor, "*nodes D"],
    inner: Float[Tensor, "*nodes 4*D"],
    gates: Layer,
    norm: Layer,
) -> Float[Tensor, "*nodes D"]:
    """R(l, r), given g, for loops that compute a part of [l; r] W1 in advance."""
    _, total = gated(left, right, gates(inner))
    return norm(total)


def gated(
    left: Float[Tensor, "*nodes D"], right: Float[Tensor, "*nodes D"], gates: Float[Tensor, "*nodes 4*D"]
) -> tuple[Float[Tensor, "*nodes 3*D"], Float[Tensor, "*nodes D"]]:
    """[σ(z); σ(h); σ(c)], and σ(z) ⊙ l + σ(h) ⊙ r + σ(c) ⊙ u, the input of the layer norm."""
    D = left.shape[-1]
    opened = gates[..., : 3 * D].sigmoid()
    z, h, c = opened.chunk(3, dim=-1)  # (…, D) each
    return opened, torch.addcmul(torch.addcmul(z * left, h, right), c, gates[..., 3 * D :])


@dataclass(frozen=True)
class GRCFunction(CellFunction):
    """Its weights are W1, b1, W2, b2 and those of the layer norm."""

    eps: float  # of the layer norm

    COUNT: ClassVar[int] = 6

    def __call__(
        self,
        left: Float[Tensor, "*nodes D"],
        right: Float[Tensor, "*nodes D"],
        mask: Float[Tensor, "*nodes mask"] | None = None,
    ) -> Float[Tensor, "*nodes D"]:
        mask, noise = split_mask(mask, 4 * self.dim)
        parent = compose(left, right, *self.layers(), partial(apply_mask, mask=mask))
        return parent if noise is None else parent + noise

    def layers(self) -> tuple[Layer, Layer, Layer]:
        """`expand`, `gates` and `norm`, as arguments of `compose`."""
        W1, b1, W2, b2, norm_weight, norm_bias = self.weights
        # Not nested functions, which run-time type checking would decorate again at each call.
        expand, gates = partial(F.linear, weight=W1, bias=b1), partial(F.linear, weight=W2, bias=b2)
        norm = partial(F.layer_norm, normalized_shape=(self.dim,), weight=norm_weight, bias=norm_bias, eps=self.eps)
        return expand, gates, norm

    def adjoint(self, children: Float[Tensor, "rows 2 D"], mask: Float[Tensor, "rows width"] | None) -> "GRCAdjoint":
        return GRCAdjoint(self, children, mask)

    def kernels(self) -> "CellKernels | None":
        from beamtree.nn.cells.grc.gpu import GRCKernels

        return GRCKernels()


class GRCAdjoint(Adjoint):
    """The gradients of the cell.

    With a = [l; r] W1 + b1, g = mask ⊙ GELU(a), [z; h; c; u] = g W2 + b2, p = σ(z) l + σ(h) r + σ(c) u and LN:

    dp = LN'(gradient)
    d[z; h; c; u] = dp ⊙ [σ'(z) l; σ'(h) r; σ'(c) u; σ(c)]
    da = (d[z; h; c; u] W2ᵀ) ⊙ mask ⊙ GELU'(a)
    d[l; r] = da W1ᵀ + dp ⊙ [σ(z); σ(h)]

    W1 reads `inputs` instead of [l; r] if they are given. Their gradient is the caller's, who then calls the parts of
    `pull_back`.
    """

    def __init__(self, cell: GRCFunction, children: Tensor, mask: Tensor | None, inputs: Tensor | None = None) -> None:
        self.dim = cell.dim
        mask, _ = split_mask(mask, 4 * cell.dim)  # noise that is added has no influence on gradients
        self.W1, b1, self.W2, b2, self.norm_weight, self.norm_bias = cell.weights
        self.children, (left, right) = children.flatten(1), children.unbind(1)  # (R, 2D), (R, D)
        self.inputs = self.children if inputs is None else inputs  # (R, 2D)
        a = F.linear(self.inputs, self.W1, b1).to(left.dtype)  # (R, 4D)
        self.inner, self.slope = F.gelu(a), aten.gelu_backward(torch.ones_like(a), a)  # g, mask ⊙ GELU'(a)
        if mask is not None:
            self.inner, self.slope = self.inner.mul_(mask), self.slope.mul_(mask)
        gates = F.linear(self.inner, self.W2, b2).to(left.dtype)  # (R, 4D)
        opened, self.total = gated(left, right, gates)  # (R, 3D), (R, D)
        self.open, self.update = opened.view(-1, 3, self.dim), gates[:, 3 * self.dim :]  # σ(z), σ(h), σ(c); u
        _, self.mean, self.scale = aten.native_layer_norm(self.total, [self.dim], None, None, cell.eps)
        self.d_inner, self.d_gates = torch.empty_like(a), torch.empty_like(gates).view(-1, 4, self.dim)
        self.gradient = torch.empty_like(self.total)  # the incoming gradient, for the weights of LayerNorm

    def pull_back(self, rows: slice, gradient: Float[Tensor, "rows S"]) -> Float[Tensor, "rows 2 S"]:
        return self.to_children(rows, self.to_gates(rows, gradient))

    def to_gates(self, rows: slice, gradient: Float[Tensor, "rows S"]) -> Float[Tensor, "rows D"]:
        """Returns dp, and stores d[z; h; c; u] and the gradient."""
        open_ = self.open[rows]
        self.gradient[rows] = gradient
        total = self.to_total(rows, gradient)
        gates, wide = self.d_gates[rows], total.unsqueeze(1)  # (R, 4, D), (R, 1, D)
        torch.mul(wide, self.children[rows].view(-1, 2, self.dim), out=gates[:, :2])
        torch.mul(total, self.update[rows], out=gates[:, 2])
        aten.sigmoid_backward.grad_input(gates[:, :3], open_, grad_input=gates[:, :3])
        torch.mul(wide, open_[:, 2:], out=gates[:, 3:])
        return total

    def to_total(self, rows: slice, gradient: Float[Tensor, "rows S"]) -> Float[Tensor, "rows D"]:
        """Returns dp."""
        total: Tensor
        total, *_ = aten.native_layer_norm_backward(
            gradient,
            self.total[rows],
            [self.dim],
            self.mean[rows],
            self.scale[rows],
            self.norm_weight,
            self.norm_bias,
            [True, False, False],
        )
        return total

    def gate_slopes(self) -> Float[Tensor, "rows 4 D"]:
        """[σ'(z) l; σ'(h) r; σ'(c) u; σ(c)] of all nodes, for callers that scale them before they multiply by dp."""
        values = torch.cat((self.children, self.update), dim=1).view_as(self.open)  # l, r, u
        return torch.cat((self.open * (1 - self.open) * values, self.open[:, 2:]), dim=1)

    def to_inner(self, rows: slice) -> Float[Tensor, "rows E"]:
        """Returns and stores da, given the stored d[z; h; c; u]."""
        inner = (self.d_gates[rows].flatten(1) @ self.W2).to(self.slope.dtype)  # (R, 4D)
        return torch.mul(inner, self.slope[rows], out=self.d_inner[rows])

    def to_children(self, rows: slice, total: Float[Tensor, "rows D"]) -> Float[Tensor, "rows 2 D"]:
        """Returns d[l; r], given dp and the stored d[z; h; c; u]."""
        children = (self.to_inner(rows) @ self.W1).to(total.dtype).view(len(total), 2, self.dim)  # (R, 2, D)
        return torch.addcmul(children, self.open[rows, :2], total.unsqueeze(1))

    def weight_gradients(self) -> tuple[Tensor, ...]:
        d_gates, hat = self.d_gates.flatten(1), (self.total - self.mean) * self.scale
        return (
            self.d_inner.mT @ self.inputs,
            self.d_inner.sum(0),
            d_gates.mT @ self.inner,
            d_gates.sum(0),
            (self.gradient * hat).sum(0),
            self.gradient.sum(0),
        )
