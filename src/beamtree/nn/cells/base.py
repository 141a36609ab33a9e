"""Cells: functions R(left, right) that compose two children into their parent.

A cell has two forms. `Cell` is the module that users build, train and save. `CellFunction` is the same function of
tensors alone: the engines compute with the weight tensors that the module had when the forward pass began, and the
backward pass uses the same tensors. So `torch.func.functional_call`, parametrizations, tied weights and weight swaps
work correctly.

A module whose layers are not the plain ones it was built with (hooks, a subclass, a wrapper) has no such form. Engines
then call the module itself, under autograd: see `ModuleCell`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import is_parametrized

from beamtree.nn.cells.adjoint import Adjoint, AutogradAdjoint

if TYPE_CHECKING:
    from beamtree.nn.engine.gpu.cells import CellKernels

Layer = Callable[[Tensor], Tensor]

SMALL = 2**15  # elements

C = TypeVar("C", bound="CellFunction")  # not Self, which run-time checks of single methods cannot resolve


def gelu(x: Float[Tensor, "*nodes width"]) -> Float[Tensor, "*nodes width"]:
    """GELU, fast for small tensors.

    On a CPU, PyTorch calls oneDNN for contiguous tensors, whose overhead dominates for small ones; for a transposed
    view it uses its own kernel.
    """
    if x.dim() == 2 and x.device.type == "cpu" and x.numel() < SMALL:
        return F.gelu(x.mT).mT
    return F.gelu(x)


def apply_mask(activation: Tensor, mask: Tensor | None) -> Tensor:
    return activation if mask is None else activation * mask


def uniform_noise(like: Tensor, deviation: float) -> Tensor:
    """Noise with this standard deviation and the shape of a tensor."""
    return (2 * torch.rand_like(like) - 1) * (3**0.5 * deviation)


def split_mask(mask: Tensor | None, width: int) -> tuple[Tensor | None, Tensor | None]:
    """The dropout mask (…, width) and the noise of nodes, from what `NodeDropout.mask` returns; None if absent."""
    if mask is None or mask.shape[-1] == width:
        return mask, None
    return mask[..., :width], mask[..., width:]


class Cell(nn.Module):
    """Base class of the cells.

    A subclass sets `state_dim` and `mask_dim` and defines `leaf` and `forward(left, right, mask=None)`, which maps the
    states (…, S) of two children, and optionally a dropout mask for each node, to those of their parents.

    Args:
        dim: width D of inputs and encodings.
        dropout: dropout rate inside the cell.

    Attributes:
        dim: D, the width of inputs and encodings.
        state_dim: S, the width of a node's state, whose first D elements are its encoding.
        mask_dim: the width of the activation that dropout is applied to.
        dropout: the dropout rate.
        state_noise: the standard deviation of the noise that is added to new states during training.

    Examples:
        >>> from beamtree.nn.cells import Cell
        >>> class Average(Cell):
        ...     def __init__(self, dim):
        ...         super().__init__(dim)
        ...         self.state_dim, self.mask_dim = dim, 0
        ...     def leaf(self):
        ...         return torch.nn.Linear(self.dim, self.dim)
        ...     def forward(self, left, right, mask=None):
        ...         return (left + right) / 2
        >>> beamtree.encoder("bt-grc", dim=8, cell=Average(8))(torch.randn(2, 4, 8)).state.shape
        torch.Size([2, 8])
    """

    dim: int
    state_dim: int
    mask_dim: int
    dropout: float
    state_noise: float = 0.0

    def __init__(self, dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dim, self.dropout = dim, dropout

    def leaf(self) -> nn.Module:
        """Create the transform from input vectors to leaf states.

        Returns:
            A new module that maps (…, D) to (…, S).
        """
        raise NotImplementedError

    def function(self) -> "CellFunction | None":
        """Capture the cell as a function of the tensors that are its weights now.

        Returns:
            The function, or None if the layers are not the plain ones the cell was built with. Engines then call the
            module.
        """
        return None

    def drop(self, activation: Tensor, mask: Tensor | None) -> Tensor:
        """Apply the given mask of a node, or ordinary dropout if there is none.

        Args:
            activation: what to drop elements of, (…, mask_dim).
            mask: 0 for dropped elements and 1 / (1 − dropout) for others, or None.

        Returns:
            The activation after dropout.
        """
        if mask is not None:
            return activation * mask
        return F.dropout(activation, self.dropout, self.training)

    def extra_repr(self) -> str:
        noise = f", state_noise={self.state_noise}" if self.state_noise else ""
        return f"dim={self.dim}, dropout={self.dropout}{noise}"


@dataclass(frozen=True)
class CellFunction(ABC):
    """A cell as a function of tensors. Without its weights it is hashable, and equal for cells of one kind."""

    dim: int
    weights: tuple[Tensor, ...]

    COUNT: ClassVar[int]  # of its weights

    @property
    def state_dim(self) -> int:
        return self.dim

    @abstractmethod
    def __call__(
        self,
        left: Float[Tensor, "*nodes state"],
        right: Float[Tensor, "*nodes state"],
        mask: Float[Tensor, "*nodes mask"] | None = None,
    ) -> Float[Tensor, "*nodes state"]:
        """The parents. Without a mask nothing is dropped."""

    def adjoint(self, children: Float[Tensor, "rows 2 S"], mask: Float[Tensor, "rows width"] | None) -> Adjoint:
        """The backward pass over nodes with these children and dropout masks."""
        return AutogradAdjoint(self, children, mask)

    def kernels(self) -> "CellKernels | None":
        """The cell's Triton kernels; None if it has none. Imported here, as Triton may not be installed."""
        return None

    def bind(self: C, weights: Sequence[Tensor]) -> C:
        """The same function of other weights."""
        return replace(self, weights=tuple(weights))

    @property
    def unbound(self: C) -> C:
        """The function without its weights, to be stored in an autograd context or used in a key."""
        return replace(self, weights=())


class OwnCell(Cell):
    """A user's cell: any module that maps the states of two children, (…, S) each, to that of their parent.

    S is the module's attribute `state_dim` if it has one, else D. A module with dropout draws its own masks, so that
    two calls differ in training; engines that compose a node twice refuse it (see `beamtree.nn.engine.randomness`).
    """

    def __init__(self, module: nn.Module, dim: int) -> None:
        super().__init__(dim)
        self.module = module
        self.state_dim, self.mask_dim = int(getattr(module, "state_dim", dim)), 0

    def leaf(self) -> nn.Module:
        return nn.Sequential(nn.Linear(self.dim, self.state_dim), nn.LayerNorm(self.state_dim))

    def forward(
        self,
        left: Float[Tensor, "*nodes state"],
        right: Float[Tensor, "*nodes state"],
        mask: Float[Tensor, "*nodes mask"] | None = None,
    ) -> Float[Tensor, "*nodes state"]:
        parent = self.module(left, right)
        if not isinstance(parent, Tensor) or parent.shape != left.shape:
            found = f"shape {tuple(parent.shape)}" if isinstance(parent, Tensor) else f"type {type(parent).__name__}"
            raise ValueError(
                f"the cell returned a result of {found} for children of shape {tuple(left.shape)}: parents must have "
                "the shape of a child; a cell with wider states needs the attribute state_dim"
            )
        return parent


class ModuleCell:
    """A cell that is known only as a module.

    It is always composed under autograd; custom backward passes do not handle its weights.
    """

    weights: tuple[Tensor, ...] = ()

    def __init__(self, module: Cell) -> None:
        self.module, self.dim, self.state_dim = module, module.dim, module.state_dim

    def __call__(self, left: Tensor, right: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.module(left, right, mask)

    def kernels(self) -> None:
        return None


AnyCell = CellFunction | ModuleCell


def function_of(cell: Cell) -> AnyCell:
    """The cell in the form that engines use."""
    return cell.function() or ModuleCell(cell)


def is_plain(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Whether a module computes what its class defines.

    Its class is exactly one of these, apart from parametrization, and it has no hooks and no `forward` of its own.
    """
    kind = type(module)
    if is_parametrized(module):  # PyTorch derives a class that changes how weights are read, and nothing else
        kind = kind.__bases__[0]
    return kind in kinds and not has_hooks(module) and "forward" not in vars(module)


def has_hooks(module: nn.Module) -> bool:
    return any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks))


def plain_tensors(
    cell: nn.Module, layers: dict[nn.Module, tuple[str, ...]], shapes: Sequence[tuple[int, ...]] | None = None
) -> tuple[Tensor, ...] | None:
    """The named tensors of these layers of a cell, which are `nn.Linear` or `nn.LayerNorm`.

    None if a layer is not plain, or if a tensor is missing or does not have the given shape.
    """
    found: list[Any] = []
    for layer, names in layers.items():
        if not is_plain(layer, nn.Linear, nn.LayerNorm):
            return None
        found += (getattr(layer, name) for name in names)
    # Subclasses of Tensor may override any operation; a parametrization may return any object.
    if not all(type(tensor) in (Tensor, nn.Parameter) for tensor in found):
        return None
    return tuple(found) if shapes is None or [tuple(tensor.shape) for tensor in found] == list(shapes) else None
