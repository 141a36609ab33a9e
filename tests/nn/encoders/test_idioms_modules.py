"""Modules that were changed or copied: hooks, subclasses, wrappers, deepcopy, pickle."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils import prune
from torch.nn.utils.rnn import PackedSequence

import beamtree
from idioms import (
    CELLS,
    DIM,
    OWN_CELLS,
    REFERENCE,
    SCORERS,
    STRAIGHT_THROUGH,
    assert_equals_plain,
    assert_same,
    encode,
    every_cell,
    every_encoder,
    has_reference,
    inputs,
    make,
    run,
)

pytestmark = pytest.mark.usefixtures("shape_checks_off")  # they take a third of the time


class Doubled(nn.Linear):
    def forward(self, x):
        return F.linear(x, 2 * self.weight, self.bias)


class LowRank(nn.Module):
    """A layer with an update of rank 2, as in LoRA. The wrapper has no weight or bias."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.down = nn.Parameter(torch.randn(2, layer.in_features).to(layer.weight))
        self.up = nn.Parameter(torch.randn(layer.out_features, 2).to(layer.weight))

    def forward(self, x):
        return self.layer(x) + x @ self.down.mT @ self.up.mT


# Each changes one layer of an encoder and returns weight and bias of the equivalent plain layer.


def hook_on_output(encoder, key):
    layer = encoder.get_submodule(key)
    layer.register_forward_hook(lambda module, arguments, output: 1.5 * output)
    return 1.5 * layer.weight, 1.5 * layer.bias


def hook_on_input(encoder, key):
    layer = encoder.get_submodule(key)
    layer.register_forward_pre_hook(lambda module, arguments: 0.5 * arguments[0])
    return 0.5 * layer.weight, layer.bias


def hook_with_a_parameter(encoder, key):
    layer = encoder.get_submodule(key)
    encoder.outside = nn.Parameter(torch.randn_like(layer.bias))
    layer.register_forward_hook(lambda module, arguments, output: output + encoder.outside)
    return layer.weight, layer.bias + encoder.outside


def pruning(encoder, key):
    """PyTorch's pruning sets the weight in a hook before each call."""
    layer = encoder.get_submodule(key)
    prune.l1_unstructured(layer, "weight", amount=0.3)
    return layer.weight_orig * layer.weight_mask, layer.bias


def subclass(encoder, key):
    layer = encoder.get_submodule(key)
    other = Doubled(layer.in_features, layer.out_features)
    other.weight, other.bias = layer.weight, layer.bias
    encoder.set_submodule(key, other)
    return 2 * layer.weight, layer.bias


def low_rank_wrapper(encoder, key):
    layer = encoder.get_submodule(key)
    wrapper = LowRank(layer)
    encoder.set_submodule(key, wrapper)
    return layer.weight + wrapper.up @ wrapper.down, layer.bias


CHANGES = [hook_on_input, hook_with_a_parameter, pruning, subclass, low_rank_wrapper]  # the first below, on any layer


def assert_change_is_right(name, change, key):
    torch.manual_seed(2)
    encoder = make(name)
    weight, bias = change(encoder, key)
    changes = {f"{key}.weight": weight, f"{key}.bias": bias}
    assert_equals_plain(name, encoder, **{key: value for key, value in changes.items() if value is not None})


@every_cell
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_layer_of_the_cell_is_used_as_it_is(name, change):
    assert_change_is_right(name, change, "cell.gates")
    if change in (subclass, low_rank_wrapper) and hasattr(make(name).cell, "expand"):
        assert_change_is_right(name, change, "cell.expand")


@pytest.mark.parametrize("name", ["ndr", "transformer"])
@pytest.mark.parametrize("change", [pruning, subclass, low_rank_wrapper], ids=lambda change: change.__name__)
def test_a_changed_layer_of_an_encoder_without_a_cell_is_used_as_it_is(name, change):
    keys = [key for key, layer in make(name).named_modules() if type(layer) is nn.Linear]
    assert keys
    for key in keys:
        assert_change_is_right(name, change, key)


class Scaled(nn.LSTM):
    def forward(self, states):
        states, final = super().forward(states)
        return PackedSequence(1.5 * states.data, *states[1:]), final


class LowRankStates(nn.Module):
    """A layer of an LSTM whose states have an update of rank 2, as those of an adapter."""

    def __init__(self, layer, dim):
        super().__init__()
        self.layer = layer
        self.down = nn.Parameter(torch.randn(2, dim).to(layer.weight_ih_l0))
        self.up = nn.Parameter(torch.randn(dim, 2).to(layer.weight_ih_l0))

    def forward(self, states):
        states, final = self.layer(states)
        return PackedSequence(states.data + states.data @ self.down.mT @ self.up.mT, *states[1:]), final


@pytest.mark.parametrize("change", [subclass, low_rank_wrapper], ids=lambda change: change.__name__)
def test_a_changed_layer_of_an_lstm_is_used_as_it_is(change):
    """A linear function of the states of the first layer is one of the weights that the second has for its inputs."""
    torch.manual_seed(2)
    encoder = make("lstm")
    first, second = encoder.lstm
    if change is subclass:
        encoder.lstm[0] = Scaled(DIM, DIM // 2, batch_first=True, bidirectional=True).double()
        encoder.lstm[0].load_state_dict(first.state_dict())
        first, function = encoder.lstm[0], 1.5 * torch.eye(DIM).double()
    else:
        encoder.lstm[0] = wrapper = LowRankStates(first, DIM)
        function = torch.eye(DIM).double() + wrapper.up @ wrapper.down
    changes = {f"lstm.0.{key}": weight for key, weight in first.named_parameters()}
    for key in ("weight_ih_l0", "weight_ih_l0_reverse"):
        changes[f"lstm.1.{key}"] = getattr(second, key) @ function
    encoder.eval()  # with dropout in between, it is not
    assert_equals_plain("lstm", encoder, **changes)


@every_encoder
def test_a_hook_on_any_layer_is_used(name):
    for key, layer in make(name).named_modules():
        if isinstance(layer, NonDynamicallyQuantizableLinear):
            continue  # of nn.MultiheadAttention, which reads its weights and never calls it
        if isinstance(layer, nn.Linear | nn.LayerNorm) and layer.bias is not None:
            assert_change_is_right(name, hook_on_output, key)


@every_cell
def test_a_hook_without_equivalent_weights_is_used(name):
    """Compared with engine="reference", or with difference quotients if the encoder has no such engine."""
    outside = torch.randn(make(name).cell.gates.out_features, dtype=torch.float64).requires_grad_()

    def changed(**options):
        encoder = make(name, **options)
        encoder.cell.gates.register_forward_hook(lambda module, arguments, output: output + (outside * output).tanh())
        return encoder

    encoder = changed()
    found = run(name, encoder, wanted={"outside": outside, **dict(encoder.named_parameters())})
    assert found.gradients["outside"].any()
    if has_reference(name):
        plain = changed(engine="reference")
        assert_same(found, run(name, plain, wanted={"outside": outside, **dict(plain.named_parameters())}))
        return
    assert not torch.allclose(found.state, run(name, make(name)).state)
    x, lengths = inputs()
    tensors = {
        "x": x,
        "outside": outside.detach(),
        **{key: weight.detach() for key, weight in encoder.named_parameters()},
    }
    for seed in range(2):
        assert_close_to_quotient(name, encoder, lengths, tensors, found.gradients, seed)


def assert_close_to_quotient(name, encoder, lengths, tensors, gradients, seed, step=1e-5):
    """The gradients are right along a random direction in the space of all tensors."""
    generator = torch.Generator().manual_seed(seed)
    direction = {key: torch.randn(value.shape, generator=generator).to(value) for key, value in tensors.items()}
    expected = sum((gradients[key] * direction[key]).sum() for key in tensors)
    losses = []
    with torch.no_grad():
        for by in (step, -2 * step, step):
            for key, value in tensors.items():
                value.add_(direction[key], alpha=by)
            torch.manual_seed(0)  # for modules that draw random numbers
            losses.append(encode(name, encoder, tensors["x"], lengths).sin().sum())
    torch.testing.assert_close((losses[0] - losses[1]) / (2 * step), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in REFERENCE if name in CELLS])
def test_a_hook_on_the_cell_itself_is_used(name):
    encoders = [make(name, engine=engine) for engine in ("auto", "reference")]
    for encoder in encoders:
        encoder.cell.register_forward_hook(lambda module, arguments, output: 1.5 * output.sin())
    found, truth = (run(name, encoder) for encoder in encoders)
    assert_same(found, truth)
    assert not torch.allclose(found.state, run(name, make(name)).state)


class Noisy(nn.Module):
    """A cell of one's own whose dropout is no layer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2 * DIM, DIM)

    def forward(self, left, right):
        inner = F.dropout(self.linear(torch.cat((left, right), dim=-1)).tanh(), 0.5, self.training)
        return inner + (left - right) / 2


# Encoders with a module that draws random numbers, and its name in errors.


def noisy_cell(name, **options):
    return make(name, **options, dropout=0.0, cell=Noisy()), "cell"


def noisy_hook_on_the_cell(name, **options):
    encoder = make(name, **options)
    encoder.cell.gates.register_forward_hook(lambda module, arguments, output: F.dropout(output, 0.5, module.training))
    return encoder, "cell"


def noisy_scorer(name, **options):
    encoder = make(name, **options)
    encoder.scorer = nn.Sequential(nn.Dropout(0.5), nn.Linear(DIM, 1)).double()
    return encoder, "features or scorer" if name == "bsrp-grc" else "scorer"


def noisy_hook_on_the_scorer(name, **options):
    encoder = make(name, **options)
    encoder.scorer.register_forward_pre_hook(lambda module, given: F.dropout(given[0], 0.5, module.training))
    return encoder, "features or scorer" if name == "bsrp-grc" else "scorer"


NOISY = [
    (name, change)
    for names, changes in (
        (OWN_CELLS, (noisy_cell,)),
        (CELLS, (noisy_hook_on_the_cell,)),
        (SCORERS, (noisy_scorer, noisy_hook_on_the_scorer)),
    )
    for change in changes
    for name in names
]
# Their torch engine calls modules in the search, and again for the gradient.
TWICE = [name for name in REFERENCE if name.startswith(("bt-", "ebt-", "bsrp-", "gumbel-", "mc-gumbel-"))]


@pytest.mark.parametrize(("name", "change"), NOISY, ids=lambda value: getattr(value, "__name__", value))
def test_a_module_that_draws_random_numbers_gets_their_gradient(name, change):
    encoder, _ = change(name)
    x, lengths = inputs((2, 1, 2)) if name in STRAIGHT_THROUGH else inputs()  # without a choice it is a derivative
    torch.manual_seed(0)
    found = run(name, encoder, x, lengths)
    torch.manual_seed(1)
    if name not in STRAIGHT_THROUGH or "scorer" not in change.__name__:  # which does not score a single candidate
        assert not torch.allclose(run(name, encoder, x, lengths).state, found.state)
    tensors = {"x": x.clone(), **{key: weight.detach() for key, weight in encoder.named_parameters()}}
    assert_close_to_quotient(name, encoder, lengths, tensors, found.gradients, seed=0)


@pytest.mark.parametrize(
    ("name", "change"),
    [case for case in NOISY if case[0] in TWICE],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_an_engine_that_would_draw_twice_refuses(name, change):
    encoder, part = change(name, engine="torch")
    with pytest.raises(beamtree.EngineError, match=f"its {part} draws random numbers, .*; engine 'auto' can"):
        run(name, encoder)
    encoder.eval()
    run(name, encoder)


def through_pickle(encoder):
    return pickle.loads(pickle.dumps(encoder))


def through_torch_save(encoder):
    file = io.BytesIO()
    torch.save(encoder, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("name", [name for name in CELLS if name != "random-tree-grc"])  # which draws its trees
def test_a_cell_in_eval_mode_drops_nothing(name):
    without = {"stochastic": False, "memory_dropout": 0.0}
    known = beamtree.nn.encoders.options(name)
    encoder = make(name, dropout=0.5, **{option: value for option, value in without.items() if option in known})
    encoder.cell.eval()
    if name == "recurrent-grc":
        encoder.second_cell.eval()
    x, lengths = inputs()
    first, second = (encode(name, encoder, x, lengths, seed) for seed in (0, 1))
    assert torch.equal(first, second)


@every_encoder
def test_a_copy_computes_the_same_and_has_weights_of_its_own(name):
    encoder = make(name)
    truth = run(name, encoder)
    for duplicate in (copy.deepcopy, through_pickle, through_torch_save):
        other = duplicate(encoder)
        assert_same(run(name, other), truth, atol=0)
        with torch.no_grad():
            torch._foreach_add_(list(other.parameters()), 1)
    assert_same(run(name, encoder), truth, atol=0)
