"""Weights other than a module's own parameters, each trained and used once: passed in, frozen, parametrized, tied,
replaced. Backward uses the tensors that forward saw."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrizations, parametrize

from idioms import assert_equals_plain, assert_same, encode, every_cell, every_encoder, gradients, inputs, make, run

pytestmark = pytest.mark.usefixtures("shape_checks_off")  # they take a third of the time


def linears(encoder):
    return [layer for layer in encoder.modules() if isinstance(layer, nn.Linear)]


class Shifted(nn.Module):
    """A parametrization: a tensor plus a learned one."""

    def __init__(self, like):
        super().__init__()
        self.shift = nn.Parameter(torch.randn_like(like) / 10)

    def forward(self, tensor):
        return tensor + self.shift


@every_encoder
def test_functional_call_uses_the_weights_it_is_given(name):
    encoder, other = make(name), make(name, seed=1)
    given = {key: weight.detach().requires_grad_() for key, weight in other.named_parameters()}
    own = {f"own {key}": weight for key, weight in encoder.named_parameters()}

    def call(x, lengths, **options):
        return functional_call(encoder, given, (x, lengths), options)

    assert_equals_plain(name, call, effective=given, wanted=given | own)  # the module's own get zeros


@every_encoder
def test_functional_call_takes_functions_of_the_weights(name):
    """As in meta-learning, where they come from a step of gradient descent."""
    encoder = make(name)
    own = dict(encoder.named_parameters())
    given = {key: 1.5 * weight + 0.1 for key, weight in own.items()}

    def call(x, lengths, **options):
        return functional_call(encoder, given, (x, lengths), options)

    assert_equals_plain(name, call, effective=given, wanted=own)


@every_encoder
def test_frozen_weights_and_inputs_change_nothing_for_the_others(name):
    encoder, (x, lengths) = make(name), inputs()
    own, truth = dict(encoder.named_parameters()), run(name, encoder)
    tensors = {"x": x, **own}

    def check(frozen):
        for key, tensor in tensors.items():
            tensor.grad = None
            tensor.requires_grad_(key not in frozen)
        state = encode(name, encoder, x, lengths)
        torch.testing.assert_close(state.detach(), truth.state, atol=1e-10, rtol=0)
        assert state.requires_grad == (len(frozen) < len(tensors))
        if not state.requires_grad:
            return
        state.sin().sum().backward()
        assert not [key for key in frozen if tensors[key].grad is not None]
        for key in tensors.keys() - frozen:
            found = torch.zeros_like(tensors[key]) if tensors[key].grad is None else tensors[key].grad
            torch.testing.assert_close(found, truth.gradients[key], atol=1e-10, rtol=1e-10, msg=f"{frozen}: {key}")

    for key in tensors:
        check({key})
    check(set(own))
    check(set(tensors))


@every_cell
def test_weight_normed_layers_get_their_gradients(name):
    for key in ("cell.gates", "cell.expand", "scorer"):
        encoder = make(name)
        layer = dict(encoder.named_modules()).get(key)
        if layer is not None:
            parametrizations.weight_norm(layer)
            assert_equals_plain(name, encoder)


@every_encoder
def test_parametrized_weights_and_biases_get_their_gradients(name):
    encoder = make(name)
    for layer in linears(encoder):
        for key, weight in list(layer.named_parameters(recurse=False)):
            parametrize.register_parametrization(layer, key, Shifted(weight))
    assert_equals_plain(name, encoder)


@every_encoder
def test_spectral_norms_get_their_gradients_at_test(name):
    """In training mode every access to the weight is a step of the power iteration."""
    encoder = make(name)
    for layer in linears(encoder):
        parametrizations.spectral_norm(layer)
    assert_equals_plain(name, encoder.eval())


@every_encoder
def test_a_weight_that_is_used_elsewhere_gets_both_gradients(name):
    encoder = make(name)
    truth = run(name, encoder)
    found = run(name, encoder, more=sum((weight**3).sum() for weight in encoder.parameters()))
    for key, weight in encoder.named_parameters():
        truth.gradients[key] += 3 * weight.detach() ** 2
    assert_same(found, truth)


@every_encoder
def test_layers_can_share_their_weights(name):
    """All parameters of one shape are one."""
    encoder, shared = make(name), {}
    for layer in encoder.modules():
        for key, weight in list(layer.named_parameters(recurse=False)):
            setattr(layer, key, shared.setdefault(weight.shape, weight))
    assert_equals_plain(name, encoder)


@every_cell
def test_encoders_can_share_a_cell(name):
    both = nn.ModuleList((make(name), make(name, seed=1)))
    both[1].cell = both[0].cell
    truths = []
    for encoder, seed in zip(both, (1, 2), strict=True):
        alone = make(name)
        alone.load_state_dict(encoder.state_dict())
        truths.append(run(name, alone, *inputs(seed=seed)))
    states = [encode(name, encoder, *inputs(seed=seed)) for encoder, seed in zip(both, (1, 2), strict=True)]
    torch.stack(states).sin().sum().backward()
    for place, (encoder, truth) in enumerate(zip(both, truths, strict=True)):
        for key, weight in encoder.named_parameters():
            expected = truth.gradients[key]
            if key.startswith("cell."):
                expected = expected + truths[1 - place].gradients[key]
            torch.testing.assert_close(weight.grad, expected, atol=1e-10, rtol=1e-10, msg=f"encoder {place}: {key}")


@every_encoder
def test_weights_replaced_after_forward_do_not_matter(name):
    encoder, (x, lengths) = make(name), inputs()
    truth, own = run(name, encoder), dict(encoder.named_parameters())
    state = encode(name, encoder, x, lengths)
    encoder.load_state_dict(make(name, seed=1).state_dict(), assign=True)  # other tensors, the old ones do not change
    found = gradients(state.sin().sum(), tuple(own.values()))
    for key, gradient in zip(own, found, strict=True):
        torch.testing.assert_close(gradient, truth.gradients[key], atol=1e-10, rtol=1e-10, msg=key)


@every_encoder
@pytest.mark.parametrize("which", ["all weights", "one weight of the cell"])
def test_weights_that_change_between_forward_and_backward_are_an_error(name, which):
    encoder = make(name)
    state = encode(name, encoder, *inputs())
    with torch.no_grad():
        if which == "all weights" or not hasattr(encoder, "cell"):
            torch._foreach_mul_(list(encoder.parameters()), 1.1)
        else:
            encoder.cell.gates.weight.mul_(1.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        state.sin().sum().backward()
