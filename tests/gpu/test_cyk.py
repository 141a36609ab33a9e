"""CYK on a CUDA device: its cells in kernels beside PyTorch's operations, in float32 without TF32."""

import pytest
import torch

from beamtree.nn.cells.grc.dense import DenseComposition
from beamtree.nn.encoders.cyk import CYK
from captured import assert_a_seed_repeats, compare, on_gpu
from support import assert_same, everything

pytestmark = pytest.mark.gpu
LENGTHS = [24, 17, 9, 3, 2, 1]


def make(seed=0, dim=16, **options):
    """Weights depend on the seed alone; the scorer is strong enough to prefer some splits."""
    torch.manual_seed(seed)
    encoder = CYK(dim, **options)
    with torch.no_grad():
        encoder.scorer.weight.mul_(3)
    return encoder.cuda()


@pytest.mark.parametrize("options", [{}, {"dropout": 0.3}, {"masks": "official", "dropout": 0.2}], ids=str)
@pytest.mark.parametrize("dim", [16, 64, 100], ids=lambda dim: f"D{dim}")
def test_it_agrees_with_the_torch_engine(dim, options):
    """Outputs, trees and every gradient, for samples with padding."""
    for seed, lengths in enumerate((LENGTHS, LENGTHS[::-1], [2, 1])):
        compare(make(seed, dim, **options), lengths, seed)


def test_padding_is_never_read():
    encoder = make(dropout=0.2, engine="triton")
    x, lengths = on_gpu(LENGTHS)
    expected = everything(encoder, x, lengths)
    for sample, length in enumerate(LENGTHS):
        x[sample, length:] = torch.nan
    assert_same(expected, everything(encoder, x, lengths), atol=1e-5)


@pytest.mark.parametrize("batch", [1, 64], ids=lambda b: f"B{b}")
def test_any_number_of_samples_will_do(batch):
    compare(make(dropout=0.1), [19] * batch)


def test_a_seeded_pass_repeats_exactly():
    assert_a_seed_repeats(make(dropout=0.3), LENGTHS)


@pytest.mark.parametrize(("dtype", "by_kernels"), [(torch.float32, True), (torch.float64, False)], ids=str)
def test_auto_uses_kernels_where_they_can_be(dtype, by_kernels, monkeypatch):
    calls, compose = [], DenseComposition.apply
    monkeypatch.setattr(DenseComposition, "apply", lambda *given: calls.append(1) or compose(*given))
    x, lengths = on_gpu([5, 3])
    make().to(dtype)(x.to(dtype), lengths)
    assert bool(calls) == by_kernels
