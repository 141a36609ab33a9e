"""Averages in kernels are those by matrices, with all their gradients. Without a GPU they run in the interpreter."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beamtree.nn.engine.loops.continuous import by_matrices, edges

pytest.importorskip("triton")

from beamtree.nn.engine.gpu.kernels.windows import averages

pytestmark = pytest.mark.kernels
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def random(*shape, seed, dtype):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE, dtype)


def compare(existence, dim=3, seed=0, dtype=torch.float64, atol=1e-12):
    """Of the same values on both sides and of others on each; gradients of all that goes in. What does not exist has
    no gradient that anything depends on."""
    existence = torch.tensor(existence, device=DEVICE, dtype=dtype).requires_grad_()
    B, S = existence.shape
    shapes = (B, S, dim), (B, 2, S, dim)
    values = [random(*shape, seed=seed + n, dtype=dtype).requires_grad_() for n, shape in enumerate(shapes)]
    slopes = [random(B, 2, S, dim, seed=seed + n, dtype=dtype) for n in (2, 3)]
    results = []
    # The same edges for both: where a window ends on one up to rounding, the sum's order decides its derivative.
    total = edges(existence)
    by_kernels = partial(averages, total, total.detach().cummax(1).values)
    for average in (by_matrices(existence, dtype), by_kernels):
        found = [average(each) for each in values]
        loss = sum((slope * one).sum() for slope, one in zip(slopes, found, strict=True))
        d_existence, *d_values = torch.autograd.grad(loss, (existence, *values))
        results.append([*found, d_existence * (existence > 0), *d_values])
    for expected, one in zip(*results, strict=True):
        torch.testing.assert_close(one, expected, atol=atol, rtol=atol)


@given(
    st.lists(st.sampled_from([0.0, 1.0, 0.5]) | st.floats(1e-3, 1), min_size=1, max_size=12),
    st.integers(1, 5),
    st.integers(0, 99),
)
@settings(max_examples=15)
def test_averages_and_gradients_are_those_by_matrices(existence, dim, seed):
    """Also where windows end between two positions, and where positions do not exist."""
    compare([existence, existence[::-1]], dim, seed)


@pytest.mark.parametrize(("dim", "length"), [(1, 36), (3, 12)], ids=["sixteen-at-once", "two-at-once"])
def test_windows_longer_than_what_is_loaded_at_once(dim, length):
    generator = torch.Generator().manual_seed(0)
    faint = (0.03 * torch.rand(1, length, generator=generator)).tolist()
    exist = length // 3
    compare([*faint, [1.0] * exist + [0.0] * (length - exist)], dim)


def test_at_the_papers_width_in_float32():
    generator = torch.Generator().manual_seed(0)
    compare(torch.rand(2, 9, generator=generator).tolist(), dim=128, dtype=torch.float32, atol=1e-5)
