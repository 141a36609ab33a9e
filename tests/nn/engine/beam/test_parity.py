"""The torch engine computes the reference's function: outputs, trees and every gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beamtree.nn.engine import pool
from support import ENCODER_IDS, ENCODERS, assert_same, everything, inputs, make

encoders = pytest.mark.parametrize(("name", "options"), ENCODERS, ids=ENCODER_IDS)


def compare(name, x, lengths, atol=1e-11, dtype=torch.float64, training=True, **options):
    results = []
    for engine in ("reference", "torch"):
        encoder = make(name, engine, dim=x.shape[2], dtype=dtype, **options).train(training)
        results.append(everything(encoder, x.to(dtype), lengths))
    assert_same(*results, atol=atol)


@encoders
@pytest.mark.parametrize("duplicates", ["keep", "drop", "merge"])
@pytest.mark.parametrize("beam_size", [1, 2, 5], ids=lambda k: f"K{k}")
@pytest.mark.parametrize("lengths", [[12, 12], [11, 7, 3, 2, 1]], ids=["even", "padded"])
def test_engines_agree(name, options, duplicates, beam_size, lengths):
    x, lengths = inputs(lengths)
    compare(name, x, lengths, beam_size=beam_size, duplicates=duplicates, stochastic=False, **options)


@encoders
@pytest.mark.parametrize("duplicates", ["keep", "drop", "merge"])
def test_engines_agree_under_the_same_noise_and_dropout(name, options, duplicates):
    x, lengths = inputs([13, 9, 4, 2, 1])
    compare(name, x, lengths, beam_size=4, duplicates=duplicates, dropout=0.3, stochastic=True, **options)


@encoders
@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_engines_agree_on_short_inputs(name, options, length):
    x, lengths = inputs([length] * 3)
    compare(name, x, lengths, beam_size=5, **options)


@encoders
def test_engines_agree_at_inference(name, options):
    x, lengths = inputs([10, 6])
    compare(name, x, lengths, beam_size=3, dropout=0.5, training=False, **options)


@encoders
def test_engines_agree_in_float32(name, options):
    x, lengths = inputs([40, 33, 5], dim=16)
    compare(name, x, lengths, beam_size=5, dropout=0.1, dtype=torch.float32, atol=2e-4, **options)


@encoders
def test_engines_agree_where_all_scores_are_equal(name, options):
    """With a scorer of zeros every choice is a tie, and only the rule for ties decides."""
    x, lengths = inputs([9, 6, 3])
    results = []
    for engine in ("reference", "torch"):
        encoder = make(name, engine, beam_size=4, stochastic=False, **options)
        torch.nn.init.zeros_(encoder.scorer.weight)
        results.append(everything(encoder, x, lengths))
    assert_same(*results, atol=1e-11)


@encoders
def test_engines_agree_on_equal_words(name, options):
    """Equal words make equal candidates, as ListOps is full of them."""
    x, lengths = inputs([8, 5])
    compare(name, x[:, :1].expand(-1, 8, -1), lengths, beam_size=3, stochastic=False, **options)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    padding=st.integers(0, 3),
    beam_size=st.integers(1, 6),
    which=st.sampled_from(ENCODERS),
    duplicates=st.sampled_from(["keep", "drop", "merge"]),
    stochastic=st.booleans(),
    dropout=st.sampled_from([0.0, 0.4]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60)
def test_engines_agree_always(lengths, padding, beam_size, which, duplicates, stochastic, dropout, seed):
    name, options = which
    x, lengths = inputs(lengths, width=max(lengths) + padding, seed=seed)
    compare(
        name,
        x,
        lengths,
        seed=seed,
        beam_size=beam_size,
        duplicates=duplicates,
        stochastic=stochastic,
        dropout=dropout,
        **options,
    )


@encoders
def test_gradients_reach_only_what_asks_for_them(name, options):
    """Frozen weights, or a frozen input, change nothing for the others."""
    x, lengths = inputs([7, 4])
    whole, _, _ = everything(make(name, beam_size=3, **options), x, lengths)
    encoder = make(name, beam_size=3, **options)
    encoder.cell.requires_grad_(False)
    frozen = x.clone().requires_grad_()
    generator = torch.Generator().manual_seed(7)
    out = encoder(frozen, lengths, generator=generator)
    assert torch.equal(out.state.detach(), whole["state"])
    out.state.sum().backward()
    assert all(weight.grad is None for weight in encoder.cell.parameters())
    assert all(weight.grad is not None for weight in encoder.leaf.parameters())


@encoders
def test_it_does_not_matter_how_many_nodes_are_composed_at_once(name, options, monkeypatch):
    x, lengths = inputs([9, 6, 1])
    whole = everything(make(name, dropout=0.2, **options), x, lengths)
    monkeypatch.setattr(pool, "AT_ONCE", 3)
    assert_same(whole, everything(make(name, dropout=0.2, **options), x, lengths), atol=1e-12)
