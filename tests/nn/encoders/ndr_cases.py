"""Shared by the tests of the Neural Data Router: small encoders, the attention in plain steps, and gradients."""

import copy

import torch
from torch.nn.functional import logsigmoid, pad
from torch.testing import assert_close

from beamtree.nn.encoders.ndr import NDR

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


def gradients(encoder, x, lengths, seed=0, **options):
    """The encoding, and the gradients of a loss of it, where they are wanted."""
    wanted = [one for one in (x, *encoder.parameters()) if one.requires_grad]
    state = encoder(x, lengths, torch.Generator(x.device).manual_seed(seed), **options).state
    return state, *torch.autograd.grad(state.sin().sum(), wanted)


def assert_all_close(found, expected, atol=1e-12):
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, atol=atol, rtol=0)


def by_modules(encoder):
    """The same encoder, of which one layer is not plain, so that the modules compute it."""
    encoder = copy.deepcopy(encoder)
    encoder.gate.register_forward_hook(lambda module, arguments, output: None)
    return encoder
