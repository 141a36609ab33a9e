"""The Neural Data Router: its equations one number at a time, and what holds for every input."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import layer_norm
from torch.testing import assert_close

from beamtree.nn.encoders.ndr import NDR
from beamtree.nn.engine.ndr import layer as ndr_layer
from beamtree.nn.engine.ndr.attention import attend
from beamtree.nn.engine.ndr.layer import LayerDropout
from beamtree.nn.interop import load_official, official_names
from nn.encoders.ndr_cases import gradients, make
from support import assert_batch_does_not_matter, inputs


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


def test_masks_have_their_rates_and_repeat_nothing():
    rate, gate_rate, B, n = 0.2, 0.4, 6, 40
    dropout = LayerDropout(rate, gate_rate, 16, 64, torch.device("cpu"), torch.Generator().manual_seed(0))
    layers = [dropout.layer(index, B, n) for index in range(4)]
    for masks in layers:
        for mask in masks[:4]:
            assert mask.double().mean().item() == pytest.approx(1 - rate, abs=0.02)
    gates = torch.stack([masks.gate for masks in layers])
    assert gates.double().mean().item() == pytest.approx(1 - gate_rate, abs=0.05)
    assert dropout.inputs(B, n).double().mean().item() == pytest.approx(1 - rate, abs=0.02)
    # Layers, samples, positions and columns are independent of one another.
    update = torch.stack([masks.update for masks in layers]).double()
    update = (update - update.mean()) / update.std()
    for dim in range(update.dim()):
        size = update.shape[dim] - 1
        assert (update.narrow(dim, 0, size) * update.narrow(dim, 1, size)).mean().abs() < 0.02


@pytest.mark.parametrize(("rate", "expected"), [(0.0, 1.0), (1e-7, 1.0), (1 - 1e-9, 0.0)])
def test_masks_of_extreme_rates(rate, expected):
    masks = LayerDropout(rate, 0.5, 4, 8, torch.device("cpu")).layer(0, 8, 8)
    for mask in masks[:4]:
        assert expected == (1.0 if mask is None else mask.double().mean().item())


def test_dropout_of_a_sample_depends_on_neither_padding_nor_batch_mates():
    encoder, (x, lengths) = make(dropout=0.3), inputs([5, 7, 3])
    for count, width in ((1, 5), (2, 7), (3, 7)):
        state = encoder(x[:count, :width], lengths[:count], torch.Generator().manual_seed(0)).state
        if count == 1:
            alone = state[0]
        assert_close(state[0], alone, atol=1e-12, rtol=0)


def test_bfloat16_autocast_stays_close():
    torch.manual_seed(0)
    encoder = NDR(32, heads=4, feed_forward=32, layers_at_test=4).eval()
    x, lengths = inputs([7, 4], dim=32, dtype=torch.float32)
    exact = encoder(x, lengths).state
    with torch.autocast("cpu", torch.bfloat16):
        close = encoder(x, lengths).state
    assert close.dtype == torch.float32
    assert_close(close, exact, atol=0.05, rtol=0.05)


def test_bfloat16_autocast_learns(monkeypatch):
    """Both times a layer is computed."""
    types = []
    monkeypatch.setattr(ndr_layer, "attend", lambda *given: types.append(given[2].dtype) or attend(*given))
    torch.manual_seed(0)
    encoder = NDR(32, heads=4, feed_forward=32, layers=3, dropout=0.1)
    x, lengths = inputs([7, 4], dim=32, dtype=torch.float32)
    exact = gradients(encoder, x.requires_grad_(), lengths)
    types.clear()
    with torch.autocast("cpu", torch.bfloat16):
        state = encoder(x, lengths, torch.Generator().manual_seed(0)).state
    close = torch.autograd.grad(state.sin().sum(), (x, *encoder.parameters()))  # outside of it, as is usual
    assert types == [torch.bfloat16] * 6  # three layers, forward and backward
    for one, other in zip(close, exact[1:], strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.1 * other.norm() + 1e-4


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
