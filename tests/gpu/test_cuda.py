"""The engines on a CUDA device."""

import warnings

import pytest
import torch

from beamtree.nn.cells import function_of
from beamtree.nn.engine.beam import search
from beamtree.nn.engine.onesoft import search as soft_search
from beamtree.nn.engine.request import Request
from beamtree.nn.engine.scorers import scorer_of
from support import ENCODER_IDS, ENCODERS, assert_same, everything, inputs, make

pytestmark = pytest.mark.gpu
encoders = pytest.mark.parametrize(("name", "options"), ENCODERS, ids=ENCODER_IDS)


def on_cpu(result):
    values, nodes, trees = result
    return {k: v.cpu() for k, v in values.items()}, type(nodes)(*(t.cpu() for t in nodes)), trees


@encoders
@pytest.mark.parametrize("engine", ["reference", "torch"])
def test_a_gpu_computes_what_a_cpu_does(name, options, engine):
    x, lengths = inputs([17, 12, 3, 2, 1])
    expected = everything(make(name, "reference", stochastic=False, **options), x, lengths)
    encoder = make(name, engine, stochastic=False, **options).cuda()
    assert_same(expected, on_cpu(everything(encoder, x.cuda(), lengths.cuda())), atol=1e-10)


@encoders
@pytest.mark.parametrize("duplicates", ["keep", "merge"])
def test_engines_agree_under_the_same_noise_and_dropout(name, options, duplicates):
    x, lengths = inputs([40, 25, 4, 2, 1])
    results = []
    for engine in ("reference", "torch"):
        encoder = make(name, engine, dropout=0.2, duplicates=duplicates, **options).cuda()
        results.append(everything(encoder, x.cuda(), lengths.cuda()))
    assert_same(*results, atol=1e-10)


@encoders
def test_engines_agree_in_float32(name, options):
    x, lengths = inputs([60, 33], dim=16, dtype=torch.float32)
    results = []
    for engine in ("reference", "torch"):
        encoder = make(name, engine, dim=16, dtype=torch.float32, **options).cuda()
        results.append(everything(encoder, x.cuda(), lengths.cuda()))
    assert_same(*results, atol=5e-4)


@pytest.fixture
def synchronising_is_an_error():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the mode calls itself a prototype
        torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("soft", [None, "paper"])
def test_a_search_never_synchronises(soft, request):
    encoder = make("bt-grc").cuda()
    leaves, lengths = torch.randn(2, 12, 6, dtype=torch.float64).cuda(), torch.full((2,), 12).cuda()
    cell, scorer = function_of(encoder.cell), scorer_of(encoder.scorer, 6)
    asked = Request(leaves, lengths, cell, scorer, 3, soft=soft, stochastic=True)
    run = (soft_search if soft else search).search
    run(asked)  # a first call sets up libraries
    request.getfixturevalue("synchronising_is_an_error")
    run(asked)


@encoders
def test_bfloat16_autocast_stays_close(name, options):
    x, lengths = (t.cuda() for t in inputs([5, 4], dim=32, dtype=torch.float32))
    beam_size = 4 if "mix" in options else 24
    encoder = make(name, dim=32, beam_size=beam_size, stochastic=False, dtype=torch.float32, **options).cuda()
    exact = encoder(x, lengths).state
    with torch.autocast("cuda", torch.bfloat16):
        close = encoder(x, lengths).state
    torch.testing.assert_close(close, exact, atol=0.05, rtol=0.05)
    weights = [weight for name, weight in encoder.named_parameters() if name != "scorer.bias"]  # its gradient is 0
    expected = torch.autograd.grad(exact.sin().sum(), weights)
    found = torch.autograd.grad(close.sin().sum(), weights)
    for a, b in zip(found, expected, strict=True):
        assert (a - b).norm() <= 0.05 * b.norm() + 1e-4


@encoders
def test_a_seeded_pass_repeats_exactly(name, options):
    x, lengths = (t.cuda() for t in inputs([30, 9]))
    encoder = make(name, dropout=0.2, **options).cuda()
    states = [encoder(x, lengths, generator=torch.Generator("cuda").manual_seed(1)).state for _ in range(2)]
    assert torch.equal(*states)
