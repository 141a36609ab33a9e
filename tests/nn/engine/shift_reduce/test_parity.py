"""The torch engine computes the reference's function: outputs, trees and every gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from beamtree.nn.engine import pool
from support import assert_same, everything, inputs, make

NAME = "bsrp-grc"


def compare(x, lengths, atol=1e-11, dtype=torch.float64, change=lambda encoder: None, training=True, **options):
    """`change` is applied to both encoders."""
    results = []
    for engine in ("reference", "torch"):
        encoder = make(NAME, engine, dim=x.shape[2], dtype=dtype, **options).train(training)
        change(encoder)
        results.append(everything(encoder, x.to(dtype), lengths))
    assert_same(*results, atol=atol)
    return results[0]


@pytest.mark.parametrize("beam_size", [1, 2, 5], ids=lambda k: f"K{k}")
@pytest.mark.parametrize("lengths", [[9, 9], [9, 6, 3, 2, 1]], ids=["even", "padded"])
def test_engines_agree(beam_size, lengths):
    compare(*inputs(lengths), beam_size=beam_size)


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_engines_agree_on_short_inputs(length):
    compare(*inputs([length] * 3), beam_size=5)


def test_engines_agree_at_inference():
    compare(*inputs([8, 5]), beam_size=3, dropout=0.5, training=False)


def test_engines_agree_in_float32():
    compare(*inputs([20, 14, 5], dim=16), beam_size=5, dropout=0.1, dtype=torch.float32, atol=2e-4)


def test_engines_agree_where_all_scores_are_equal():
    """With a scorer of zeros every choice is a tie, and only the rule for ties decides."""

    def silence(encoder):
        nn.init.zeros_(encoder.scorer.weight)
        nn.init.zeros_(encoder.scorer.bias)

    _, _, trees = compare(*inputs([7, 5, 3]), beam_size=4, change=silence)
    assert len(trees[0]) == 4


def test_engines_agree_on_equal_words():
    """Equal words make equal candidates, as ListOps is full of them."""
    x, lengths = inputs([8, 5])
    compare(x[:, :1].expand(-1, 8, -1), lengths, beam_size=3)


@given(
    lengths=st.lists(st.integers(1, 8), min_size=1, max_size=3),
    padding=st.integers(0, 3),
    beam_size=st.integers(1, 6),
    dropout=st.sampled_from([0.0, 0.4]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40)
def test_engines_agree_always(lengths, padding, beam_size, dropout, seed):
    x, lengths = inputs(lengths, width=max(lengths) + padding, seed=seed)
    compare(x, lengths, seed=seed, beam_size=beam_size, dropout=dropout)


class Doubled(nn.Linear):
    """A layer that is not what its class's weights say."""

    def forward(self, x):
        return super().forward(2 * x)


@pytest.mark.parametrize("layer", ["features", "scorer", "cell.gates"])
def test_layers_that_are_not_plain_are_called_as_modules(layer):
    """Those of the decision and of the cell alike, and their gradients are right."""

    def double(encoder):
        encoder.get_submodule(layer).__class__ = Doubled

    x, lengths = inputs([6, 4])
    plain = compare(x, lengths, beam_size=3)
    doubled = compare(x, lengths, beam_size=3, change=double)
    assert not torch.allclose(plain[0]["state"], doubled[0]["state"])


def test_it_does_not_matter_how_many_nodes_are_composed_at_once(monkeypatch):
    x, lengths = inputs([9, 6, 1])
    whole = everything(make(NAME, dropout=0.2), x, lengths)
    monkeypatch.setattr(pool, "AT_ONCE", 3)
    assert_same(whole, everything(make(NAME, dropout=0.2), x, lengths), atol=1e-12)


def test_the_reference_can_be_differentiated_twice_and_the_torch_engine_says_that_it_cannot():
    x, lengths = inputs([4, 3])
    for engine in ("reference", "torch"):
        encoder, leaf = make(NAME, engine, beam_size=2), x.clone().requires_grad_()
        (first,) = torch.autograd.grad(encoder(leaf, lengths).state.sin().sum(), leaf, create_graph=True)
        if engine == "reference":
            assert torch.autograd.grad(first.sum(), leaf)[0].any()
        else:
            with pytest.raises(RuntimeError, match='engine="reference"'):
                torch.autograd.grad(first.sum(), leaf)
