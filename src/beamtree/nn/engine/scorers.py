"""Scorers of candidates: of the parent, or of the two children it would join.

    parents    s(v) = w · v + b                                           an `nn.Linear` (Beam Tree Recursive Cells)
    children   s(l, r) = w · GELU(V [l[:d]; r[:d]] + c) + b,  V: d × 2d   a `ChildScorer` (Ray Chowdhury & Caragea,
                                                                          *Efficient Beam Tree Recursion*, NeurIPS 2023)

With the second, a candidate is composed only when it is chosen. Like cells, scorers have a form that is a function of
tensors alone, and another for modules whose layers are not plain; see `beamtree.nn.cells.base`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from beamtree.nn.cells.base import gelu, is_plain, plain_tensors

S = TypeVar("S", bound="ScorerFunction")


class ChildScorer(nn.Linear):
    """Its own weight and bias are w and b; V and c are those of `hidden`."""

    def __init__(self, width: int) -> None:
        """width: d; the scorer reads the first d elements of each child."""
        super().__init__(width, 1)
        self.hidden = nn.Linear(2 * width, width)

    def logits(self, pairs: Float[Tensor, "*pairs 2 S"]) -> Float[Tensor, "*pairs"]:
        logits: Tensor = self(gelu(self.hidden(read(pairs, self.in_features))))
        return logits.squeeze(-1)


def read(pairs: Float[Tensor, "*pairs 2 S"], width: int) -> Float[Tensor, "*pairs seen"]:
    """The elements that a scorer of children reads, (…, 2d)."""
    return pairs[..., :width].flatten(-2)


@dataclass(frozen=True)
class ScorerFunction(ABC):
    """A scorer as a function of tensors."""

    width: int  # the number of elements of a state that it reads, from the first on
    weights: tuple[Tensor, ...]

    COUNT: ClassVar[int]  # of its weights
    reads_children: ClassVar[bool]

    @abstractmethod
    def logits(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Logits of states (…, S), or of pairs of states (…, 2, S) if it reads children."""

    @abstractmethod
    def pull_back(
        self, x: Float[Tensor, "..."], gradient: Float[Tensor, "n"]
    ) -> tuple[Float[Tensor, "..."], tuple[Tensor, ...]]:
        """The gradients of the elements read, (n, d) or (n, 2, d), and of the weights, given that of n logits."""

    def bind(self: S, weights: Sequence[Tensor]) -> S:
        """The same function of other weights."""
        return replace(self, weights=tuple(weights))

    @property
    def unbound(self: S) -> S:
        """The function without its weights, to be stored in an autograd context or used in a key."""
        return replace(self, weights=())


@dataclass(frozen=True)
class ParentScorerFunction(ScorerFunction):
    """Its weights are w, as a matrix of one row, and b."""

    COUNT: ClassVar[int] = 2
    reads_children: ClassVar[bool] = False

    def padded(self, width: int) -> "ParentScorerFunction":
        """The same function, which reads this many elements, with zeros as the weights of those in addition."""
        if width == self.width:
            return self
        weight, bias = self.weights
        return ParentScorerFunction(width, (F.pad(weight, (0, width - self.width)), bias))

    def logits(self, x: Float[Tensor, "*nodes S"]) -> Float[Tensor, "*nodes"]:
        return F.linear(x[..., : self.width], *self.weights).squeeze(-1)

    def pull_back(
        self, x: Float[Tensor, "n S"], gradient: Float[Tensor, "n"]
    ) -> tuple[Float[Tensor, "n d"], tuple[Tensor, ...]]:
        weight = self.weights[0].to(x.dtype)
        return gradient.unsqueeze(1) * weight, self.weight_gradients(x, gradient)

    def weight_gradients(self, x: Float[Tensor, "n S"], gradient: Float[Tensor, "n"]) -> tuple[Tensor, ...]:
        weight, bias = self.weights
        return (gradient @ x[:, : self.width]).view_as(weight), gradient.sum(0).view_as(bias)


@dataclass(frozen=True)
class ChildScorerFunction(ScorerFunction):
    """Its weights are w, as a matrix of one row, b, V and c."""

    COUNT: ClassVar[int] = 4
    reads_children: ClassVar[bool] = True

    def logits(self, x: Float[Tensor, "*pairs 2 S"]) -> Float[Tensor, "*pairs"]:
        weight, bias, hidden, hidden_bias = self.weights
        return F.linear(gelu(F.linear(read(x, self.width), hidden, hidden_bias)), weight, bias).squeeze(-1)

    def pull_back(
        self, x: Float[Tensor, "n 2 S"], gradient: Float[Tensor, "n"]
    ) -> tuple[Float[Tensor, "n 2 d"], tuple[Tensor, ...]]:
        weight, _, hidden, hidden_bias = self.weights
        seen = read(x, self.width)  # (n, 2d)
        a = F.linear(seen, hidden, hidden_bias).to(seen.dtype)  # (n, d)
        d_a = torch.ops.aten.gelu_backward(gradient.unsqueeze(1) * weight.to(seen.dtype), a)  # (n, d)
        down = (d_a @ hidden).to(seen.dtype)  # (n, 2d)
        weights = gradient.unsqueeze(0) @ F.gelu(a), gradient.sum(0, keepdim=True), d_a.mT @ seen, d_a.sum(0)
        return down.unflatten(1, (2, self.width)), weights


class ModuleScorer:
    """A scorer that is known only as a module: always called under autograd."""

    weights: tuple[Tensor, ...] = ()

    def __init__(self, module: nn.Module, width: int) -> None:
        self.module, self.width, self.reads_children = module, width, isinstance(module, ChildScorer)

    def logits(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        if isinstance(self.module, ChildScorer):
            return self.module.logits(x)
        return self.module(x[..., : self.width]).squeeze(-1)


AnyScorer = ScorerFunction | ModuleScorer


def scorer_of(scorer: nn.Module, dim: int) -> AnyScorer:
    """The scorer of states of width `dim`, in the form that engines use."""
    both = ("weight", "bias")
    if is_plain(scorer, ChildScorer):
        assert isinstance(scorer, ChildScorer)
        hidden, own = plain_tensors(scorer, {scorer.hidden: both}), (scorer.weight, scorer.bias)
        if hidden is not None and all(type(tensor) in (Tensor, nn.Parameter) for tensor in own):
            return ChildScorerFunction(scorer.in_features, (*own, *hidden))
    elif (weights := plain_tensors(scorer, {scorer: both})) is not None:
        return ParentScorerFunction(dim, weights)
    return ModuleScorer(scorer, dim)
