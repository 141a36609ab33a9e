"""The fused parser on a CUDA device: beside the torch engine, in float32 without TF32."""

import pytest
import torch

from support import assert_same, everything, inputs, make

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("workspaces")]


def pair(dim, seed=0, **options):
    """The same encoder on both engines."""
    engines = ("torch", "triton")
    return [make("bsrp-grc", engine, dim, seed, dtype=torch.float32, **options).cuda() for engine in engines]


def sentences(lengths, dim, seed=0):
    return (tensor.cuda() for tensor in inputs(lengths, dim=dim, seed=seed, dtype=torch.float32))


@pytest.mark.parametrize("dim", [64, 100, 128, 300], ids=lambda dim: f"D{dim}")
@pytest.mark.parametrize("beam_size", [1, 5, 8], ids=lambda k: f"K{k}")
def test_it_agrees_with_the_torch_engine(dim, beam_size):
    one, other = pair(dim, beam_size=beam_size, dropout=0.1)
    x, lengths = sentences([33, 20, 17, 3, 2, 1], dim)
    assert_same(everything(one, x, lengths), everything(other, x, lengths), atol=5e-4)


@pytest.mark.parametrize("batch", [1, 40, 130], ids=lambda b: f"B{b}")
def test_any_number_of_samples_will_do(batch):
    one, other = pair(64, beam_size=5, dropout=0.1)
    x, lengths = sentences([14] * batch, 64)
    assert_same(everything(one, x, lengths), everything(other, x, lengths), atol=5e-4)


def test_graphs_serve_other_lengths_and_other_weights(workspaces):
    """The first pass launches, the second captures, and the others replay."""
    for seed, lengths in enumerate(([30, 22], [25, 9], [28, 28], [20, 1])):  # of one padded length
        one, other = pair(64, seed, beam_size=4, dropout=0.2)
        x, lengths = sentences(lengths, 64, seed)
        assert_same(everything(one, x, lengths), everything(other, x, lengths), atol=5e-4)
        assert len(workspaces) == 1


@pytest.mark.parametrize("batch", [2, 260], ids=lambda b: f"B{b}")
def test_half_precision_is_close_to_full(batch):
    """One beam: nearly all choices are the same. With 1300 beams PyTorch makes the products of the cell."""
    for beam_size in (1, 5):
        _, encoder = pair(64, beam_size=beam_size)
        x, lengths = sentences([9] * batch, 64)
        full = encoder(x, lengths).state
        for _ in range(2):  # launched, then captured
            encoder.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                half = encoder(x, lengths).state
            half.sin().sum().backward()
        assert all(weight.grad.isfinite().all() for weight in encoder.parameters())
        assert ((full - half).abs().amax(1) < 0.1).float().mean() > 0.8
        assert not torch.equal(full, half)


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # PyTorch's, of gradients on other streams
def test_two_streams_do_not_share_a_workspace(workspaces):
    one, other = pair(64, beam_size=3)
    x, lengths = sentences([18, 11], 64)
    expected = everything(one, x, lengths)
    found = []
    for stream in (torch.cuda.Stream(), torch.cuda.Stream()):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found += [everything(other, x, lengths) for _ in range(3)]
    torch.cuda.synchronize()
    for result in found:
        assert_same(expected, result, atol=5e-4)
    assert len(workspaces) == 2
