"""More than one backward pass: second derivatives, checkpointing, accumulated gradients, retained graphs."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from idioms import REFERENCE, STRAIGHT_THROUGH, encode, every_encoder, inputs, make, options, run

pytestmark = pytest.mark.usefixtures("shape_checks_off")  # they take a third of the time

LOSSES = (torch.sum, lambda state: state.sin().sum())  # the gradient of the first is a constant


def first_derivative(name, encoder, x, lengths, loss):
    return torch.autograd.grad(loss(encode(name, encoder, x, lengths)), x, create_graph=True)[0].sum()


def second_derivative(name, encoder, loss):
    """Of x and all weights."""
    x, lengths = inputs()
    tensors = (x.requires_grad_(), *encoder.parameters())
    first = first_derivative(name, encoder, x, lengths, loss)
    return torch.autograd.grad(first, tensors, allow_unused=True, materialize_grads=True)


def assert_second_derivative_is_right(name, encoder, loss, found):
    """Along a random direction, compared with the difference quotient of the first."""
    x, lengths = inputs()
    tensors, step = (x.requires_grad_(), *encoder.parameters()), 1e-5
    generator = torch.Generator().manual_seed(0)
    direction = [torch.randn(tensor.shape, generator=generator).to(tensor) for tensor in tensors]
    sums = []
    for by in (step, -2 * step, step):
        with torch.no_grad():
            torch._foreach_add_(tensors, direction, alpha=by)
        sums.append(first_derivative(name, encoder, x, lengths, loss).detach())
    expected = sum((part * toward).sum() for part, toward in zip(found, direction, strict=True))
    torch.testing.assert_close((sums[0] - sums[1]) / (2 * step), expected, atol=1e-5, rtol=1e-5)


@every_encoder
def test_a_second_derivative_is_right_or_refused(name):
    for loss in LOSSES:
        encoder, refusal = make(name), ""
        try:
            found = second_derivative(name, encoder, loss)
        except RuntimeError as error:
            refusal = str(error)
        if refusal or name in STRAIGHT_THROUGH:  # which no difference quotient can check
            assert name not in ("ndr", "lstm", "transformer")  # they are plain autograd
            assert "no second derivative" in refusal
            assert ('engine="reference"' in refusal) == (name in REFERENCE)
        else:
            assert_second_derivative_is_right(name, encoder, loss, found)


@pytest.mark.parametrize("name", REFERENCE)
def test_the_reference_has_second_derivatives(name):
    for loss in LOSSES:
        encoder = make(name, engine="reference")
        found = second_derivative(name, encoder, loss)
        assert any(part.any() for part in found)
        if name not in STRAIGHT_THROUGH:
            assert_second_derivative_is_right(name, encoder, loss, found)


def backward(encoder, x, loss):
    """The gradients that `.backward()` leaves."""
    encoder.zero_grad()
    x.grad = None
    loss.backward()
    return [x.grad, *(weight.grad for weight in encoder.parameters())]


@every_encoder
def test_checkpointing_changes_no_gradient(name):
    """Noise and dropout come from PyTorch's global generator, whose state is restored."""
    encoder, (x, lengths) = make(name), inputs()
    x.requires_grad_()
    given = options(name, lengths.tolist()) | {"generator": None}

    def state(x):
        return encoder(x, lengths, **given).state

    torch.manual_seed(3)
    truth = backward(encoder, x, state(x).sin().sum())
    for use_reentrant in (True, False):
        torch.manual_seed(3)
        found = backward(encoder, x, checkpoint(state, x, use_reentrant=use_reentrant).sin().sum())
        torch.testing.assert_close(found, truth, atol=1e-12, rtol=1e-12)


@every_encoder
def test_gradients_of_several_passes_add_up(name):
    """In whatever order forward and backward passes are run."""
    encoder = make(name)
    batches = [inputs(seed=seed) for seed in range(3)]
    truths = [run(name, encoder, *batch).gradients for batch in batches]
    losses = [encode(name, encoder, *batch).sin().sum() for batch in batches]
    for place in (1, 0, 2):
        losses[place].backward()
    for key, weight in encoder.named_parameters():
        torch.testing.assert_close(weight.grad, sum(truth[key] for truth in truths), atol=1e-10, rtol=1e-10)


@every_encoder
def test_a_retained_graph_gives_the_same_gradient_again(name):
    encoder, (x, lengths) = make(name), inputs()
    x.requires_grad_()
    loss = encode(name, encoder, x, lengths).sin().sum()
    tensors = (x, *encoder.parameters())
    first = torch.autograd.grad(loss, tensors, retain_graph=True)
    with torch.no_grad():
        encode(name, encoder, *inputs(seed=1))  # other passes must not overwrite what the graph needs
    again = torch.autograd.grad(loss, tensors, retain_graph=True)
    torch.testing.assert_close(again, first, atol=1e-12, rtol=1e-12)
    with torch.no_grad():
        torch._foreach_zero_(first)  # the caller may change the gradients
    torch.testing.assert_close(torch.autograd.grad(loss, tensors), again, atol=1e-12, rtol=1e-12)
