"""Forward-mode differentiation and `torch.func`: right, by the reference engine where there is one, or an error."""

import pytest
import torch
from torch.autograd import forward_ad

from idioms import DIM, NAMES, REFERENCE, encode, every_encoder, inputs, make

pytestmark = [
    pytest.mark.usefixtures("shape_checks_off"),  # they take a third of the time
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),  # PyTorch's own use
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),  # of vmap over some operations
]

TREES = [name for name in NAMES if name.endswith("-tree-grc") and "gumbel" not in name]
FUNC = [name for name in REFERENCE if name not in TREES]
REFUSALS = {  # of encoders without a reference engine
    "bt-grc-soft": "torch.func and forward-mode AD cannot transform its operations",
    "ndr": "must implement the jvp function|override the setup_context staticmethod",
    "lstm": "forward AD with _pack_padded_sequence|Cannot access data pointer",
}


def directions():
    """Of x, and of the states."""
    generator = torch.Generator().manual_seed(2)
    (x, lengths), like = inputs(), {"dtype": torch.float64, "generator": generator}
    return torch.randn(x.shape, **like), torch.randn(len(lengths), DIM, **like)


def pulled_back(name, encoder, tensor, x, lengths, by):
    """The gradient of the states in direction `by`, with respect to x or a weight."""
    return torch.autograd.grad((encode(name, encoder, x, lengths) * by).sum(), tensor)[0]


def tangent(name, encoder, x, lengths, toward):
    with forward_ad.dual_level():
        state = encode(name, encoder, forward_ad.make_dual(x, toward), lengths)
        return forward_ad.unpack_dual(state).tangent


@every_encoder
@pytest.mark.parametrize("frozen", [False, True])
def test_forward_mode_agrees_with_backward_mode_or_is_refused(name, frozen):
    """⟨g, J v⟩ = ⟨Jᵀ g, v⟩. With frozen weights no tensor requires a gradient."""
    (x, lengths), (toward, by) = inputs(), directions()
    encoder = make(name)
    if name in REFUSALS:
        with pytest.raises((ValueError, RuntimeError), match=REFUSALS[name]):
            tangent(name, encoder.requires_grad_(not frozen), x, lengths, toward)
        return
    expected = (pulled_back(name, encoder, x.requires_grad_(), x, lengths, by) * toward).sum()
    found = tangent(name, encoder.requires_grad_(not frozen), x.detach(), lengths, toward)
    torch.testing.assert_close((found * by).sum().detach(), expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", REFERENCE)
def test_a_tangent_of_a_weight_is_used(name):
    encoder, (x, lengths), (_, by) = make(name), inputs(), directions()
    weight = encoder.get_parameter("cell.gates.weight")
    toward = torch.randn(weight.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    expected = (pulled_back(name, encoder, weight, x, lengths, by) * toward).sum()
    with forward_ad.dual_level():
        weights = {"cell.gates.weight": forward_ad.make_dual(weight.detach(), toward)}

        def called(*arguments, **options):
            return torch.func.functional_call(encoder, weights, arguments, options)

        found = forward_ad.unpack_dual(encode(name, called, x, lengths)).tangent
    torch.testing.assert_close((found * by).sum().detach(), expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", REFERENCE)
def test_an_engine_that_cannot_be_transformed_refuses(name):
    encoder, (x, lengths), (toward, _) = make(name, engine="torch"), inputs(), directions()
    with pytest.raises(ValueError, match=r"engine 'torch' cannot do this: torch\.func .*; engine 'auto' can"):
        tangent(name, encoder, x, lengths, toward)


@pytest.mark.parametrize("transform", ["jacrev", "jacfwd"])
@pytest.mark.parametrize("name", FUNC)
def test_jacobians_agree_with_backward_mode(name, transform):
    (x, lengths), (_, by) = inputs(), directions()
    training = transform == "jacrev"  # forward mode calls the encoder under vmap, which refuses to draw
    encoder = make(name, **({"stochastic": training} if name == "mc-gumbel-tree-grc" else {})).train(training)
    expected = pulled_back(name, encoder, x.requires_grad_(), x, lengths, by)
    jacobian = getattr(torch.func, transform)(lambda x: encode(name, encoder, x, lengths))(x.detach())  # (B, D, *x)
    torch.testing.assert_close((jacobian * by[..., None, None, None]).sum((0, 1)), expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", TREES)
def test_torch_func_is_refused_for_trees(name):
    encoder, (x, lengths) = make(name), inputs()
    with pytest.raises(ValueError, match=r"'reference': torch\.func cannot transform trees"):
        torch.func.jacrev(lambda x: encode(name, encoder, x, lengths))(x)
