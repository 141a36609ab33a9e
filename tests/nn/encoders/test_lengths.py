"""The forms in which lengths can be given, and what an encoding prints."""

import pytest
import torch

import beamtree
from idioms import DIM, every_encoder, inputs, make, options


def encode(name, encoder, x, given):
    return encoder(x, given, **options(name, [4, 1, 3])).state


@every_encoder
def test_lengths_are_a_tensor_a_list_or_a_mask(name):
    encoder, (x, lengths) = make(name).eval(), inputs()
    truth = encode(name, encoder, x, lengths)
    mask = torch.arange(x.shape[1]) < lengths.unsqueeze(1)
    numbers = (lengths.int(), lengths.tolist(), tuple(lengths.tolist()), lengths.numpy())
    for given in (*numbers, mask, mask.tolist(), mask.numpy()):
        torch.testing.assert_close(encode(name, encoder, x, given), truth, atol=0, rtol=0)


def test_without_lengths_there_is_no_padding():
    encoder, x = make("bt-grc").eval(), torch.randn(2, 5, DIM, dtype=torch.float64)
    torch.testing.assert_close(encoder(x).state, encoder(x, torch.tensor([5, 5])).state)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (torch.tensor([[True, False, True], [True, True, True]]), "padding before or between vectors"),
        (torch.ones(2, 4, dtype=torch.bool), r"the mask has shape \(2, 4\): it must be \(2, 3\)"),
        ([2, 4], r"lengths\[1\] is 4: lengths must be between 1 and N = 3"),
        ([2.0, 3.0], "lengths is a tensor of torch.float32"),
        ([3], r"lengths has shape \(1,\): it must be \(2,\)"),
        ("ab", "lengths is 'ab': it must hold an integer for each sample of x"),
        ([None, 2], r"lengths is \[None, 2\]: it must hold an integer for each sample of x"),
    ],
)
def test_what_are_no_lengths_is_refused(shape_checks_off, lengths, message):
    with pytest.raises(ValueError, match=message):
        make("bt-grc")(torch.randn(2, 3, DIM, dtype=torch.float64), lengths)


def test_an_encoding_prints_its_shapes():
    found = make("bt-grc")(*inputs())
    assert repr(found) == (
        "Encoding(state=(3, 8) of torch.float64, beams=Beams(2 of each of 3 samples, of up to 4 leaves))"
    )
    assert repr(make("ndr")(*inputs())) == "Encoding(state=(3, 8) of torch.float64, beams=None)"


def test_probabilities_never_exceed_one():
    encoder = beamtree.BeamTree(dim=8).eval()
    (parses,) = encoder(torch.randn(1, 2, 8)).beams.parses()
    assert [parse.probability for parse in parses] == [1.0]
