"""The GRC of many pairs in kernels, against the plain cell: outputs and all gradients."""

import pytest
import torch

pytest.importorskip("triton")

from hypothesis import given, settings
from hypothesis import strategies as st

import beamtree
from beamtree.nn.cells import function_of
from beamtree.nn.cells.grc import dense
from beamtree.nn.cells.grc.dense import as_rows, fuse

pytestmark = pytest.mark.kernels
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make(dim, seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    cell = beamtree.GRC(dim)
    with torch.no_grad():
        for weight in cell.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    return function_of(cell.to(DEVICE, dtype))


def inputs(shape, dim, masked, seed=1):
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(*shape, dim, generator=generator).to(DEVICE) for _ in range(2))
    mask = (torch.rand(*shape, 4 * dim, generator=generator) > 0.3).float().div(0.7).to(DEVICE) if masked else None
    return left, right, mask


def run(compose, cell, left, right, mask):
    """The parents, and the gradients of the children and of all weights."""
    left, right = left.detach().requires_grad_(), right.detach().requires_grad_()
    parents = compose(left, right, mask)
    weights = [weight for weight in cell.weights if weight.requires_grad]
    return parents, *torch.autograd.grad(parents.sin().sum(), (left, right, *weights))


def assert_close(found, truth, tolerance=1e-5):
    for one, other in zip(found, truth, strict=True):
        assert one.shape == other.shape
        assert (one.double() - other).norm() <= tolerance * (other.norm() + 1e-3)


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize(("rows", "dim"), [(1, 8), (70, 12), (300, 8)])  # "ieee", and tiles of both sizes of "split"
def test_parents_and_gradients_are_those_of_the_cell(rows, dim, masked):
    cell, given = make(dim), inputs((rows,), dim, masked)
    exact = make(dim, dtype=torch.float64)
    truth = run(exact, exact, *(None if x is None else x.double() for x in given))
    assert_close(run(fuse(cell, rows), cell, *given), truth)


@settings(max_examples=15, deadline=None)
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    dim=st.sampled_from([1, 5, 8]),
    masked=st.booleans(),
    view=st.sampled_from(["plain", "neighbours", "every second", "transposed", "expanded"]),
)
def test_children_may_be_views(shape, dim, masked, view):
    cell = make(dim)
    left, right, mask = inputs(shape, dim, masked)
    if view == "neighbours":
        both = torch.cat((left, right[..., -1:, :]), dim=-2)
        left, right = both[..., :-1, :], both[..., 1:, :]
    elif view == "every second":
        left = torch.stack((left, right), dim=-3)[..., 0, :, :]
    elif view == "transposed":
        left = left.mT.contiguous().mT
    elif view == "expanded":
        left = left[..., :1, :].expand_as(right)
    parents = fuse(cell, right[..., 0].numel())(left, right, mask)
    torch.testing.assert_close(parents, cell(left, right, mask), atol=1e-5, rtol=1e-5)


def test_views_are_not_copied():
    both = torch.zeros(3, 2, 5, 4)
    one = as_rows(both[:, 0])  # of 𝓛h and 𝓡h, the first
    assert one.tensor.data_ptr() == both.data_ptr()
    assert one.strides == (5, 40, 4)
    assert as_rows(both[:, :, :-1]).strides == (4, 20, 4)
    assert as_rows(torch.zeros(6, 4)).strides == (6, 0, 4)
    assert as_rows(both[:, :, ::2, ::2]).tensor.is_contiguous()


def test_no_rows():
    cell, (left, right, mask) = make(8), inputs((0, 3), 8, True)
    found = run(fuse(cell, 0), cell, left, right, mask)
    assert [x.shape for x in found] == [x.shape for x in run(cell, cell, left, right, mask)]


def test_frozen_weights_and_children_have_no_gradient():
    cell, (left, right, _) = make(8), inputs((5,), 8, False)
    frozen = cell.bind([weight.detach() for weight in cell.weights])
    assert not fuse(frozen, 5)(left, right).requires_grad
    right.requires_grad_()
    (gradient,) = torch.autograd.grad(fuse(frozen, 5)(left, right).sin().sum(), right)
    (truth,) = torch.autograd.grad(frozen(left, right).sin().sum(), right)
    torch.testing.assert_close(gradient, truth, atol=1e-5, rtol=1e-5)


def test_backward_can_be_repeated():
    cell, (left, right, mask) = make(8), inputs((6,), 8, True)
    left.requires_grad_()
    loss = fuse(cell, 6)(left, right, mask).sin().sum()
    first, second = (torch.autograd.grad(loss, left, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_no_second_derivative():
    cell, (left, right, _) = make(8), inputs((3,), 8, False)
    left.requires_grad_()
    (gradient,) = torch.autograd.grad(fuse(cell, 3)(left, right).sin().sum(), left, create_graph=True)
    with pytest.raises(RuntimeError, match='engine="reference"'):
        torch.autograd.grad(gradient.sum(), left)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_less_exact_products(precision, monkeypatch):
    monkeypatch.setattr(dense, "precision", lambda device: precision)
    cell, given = make(8), inputs((40,), 8, True)
    exact = make(8, dtype=torch.float64)
    truth = run(exact, exact, *(x.double() for x in given))
    assert_close(run(fuse(cell, 40), cell, *given), truth, 0.03)
