"""Beam trees with SOFT top-k on a CUDA device: in CUDA graphs beside launch by launch, in float32 without TF32."""

import pytest
import torch

from beamtree.encoders.soft_beam_tree import SoftBeamTree
from support import assert_same, everything, inputs

pytestmark = pytest.mark.gpu
LENGTHS = [24, 17, 9, 3, 2, 1]


@pytest.fixture(autouse=True)
def stretches():
    from beamtree.engine.fused import release, stretches

    release()
    yield stretches
    release()


def make(seed=0, dim=16, **options):
    torch.manual_seed(seed)
    return SoftBeamTree(dim, **options).cuda()


def given(lengths, seed=0, dim=16):
    return (t.cuda() for t in inputs(lengths, dim=dim, seed=seed, dtype=torch.float32))


def compare(encoder, lengths, seed=0, atol=5e-4):
    """Everything that both engines give, under the same noise and dropout."""
    found = []
    for encoder.engine in ("torch", "triton"):
        found.append(everything(encoder, *given(lengths, seed, encoder.dim)))
    assert_same(*found, atol=atol)


@pytest.mark.parametrize("options", [{}, {"stochastic": False}, {"dropout": 0.3}, {"mix": "official"}], ids=str)
def test_graphs_are_the_launches(options, stretches):
    """Outputs, trees and every gradient, with other weights, inputs and lengths of one size."""
    for seed, lengths in enumerate((LENGTHS, LENGTHS[::-1], [24] * 6)):
        compare(make(seed, **options), lengths, seed)
    assert len(stretches._kept) == 1


@pytest.mark.parametrize("batch", [1, 64], ids=lambda b: f"B{b}")
def test_any_number_of_samples_will_do(batch):
    encoder = make(dropout=0.1)
    for seed in range(3):
        compare(encoder, [19] * batch, seed, atol=2e-3)


def test_the_papers_width_and_a_long_input():
    compare(make(dim=128), [100], atol=5e-3)


def test_a_seeded_pass_repeats_exactly():
    encoder = make(dropout=0.3)
    x, lengths = given(LENGTHS)
    seeds = (1, 1, 1, 2)
    first, *again, other = (encoder(x, lengths, generator=torch.Generator("cuda").manual_seed(s)).state for s in seeds)
    assert all(torch.equal(first, state) for state in again)
    assert not torch.equal(first, other)


def test_auto_captures_what_it_can(stretches):
    for scaling, sizes in (("official", 0), ("sample", 1)):
        make(scaling=scaling)(*given(LENGTHS)).state.sum().backward()
        assert len(stretches._kept) == sizes


def test_inference_and_training_share_graphs(stretches):
    encoder = make().eval()
    x, lengths = given(LENGTHS)
    with torch.inference_mode():
        inferred = [encoder(x, lengths).state for _ in range(2)]
    trained = encoder(x, lengths).state
    trained.sum().backward()
    assert all(torch.equal(state, trained) for state in inferred)
    assert len(stretches._kept) == 1
