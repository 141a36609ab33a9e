"""Which calls draw random numbers."""

import threading
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import beamtree
from beamtree.nn.engine.randomness import draws
from support import inputs

X = torch.ones(2, 3, 4)
OWN = torch.Generator().manual_seed(3)


RANDOM = {
    "dropout": lambda: F.dropout(X, 0.1),
    "alpha dropout": lambda: F.alpha_dropout(X, 0.1, training=True),
    "attention with dropout": lambda: F.scaled_dot_product_attention(X, X, X, dropout_p=0.1),
    "an LSTM with dropout": partial(nn.LSTM(4, 4, 2, dropout=0.5), X),
    "a layer of its own": lambda: X + torch.randn_like(X),
    "in-place": lambda: torch.zeros(3).uniform_(),
    "Gumbel noise": lambda: F.gumbel_softmax(X),
    "a distribution": lambda: torch.distributions.Normal(0.0, 1.0).rsample(),
    "a generator of its own": lambda: torch.rand(3, generator=OWN),
}
NOT_RANDOM = {
    "dropout at test": lambda: nn.Dropout(0.5).eval()(X),
    "a rate of 0": lambda: F.dropout(X, 0.0),
    "a rate of 1": lambda: F.dropout(X, 1.0),
    "attention": lambda: F.scaled_dot_product_attention(X, X, X),
    "an LSTM": partial(nn.LSTM(4, 4, 2), X),
    "RReLU at test": lambda: F.rrelu(X, training=False),
    "a generator's state": torch.get_rng_state,
}


@pytest.mark.parametrize("call", RANDOM.values(), ids=RANDOM)
def test_a_draw_is_seen_and_not_made(call):
    states = torch.get_rng_state(), OWN.get_state()
    assert draws(call)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(OWN.get_state(), states[1])


@pytest.mark.parametrize("call", NOT_RANDOM.values(), ids=NOT_RANDOM)
def test_other_calls_draw_nothing(call):
    assert not draws(call)


def test_a_fused_operator_without_dropout_draws_nothing():
    """PyTorch's fused attention is tagged as random whatever its rate; on a CPU too."""
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    x = X.unsqueeze(1)
    assert torch.Tag.nondeterministic_seeded in fused.tags
    assert not draws(lambda: fused(x, x, x))
    assert not draws(lambda: fused(x, x, x, dropout_p=0.0))
    assert draws(lambda: fused(x, x, x, 0.1))


class Dropped(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, self.training)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("training", [True, False])
def test_scripted_modules_are_seen_through(training):
    assert draws(partial(torch.jit.script(Dropped().train(training)), X)) == training


def test_a_draw_is_seen_even_if_the_caller_catches_all():
    def call():
        try:
            torch.rand(3)
        except Exception:
            return None

    assert draws(call)


def test_errors_of_a_module_are_its_own():
    with pytest.raises(RuntimeError, match="batch2"):
        draws(lambda: X @ X)


def test_no_graph_is_made():
    weight, found = torch.ones(4, requires_grad=True), []
    draws(lambda: found.append(X * weight))
    assert not found[0].requires_grad


def test_other_threads_go_on():
    """Their draws are their own, and are not stopped."""
    drawn = []

    def call():
        thread = threading.Thread(target=lambda: drawn.append(torch.rand(3)))
        thread.start()
        thread.join()

    assert not draws(call)
    assert len(drawn) == 1


class Noisy(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.linear, self.p = nn.Linear(12, 6), p

    def forward(self, left, right):
        return F.dropout(self.linear(torch.cat((left, right), dim=-1)), self.p).float() + left - right


@pytest.mark.parametrize("p", [0.0, 0.5])
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
def test_a_trial_changes_no_result(p, autocast, monkeypatch):
    """With the same seed, "auto" computes what the engine that it selects computes without a trial."""
    x, lengths = inputs([6, 4], dtype=torch.float32)
    torch.manual_seed(0)
    encoder = beamtree.encoder("bt-grc", dim=6, beam_size=2, cell=Noisy(p))
    found = []
    for engine in ("auto", "reference" if p else "torch"):
        encoder.engine = engine
        if engine == "torch":
            monkeypatch.setattr("beamtree.nn.engine.request.Request.module_calls", lambda request: {})
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            state = encoder(x, lengths).state
        found.append((state, *torch.autograd.grad(state.sin().sum(), tuple(encoder.parameters())), torch.rand(1)))
    torch.testing.assert_close(*found, atol=0, rtol=0)
    assert found[0][1].any()  # the gradient of the cell's weight
