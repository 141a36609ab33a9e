"""Adjoints written by hand equal the one that autograd gives."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from beamtree.nn.cells import GRC, Cell, CellFunction, TreeLSTM
from beamtree.nn.cells.adjoint import Adjoint, AutogradAdjoint
from beamtree.nn.cells.grc import GRCAdjoint
from beamtree.nn.cells.lstm import TreeLSTMAdjoint

ROWS, DIM = 11, 5
BY_HAND = {GRC: GRCAdjoint, TreeLSTM: TreeLSTMAdjoint}
cells = pytest.mark.parametrize("kind", [GRC, TreeLSTM])
masks = pytest.mark.parametrize("masked", [False, True], ids=["no-mask", "mask"])


def make(kind: type[Cell], masked: bool) -> tuple[Cell, Tensor, Tensor | None]:
    """A cell whose every weight matters, children, and a mask with zeros in it."""
    torch.manual_seed(0)
    cell = kind(DIM).double()
    for parameter in cell.parameters():
        nn.init.normal_(parameter)
    children = torch.randn(ROWS, 2, cell.state_dim, dtype=torch.float64)
    mask = F.dropout(torch.ones(ROWS, cell.mask_dim, dtype=torch.float64), 0.3) if masked else None
    return cell, children, mask


def pull_back(adjoint: Adjoint, gradient: Tensor, slices: list[slice]) -> tuple[Tensor, ...]:
    """The gradients of all children, then those of the weights."""
    children = torch.full((ROWS, 2, gradient.shape[1]), torch.nan, dtype=torch.float64)
    with torch.no_grad():
        for rows in slices:
            children[rows] = adjoint.pull_back(rows, gradient[rows])
        return children, *adjoint.weight_gradients()


@cells
@masks
@pytest.mark.parametrize(
    "slices",
    [
        [slice(0, ROWS)],
        [slice(0, 4), slice(4, 5), slice(5, ROWS)],
        [slice(8, ROWS), slice(1, 8), slice(0, 1)],
        [slice(row, row + 1) for row in (3, 0, 10, 7, 1, 9, 2, 5, 8, 4, 6)],
    ],
    ids=["at-once", "upwards", "downwards", "one-by-one"],
)
def test_adjoints_by_hand_equal_autograd(kind: type[Cell], masked: bool, slices: list[slice]) -> None:
    cell, children, mask = make(kind, masked)
    gradient = torch.randn(ROWS, cell.state_dim, dtype=torch.float64)
    with torch.no_grad():
        by_hand = BY_HAND[kind](cell.function(), children, mask)
    found = pull_back(by_hand, gradient, slices)
    expected = pull_back(AutogradAdjoint(cell.function(), children, mask), gradient, [slice(0, ROWS)])
    assert_close(found, expected, atol=1e-12, rtol=1e-12)


@cells
@masks
def test_the_autograd_adjoint_is_the_gradient_of_the_cell(kind: type[Cell], masked: bool) -> None:
    cell, children, mask = make(kind, masked)
    gradient = torch.randn(ROWS, cell.state_dim, dtype=torch.float64)
    children = children.requires_grad_()
    parents = cell(*children.unbind(1), mask)
    expected = torch.autograd.grad(parents, (children, *cell.parameters()), gradient)
    found = pull_back(AutogradAdjoint(cell.function(), children, mask), gradient, [slice(4, ROWS), slice(0, 4)])
    assert_close(found, expected, atol=1e-12, rtol=1e-12)


@dataclass(frozen=True)
class Stranger(CellFunction):
    """tanh(l w + r), of which nothing is known but how it composes."""

    COUNT: ClassVar[int] = 1

    def __call__(self, left: Tensor, right: Tensor, mask: Tensor | None = None) -> Tensor:
        return torch.tanh(left * self.weights[0] + right)


@cells
def test_a_cell_gets_its_own_adjoint_and_a_stranger_that_of_autograd(kind: type[Cell]) -> None:
    cell, children, mask = make(kind, False)
    assert type(cell.function().adjoint(children, mask)) is BY_HAND[kind]
    stranger = Stranger(DIM, (torch.randn(DIM, dtype=torch.float64),))
    assert type(stranger.adjoint(children[..., :DIM], None)) is AutogradAdjoint


@pytest.mark.parametrize("inference", [False, True])
def test_a_stranger_has_the_right_gradients(inference: bool) -> None:
    """Also in inference mode, where the engines run their backward passes."""
    torch.manual_seed(0)
    children, gradient = torch.randn(ROWS, 2, DIM, dtype=torch.float64), torch.randn(ROWS, DIM, dtype=torch.float64)
    weight = torch.randn(DIM, dtype=torch.float64)
    with torch.inference_mode(inference):
        adjoint = Stranger(DIM, (weight,)).adjoint(children, None)
        down = torch.cat([adjoint.pull_back(rows, gradient[rows]) for rows in (slice(0, 4), slice(4, ROWS))])
        (total,) = adjoint.weight_gradients()
    slope = gradient * (1 - torch.tanh(children[:, 0] * weight + children[:, 1]) ** 2)
    assert_close(down, torch.stack((slope * weight, slope), dim=1))
    assert_close(total, (slope * children[:, 0]).sum(0))
