"""The fold of Ordered Memory in kernels, against the plain one: candidates and all gradients."""

from functools import partial

import pytest
import torch

pytest.importorskip("triton")

import beamtree
from beamtree.nn.cells import function_of
from beamtree.nn.engine.gpu import fold as by_kernels
from beamtree.nn.engine.gpu import segments
from beamtree.nn.engine.gpu.fold import KernelFold, make_fold
from beamtree.nn.engine.loops.fold import Fold
from support import assert_same, everything, inputs

pytestmark = pytest.mark.kernels
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make(slots, batch, dim, masked, seed=0):
    """A cell, and what a fold takes."""
    torch.manual_seed(seed)
    cell = beamtree.GRC(dim)
    with torch.no_grad():
        for weight in cell.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    leaf, finished = torch.randn(batch, dim), torch.randn(slots, batch, dim)
    share = torch.rand(slots, batch, 1)
    mask = (torch.rand(slots, batch, 6 * dim) > 0.2) / 0.8 if masked else None
    return cell.to(DEVICE), [None if x is None else x.to(DEVICE) for x in (leaf, finished, share, mask)]


def run(fold, cell, leaf, finished, share, mask, made=None):
    wanted = [tensor.detach().requires_grad_() for tensor in (leaf, finished, share)]
    found = fold(*wanted, mask, made)
    return found, *torch.autograd.grad(found.sin().sum(), (*wanted, *cell.weights))


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize(("slots", "batch", "dim"), [(1, 1, 5), (3, 2, 8), (4, 20, 6)])
def test_candidates_and_gradients_are_those_of_the_plain_fold(slots, batch, dim, masked):
    cell, given = make(slots, batch, dim, masked)
    exact = function_of(cell.double())
    given_exactly = [None if x is None else x.double() for x in given]
    truth = run(lambda *tensors: Fold.apply(exact.eps, *tensors, *exact.weights), exact, *given_exactly)
    own = function_of(cell.float())
    found = run(make_fold(own, slots * batch), own, *given)
    again = run(make_fold(own, slots * batch), own, *given, made=found[0].detach())  # as backward calls it
    for results in (found, again):
        for one, other in zip(results, truth, strict=True):
            assert one.shape == other.shape
            assert (one.double() - other).norm() <= 1e-5 * (other.norm() + 1e-3)


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_under_autocast_products_are_in_bfloat16(masked):
    """Of both folds, forward and backward, to its eight binary digits; and they are not as in float32."""
    cell, given = make(3, 5, 8, masked)
    own = function_of(cell)
    plain = partial(by_kernels.fold_plainly, own)
    exact = run(plain, own, *given)
    with torch.autocast(DEVICE, torch.bfloat16):
        kernels = make_fold(own, 15)

    def under_autocast(fold, *tensors):  # not the backward pass
        with torch.autocast(DEVICE, torch.bfloat16):
            return fold(*tensors)

    for fold in (plain, kernels):
        found = run(partial(under_autocast, fold), own, *given)
        returned, *gradients = run(partial(under_autocast, fold), own, *given, made=exact[0].detach())  # only backward
        assert torch.equal(returned, exact[0])
        for one, other in (*zip(found, exact, strict=True), *zip(gradients, exact[1:], strict=True)):
            assert one.dtype == torch.float32
            error = (one - other).norm() / other.norm()
            assert error <= 2e-2
            if one.dim() > 1:  # the gradients of biases are sums, in which roundings cancel
                assert error > 1e-4


def test_in_float64_it_is_the_plain_fold():
    cell, _ = make(2, 2, 4, masked=False)
    assert make_fold(function_of(cell.double()), 4).func is by_kernels.fold_plainly


@pytest.mark.parametrize("options", [{}, {"dropout": 0.2, "memory_dropout": 0.2}], ids=str)
def test_ordered_memory_is_the_same_on_both_engines(options, workspaces, monkeypatch):
    monkeypatch.setattr(segments, "MAX_STEPS", 2)
    calls, fold = [], KernelFold.apply
    monkeypatch.setattr(KernelFold, "apply", lambda *given: calls.append(1) or fold(*given))
    torch.manual_seed(0)
    encoder = beamtree.encoder("ordered-memory", dim=6, slots=3, **options).to(DEVICE)
    x, lengths = (given.to(DEVICE) for given in inputs([4, 1, 3], dtype=torch.float32))
    found = {}
    for encoder.engine in ("torch", "triton"):
        calls.clear()
        found[encoder.engine] = everything(encoder, x, lengths)
        assert bool(calls) == (encoder.engine == "triton")
    assert_same(found["torch"], found["triton"], atol=2e-5)
