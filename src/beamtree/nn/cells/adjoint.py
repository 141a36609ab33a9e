"""Adjoints of cells: from the gradient of parents to that of their children and of the cell's weights.

All children's states are known before the backward pass starts, so the local derivatives, which do not depend on the
incoming gradient, are computed for all nodes in one batch. Then `pull_back` runs level by level on slices of it, and
the gradients of the weights are one product over all nodes at the end.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


class Adjoint(ABC):
    """The backward pass of a cell over some nodes."""

    @abstractmethod
    def pull_back(self, rows: slice, gradient: Float[Tensor, "rows S"]) -> Float[Tensor, "rows 2 S"]:
        """The gradient of the left and right children of these nodes. Call exactly once per node."""

    @abstractmethod
    def weight_gradients(self) -> tuple[Tensor, ...]:
        """Gradients of the cell's weights, after `pull_back` was called for all nodes."""


class AutogradAdjoint(Adjoint):
    """The adjoint of any cell: recomposes nodes under autograd. The reference for hand-written adjoints."""

    def __init__(self, cell: Any, children: Tensor, mask: Tensor | None) -> None:
        self.children, self.mask = children, mask
        with torch.inference_mode(False):  # the caller may be in inference mode, whose tensors autograd does not accept
            self.weights = tuple(weight.detach().clone().requires_grad_() for weight in cell.weights)
        self.compose: Callable[..., Tensor] = cell.bind(self.weights)
        self.gradients = tuple(torch.zeros_like(weight) for weight in self.weights)

    def pull_back(self, rows: slice, gradient: Float[Tensor, "rows S"]) -> Float[Tensor, "rows 2 S"]:
        mask = None if self.mask is None else self.mask[rows]
        with torch.inference_mode(False), torch.enable_grad():
            left, right = (side.clone().requires_grad_() for side in self.children[rows].unbind(1))
            parent = self.compose(left, right, None if mask is None else mask.clone())
            wanted, gradient = (left, right, *self.weights), gradient.clone().to(parent.dtype)
            found = torch.autograd.grad(parent, wanted, gradient, allow_unused=True, materialize_grads=True)
        for total, part in zip(self.gradients, found[2:], strict=True):
            total += part
        return torch.stack(found[:2], dim=1)

    def weight_gradients(self) -> tuple[Tensor, ...]:
        return self.gradients


def batch_size(device: torch.device) -> int:
    """The number of nodes whose inner activations are held at once: enough to fill a device, and bounded memory."""
    return 16384 if device.type == "cuda" else 4096
