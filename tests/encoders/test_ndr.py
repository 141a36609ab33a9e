"""The Neural Data Router: its equations one number at a time, and what holds for every input."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import layer_norm
from torch.testing import assert_close

from beamtree.encoders import ndr
from beamtree.encoders.ndr import NDR, Distances, geometric
from beamtree.interop import load_official, official_names
from support import assert_batch_does_not_matter, inputs


def make(dim=6, seed=0, **options):
    torch.manual_seed(seed)
    options = {"heads": 2, "feed_forward": 8, "layers": 3, "layers_at_test": 4, **options}
    encoder = NDR(dim, **options).double()
    with torch.no_grad():  # away from the zeros that some begin with, and gates that open
        encoder.gate.bias.normal_()
        for weight in (encoder.attention.query_bias, encoder.attention.bias, encoder.attention.direction_scale):
            weight.normal_()
    return encoder


def look(logits, i):
    """Row i of the attention, as one who walks away from i would compute it: right, left, right, left, …"""
    n = len(logits)
    weights, missed = [torch.zeros_like(logits[0])] * n, 1
    for distance in range(1, n):
        for j in (i + distance, i - distance):
            if 0 <= j < n:
                weights[j] = missed * logits[j].sigmoid()
                missed = missed * (1 - logits[j].sigmoid())
    return torch.stack(weights) / sum(weights)


def attention_by_hand(a, x):
    """All heads, for one sequence (n, D)."""
    n, D = x.shape
    H = a.heads
    q = a.query(x).view(n, H, D // H)
    key_value = a.key_value(x).view(n, H, 2, D // H)
    direction = a.direction(x).view(n, H, 2)
    found = []
    for i in range(n):
        for h in range(H):
            logits = []
            for j in range(n):
                side = direction[i, h, 0 if j < i else 1]
                content = (q[i, h] + a.query_bias[h]) @ key_value[j, h, 0]
                logits.append((a.scale * content + a.direction_scale * side + a.bias).squeeze())
            found.append(look(torch.stack(logits), i) @ key_value[:, h, 1])
    return a.out(torch.stack(found).view(n, D))


def by_hand(encoder, x, layers):
    """The encoding of one sample (n, D)."""

    def norm(layer, y):
        return layer_norm(y, y.shape[-1:], layer.weight, layer.bias)

    x = torch.cat((encoder.start.unsqueeze(0), x, encoder.end.unsqueeze(0)))
    for _ in range(layers):
        y = norm(encoder.attention_norm, x + attention_by_hand(encoder.attention, x))
        u = norm(encoder.update_norm, encoder.update(encoder.update_inner(y).relu()))
        g = encoder.gate(encoder.gate_inner(y).relu()).sigmoid()
        x = (1 - g) * x + g * u
    return x[-1]


@pytest.mark.parametrize("n", [1, 2, 3, 6])
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_encodings_and_gradients_are_those_of_the_equations(n, training):
    encoder = make(gate_dropout=0.0).train(training)
    x, lengths = inputs([n])
    x.requires_grad_()
    found, expected = encoder(x, lengths).state[0], by_hand(encoder, x[0], layers=3 if training else 4)
    assert_close(found, expected, atol=1e-12, rtol=0)
    wanted = (x, *encoder.parameters())
    found, expected = (torch.autograd.grad(state.sin().sum(), wanted) for state in (found, expected))
    assert_close(found, expected, atol=1e-11, rtol=1e-9)


def test_the_right_neighbour_is_the_closest():
    assert Distances.of(5, torch.device("cpu")).order.tolist() == [
        [0, 1, 2, 3, 4],
        [1, 2, 0, 3, 4],
        [2, 3, 1, 4, 0],
        [3, 4, 2, 1, 0],
        [4, 3, 2, 1, 0],
    ]


def test_attention_stops_at_the_first_match():
    """Where everything matches, position i looks at i+1, the last at the one before it; what matches nothing is
    passed over."""
    n = 5
    distances, hidden = Distances.of(n, torch.device("cpu")), torch.eye(n, dtype=torch.bool).view(1, 1, n, n)
    weights = geometric(torch.full((1, 1, n, n), 50.0), hidden, distances)
    assert_close(weights[0, 0], torch.eye(n)[[1, 2, 3, 4, 3]])
    logits = torch.full((1, 1, n, n), -50.0)
    logits[..., 0] = 50
    assert_close(geometric(logits, hidden, distances)[0, 0, 1:], torch.eye(n)[[0] * 4])


def test_attention_far_away_loses_no_digits():
    """Products of a thousand probabilities are added up as logarithms."""
    n = 1000
    logits = torch.full((1, 1, n, n), 2.0)
    hidden = torch.eye(n, dtype=torch.bool).view(1, 1, n, n)
    weights = geometric(logits, hidden, Distances.of(n, torch.device("cpu")))
    assert_close(weights.sum(3), torch.ones(1, 1, n))
    p = logits[0, 0, 0, 0].sigmoid()
    assert_close(weights[0, 0, 0, 1:9], p * (1 - p) ** torch.arange(8), rtol=1e-5, atol=0)


@given(
    lengths=st.lists(st.integers(1, 8), min_size=1, max_size=4), padding=st.integers(0, 3), seed=st.integers(0, 1000)
)
@settings(max_examples=25)
def test_padding_and_batch_mates_never_change_an_encoding(lengths, padding, seed):
    encoder = make(seed=seed).eval()
    assert_batch_does_not_matter(encoder, lengths, padding, seed)
    assert encoder(*inputs(lengths)).beams is None


def test_gradients_are_derivatives():
    encoder = make(dim=4, gate_dropout=0.0)
    x, lengths = inputs([4, 2], dim=4)
    wanted = (x.requires_grad_(), *encoder.parameters())
    assert torch.autograd.gradcheck(lambda x, *weights: encoder(x, lengths).state, wanted, fast_mode=True)


def test_every_weight_learns():
    torch.manual_seed(0)
    encoder = NDR(6, heads=2, feed_forward=8, layers=3, dropout=0.1)
    encoder(*inputs([7, 4], dtype=torch.float32)).state.sin().sum().backward()
    for name, weight in encoder.named_parameters():
        assert weight.grad.abs().max() > 1e-9, name


def test_layers_are_counted_apart_in_training_and_at_test():
    encoder = make(layers=2, layers_at_test=5, gate_dropout=0.0)
    x, lengths = inputs([5])
    calls = []
    encoder.attention.register_forward_hook(lambda *_: calls.append(1))
    for training, expected in ((True, 2), (False, 5)):
        calls.clear()
        encoder.train(training)(x, lengths)
        assert len(calls) == expected


def test_a_gate_that_is_dropped_keeps_the_state():
    encoder = make(layers=1, gate_dropout=0.5)
    x, lengths = inputs([4] * 64)
    kept = (encoder(x, lengths, torch.Generator().manual_seed(0)).state == encoder.end).all(1)
    assert 0.3 < kept.double().mean() < 0.7


def test_a_seeded_run_repeats_exactly_and_noise_is_for_training_only():
    encoder = make(dropout=0.2)
    x, lengths = inputs([8, 5])
    before = torch.get_rng_state()
    first, again, other = (encoder(x, lengths, torch.Generator().manual_seed(seed)).state for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(5)
    first, second = encoder(x, lengths).state, encoder(x, lengths).state
    torch.manual_seed(5)
    assert torch.equal(first, encoder(x, lengths).state)
    assert not torch.equal(first, second)
    encoder.eval()
    assert torch.equal(encoder(x, lengths).state, encoder(x, lengths).state)


def test_what_is_quadratic_is_not_kept_for_backward(monkeypatch):
    """A layer's attention is computed again, with the same gradient."""
    encoder, (x, lengths) = make(dropout=0.2), inputs([9, 4])
    large, calls = [], []

    def gradients():
        state = encoder(x, lengths, torch.Generator().manual_seed(0)).state
        return torch.autograd.grad(state.sin().sum(), tuple(encoder.parameters()))

    def note(tensor):
        if tensor.shape[-2:] == (11, 11) and tensor.dim() == 4:
            large.append(tensor.shape)
        return tensor

    plain = ndr.geometric
    monkeypatch.setattr(ndr, "geometric", lambda *arguments: calls.append(1) or plain(*arguments))
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        found = gradients()
    assert len(calls) == 6  # three layers, forward and backward
    assert not large
    monkeypatch.setattr(ndr, "checkpoint", lambda function, *arguments, **options: function(*arguments))
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        assert_close(found, gradients(), atol=1e-13, rtol=0)
    assert large


def test_bfloat16_autocast_stays_close():
    torch.manual_seed(0)
    encoder = NDR(32, heads=4, feed_forward=32, layers_at_test=4).eval()
    x, lengths = inputs([7, 4], dim=32, dtype=torch.float32)
    exact = encoder(x, lengths).state
    with torch.autocast("cpu", torch.bfloat16):
        close = encoder(x, lengths).state
    assert close.dtype == torch.float32
    assert_close(close, exact, atol=0.05, rtol=0.05)


def test_weights_begin_as_in_the_paper():
    torch.manual_seed(0)
    encoder = NDR(64, heads=4, feed_forward=96)
    assert (encoder.gate.bias == -3).all()
    assert encoder.attention.scale.item() == pytest.approx(1 / 4)
    for weight, bound in (
        (encoder.update_inner.weight, (2 * 6 / (64 + 96)) ** 0.5),
        (encoder.update.weight, 5 / 3 * (6 / (64 + 96)) ** 0.5),
        (encoder.gate.weight, (6 / 128) ** 0.5),
        (encoder.attention.key_value.weight, (6 / (64 + 16)) ** 0.5),
    ):
        assert 0.98 * bound < weight.abs().max() <= bound


def test_every_weight_has_a_name_in_the_published_code():
    a, b = make(seed=1), make(seed=2)
    names = official_names(a)
    assert sorted(names.values()) == sorted(name for name, _ in a.named_parameters())
    load_official(b, {theirs: a.get_parameter(ours).detach() for theirs, ours in names.items()})
    x, lengths = inputs([5])
    assert torch.equal(a.eval()(x, lengths).state, b.eval()(x, lengths).state)


@pytest.mark.usefixtures("shape_checks_off")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 4}, "heads is 4: it must divide dim = 6"),
        ({"heads": 0}, "heads is 0"),
        ({"feed_forward": 0}, "feed_forward is 0"),
        ({"layers": 0}, "layers is 0"),
        ({"layers_at_test": 1.5}, r"layers_at_test is 1\.5"),
        ({"dropout": 1}, "dropout is 1"),
        ({"gate_dropout": -0.1}, r"gate_dropout is -0\.1"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        NDR(6, **{"heads": 2, **options})
