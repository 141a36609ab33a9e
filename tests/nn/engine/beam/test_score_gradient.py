"""The linear-time gradient of the scores is that of the scores written out."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from beamtree.nn.cells import function_of
from beamtree.nn.engine.beam import score_gradient
from beamtree.nn.engine.beam.search import Choice, copies, search
from beamtree.nn.engine.lineage import slots_after, trace_back
from beamtree.nn.engine.request import Request
from beamtree.nn.engine.scorers import scorer_of
from support import inputs, make


@given(st.integers(0, 40), st.data())
def test_interval_sums_equal_plain_ones(size, data):
    low = data.draw(st.lists(st.integers(0, size), min_size=1, max_size=10))
    high = [data.draw(st.integers(0, size)) for _ in low]
    x = torch.randn(size, generator=torch.Generator().manual_seed(size), dtype=torch.float64) * 50
    found = score_gradient.interval_logsumexp(x, torch.tensor(low), torch.tensor(high))
    expected = torch.stack([x[a:b].logsumexp(0) for a, b in zip(low, high, strict=True)])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def linear_and_written_out(scale, dtype, monkeypatch, n=24, k=4):
    """The gradient of all final scores with respect to the logits, both ways, on one search."""
    encoder = make("bt-grc", dtype=dtype)
    with torch.no_grad():
        encoder.scorer.weight.mul_(scale)
    x, lengths = inputs([n, n - 5], dtype=dtype)
    request = Request(
        encoder.leaf(x),
        lengths,
        function_of(encoder.cell),
        scorer_of(encoder.scorer, encoder.dim),
        k,
        duplicates="merge",
    )
    # Choices are recorded for merging; without a merge the lineages are paths, and both ways must agree.
    monkeypatch.setattr("beamtree.nn.engine.beam.search.resolve", lambda scores, forests, duplicates: scores)
    trace = search(request)
    monkeypatch.undo()
    gradient = torch.randn(2, k, dtype=dtype)
    lineages = trace_back(trace)
    linear = score_gradient.linear(
        gradient,
        len(trace.pool.logits),
        score_gradient.candidates(trace.pool, lineages),
        score_gradient.coefficients(trace.pool, lineages),
    )
    logits = trace.pool.logits.double().requires_grad_()
    choices = [Choice(*copies([choice])) for choice in trace.choices]
    scores = score_gradient.recompute_scores(logits, gradient.double(), request.active, choices, "keep")
    torch.testing.assert_close(scores, trace.scores.double(), rtol=1e-5, atol=1e-5)
    written_out = torch.autograd.grad(scores, logits, gradient.double())[0]
    linear[trace.pool.absent] = 0  # takes the parts of candidates that are not there
    return linear.double(), written_out, trace


@pytest.mark.parametrize("scale", [1, 10, 100])
def test_linear_gradient_is_the_gradient(scale, monkeypatch):
    linear, written_out, _ = linear_and_written_out(scale, torch.float64, monkeypatch)
    torch.testing.assert_close(linear, written_out, rtol=1e-10, atol=1e-10)


def test_linear_gradient_survives_large_scores(monkeypatch):
    """Normalisers that move by hundreds of nats: a difference of running sums would have no right digit left."""
    linear, written_out, trace = linear_and_written_out(60, torch.float32, monkeypatch)
    normalisers = trace.steps.normaliser
    finite = normalisers[normalisers.isfinite()]
    assert finite.max() - finite.min() > 100
    torch.testing.assert_close(linear, written_out, rtol=1e-4, atol=1e-4)


@given(st.integers(0, 20), st.integers(1, 5), st.integers(0, 100))
def test_lineages_are_traced_back_as_one_by_one(steps, k, seed):
    source = torch.randint(k, (steps, 2, k), generator=torch.Generator().manual_seed(seed))
    slots = slots_after(source)
    expected, here = [], torch.arange(k).expand(2, k)
    for step in reversed(range(steps)):
        expected.append(here)
        here = source[step].gather(1, here)
    assert slots.shape == source.shape
    assert all(torch.equal(a, b) for a, b in zip(slots, reversed(expected), strict=True))
