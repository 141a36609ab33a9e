"""The fused engine on a CUDA device: beside the torch engine and the reference, in float32 without TF32."""

import pytest
import torch

from beamtree.nn.cells import function_of
from beamtree.nn.engine.gpu import cache
from beamtree.nn.engine.gpu import engine as fused
from beamtree.nn.engine.request import Request
from beamtree.nn.engine.scorers import scorer_of
from support import assert_same, everything, inputs, make

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("workspaces")]
every_search = pytest.mark.parametrize("name", ["bt-grc", "bt-lstm", "bt-grc-onesoft", "ebt-grc"])


def result(engine, lengths, dim, seed=0, training=True, name="bt-grc", **options):
    x, lengths = (t.cuda() for t in inputs(lengths, dim=dim, seed=seed, dtype=torch.float32))
    encoder = make(name, engine, dim=dim, seed=seed, dtype=torch.float32, **options).cuda().train(training)
    return everything(encoder, x, lengths)


@every_search
@pytest.mark.parametrize("dim", [64, 100, 128, 300, 512], ids=lambda dim: f"D{dim}")
@pytest.mark.parametrize("beam_size", [1, 5, 8], ids=lambda k: f"K{k}")
def test_it_agrees_with_the_torch_engine(name, dim, beam_size):
    case = {"name": name, "lengths": [33, 20, 17, 3, 2, 1], "dim": dim, "beam_size": beam_size, "dropout": 0.1}
    assert_same(result("torch", **case), result("triton", **case), atol=5e-4)


@every_search
@pytest.mark.parametrize("options", [{"stochastic": False}, {"dropout": 0.2}, {"training": False}], ids=str)
def test_it_agrees_with_the_reference(name, options):
    case = {"name": name, "lengths": [24, 13, 5], "dim": 64, "beam_size": 5, **options}
    assert_same(result("reference", **case), result("triton", **case), atol=5e-4)


@every_search
@pytest.mark.parametrize("batch", [2, 130], ids=lambda b: f"B{b}")
def test_half_precision_is_close_to_full(name, batch):
    """One beam and no noise: nearly all choices are the same."""
    x, lengths = (t.cuda() for t in inputs([12] * batch, dim=64, dtype=torch.float32))
    encoder = make(name, "triton", dim=64, dtype=torch.float32, beam_size=1, stochastic=False).cuda()
    full = encoder(x, lengths).state
    found = []
    for _ in range(2):  # launched, then captured
        encoder.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            half = encoder(x, lengths).state
        half.sum().backward()
        found.append(half.detach())
    torch.testing.assert_close(*found)
    assert all(weight.grad.isfinite().all() for weight in encoder.parameters())
    assert ((full - half).abs().amax(1) < 0.1).float().mean() > 0.8
    assert not torch.equal(full, half)


def test_tf32_is_heeded():
    x, lengths = (t.cuda() for t in inputs([20], dim=64, dtype=torch.float32))
    encoder = make("bt-grc", "triton", dim=64, dtype=torch.float32, stochastic=False).cuda().eval()
    with torch.no_grad():
        full = encoder(x, lengths).state
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            rough = encoder(x, lengths).state
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False
    assert not torch.equal(full, rough)


@pytest.mark.parametrize("name", ["bt-grc", "bt-grc-onesoft", "ebt-grc"])
@pytest.mark.parametrize("batch", [1, 40, 130], ids=lambda b: f"B{b}")
def test_any_number_of_samples_will_do(name, batch):
    case = {"name": name, "lengths": [18] * batch, "dim": 64, "beam_size": 5, "dropout": 0.1}
    assert_same(result("torch", **case), result("triton", **case), atol=5e-4)


@pytest.mark.parametrize("length", [200, 1025, 2000], ids=lambda n: f"N{n}")
def test_long_inputs_have_the_same_encoding(length):
    """Over thousands of choices some are decided by the last digit; greedy and far from it, none is."""
    case = {"lengths": [length], "dim": 64, "beam_size": 1, "stochastic": False, "seed": 3}
    one, other = (result(engine, **case)[0] for engine in ("torch", "triton"))
    for name in ("state", "gradient of x", "gradient of cell.gates.weight"):
        torch.testing.assert_close(one[name], other[name], atol=2e-3, rtol=2e-3)


def test_a_captured_search_repeats_itself():
    encoder = make("bt-grc", "triton", dim=64, dtype=torch.float32, dropout=0.2).cuda()
    x, lengths = (t.cuda() for t in inputs([40, 31], dim=64, dtype=torch.float32))
    first, *others = (
        encoder(x, lengths, generator=torch.Generator("cuda").manual_seed(5)).state for _ in range(4)
    )  # the first segment is launched, all later ones are captured
    assert all(torch.equal(first, other) for other in others)
    with torch.inference_mode():
        again = encoder(x, lengths, generator=torch.Generator("cuda").manual_seed(5)).state
    assert torch.equal(first, again)


@pytest.mark.parametrize("mix", ["paper", "official"])
def test_a_captured_onesoft_pass_repeats_itself(mix):
    """The first pass is launched, the later ones are captured, forward and back."""
    encoder = make("bt-grc-onesoft", "triton", dim=64, dtype=torch.float32, dropout=0.2, mix=mix).cuda()
    x, lengths = (t.cuda() for t in inputs([40, 31], dim=64, dtype=torch.float32))
    first, *others = (everything(encoder, x, lengths) for _ in range(3))
    for other in others:
        assert_same(first, other, atol=1e-5)
    encoder(-x, lengths).state.sum().backward()
    assert_same(first, everything(encoder, x, lengths), atol=1e-5)


def test_changing_sizes_keep_memory_bounded(workspaces, monkeypatch):
    monkeypatch.setattr(cache, "MAX_IDLE", 4)
    encoder = make("bt-grc", "triton", dim=64, dtype=torch.float32).cuda()
    for length in range(20, 400, 16):
        x, lengths = (t.cuda() for t in inputs([length] * 4, dim=64, dtype=torch.float32))
        encoder(x, lengths).state.sum().backward()
    assert len(workspaces) == 4
    held = torch.cuda.memory_allocated()
    workspaces.clear()
    assert torch.cuda.memory_allocated() < held


def test_two_streams_have_a_workspace_each(workspaces):
    encoder = make("bt-grc", "triton", dim=64, dtype=torch.float32).cuda().eval()
    x, lengths = (t.cuda() for t in inputs([30, 20], dim=64, dtype=torch.float32))
    with torch.no_grad():
        expected = encoder(x, lengths).state
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            found = encoder(x, lengths).state
        stream.synchronize()
    assert torch.equal(expected, found)
    assert len(workspaces) == 2


@pytest.mark.parametrize("name", ["bt-grc", "ebt-grc"])
def test_auto_is_fused_where_that_can_be_and_torch_elsewhere(name, workspaces):
    encoder = make(name, "auto", dim=64, dtype=torch.float32).cuda()
    x, lengths = (t.cuda() for t in inputs([30, 20], dim=64, dtype=torch.float32))
    encoder(x, lengths)
    assert len(workspaces) == 1
    workspaces.clear()
    with torch.autocast("cuda", torch.float16):
        encoder(x, lengths)
        asked = Request(x, lengths, function_of(encoder.cell), scorer_of(encoder.scorer, 64), 5)
        assert "bfloat16" in fused.why_not(asked)
    encoder.double()(x.double(), lengths)
    assert len(workspaces) == 0
