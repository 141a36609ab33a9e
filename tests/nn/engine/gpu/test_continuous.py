"""What CRvNN computes of each position in kernels, against PyTorch's operations: values and gradients."""

import pytest
import torch

pytest.importorskip("triton")

from hypothesis import given, settings
from hypothesis import strategies as st

from beamtree.nn.engine.gpu import continuous
from beamtree.nn.engine.loops.continuous import LARGEST, edges, is_unfinished

pytestmark = pytest.mark.kernels
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
shapes = st.tuples(st.integers(1, 3), st.integers(3, 12))
dtypes = st.sampled_from([torch.float32, torch.float64])


def random(shape, dtype, seed):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE, dtype)


@settings(max_examples=10, deadline=None)
@given(shape=shapes, dtype=dtypes, threshold=st.sampled_from([0.1, 0.5, 0.99]), seed=st.integers(0, 99))
def test_positions_lie_side_by_side(shape, dtype, threshold, seed):
    existence = random(shape, dtype, seed).requires_grad_()
    absorbable = random(shape, torch.float64, seed + 1) > 0.3
    totals, rising, active = continuous.Positioning.apply(existence, absorbable, threshold)
    expected = edges(existence)
    torch.testing.assert_close(totals, expected, atol=1e-14, rtol=1e-14)
    torch.testing.assert_close(rising, expected.detach().cummax(1).values, atol=1e-14, rtol=1e-14)
    assert torch.equal(active.bool(), absorbable & is_unfinished(existence, threshold))
    found, truth = (torch.autograd.grad(total.sin().sum(), existence)[0] for total in (totals, expected))
    torch.testing.assert_close(found, truth, atol=1e-6 if dtype == torch.float32 else 1e-13, rtol=1e-6)


def test_edges_never_fall():
    """Rounding cannot make a window end before it begins."""
    existence = torch.tensor([[1.0, -1e-9, 1e-12, 1.0]], device=DEVICE)
    _, rising, _ = continuous.Positioning.apply(existence, torch.ones_like(existence, dtype=torch.bool), 0.1)
    assert (rising.diff() >= 0).all()


def absorb_plainly(scores, active, existence, average):
    weights = scores.double().clamp(max=LARGEST).exp() * active
    beside = average(weights.unsqueeze(-1)).sum(1).squeeze(-1)
    probability = (weights / (weights + 1 + beside)).to(existence.dtype)
    return probability, existence * (1 - probability)


@settings(max_examples=10, deadline=None)
@given(shape=shapes, dtype=dtypes, strength=st.sampled_from([1.0, 30.0, 2000.0]), seed=st.integers(0, 99))
def test_absorption_is_that_of_the_equations(shape, dtype, strength, seed):
    scores = (random(shape, dtype, seed) - 0.5).mul(strength).requires_grad_()
    existence = random(shape, dtype, seed + 1).requires_grad_()
    active = random(shape, torch.float64, seed + 2) > 0.3
    matrix = random((2, shape[1], shape[1]), torch.float64, seed + 3) / shape[1]

    def average(values):
        return matrix @ values.unsqueeze(1)

    found = continuous.absorb(scores, active, existence, average, LARGEST)
    truth = absorb_plainly(scores, active, existence, average)
    tolerance = {"atol": 1e-6, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 1e-13, "rtol": 1e-11}
    gradients = []
    for probability, after in (found, truth):
        gradients.append(torch.autograd.grad((probability * 3).sin().sum() + after.sin().sum(), (scores, existence)))
    for one, other in zip((*found, *gradients[0]), (*truth, *gradients[1]), strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, **tolerance)
