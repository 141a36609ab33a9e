"""The Neural Data Router: its equations one number at a time, and what holds for every input."""

import copy
import os
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call
from torch.nn.functional import layer_norm, logsigmoid, pad
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from beamtree.nn.encoders.ndr import NDR
from beamtree.nn.engine.ndr import attention as ndr_attention
from beamtree.nn.engine.ndr import layer as ndr_layer
from beamtree.nn.engine.ndr.attention import Distances, attend, directed, geometric
from beamtree.nn.engine.ndr.layer import LayerDropout, kept
from beamtree.nn.interop import load_official, official_names
from support import assert_batch_does_not_matter, inputs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


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
    order = Distances.of(5, torch.device("cpu")).closest_first.view(5, 5) - 5 * torch.arange(5).unsqueeze(1)
    assert order.tolist() == [
        [0, 1, 2, 3, 4],
        [1, 2, 0, 3, 4],
        [2, 3, 1, 4, 0],
        [3, 4, 2, 1, 0],
        [4, 3, 2, 1, 0],
    ]


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9])
def test_sorted_rows_are_found_again(n):
    distances = Distances.of(n, torch.device("cpu"))
    offset = torch.arange(n) - torch.arange(n).unsqueeze(1)
    order = (2 * offset.abs() - (offset > 0).long()).argsort(1)
    row = n * torch.arange(n).unsqueeze(1)
    assert torch.equal(distances.closest_first.view(n, n), order + row)
    place = order.argsort(1)
    assert torch.equal(distances.closer.view(n, n) - row, (place - 1).clamp(min=0))
    assert torch.equal(distances.farthest_first[distances.from_farthest], torch.arange(n * n))
    assert torch.equal(distances.farthest_first.view(n, n), (order + row).flip(1))


def weigh(logits, present=None):
    """The weights of the attention: no position sees itself."""
    n = logits.shape[-1]
    hidden = torch.eye(n, dtype=torch.bool)
    if present is not None:
        hidden = hidden | ~present[:, None, None, :]
    return geometric(logits.masked_fill(hidden, -torch.inf), Distances.of(n, logits.device))


def test_attention_stops_at_the_first_match():
    """Where everything matches, position i looks at i+1, the last at the one before it; what matches nothing is
    passed over."""
    n = 5
    assert_close(weigh(torch.full((1, 1, n, n), 50.0))[0, 0], torch.eye(n)[[1, 2, 3, 4, 3]])
    logits = torch.full((1, 1, n, n), -50.0)
    logits[..., 0] = 50
    assert_close(weigh(logits)[0, 0, 1:], torch.eye(n)[[0] * 4])


def test_attention_far_away_loses_no_digits():
    """Products of a thousand probabilities are added up as logarithms."""
    n = 1000
    logits = torch.full((1, 1, n, n), 2.0)
    weights = weigh(logits)
    assert_close(weights.sum(3), torch.ones(1, 1, n))
    p = logits[0, 0, 0, 0].sigmoid()
    assert_close(weights[0, 0, 0, 1:9], p * (1 - p) ** torch.arange(8), rtol=1e-5, atol=0)


def plain_attention(queries, keys, values, back, front, present):
    """The formula of the attention step by step, under autograd."""
    n = present.shape[1]
    position = torch.arange(n, device=present.device)
    offset = position - position.unsqueeze(1)
    order = (2 * offset.abs() - (offset > 0).long()).argsort(1).expand(*queries.shape[:2], n, n)
    logits = queries @ keys.mT + torch.where(offset < 0, back, front)
    hidden = ~present[:, None, None, :] | (offset == 0)
    match = logsigmoid(logits).masked_fill(hidden, -torch.inf).gather(3, order)
    passed = logsigmoid(-logits).masked_fill(hidden, 0).gather(3, order).cumsum(3)
    first = match + pad(passed[..., :-1], (1, 0))
    return first.softmax(3).gather(3, order.argsort(3)) @ values


def attention_inputs(lengths, width, heads=2, scale=1.0, seed=0, dtype=torch.float64, device="cpu"):
    """Queries, keys, values, back, front and which positions are present."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(len(lengths), heads, max(lengths), w) for w in (width, width, width, 1, 1)]
    tensors = [scale * torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]
    present = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    return [one.to(device, dtype).requires_grad_() for one in tensors], present.to(device)


def found_with_gradients(attention, tensors):
    """What an attention finds, and the gradients of a loss of it."""
    found = attention(*tensors)
    return found.detach(), *torch.autograd.grad(found.double().sin().sum(), tensors)


@given(
    lengths=st.lists(st.integers(3, 12), min_size=1, max_size=3),
    scale=st.sampled_from([0.1, 1.0, 5.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25)
def test_attention_and_its_gradient_are_those_of_the_plain_formula(lengths, scale, seed):
    tensors, present = attention_inputs(lengths, 4, scale=scale, seed=seed)
    distances = Distances.of(max(lengths), torch.device("cpu"))
    found = found_with_gradients(partial(attend, present, distances), tensors)
    expected = found_with_gradients(lambda *heads: plain_attention(*heads, present), tensors)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, atol=1e-12, rtol=1e-11)


@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_float32_keeps_its_digits_where_logits_are_large(scale):
    """Rows of 200 logits up to ±3000: the sums from the closest on never cancel."""
    tensors, present = attention_inputs([200, 150], 1, scale=scale**0.5, dtype=torch.float32)
    exact = found_with_gradients(
        lambda *heads: plain_attention(*heads, present), [one.detach().double().requires_grad_() for one in tensors]
    )
    # Beside the rounding of the products and of their sums, which the plain formula has too.
    plain = found_with_gradients(lambda *heads: plain_attention(*heads, present), tensors)
    distances = Distances.of(200, torch.device("cpu"))
    found = found_with_gradients(partial(attend, present, distances), tensors)
    for one, same, truth in zip(found, plain, exact, strict=True):
        error, allowed = ((other - truth).norm() / truth.norm() for other in (one, same))
        assert error < 1.5 * allowed + 1e-6


def test_second_derivatives_of_the_attention_are_derivatives():
    tensors, present = attention_inputs([5, 3], 2, heads=1)
    distances = Distances.of(5, torch.device("cpu"))
    assert torch.autograd.gradgradcheck(lambda *heads: attend(present, distances, *heads).sin(), tensors)


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


def gradients(encoder, x, lengths, seed=0, **options):
    """The encoding, and the gradients of a loss of it, where they are wanted."""
    wanted = [one for one in (x, *encoder.parameters()) if one.requires_grad]
    state = encoder(x, lengths, torch.Generator(x.device).manual_seed(seed), **options).state
    return state, *torch.autograd.grad(state.sin().sum(), wanted)


def assert_all_close(found, expected, atol=1e-12):
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, atol=atol, rtol=0)


def saved_for_backward(encoder, x, lengths):
    """Distinct tensors that autograd saves, other than parameters and inputs, by the address of their storage."""
    known = {one.data_ptr() for one in (x, *encoder.parameters())}
    saved = {}

    def note(tensor):
        if tensor.data_ptr() not in known:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        encoder(x, lengths)
    return saved.values()


def test_of_a_layer_its_input_alone_is_kept_for_backward():
    x, lengths = inputs([9, 4])
    found = []
    for layers in (3, 5):
        saved = saved_for_backward(make(dropout=0.2, layers=layers), x, lengths)
        found.append(sum(tensor.untyped_storage().nbytes() for tensor in saved))
        assert not [tensor.shape for tensor in saved if tensor.shape[-2:] == (11, 11) or tensor.shape[-1] == 8 * 11]
    assert found[1] - found[0] == 2 * (2 * 11 * 6 * 8)  # two more inputs (B, n, D) of float64


def by_modules(encoder):
    """The same encoder, of which one layer is not plain, so that the modules compute it."""
    encoder = copy.deepcopy(encoder)
    encoder.gate.register_forward_hook(lambda module, arguments, output: None)
    return encoder


@pytest.mark.parametrize("options", [{}, {"dropout": 0.3}, {"dropout": 0.3, "gate_dropout": 0.0}], ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_modules_compute_the_same_as_the_function_of_their_weights(options, training):
    """With the same dropout masks, in the second computation too."""
    encoder, (x, lengths) = make(**options).train(training), inputs([7, 4])
    assert encoder._weights(1.0) is not None
    assert by_modules(encoder)._weights(1.0) is None
    found, expected = (gradients(one, x.requires_grad_(), lengths) for one in (encoder, by_modules(encoder)))
    assert_all_close(found, expected)


def lora(linear):
    """A wrapper that adds a product of small rank."""

    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = linear
            self.down = nn.Parameter(torch.randn(1, linear.in_features).double())
            self.up = nn.Parameter(torch.randn(linear.out_features, 1).double())

        def forward(self, x):
            return self.base(x) + x @ self.down.mT @ self.up.mT

    return Adapted()


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize("path", ["update_inner", "gate", "attention.query", "attention.direction"])
def test_changed_layers_are_called(path):
    """Wrappers, subclasses and hooks, beside the same change made to the weights."""
    encoder, (x, lengths) = make(dropout=0.2), inputs([6, 3])
    x.requires_grad_()
    parent, name = encoder.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]

    wrapped, merged = copy.deepcopy(encoder), copy.deepcopy(encoder)
    adapted = lora(wrapped.get_submodule(path))
    setattr(wrapped.get_submodule(path.rpartition(".")[0]), name, adapted)
    with torch.no_grad():
        merged.get_submodule(path).weight.add_(adapted.up @ adapted.down)
    assert_all_close(gradients(wrapped, x, lengths)[:2], gradients(merged, x, lengths)[:2])

    doubled = copy.deepcopy(encoder)
    with torch.no_grad():
        for weight in doubled.get_submodule(path).parameters():
            weight.mul_(2)
    expected = gradients(doubled, x, lengths)[:2]
    parent.get_submodule(name).__class__ = Doubled
    assert_all_close(gradients(encoder, x, lengths)[:2], expected)
    parent.get_submodule(name).__class__ = nn.Linear
    parent.get_submodule(name).register_forward_hook(lambda module, arguments, output: 2 * output)
    assert_all_close(gradients(encoder, x, lengths)[:2], expected)


@pytest.mark.parametrize("path", ["update", "attention.key_value"])
def test_parametrized_weights_learn(path):
    encoder, (x, lengths) = make(dropout=0.2), inputs([6, 3])
    expected = gradients(encoder, x.requires_grad_(), lengths)
    weight_norm(encoder.get_submodule(path))
    assert encoder._weights(1.0) is not None
    assert_all_close(gradients(encoder, x, lengths)[:2], expected[:2])
    found, same = (gradients(one, x, lengths) for one in (encoder, by_modules(encoder)))
    assert_all_close(found, same)

    class Half(nn.Module):
        def forward(self, weight):
            return weight / 2

    parametrize.register_parametrization(encoder.attention, "scale", Half())
    found, same = (gradients(one, x, lengths) for one in (encoder, by_modules(encoder)))
    assert_all_close(found, same)


def test_a_projection_with_a_bias_is_not_plain():
    encoder, (x, lengths) = make(), inputs([6, 3])
    encoder.attention.out = nn.Linear(6, 6).double()
    first = encoder(x, lengths, torch.Generator().manual_seed(0)).state
    with torch.no_grad():
        encoder.attention.out.bias.normal_()
    assert not torch.allclose(first, encoder(x, lengths, torch.Generator().manual_seed(0)).state)


def test_backward_uses_the_weights_that_forward_was_given():
    """Under `functional_call` the module has its own weights again when backward begins."""
    encoder, other, (x, lengths) = make(dropout=0.2), make(dropout=0.2, seed=1), inputs([6, 3])
    expected = gradients(other, x.requires_grad_(), lengths)
    weights = {name: weight.detach().requires_grad_() for name, weight in other.named_parameters()}
    state = functional_call(encoder, weights, (x, lengths, torch.Generator().manual_seed(0))).state
    found = torch.autograd.grad(state.sin().sum(), (x, *weights.values()))
    assert_all_close((state, *found), expected)


def test_weights_that_change_before_backward_are_noticed():
    encoder, (x, lengths) = make(), inputs([6, 3])
    state = encoder(x, lengths).state
    with torch.no_grad():
        encoder.gate_inner.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        state.sum().backward()


def test_frozen_weights_change_no_other_gradient():
    encoder, (x, lengths) = make(dropout=0.2), inputs([6, 3])
    names = ["x", *(name for name, _ in encoder.named_parameters())]
    expected = dict(zip(names, gradients(encoder, x.requires_grad_(), lengths)[1:], strict=True))
    for frozen in [[name] for name in names] + [names[1:], names[:1]]:
        for name, tensor in (("x", x), *encoder.named_parameters()):
            tensor.requires_grad_(name not in frozen)
        found = gradients(encoder, x, lengths)[1:]
        assert_all_close(found, [expected[name] for name in names if name not in frozen])
    for tensor in (x, *encoder.parameters()):
        tensor.requires_grad_(False)
    assert not encoder(x, lengths).state.requires_grad


def test_second_derivatives_are_derivatives():
    encoder, (x, lengths) = make(dim=4, layers=2, dropout=0.2), inputs([3, 2], dim=4)

    def state(x, *weights):
        return encoder(x, lengths, torch.Generator().manual_seed(0)).state

    wanted = (x.requires_grad_(), encoder.attention.scale, encoder.update.weight, encoder.attention.query.weight)
    assert torch.autograd.gradgradcheck(state, wanted, fast_mode=True)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_changes_nothing(use_reentrant):
    encoder, (x, lengths) = make(dropout=0.2), inputs([6, 3])
    found = []
    for wrap in (lambda *arguments: encoder(*arguments).state, None):
        torch.manual_seed(0)
        state = (
            wrap(x.requires_grad_(), lengths)
            if wrap
            else checkpoint(lambda *arguments: encoder(*arguments).state, x, lengths, use_reentrant=use_reentrant)
        )
        encoder.zero_grad()
        x.grad = None
        state.sin().sum().backward()
        found.append([state.detach(), x.grad, *(weight.grad for weight in encoder.parameters())])
    assert_all_close(*found, atol=0)


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


# In Triton's interpreter, or on the GPU.


@pytest.fixture
def kernels():
    pytest.importorskip("triton")
    from beamtree.nn.engine.gpu.kernels import ndr as kernels

    return kernels


@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("lengths", [[3], [9, 4, 8]], ids=str)
def test_kernels_compute_the_attention_and_its_gradient(kernels, monkeypatch, lengths, scale):
    tensors, present = attention_inputs(lengths, 4, heads=1, scale=scale**0.5, dtype=torch.float32, device=DEVICE)
    distances = Distances.of(max(lengths), present.device)
    exact = found_with_gradients(
        lambda *heads: plain_attention(*heads, present), [one.detach().double().requires_grad_() for one in tensors]
    )
    monkeypatch.setattr(ndr_attention, "_kernels", lambda content: kernels)
    found = found_with_gradients(partial(attend, present, distances), tensors)
    for one, other in zip(found, exact, strict=True):
        assert_close(one.double(), other, atol=2e-5 * scale, rtol=2e-5)


def test_kernels_lose_no_digits_to_large_logits(kernels):
    """Weights of logits that are given, beside those in float64."""
    n = 16
    content = 300 * torch.randn(2, 2, n, n, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    content[0, 0], content[0, 1] = content[0, 0] / 300 - 18, 1e4  # all nearly 0, where 1 + e^ℓ is 1; all far above it
    sides, present = torch.zeros(2, 2, n, 1, device=DEVICE), torch.ones(2, n, dtype=torch.bool, device=DEVICE)
    found = kernels.geometric(content, sides, sides, present)
    exact = geometric(
        directed(content.double(), sides.double(), sides.double(), present), Distances.of(n, content.device)
    )
    assert_close(found.double(), exact, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_kernels_take_half_precision(kernels, monkeypatch, dtype):
    tensors, present = attention_inputs([7, 5], 4, heads=1, dtype=dtype, device=DEVICE)
    distances = Distances.of(7, present.device)
    expected = found_with_gradients(partial(attend, present, distances), tensors)
    monkeypatch.setattr(ndr_attention, "_kernels", lambda content: kernels)
    found = found_with_gradients(partial(attend, present, distances), tensors)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        assert_close(one, other, atol=0.03, rtol=0.03)


@pytest.mark.parametrize(("rate", "gate_rate"), [(0.1, 0.05), (0.0, 0.3), (0.5, 0.0), (1 - 1e-9, 0.2)])
def test_kernels_draw_the_same_masks(kernels, monkeypatch, rate, gate_rate):
    monkeypatch.setattr(kernels, "COLUMNS", 16)
    dropout = LayerDropout(rate, gate_rate, 6, 17, torch.device(DEVICE))
    for layer in (ndr_layer.INPUTS, 0, 1, 16, 40):
        arguments = dropout.offsets, layer, 3, 5, dropout.width, *dropout.limits
        assert torch.equal(kernels.kept(*arguments), kept(*arguments))


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled whenever they run")
def test_kernels_compile(kernels):
    """The interpreter lets pass what Triton's compiler does not."""
    launches = []
    for dtype, n, block in ((torch.float32, 102, 128), (torch.bfloat16, 1002, 1024)):
        options = {"BLOCK": block, "num_warps": max(block // 256, 1)}
        pointers = [dtype] * 3 + [torch.uint8]
        launches.append((kernels.__name__, "weigh", [*pointers, dtype, 16, n], options))
        launches.append((kernels.__name__, "weigh_gradient", [*pointers, *[dtype] * 4, 16, n], options))
    mask = [torch.int32, torch.uint8, 3, 102, 1409, -26215, -29492]
    launches.append((kernels.__name__, "draw", mask, {"BLOCK": 1024, "num_warps": 4}))
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    (script,) = Path(__file__).parents[1].rglob("compile_kernels.py")
    done = subprocess.run(
        [sys.executable, script], input=pickle.dumps(launches), env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"dropout": 0.2}], ids=str)
def test_a_gpu_computes_the_same(options):
    """In float64, where PyTorch's operations do, and in float32, where kernels do."""
    encoder, (x, lengths) = make(dim=32, heads=4, **options).cuda(), inputs([40, 17, 3], dim=32)
    exact = gradients(encoder, x.cuda().requires_grad_(), lengths.cuda())
    found = gradients(encoder.float(), x.cuda().float().requires_grad_(), lengths.cuda())
    for one, other in zip(found, exact, strict=True):
        assert (one.double() - other).norm() < 1e-4 * other.norm() + 1e-6
    same = gradients(by_modules(encoder), x.cuda().float().requires_grad_(), lengths.cuda())
    for one, other in zip(found, same, strict=True):
        assert (one - other).norm() < 1e-4 * other.norm() + 1e-6


@pytest.mark.gpu
def test_a_training_step_on_a_gpu_never_waits_for_it():
    encoder, (x, lengths) = make(dropout=0.2).cuda().float(), inputs([9, 4], dtype=torch.float32)
    x, lengths = x.cuda().requires_grad_(), lengths.cuda()
    encoder(x, lengths).state.sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        encoder.encode(x, lengths, None).state.sum().backward()  # without the checks of the inputs, which look at them
    finally:
        torch.cuda.set_sync_debug_mode("default")
