"""CRvNN on a CUDA device: in CUDA graphs beside launch by launch, in float32 without TF32."""

import pytest
import torch

from beamtree.nn.encoders.crvnn import CRvNN
from captured import assert_a_seed_repeats, assert_inference_and_training_share_graphs, compare, on_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("workspaces")]
LENGTHS = [40, 33, 17, 3, 2, 1]


def make(seed=0, dim=16, **options):
    torch.manual_seed(seed)
    return CRvNN(dim, **options).cuda()


@pytest.mark.parametrize("options", [{}, {"halt": False}, {"dropout": 0.3}], ids=str)
def test_graphs_are_the_launches(options, workspaces):
    """Outputs, trees and every gradient, with other weights, inputs and lengths of one size."""
    for seed, lengths in enumerate((LENGTHS, LENGTHS[::-1], [40] * 6)):
        compare(make(seed, **options), lengths, seed)
    assert len(workspaces) == 1


@pytest.mark.parametrize("batch", [1, 64], ids=lambda b: f"B{b}")
def test_any_number_of_samples_will_do(batch):
    encoder = make(dropout=0.1)
    for seed in range(3):
        compare(encoder, [19] * batch, seed, atol=2e-3)


def test_the_papers_width_and_a_long_input():
    compare(make(dim=128, halt=False), [150], atol=5e-3)


def test_a_seeded_pass_repeats_exactly():
    assert_a_seed_repeats(make(dropout=0.3, engine="triton"), LENGTHS)


def test_inference_and_training_share_graphs(workspaces):
    assert_inference_and_training_share_graphs(make(engine="triton").eval(), *on_gpu(LENGTHS), workspaces)


def test_a_long_input_needs_little_memory():
    """All iterations of one training step at the width of the paper."""
    encoder = make(dim=128, halt=False, engine="triton")
    x, lengths = on_gpu([950], dim=128)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(2):
        encoder(x, lengths).state.sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 4 * 2**30
