"""The option `slice` of the Beam Tree Cell: a scorer that reads only the first elements of a parent."""

import pytest
import torch

import beamtree
from support import assert_same, everything, inputs

ENCODERS = ["bt-grc", "bt-lstm", "bt-grc-onesoft"]


def make(name, slice, **options):
    torch.manual_seed(0)
    return beamtree.encoder(name, dim=6, beam_size=3, slice=slice, **options).double()


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("training", [True, False])
def test_it_is_a_scorer_of_all_elements_with_zeros(name, training):
    """Outputs and gradients, of x and of all weights."""
    sliced, whole = make(name, 2, dropout=0.1).train(training), make(name, None, dropout=0.1).train(training)
    assert sliced.scorer.weight.shape == (1, 2)
    weights = {key: value.clone() for key, value in sliced.state_dict().items()}
    weights["scorer.weight"] = torch.nn.functional.pad(weights["scorer.weight"], (0, 4))
    whole.load_state_dict(weights)
    x, lengths = inputs([7, 4, 1])
    found, expected = everything(sliced, x, lengths), everything(whole, x, lengths)
    expected[0]["gradient of scorer.weight"] = expected[0]["gradient of scorer.weight"][:, :2]
    assert_same(found, expected, atol=1e-11)


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("engine", ["torch", pytest.param("triton", marks=pytest.mark.kernels)])
def test_engines_agree_with_the_reference(name, engine, request):
    device, dtype = "cpu", torch.float64
    if engine == "triton":
        request.getfixturevalue("workspaces")
        device, dtype = "cuda" if torch.cuda.is_available() else "cpu", torch.float32
    encoder = make(name, 2, dropout=0.1, engine="reference").to(device, dtype)
    x, lengths = (each.to(device) for each in inputs([5, 3], dtype=dtype))
    expected = everything(encoder, x, lengths)
    encoder.engine = engine
    assert_same(everything(encoder, x, lengths), expected, atol=2e-5 if engine == "triton" else 1e-10)


def test_merge_scores_read_the_same_elements():
    encoder = make("bt-grc", 2).eval()
    x, lengths = inputs([6, 3])
    with torch.no_grad():
        beams = encoder(x, lengths).beams
        found = encoder.merge_scores(beams)
    present = beams.log_probs.isfinite()  # three tokens have two trees
    totals = found.log_probs.nan_to_num().sum(-1).where(present, -torch.inf)
    torch.testing.assert_close(totals.log_softmax(1), beams.log_probs)


@pytest.mark.usefixtures("shape_checks_off")
@pytest.mark.parametrize("slice", [0, 7, True, "auto", 2.0])
def test_wrong_values_are_refused(slice):
    with pytest.raises(ValueError, match=r"slice is .*: it must be an integer from 1 to dim = 6, or None for all"):
        make("bt-grc", slice)


def test_it_can_be_exported_and_is_part_of_the_description():
    encoder = make("bt-grc", 2).eval()
    x, lengths = inputs([5, 3])
    program = torch.export.export(encoder, (x, lengths)).module()
    torch.testing.assert_close(program(x, lengths).state, encoder(x, lengths).state)
    assert "slice=2" in repr(encoder)
    assert "slice" not in repr(make("bt-grc", None))
