"""Half precision: `.bfloat16()` and `.half()` modules, and autocast."""

import copy

import pytest
import torch

from idioms import DIM, OWN_CELLS, every_encoder, inputs, make, options

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


class Centred(torch.nn.Module):
    """A cell with a buffer that each call updates, as that of a batch norm."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2 * DIM, DIM)
        self.register_buffer("mean", torch.zeros(DIM))

    def forward(self, left, right):
        parent = self.layer(torch.cat((left, right), dim=-1))
        self.mean.lerp_(parent.detach().to(self.mean.dtype).reshape(-1, DIM).mean(0), 0.1)
        return parent.tanh()


@every_dtype
@pytest.mark.parametrize("name", OWN_CELLS)
def test_buffers_of_modules_in_half_precision_are_updated(name, dtype):
    (x, lengths), means = inputs(dtype=dtype), []
    encoder = make(name, dtype=dtype, cell=Centred(), dropout=0.0)
    for module in (encoder, copy.deepcopy(encoder).float()):
        encoding(name, module, x.to(next(module.parameters()).dtype), lengths)
        means.append(module.cell.module.mean)
    assert means[0].dtype == dtype
    assert means[1].any()
    torch.testing.assert_close(means[0].float(), means[1], atol=NEAR, rtol=NEAR)


@every_dtype
@pytest.mark.parametrize("name", ["bt-grc", "bt-lstm", "ebt-grc", "gumbel-tree-grc", "gumbel-tree-lstm"])
def test_merges_are_scored_in_float32(name, dtype):
    encoder, (x, lengths) = make(name, dtype=dtype).eval(), inputs(dtype=dtype)
    beams = encoding(name, encoder, x, lengths).beams
    found, truth = encoder.merge_scores(beams), copy.deepcopy(encoder).float().merge_scores(beams)
    for mine, theirs in zip(found, truth, strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, theirs, atol=NEAR, rtol=NEAR)
