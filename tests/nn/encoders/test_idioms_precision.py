"""Half precision: `.bfloat16()` and `.half()` modules, and autocast."""

import copy

import pytest
import torch

from idioms import every_encoder, inputs, make, options

pytestmark = pytest.mark.usefixtures("shape_checks_off")  # they take a third of the time

NEAR = 0.03  # elements of states are about 1; bfloat16 has eight significant bits

every_dtype = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
every_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def encoding(name, encoder, x, lengths):
    return encoder(x, lengths, **options(name, lengths.tolist(), device=x.device))


def on(device, encoder, tensors):
    return encoder.to(device), *(tensor.to(device) for tensor in tensors)


def assert_near(found, truth):
    """States agree for samples whose trees do. Returns whether all trees do."""
    same = [True] * len(truth.state)
    if truth.beams is not None:
        same = [mine == theirs for mine, theirs in zip(found.beams.trees(), truth.beams.trees(), strict=True)]
    assert any(same)
    torch.testing.assert_close(found.state[same].float(), truth.state[same], atol=NEAR, rtol=NEAR)
    return all(same)


def assert_gradients_are_near(found, truth):
    """In norm, all of them together: some are small."""
    error = sum((mine.float() - theirs).square().sum() for mine, theirs in zip(found, truth, strict=True)).sqrt()
    assert error < 0.1 * sum(theirs.square().sum() for theirs in truth).sqrt()


@every_encoder
@every_dtype
@every_device
def test_modules_in_half_precision_compute_what_they_do_in_full(name, dtype, device):
    """On a GPU, kernels in half precision are compared with PyTorch's operations in full."""
    half, x, lengths = on(device, make(name, dtype=dtype).eval(), inputs(dtype=dtype))
    full = copy.deepcopy(half).float()
    if hasattr(full, "engine"):
        full.engine = "torch"
    found, truth = encoding(name, half, x, lengths), encoding(name, full, x.float(), lengths)
    assert found.state.dtype == dtype
    same_trees = assert_near(found, truth)
    gradients = [
        torch.autograd.grad(out.state.float().sin().sum(), tuple(encoder.parameters()))
        for out, encoder in ((found, half), (truth, full))
    ]
    if same_trees:
        assert_gradients_are_near(*gradients)


@every_encoder
@every_dtype
@every_device
def test_modules_in_half_precision_can_be_trained(name, dtype, device):
    encoder, x, lengths = on(device, make(name, dtype=dtype), inputs(dtype=dtype))
    state = encoding(name, encoder, x.requires_grad_(), lengths).state
    assert state.dtype == dtype
    state.sin().sum().backward()
    for tensor in (state, x.grad, *(weight.grad for weight in encoder.parameters())):
        assert tensor.dtype == dtype
        assert tensor.isfinite().all()


@every_encoder
def test_autocast_computes_what_full_precision_does(name):
    encoder, (x, lengths) = make(name, dtype=torch.float32), inputs(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        state = encoding(name, encoder, x.requires_grad_(), lengths).state
        found = encoding(name, encoder.eval(), x, lengths)
    state.sin().sum().backward()
    for tensor in (state, x.grad, *(weight.grad for weight in encoder.parameters())):
        assert tensor.isfinite().all()
    if assert_near(found, truth := encoding(name, encoder, x, lengths)):
        assert_gradients_are_near(
            *(torch.autograd.grad(out.state.sin().sum(), tuple(encoder.parameters())) for out in (found, truth))
        )
