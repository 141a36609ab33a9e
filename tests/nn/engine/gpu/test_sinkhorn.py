"""Sinkhorn's iterations and the plan's gradient in kernels, in Triton's interpreter or on the GPU, beside PyTorch's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beamtree.nn.topk import transport

pytest.importorskip("triton")
from beamtree.nn.engine.gpu.kernels import sinkhorn

pytestmark = pytest.mark.kernels
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def problems(b, m, k, seed, epsilon=0.1):
    """Costs of m entries, some of them absent, beside k + 1 anchors."""
    generator = torch.Generator().manual_seed(seed)
    cost = torch.rand(b, m, k + 1, dtype=torch.float64, generator=generator)
    rows = (torch.rand(b, m, 1, generator=generator) < 0.8).double()
    rows[:, : k + 1] = 1
    columns = torch.ones(b, k + 1, 1, dtype=torch.float64)
    columns[:, -1] = rows.sum(1) - k
    return (-cost / epsilon).exp(), rows, columns


@given(b=st.integers(1, 3), m=st.integers(2, 33), k=st.integers(1, 9), seed=st.integers(0, 99))
@settings(max_examples=25)
def test_the_kernel_iterates_as_pytorch_does(b, m, k, seed):
    given = problems(b, max(m, k + 1), k, seed)
    expected = transport.scalings(*given, 20)
    found = sinkhorn.scalings(*(tensor.to(DEVICE) for tensor in given), 20)
    for a, b_ in zip(found, expected, strict=True):
        torch.testing.assert_close(a.cpu(), b_, atol=0, rtol=1e-11)


def plans(b, m, k, seed, dtype=torch.float64, **options):
    G, rows, columns = problems(b, m, k, seed, **options)
    u, v = transport.scalings(G, rows, columns, 300)
    return (u * G * v.mT).to(dtype)


@given(b=st.integers(1, 3), m=st.integers(2, 33), k=st.integers(1, 9), seed=st.integers(0, 99))
@settings(max_examples=25)
def test_the_kernels_gradient_is_that_of_pytorch(b, m, k, seed):
    plan = plans(b, max(m, k + 1), k, seed)
    gradient = torch.randn(plan.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    found = sinkhorn.cost_gradient(plan.to(DEVICE), gradient.to(DEVICE), 0.1).cpu()
    torch.testing.assert_close(found, transport.cost_gradient(plan, gradient, 0.1), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("epsilon", [0.1, 0.01])
def test_the_gradient_in_float32_is_as_good_as_that_of_pytorch(epsilon):
    """Also of plans that hardly mix, whose system is nearly singular."""
    exact = plans(16, 25, 5, seed=0, epsilon=epsilon)
    plan, slopes = exact.float(), torch.randn(exact.shape, generator=torch.Generator().manual_seed(0))
    expected = transport.cost_gradient(plan.double(), slopes.double(), epsilon)
    theirs = transport.cost_gradient(plan, slopes, epsilon)
    found = sinkhorn.cost_gradient(plan.to(DEVICE), slopes.to(DEVICE), epsilon).cpu()
    assert (found - expected).abs().max() <= 2 * (theirs - expected).abs().max()


def test_sums_are_as_they_were_asked_for():
    G, rows, columns = problems(4, 25, 5, seed=0)
    u, v = (tensor.cpu() for tensor in sinkhorn.scalings(G.to(DEVICE), rows.to(DEVICE), columns.to(DEVICE), 200))
    plan = u * G * v.mT
    torch.testing.assert_close(plan.sum(1).unsqueeze(2), columns)
    torch.testing.assert_close(plan.sum(2).unsqueeze(2), rows, atol=1e-6, rtol=0)
    assert (plan[rows.squeeze(2) == 0] == 0).all()


@pytest.mark.parametrize("kernel", ["iterate", "pull_back"])
def test_a_kernel_is_launched_on_the_device_of_its_tensors(kernel, monkeypatch):
    """Which need not be the current one."""
    guarded, launched = [], []

    class Guard:
        def __init__(self, tensor):
            self.tensor = tensor

        def __enter__(self):
            guarded.append(self.tensor)

        def __exit__(self, *error):
            guarded.clear()

    class Kernel:
        def __getitem__(self, grid):
            return lambda *given, **options: launched.append(list(guarded))

    monkeypatch.setattr(torch.cuda, "device_of", Guard)
    monkeypatch.setattr(sinkhorn, kernel, Kernel())
    given = [tensor.to(DEVICE) for tensor in problems(2, 4, 2, seed=0)]
    if kernel == "iterate":
        sinkhorn.scalings(*given, 20)
    else:
        sinkhorn.cost_gradient(given[0], given[0], 0.1)
    ((guard,),) = launched
    assert guard is given[0]
    assert not guarded


def test_matrices_beyond_the_registers_are_left_to_pytorch():
    assert sinkhorn.fits(25, 6)
    assert sinkhorn.fits(1024, 8)
    assert not sinkhorn.fits(1025, 8)
