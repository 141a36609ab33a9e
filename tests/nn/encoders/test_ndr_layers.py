"""The layers of the Neural Data Router as one function of their weights: what is kept for backward, and modules that
are not plain."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from nn.encoders.ndr_cases import (
    assert_all_close,
    by_modules,
    gradients,
    make,
)
from support import inputs


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


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"dropout": 0.2}], ids=str)
def test_a_gpu_computes_the_same(options):
    """In float64 by PyTorch's operations, in float32 by kernels, which are no less exact than modules in float32."""
    encoder, (x, lengths) = make(dim=32, heads=4, **options).cuda(), inputs([40, 17, 3], dim=32)
    exact = gradients(encoder, x.cuda().requires_grad_(), lengths.cuda())
    modules = by_modules(encoder)
    found = gradients(encoder.float(), x.cuda().float().requires_grad_(), lengths.cuda())
    for one, other in zip(found, exact, strict=True):
        assert (one.double() - other).norm() < 1e-4 * other.norm() + 1e-6
    same = gradients(modules, x.cuda().requires_grad_(), lengths.cuda())
    for one, other in zip(same, exact, strict=True):
        assert (one - other).norm() < 1e-10 * other.norm() + 1e-12
    rounded = gradients(modules.float(), x.cuda().float().requires_grad_(), lengths.cuda())
    for one, other, truth in zip(found, rounded, exact, strict=True):
        assert (one.double() - truth).norm() < 2 * (other.double() - truth).norm() + 1e-6 * truth.norm()


@pytest.mark.gpu
def test_a_training_step_on_a_gpu_never_waits_for_it():
    encoder, (x, lengths) = make(dropout=0.2).cuda().float(), inputs([9, 4], dtype=torch.float32)
    x, lengths = x.cuda().requires_grad_(), lengths.cuda()
    encoder(x, lengths).state.sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the mode calls itself a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        encoder.encode(x, lengths, None).state.sum().backward()  # without the checks of the inputs, which look at them
    finally:
        torch.cuda.set_sync_debug_mode("default")
