"""Functions of tensors: layers, and composites of several such functions.

Like cells and scorers (`beamtree.nn.cells.base`), a layer is computed with the tensors that its module had when the
forward pass began. `Composite` is one function of the weights of all its parts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn
from torch.nn import functional as F

from beamtree.nn.cells.base import Layer, is_plain, plain_tensors

T = TypeVar("T", bound="Composite")


@dataclass(frozen=True)
class LinearFunction:
    """An `nn.Linear`: its weights are the matrix and the bias."""

    weights: tuple[Tensor, ...]

    COUNT: ClassVar[int] = 2

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, *self.weights)

    def bind(self, weights: Sequence[Tensor]) -> "LinearFunction":
        return replace(self, weights=tuple(weights))

    @property
    def unbound(self) -> "LinearFunction":
        return replace(self, weights=())


@dataclass(frozen=True)
class NormedLinearFunction:
    """An `nn.Linear` followed by an `nn.LayerNorm`: their weights and biases."""

    weights: tuple[Tensor, ...]
    width: int
    eps: float

    COUNT: ClassVar[int] = 4

    def __call__(self, x: Tensor) -> Tensor:
        weight, bias, norm_weight, norm_bias = self.weights
        return F.layer_norm(F.linear(x, weight, bias), (self.width,), norm_weight, norm_bias, self.eps)

    def bind(self, weights: Sequence[Tensor]) -> "NormedLinearFunction":
        return replace(self, weights=tuple(weights))

    @property
    def unbound(self) -> "NormedLinearFunction":
        return replace(self, weights=())


def linear_of(layer: nn.Module) -> Layer:
    """A plain `nn.Linear` as a function of tensors; any other module as it is."""
    weights = plain_tensors(layer, {layer: ("weight", "bias")}) if is_plain(layer, nn.Linear) else None
    return layer if weights is None else LinearFunction(weights)


def normed_linear_of(layer: nn.Module) -> Layer:
    """A plain `nn.Sequential` of an `nn.Linear` and an `nn.LayerNorm`; any other module as it is."""
    if is_plain(layer, nn.Sequential) and isinstance(layer, nn.Sequential) and len(layer) == 2:
        linear, norm = layer
        both = ("weight", "bias")
        weights = plain_tensors(layer, {linear: both, norm: both})
        if weights is not None and isinstance(norm, nn.LayerNorm):
            return NormedLinearFunction(weights, norm.normalized_shape[0], norm.eps)
    return layer


class Composite:
    """Base class of frozen dataclasses whose fields are functions of tensors: one function of all their weights.

    Fields that have `bind` are such functions; if a field is a module, the composite is not functional.
    """

    def _parts(self) -> Iterator[tuple[str, Any]]:
        for field in fields(self):  # type: ignore[arg-type]
            part = getattr(self, field.name)
            if hasattr(part, "bind"):
                yield field.name, part

    @property
    def is_functional(self) -> bool:
        """Whether all its parts are functions of tensors. Otherwise it may only be called under autograd."""
        values = [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]
        return not any(isinstance(value, nn.Module) or hasattr(value, "module") for value in values)

    @property
    def weights(self) -> tuple[Tensor, ...]:
        return tuple(weight for _, part in self._parts() for weight in part.weights)

    @property
    def unbound(self: T) -> T:
        """The function without its weights, to be stored in an autograd context or used in a key."""
        return replace(self, **{name: part.unbound for name, part in self._parts()})  # type: ignore[type-var]

    def bind(self: T, weights: Sequence[Tensor]) -> T:
        """The same function of other weights."""
        left = iter(weights)
        bound = {name: part.bind([next(left) for _ in range(part.COUNT)]) for name, part in self._parts()}
        return replace(self, **bound)  # type: ignore[type-var]
