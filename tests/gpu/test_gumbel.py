"""Gumbel-Trees of the fused engine on a CUDA device: beside the torch engine, in float32 without TF32."""

import warnings

import pytest
import torch
from torch.testing import assert_close

from beamtree.nn.cells import function_of
from beamtree.nn.encoders.gumbel_tree import GumbelTree
from beamtree.nn.engine.dispatch import EngineError
from beamtree.nn.engine.gpu import cache
from beamtree.nn.engine.gpu import engine as fused
from beamtree.nn.engine.scorers import scorer_of
from beamtree.nn.engine.straight_through.search import Samples
from support import assert_same, everything, inputs

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("workspaces")]
cells = pytest.mark.parametrize("cell", ["grc", "lstm"])


def make(engine="triton", dim=64, seed=0, **options):
    """Weights that depend on the seed alone, and a scorer strong enough to prefer some candidates."""
    torch.manual_seed(seed)
    encoder = GumbelTree(dim, engine=engine, **options)
    with torch.no_grad():
        encoder.scorer.weight.mul_(3)
    return encoder.cuda()


def given(lengths, dim=64, seed=0):
    return [t.cuda() for t in inputs(lengths, dim=dim, seed=seed, dtype=torch.float32)]


def seeded(seed):
    return torch.Generator("cuda").manual_seed(seed)


def outcome(encoder, lengths, seed=0):
    """Encodings, and the gradients of all that has one; that of the scorer's bias, which is 0, is the last."""
    x, lengths = given(lengths, encoder.dim, seed)
    x.requires_grad_()
    out = encoder(x, lengths, generator=seeded(seed))
    loss = out.state.sin().sum() + 0.01 * out.beams.chart.scores.sum()
    return [out.state.detach(), *torch.autograd.grad(loss, (x, *encoder.parameters()))]


def assert_close_in_norm(one, other):
    """What is summed over many nodes has elements near 0 with the errors of the large ones."""
    for a, b in zip(one[:-1], other[:-1], strict=True):
        assert (a - b).norm() <= 1e-3 * a.norm()
    assert other[-1].abs() <= 1e-3 * other[-2].norm()


@cells
@pytest.mark.parametrize("dim", [64, 100, 128, 300, 512], ids=lambda dim: f"D{dim}")
@pytest.mark.parametrize("samples", [1, 3], ids=lambda k: f"K{k}")
def test_it_agrees_with_the_torch_engine(cell, dim, samples):
    case, options = (
        given([33, 20, 17, 3, 2, 1], dim),
        {"cell": cell, "samples": samples, "dropout": 0.1, "weighted": True},
    )
    assert_same(*(everything(make(engine, dim, **options), *case) for engine in ("torch", "triton")), atol=5e-4)


@cells
@pytest.mark.parametrize("batch", [40, 130, 600], ids=lambda b: f"B{b}")
def test_any_number_of_inputs_will_do(cell, batch):
    """Of 600 the nodes of a segment are composed again in two batches."""
    engines = (make(engine, cell=cell, dropout=0.1) for engine in ("torch", "triton"))
    assert_close_in_norm(*(outcome(encoder, [18] * batch) for encoder in engines))


@cells
@pytest.mark.parametrize("stochastic", [False, True], ids=["best", "drawn"])
@pytest.mark.parametrize("length", [120, 500], ids=lambda n: f"N{n}")
def test_long_inputs_have_the_same_gradients(cell, stochastic, length):
    """Twice, with other weights: launched, then captured."""
    engines = [make(engine, cell=cell, stochastic=stochastic) for engine in ("torch", "triton")]
    for seed in range(2):
        assert_close_in_norm(*(outcome(encoder, [length, length // 3], seed) for encoder in engines))
        with torch.no_grad():
            for encoder in engines:
                for weight in encoder.parameters():
                    weight.mul_(0.9)


@cells
def test_a_captured_pass_repeats_itself(cell, workspaces):
    """The first pass is launched, the later ones are captured, forward and back; so is one of another length."""
    encoder = make(cell=cell, samples=2, dropout=0.2, weighted=True)
    x, lengths = given([40, 31])
    first, *others = (everything(encoder, x, lengths) for _ in range(3))
    for other in others:
        assert_same(first, other, atol=1e-5)
    everything(encoder, -x[:, :35], lengths.clamp(max=35))
    assert_same(first, everything(encoder, x, lengths), atol=1e-5)
    with torch.inference_mode():
        again = encoder(x, lengths, generator=seeded(7)).state
    assert torch.equal(again, first[0]["state"])
    assert len(workspaces) == 2  # that of the search, and that of its gradient


def test_two_passes_may_be_under_way():
    found = []
    for engine in ("torch", "triton"):
        encoder = make(engine, stochastic=False)
        x, lengths = given([40, 31])
        loss = encoder(x, lengths).state.sin().sum() + encoder(x.flip(0), lengths).state.cos().sum()
        found.append(torch.autograd.grad(loss, encoder.cell.gates.weight)[0])
    assert_close(*found, atol=5e-4, rtol=5e-4)


@cells
@pytest.mark.parametrize("batch", [2, 130], ids=lambda b: f"B{b}")
def test_half_precision_is_close_to_full(cell, batch):
    """Without noise nearly all choices are the same."""
    x, lengths = given([12] * batch)
    encoder = make(cell=cell, stochastic=False)
    full = encoder(x, lengths).state
    found = []
    for _ in range(2):  # launched, then captured
        encoder.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            half = encoder(x, lengths).state
        half.sum().backward()
        found.append(half.detach())
    assert_close(*found)
    assert all(weight.grad.isfinite().all() for weight in encoder.parameters())
    assert ((full - half).abs().amax(1) < 0.1).float().mean() > 0.8
    assert not torch.equal(full, half)


@pytest.fixture
def synchronising_is_an_error():
    """A function that makes it one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the mode calls itself a prototype
        yield lambda: torch.cuda.set_sync_debug_mode("error")
        torch.cuda.set_sync_debug_mode("default")


@cells
def test_nothing_waits_for_the_device(cell, synchronising_is_an_error):
    """Once all is captured, a training step launches and goes on."""
    encoder = make(cell=cell, samples=2)
    x, lengths = given([40, 31])
    cell, scorer = function_of(encoder.cell), scorer_of(encoder.scorer, encoder.dim)
    asked = Samples(encoder.leaf(x), lengths, cell, scorer, 2, stochastic=True)

    def step():
        chart = fused.encode(asked)
        torch.autograd.grad(chart.store.sin().sum() + chart.scores.sum(), encoder.cell.gates.weight)

    for _ in range(2):  # launched, then captured
        step()
    synchronising_is_an_error()
    step()


def test_changing_sizes_keep_memory_bounded(workspaces, monkeypatch):
    monkeypatch.setattr(cache, "MAX_IDLE", 4)
    encoder = make()
    for length in range(20, 200, 16):
        encoder(*given([length] * 4)).state.sum().backward()
    assert len(workspaces) == 4
    encoder.zero_grad()
    held = torch.cuda.memory_allocated()
    workspaces.clear()
    assert torch.cuda.memory_allocated() < held


def test_a_long_input_needs_little_memory():
    """One training step at the width of the paper; what the torch engine takes is about as much."""
    encoder = make(dim=128)
    x, lengths = given([950], dim=128)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(2):
        encoder(x, lengths).state.sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 0.3 * 2**30


def test_auto_is_fused_where_that_can_be_and_torch_elsewhere(workspaces):
    x, lengths = given([30, 20])
    make("auto")(x, lengths)
    assert len(workspaces) == 1
    workspaces.clear()
    make("auto").double()(x.double(), lengths)
    make("torch")(x, lengths)
    assert len(workspaces) == 0
    with pytest.raises(EngineError, match=r"float32, not in torch\.float64; engine 'auto' can"):
        make("triton").double()(x.double(), lengths)
