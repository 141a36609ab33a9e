"""Masks of dropout in a kernel, in Triton's interpreter or on the GPU, beside those in PyTorch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beamtree.nn.engine.dropout import NodeDropout

pytest.importorskip("triton")
from beamtree.nn.engine.gpu.kernels import masks

pytestmark = pytest.mark.kernels
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def nodes(shape, seed, largest=2000):
    """Spans of children that lie side by side."""
    generator = torch.Generator().manual_seed(seed)
    sample, start = (torch.randint(largest, shape, generator=generator) for _ in range(2))
    first, second = (torch.randint(1, largest, shape, generator=generator) for _ in range(2))
    left = torch.stack((sample, start, start + first), dim=-1)
    return left, torch.stack((sample, start + first, start + first + second), dim=-1)


@given(
    shape=st.sampled_from([(1,), (5,), (2, 3), (0,)]),
    width=st.integers(1, 40) | st.just(2 * masks.LARGEST + 3),
    rate=st.sampled_from([0.0, 0.1, 0.5]),
    seed=st.integers(0, 2**31 - 2),
)
@settings(max_examples=25)
def test_masks_are_those_of_pytorch(shape, width, rate, seed):
    dropout = NodeDropout(rate, width, torch.zeros(()), torch.Generator().manual_seed(seed))
    left, right = nodes(shape, seed)
    expected = dropout.mask(left, right)
    given = dropout._key(left, right).to(DEVICE), dropout.offsets.to(DEVICE), width, dropout.threshold, dropout.scale
    assert torch.equal(masks.masks(*given).cpu(), expected)
