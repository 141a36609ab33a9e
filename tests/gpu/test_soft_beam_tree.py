"""Beam trees with SOFT top-k on a CUDA device: in CUDA graphs beside launch by launch, in float32 without TF32."""

import pytest
import torch

from beamtree.nn.encoders.soft_beam_tree import SoftBeamTree
from captured import assert_a_seed_repeats, assert_inference_and_training_share_graphs, compare, on_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("workspaces")]
LENGTHS = [24, 17, 9, 3, 2, 1]


def make(seed=0, dim=16, **options):
    torch.manual_seed(seed)
    return SoftBeamTree(dim, **options).cuda()


@pytest.mark.parametrize("options", [{}, {"stochastic": False}, {"dropout": 0.3}, {"mix": "official"}], ids=str)
def test_graphs_are_the_launches(options, workspaces):
    """Outputs, trees and every gradient, with other weights, inputs and lengths of one size."""
    for seed, lengths in enumerate((LENGTHS, LENGTHS[::-1], [24] * 6)):
        compare(make(seed, **options), lengths, seed)
    assert len(workspaces) == 1


@pytest.mark.parametrize("batch", [1, 64], ids=lambda b: f"B{b}")
def test_any_number_of_samples_will_do(batch):
    encoder = make(dropout=0.1)
    for seed in range(3):
        compare(encoder, [19] * batch, seed, atol=2e-3)


def test_the_papers_width_and_a_long_input():
    compare(make(dim=128), [100], atol=5e-3)


def test_a_seeded_pass_repeats_exactly():
    assert_a_seed_repeats(make(dropout=0.3), LENGTHS)


def test_auto_captures_what_it_can(workspaces):
    for scaling, sizes in (("official", 0), ("sample", 1)):
        make(scaling=scaling)(*on_gpu(LENGTHS)).state.sum().backward()
        assert len(workspaces) == sizes


def test_inference_and_training_share_graphs(workspaces):
    assert_inference_and_training_share_graphs(make().eval(), *on_gpu(LENGTHS), workspaces)
