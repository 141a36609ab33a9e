"""RecurrentGRC, reading forwards, and both ways."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import beamtree
from beamtree.nn.encoders.recurrent import Recurrent
from golden_cases import FILES, Golden
from support import assert_batch_does_not_matter, assert_gradients_are_derivatives, inputs

ways = pytest.mark.parametrize("bidirectional", [False, True], ids=["forwards", "both ways"])


def make(dim=6, seed=0, dtype=torch.float64, **options):
    """With first states that are not zero, so that they matter."""
    torch.manual_seed(seed)
    encoder = Recurrent(dim, **options).to(dtype)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if name.endswith("start"):
                parameter.normal_()
    return encoder


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    padding=st.integers(0, 4),
    bidirectional=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=30)
def test_padding_and_batch_mates_never_change_an_encoding(lengths, padding, bidirectional, seed):
    encoder = make(seed=seed, bidirectional=bidirectional)
    assert_batch_does_not_matter(encoder, lengths, padding, seed)


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_the_encoding_is_the_last_state(n):
    encoder = make()
    x, lengths = inputs([n])
    h = encoder.start
    for leaf in encoder.leaf(x)[0]:
        h = encoder.cell(h, leaf)
    out = encoder(x, lengths)
    assert_close(out.state[0], h, atol=1e-12, rtol=0)
    assert out.beams is None


def test_the_second_reader_starts_at_the_end():
    """Both ways with equal readers: reversed, an input gives the two halves of the encoding in exchange."""
    encoder = make(bidirectional=True)
    encoder.second_cell.load_state_dict(encoder.cell.state_dict())
    with torch.no_grad():
        encoder.second_start.copy_(encoder.start)
        encoder.join.bias.zero_()
        x, lengths = inputs([5])
        forwards = encoder(x, lengths).state
        encoder.join.weight.copy_(encoder.join.weight.roll(6, dims=1))
        assert_close(encoder(x.flip(1), lengths).state, forwards, atol=1e-12, rtol=0)
        assert (encoder(x, lengths).state - forwards).abs().max() > 1e-3


def test_the_first_state_is_zero_until_it_is_trained():
    encoder = Recurrent(4, bidirectional=True)
    assert not encoder.start.any()
    assert not encoder.second_start.any()


@ways
def test_gradients_are_derivatives(bidirectional):
    encoder = make(dim=2, bidirectional=bidirectional)
    x, lengths = inputs([3, 1], dim=2)
    wanted = (x.requires_grad_(), *encoder.parameters())
    assert_gradients_are_derivatives(lambda x, *weights: encoder(x, lengths).state, wanted)


@ways
def test_every_parameter_has_a_gradient(bidirectional):
    encoder = make(bidirectional=bidirectional)
    encoder(*inputs([6, 2])).state.sin().sum().backward()
    assert all(parameter.grad.abs().max() > 1e-6 for parameter in encoder.parameters())


@ways
def test_a_seeded_run_repeats_exactly(bidirectional):
    encoder = make(dropout=0.3, bidirectional=bidirectional)
    x, lengths = inputs([11, 6])
    seeded = [encoder(x, lengths, generator=torch.Generator().manual_seed(3)).state for _ in range(2)]
    assert torch.equal(*seeded)
    torch.manual_seed(5)
    first = encoder(x, lengths).state
    assert not torch.equal(first, encoder(x, lengths).state)
    torch.manual_seed(5)
    assert torch.equal(first, encoder(x, lengths).state)


@ways
def test_dropout_is_for_training_only(bidirectional):
    encoder, plain = (make(dropout=rate, bidirectional=bidirectional) for rate in (0.5, 0.0))
    x, lengths = inputs([9])
    assert not torch.equal(encoder(x, lengths).state, plain(x, lengths).state)
    assert torch.equal(encoder.eval()(x, lengths).state, plain(x, lengths).state)


@ways
def test_bfloat16_autocast_stays_close(bidirectional):
    encoder = make(dim=32, dtype=torch.float32, bidirectional=bidirectional)
    x, lengths = inputs([7, 4], dim=32, dtype=torch.float32)
    exact = encoder(x, lengths).state
    with torch.autocast("cpu", torch.bfloat16):
        close = encoder(x, lengths).state
    assert close.dtype == torch.float32
    assert_close(close, exact, atol=0.05, rtol=0.05)
    expected, found = (torch.autograd.grad(state.sin().sum(), encoder.parameters()) for state in (exact, close))
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() <= 0.05 * b.norm() + 1e-4


@pytest.mark.usefixtures("shape_checks_off")
@pytest.mark.parametrize("options", [{"dim": 0}, {"dropout": 1.0}, {"bidirectional": "yes"}, {"check_nan": 1}])
def test_wrong_options_are_refused(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"{name} is {options[name]!r}"):
        Recurrent(**{"dim": 4, **options})


def test_an_unknown_engine_is_refused():
    with pytest.raises(ValueError, match="unknown engine 'cuda'; known: auto, reference, torch, triton"):
        Recurrent(4, engine="cuda")


def official_names(encoder):
    own = dict(encoder.named_parameters())
    names = {theirs: ours for theirs, ours in Recurrent.OFFICIAL.items() if ours in own}
    for part in ("weight", "bias"):
        names |= {f"{a}.{part}": f"{b}.{part}" for a, b in Recurrent.OFFICIAL.items() if f"{b}.{part}" in own}
    return names


@ways
def test_every_parameter_has_a_name_in_the_published_code(bidirectional):
    encoder = make(bidirectional=bidirectional)
    assert sorted(official_names(encoder).values()) == sorted(name for name, _ in encoder.named_parameters())


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.stem.startswith("recurrent-grc")], ids=lambda path: path.stem
)
def test_it_gives_what_the_published_code_does(path):
    case = Golden(path)
    encoder = make(dim=case.meta["dim"]).eval()
    names = official_names(encoder)
    encoder.load_state_dict({ours: case.parameters[theirs] for theirs, ours in names.items()})
    x = case.arrays["x"].double().requires_grad_()
    state = encoder(x, case.arrays["lengths"]).state
    state.sin().sum().backward()
    own = {theirs: encoder.get_parameter(ours).grad for theirs, ours in names.items()}
    for found, expected in ((state, case.arrays["output"]), (x.grad, case.arrays["grad_x"]), (own, case.gradients)):
        assert_close(found, expected, atol=1e-9, rtol=0)


def test_a_second_cell_of_ones_own_starts_with_other_weights():
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2 * 6, 6)

        def forward(self, left, right):
            return self.layer(torch.cat((left, right), dim=-1)).tanh()

    encoder = Recurrent(dim=6, bidirectional=True, cell=Own())
    first, second = encoder.cell.module.layer.weight, encoder.second_cell.module.layer.weight
    assert first.shape == second.shape
    assert not torch.equal(first, second)


def test_a_second_tree_lstm_is_initialised_as_the_first():
    encoder = Recurrent(dim=6, bidirectional=True, cell=beamtree.TreeLSTM(6))
    weights = [cell.gates.weight for cell in (encoder.cell, encoder.second_cell)]
    assert not torch.equal(*weights)
    for weight in weights:
        torch.testing.assert_close(weight.T @ weight, torch.eye(12))
    assert not encoder.second_cell.gates.bias.any()
