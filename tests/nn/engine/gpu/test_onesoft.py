"""OneSoft on the fused engine computes what the torch engine does. Without a GPU its kernels run in the interpreter."""

import gc

import pytest
import torch

from support import assert_same, everything, in_small_pieces, inputs, make

pytest.importorskip("triton")

from beamtree.nn.cells.grc import gpu as grc
from beamtree.nn.engine.gpu import onesoft, onesoft_gradient
from beamtree.nn.engine.gpu.cache import CACHE

PADDED_LENGTH = onesoft.padded_soft_length
pytestmark = pytest.mark.kernels
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def no_workspaces(monkeypatch):
    if DEVICE == "cpu":
        in_small_pieces(monkeypatch)
    CACHE.clear()
    yield
    CACHE.clear()


def pair(**options):
    """The same encoder on both engines."""
    engines = ("torch", "triton")
    return [make("bt-grc-onesoft", engine, dtype=torch.float32, **options).to(DEVICE) for engine in engines]


def given(lengths, dim=8, seed=0):
    return [t.to(DEVICE) for t in inputs(lengths, dim=dim, seed=seed, dtype=torch.float32)]


def compare(lengths, dim=8, **options):
    assert_same(*(everything(encoder, *given(lengths, dim)) for encoder in pair(dim=dim, **options)), atol=2e-5)


@pytest.mark.parametrize("mix", ["paper", "official"])
@pytest.mark.parametrize(
    ("lengths", "options"),
    [
        ([6, 4, 3, 2, 1], {"beam_size": 2, "stochastic": False}),
        ([7, 5], {"beam_size": 3, "dropout": 0.3}),
        ([5], {"beam_size": 1, "dropout": 0.2}),
        ([4, 4], {"beam_size": 5}),  # more beams than continuations
        ([2, 1], {"beam_size": 3}),  # nothing to choose
    ],
    ids=["padded", "noise-and-dropout", "one-beam", "wide-beam", "no-step"],
)
def test_engines_agree(lengths, options, mix):
    compare(lengths, mix=mix, **options)


def test_any_width_will_do():
    compare([5, 4], dim=5, beam_size=2, dropout=0.2)


@pytest.mark.parametrize("mix", ["paper", "official"])
def test_any_cell_with_kernels_will_do(mix):
    """OneSoft with a Tree-LSTM, whose states are wider than its encodings."""
    compare([5, 4], beam_size=2, dropout=0.2, mix=mix, cell="lstm")


def test_many_nodes_are_composed_with_other_products(monkeypatch):
    monkeypatch.setattr(grc, "MANY", 3)
    compare([5, 4], beam_size=2, dropout=0.2)


def test_several_batches_of_steps_give_the_same_gradient(monkeypatch):
    monkeypatch.setattr(onesoft_gradient, "AT_ONCE", 7)
    compare([6, 5], beam_size=2)


def test_ties_are_broken_alike():
    results = []
    for encoder in pair(dim=8, beam_size=3, stochastic=False):
        torch.nn.init.zeros_(encoder.scorer.weight)
        results.append(everything(encoder, *given([5, 4])))
    assert_same(*results, atol=2e-5)


def test_a_workspace_is_used_again_and_leaves_nothing_behind():
    one, other = pair(dim=8, beam_size=2, dropout=0.2)
    for seed, lengths in enumerate(([6, 3], [5, 5])):
        x, lengths = given(lengths, seed=seed)
        assert_same(everything(one, x, lengths), everything(other, x, lengths), atol=2e-5)
    gc.collect()
    assert len(CACHE) == 1


def test_two_passes_may_be_under_way_and_weights_may_change_after():
    gradients = []
    for encoder in pair(dim=8, beam_size=2, stochastic=False):
        x, lengths = given([5, 4])
        (encoder(x, lengths).state.sin().sum() + encoder(x.flip(0), lengths).state.cos().sum()).backward()
        with torch.no_grad():
            for weight in encoder.parameters():
                weight -= 0.1 * weight.grad
        encoder.zero_grad()
        encoder(x, lengths).state.sin().sum().backward()
        gradients.append([weight.grad for weight in encoder.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=2e-5)


def test_a_gradient_may_be_asked_for_twice():
    _, encoder = pair(dim=8, beam_size=2, stochastic=False)
    x, lengths = given([5, 4])
    loss = encoder(x, lengths).state.sin().sum()
    first = torch.autograd.grad(loss, encoder.cell.gates.weight, retain_graph=True)[0]
    encoder(-x, lengths)  # must not take its workspace
    assert torch.equal(first, torch.autograd.grad(loss, encoder.cell.gates.weight)[0])


def test_a_pass_without_a_gradient_releases_its_workspace():
    _, encoder = pair(dim=8, beam_size=2)
    with torch.no_grad():
        kept = encoder(*given([5, 4])).state
        before = kept.clone()
        encoder(*given([5, 4], seed=1))
    assert torch.equal(kept, before)
    assert len(CACHE) == 1


def test_a_pass_that_is_forgotten_releases_its_workspace():
    _, encoder = pair(dim=8, beam_size=2)
    encoder(*given([5, 4]))
    gc.collect()
    assert len(CACHE) == 1


def test_a_padded_length_is_little_more():
    padded = [PADDED_LENGTH(length) for length in range(3, 3000)]
    assert all(length <= found <= max(length + 3, 1.04 * length) for length, found in enumerate(padded, start=3))
    assert len({found for found in padded if found <= 100}) == 25
