"""Adjoints of cells: how a gradient of parents becomes a gradient of their children and of the cell's weights.

All children's states are known before backward starts, so what does not depend on the incoming gradient (the local
derivatives) is computed for all nodes in one batch. Then `pull_back` runs level by level on slices of it, and the
gradients of the weights are one product over all nodes at the end.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from beamtree.cells import GRC, Cell, TreeLSTM

aten = torch.ops.aten  # for PyTorch's own derivatives of GELU, sigmoid and LayerNorm

Gradients = tuple[Tensor, ...]


class Adjoint(ABC):
    """The backward pass of a cell over some nodes."""

    @abstractmethod
    def pull_back(self, rows: slice, gradient: Float[Tensor, "rows S"]) -> Float[Tensor, "rows 2 S"]:
        """The gradient of the left and right children of these nodes. Every node must come by once."""

    @abstractmethod
    def weight_gradients(self) -> Gradients:
        """Gradients of `cell.parameters()`, in that order, once all nodes have come by."""


class AutogradAdjoint(Adjoint):
    """For any cell: composes again under autograd. The reference for those below."""

    def __init__(self, cell: Cell, children: Tensor, mask: Tensor | None) -> None:
        self.cell, self.children, self.mask = cell, children, mask
        self.parameters = tuple(cell.parameters())
        self.gradients = tuple(torch.zeros_like(parameter) for parameter in self.parameters)

    def pull_back(self, rows: slice, gradient: Float[Tensor, "rows S"]) -> Float[Tensor, "rows 2 S"]:
        mask = None if self.mask is None else self.mask[rows]
        with torch.inference_mode(False), torch.enable_grad():  # copies, since the caller may be in inference mode
            left, right = (side.clone().requires_grad_() for side in self.children[rows].unbind(1))
            parent = self.cell(left, right, None if mask is None else mask.clone())
            gradient = gradient.clone().to(parent.dtype)
            found = torch.autograd.grad(parent, (left, right, *self.parameters), gradient)
        for total, part in zip(self.gradients, found[2:], strict=True):
            total += part
        return torch.stack(found[:2], dim=1)

    def weight_gradients(self) -> Gradients:
        return self.gradients


class GRCAdjoint(Adjoint):
    """With a = [l; r] W1 + b1, g = mask ⊙ GELU(a), [z; h; c; u] = g W2 + b2, p = σ(z) l + σ(h) r + σ(c) u and LN:

    dp = LN'(gradient)
    d[z; h; c; u] = dp ⊙ [σ'(z) l; σ'(h) r; σ'(c) u; σ(c)]
    da = (d[z; h; c; u] W2ᵀ) ⊙ mask ⊙ GELU'(a)
    d[l; r] = da W1ᵀ + dp ⊙ [σ(z); σ(h)]
    """

    def __init__(self, cell: GRC, children: Tensor, mask: Tensor | None) -> None:
        self.cell = cell
        self.children, (left, right) = children.flatten(1), children.unbind(1)  # (R, 2D), (R, D)
        a = cell.expand(self.children).to(left.dtype)  # (R, 4D)
        self.inner, self.slope = F.gelu(a), aten.gelu_backward(torch.ones_like(a), a)  # g, mask ⊙ GELU'(a)
        if mask is not None:
            self.inner, self.slope = self.inner.mul_(mask), self.slope.mul_(mask)
        gates = cell.gates(self.inner).to(left.dtype).view(len(left), 4, cell.dim)  # (R, 4, D)
        self.open = gates[:, :3].sigmoid()  # σ(z), σ(h), σ(c)
        self.update = gates[:, 3]  # u
        z, h, c = self.open.unbind(1)
        self.total = torch.addcmul(torch.addcmul(z * left, h, right), c, self.update)  # (R, D)
        _, self.mean, self.scale = aten.native_layer_norm(self.total, [cell.dim], None, None, cell.norm.eps)
        self.d_inner, self.d_gates = torch.empty_like(a), torch.empty_like(gates)
        self.gradient = torch.empty_like(self.total)  # as it comes in, for the weights of LayerNorm

    def pull_back(self, rows: slice, gradient: Float[Tensor, "rows S"]) -> Float[Tensor, "rows 2 S"]:
        return self.to_children(rows, self.to_gates(rows, gradient))

    def to_gates(self, rows: slice, gradient: Float[Tensor, "rows S"]) -> Float[Tensor, "rows D"]:
        """dp; d[z; h; c; u] is kept."""
        cell, open_ = self.cell, self.open[rows]
        self.gradient[rows] = gradient
        total, *_ = aten.native_layer_norm_backward(
            gradient,
            self.total[rows],
            [cell.dim],
            self.mean[rows],
            self.scale[rows],
            cell.norm.weight,
            cell.norm.bias,
            [True, False, False],
        )
        gates, wide = self.d_gates[rows], total.unsqueeze(1)  # (R, 4, D), (R, 1, D)
        torch.mul(wide, self.children[rows].view(-1, 2, cell.dim), out=gates[:, :2])
        torch.mul(total, self.update[rows], out=gates[:, 2])
        aten.sigmoid_backward.grad_input(gates[:, :3], open_, grad_input=gates[:, :3])
        torch.mul(wide, open_[:, 2:], out=gates[:, 3:])
        return total

    def to_children(self, rows: slice, total: Float[Tensor, "rows D"]) -> Float[Tensor, "rows 2 D"]:
        """From dp and d[z; h; c; u] on."""
        cell, dtype = self.cell, total.dtype
        inner = (self.d_gates[rows].flatten(1) @ cell.gates.weight).to(dtype)  # (R, 4D)
        inner = torch.mul(inner, self.slope[rows], out=self.d_inner[rows])
        children = (inner @ cell.expand.weight).to(dtype).view(len(total), 2, cell.dim)  # (R, 2, D)
        return torch.addcmul(children, self.open[rows, :2], total.unsqueeze(1))

    def weight_gradients(self) -> Gradients:
        d_gates, hat = self.d_gates.flatten(1), (self.total - self.mean) * self.scale
        return (
            self.d_inner.mT @ self.children,
            self.d_inner.sum(0),
            d_gates.mT @ self.inner,
            d_gates.sum(0),
            (self.gradient * hat).sum(0),
            self.gradient.sum(0),
        )


class TreeLSTMAdjoint(Adjoint):
    """With the cell's equations:

    dc' = dc + dh ⊙ σ(o) (1 − tanh² c)
    d[i; f_l; f_r; u] = dc' ⊙ [σ'(i) tanh u; σ'(f_l + 1) c_l; σ'(f_r + 1) c_r; σ(i) (1 − tanh² u)]
    do = dh ⊙ σ'(o) tanh c
    d[h_l; h_r] = d[i; f_l; f_r; u; o] Wᵀ,  dc_l = dc' ⊙ σ(f_l + 1),  dc_r = dc' ⊙ σ(f_r + 1)
    """

    def __init__(self, cell: TreeLSTM, children: Tensor, mask: Tensor | None) -> None:
        self.cell = cell
        self.children = children[..., : cell.dim].flatten(1)  # [h_l; h_r], (R, 2D)
        c_left, c_right = children[..., cell.dim :].unbind(1)  # (R, D)
        i, f_left, f_right, u, o = cell.gates(self.children).to(children.dtype).chunk(5, dim=-1)
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
        )  # (R, 5, D); becomes the gradient of the gates

    def pull_back(self, rows: slice, gradient: Float[Tensor, "rows S"]) -> Float[Tensor, "rows 2 S"]:
        d_h, d_c = gradient.chunk(2, dim=-1)  # (R, D)
        d_c = torch.addcmul(d_c, d_h, self.through[rows]).unsqueeze(1)  # (R, 1, D)
        gates = self.d_gates[rows]  # (R, 5, D)
        gates[:, :4] *= d_c
        gates[:, 4] *= d_h
        hidden = (gates.flatten(1) @ self.cell.gates.weight).to(gradient.dtype)  # (R, 2D)
        return torch.cat((hidden.view(len(hidden), 2, -1), d_c * self.direct[rows]), dim=-1)

    def weight_gradients(self) -> Gradients:
        d_gates = self.d_gates.flatten(1)
        return d_gates.mT @ self.children, d_gates.sum(0)


ADJOINTS: dict[type[Cell], Callable[..., Adjoint]] = {GRC: GRCAdjoint, TreeLSTM: TreeLSTMAdjoint}


def batch_size(device: torch.device) -> int:
    """Nodes whose inner activations are held at once: enough to fill a device, and a bound on memory."""
    return 16384 if device.type == "cuda" else 4096


def adjoint(cell: Cell, children: Float[Tensor, "rows 2 S"], mask: Float[Tensor, "rows width"] | None) -> Adjoint:
    """The fastest adjoint there is for this cell, over nodes with these children and dropout masks."""
    return ADJOINTS.get(type(cell), AutogradAdjoint)(cell, children, mask)
