"""Straight-through sampling on the fused engine is that of the torch engine. Without a GPU its kernels run in Triton's
interpreter."""

import pytest
import torch
from torch.testing import assert_close

from beamtree.nn.cells import function_of
from beamtree.nn.encoders.gumbel_tree import GumbelTree
from beamtree.nn.engine.noise import Noise
from beamtree.nn.engine.scorers import scorer_of
from beamtree.nn.engine.straight_through.search import Samples
from support import assert_same, everything, inputs

pytest.importorskip("triton")

from beamtree.nn.engine.gpu import engine as gpu
from beamtree.nn.engine.gpu import straight_through_gradient, workspace
from beamtree.nn.engine.gpu.cache import CACHE

pytestmark = pytest.mark.kernels
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
cells = pytest.mark.parametrize("cell", ["grc", "lstm"])


@pytest.fixture(autouse=True)
def little_work(monkeypatch):
    """Two steps at a time, and less padding: the interpreter takes milliseconds for each program."""
    if DEVICE == "cpu":
        monkeypatch.setattr(workspace, "padded_length", lambda length: workspace.rounded(length + 1, 8) - 1)
        monkeypatch.setattr(Noise, "STEPS", 4)
        monkeypatch.setattr(workspace, "SEGMENT", 4)
        monkeypatch.setattr(workspace, "SHORT", 2)
    CACHE.clear()
    yield
    CACHE.clear()


def make(engine="triton", dim=8, seed=0, **options):
    """Weights that depend on the seed alone, and a scorer strong enough to prefer some candidates."""
    torch.manual_seed(seed)
    encoder = GumbelTree(dim, engine=engine, **options)
    with torch.no_grad():
        encoder.scorer.weight.mul_(3)
    return encoder.to(DEVICE)


def pair(**options):
    """The same encoder on both engines."""
    return [make(engine, **options) for engine in ("torch", "triton")]


def given(lengths, dim=8, seed=0):
    return [t.to(DEVICE) for t in inputs(lengths, dim=dim, seed=seed, dtype=torch.float32)]


def seeded(seed):
    return torch.Generator(DEVICE).manual_seed(seed)


def compare(lengths, dim=8, training=True, **options):
    encoders = pair(dim=dim, **options)
    assert_same(*(everything(encoder.train(training), *given(lengths, dim)) for encoder in encoders), atol=2e-5)


def gradients(encoder, loss, **options):
    weights = tuple(encoder.parameters())
    return torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True, **options)


@cells
@pytest.mark.parametrize(
    ("lengths", "options"),
    [
        ([4, 3, 2, 1], {"stochastic": False, "weighted": True}),
        ([4, 3], {"samples": 3, "dropout": 0.3, "weighted": True}),
        ([4], {"samples": 3}),  # no gradient of the scores
        ([3, 1], {"dropout": 0.2}),
        ([2, 1], {"samples": 3, "weighted": True}),  # nothing to choose
    ],
    ids=["padded", "weighted-noise-and-dropout", "even", "one-sample", "no-step"],
)
def test_engines_agree(lengths, options, cell):
    compare(lengths, cell=cell, **options)


def test_a_sequence_may_be_longer_than_one_program_takes():
    assert straight_through_gradient.ELEMENTS < 10
    compare([11], weighted=True)


@pytest.mark.parametrize(("cell", "dim"), [("grc", 5), ("lstm", 65)])
def test_any_width_will_do(cell, dim):
    """A state of 130 values is more than is read at a time."""
    compare([4], dim=dim, cell=cell, weighted=True)


def test_scores_are_the_log_probabilities_of_the_draws_without_the_noise():
    scores = [encoder(*given([4, 1]), generator=seeded(5)).beams.chart.scores for encoder in pair(samples=2)]
    assert_close(*scores, atol=1e-5, rtol=1e-5)
    assert (scores[1][0] < -0.1).all()
    assert not scores[1][1].any()


def test_each_output_has_its_own_gradient():
    """The other then has none at all, not one of zeros, and not that of the pass before."""
    found = []
    for encoder in pair(samples=2, dropout=0.2):
        for what in ("scores", "roots"):
            out = encoder(*given([4]), generator=seeded(2))
            found.append(gradients(encoder, (out.beams.chart.scores if what == "scores" else out.state).sin().sum()))
    assert_close(found[:2], found[2:], atol=2e-5, rtol=2e-5)
    assert all(max(gradient.abs().max() for gradient in some) > 1e-2 for some in found)


@pytest.mark.parametrize("noise_at_test", [False, True], ids=["best", "drawn"])
def test_engines_agree_at_inference(noise_at_test):
    found = []
    for encoder in pair(samples=2, dropout=0.5, noise_at_test=noise_at_test):
        with torch.inference_mode():
            out = encoder.eval()(*given([5]), generator=seeded(4))
        found.append((out.state.clone(), out.beams.nodes.states.clone(), out.beams.chart.scores.clone()))
    assert_close(*found, atol=2e-5, rtol=2e-5)
    assert (out.beams.chart.scores[0, 0] != out.beams.chart.scores[0, 1]) == noise_at_test


def test_ties_are_broken_alike():
    results = []
    for encoder in pair(stochastic=False):
        torch.nn.init.zeros_(encoder.scorer.weight)
        results.append(everything(encoder, *given([5])))
    assert_same(*results, atol=2e-5)


def test_how_many_nodes_are_composed_again_at_once_does_not_matter(monkeypatch):
    monkeypatch.setattr(straight_through_gradient, "AT_ONCE", 1)
    compare([4, 3], dropout=0.2)


def test_lengths_share_a_workspace_and_leave_nothing_behind():
    """A short pass after a long one, which fills the workspace, must not see the steps that it does not take."""
    one, other = pair(dropout=0.2, weighted=True)
    for seed, lengths in enumerate(([7, 4], [4, 3])):
        x, lengths = given(lengths, seed=seed)
        assert_same(*(everything(encoder, x, lengths, seed) for encoder in (one, other)), atol=2e-5)
    assert len(CACHE) == 2  # one for the search, and one for its gradient


def test_two_passes_may_be_under_way_and_weights_may_change_after():
    found = []
    for encoder in pair(stochastic=False):
        x, lengths = given([4, 3])
        (encoder(x, lengths).state.sin().sum() + encoder(x.flip(0), lengths).state.cos().sum()).backward()
        with torch.no_grad():
            for weight in encoder.parameters():
                weight -= 0.02 * weight.grad
        found.append(gradients(encoder, encoder(x, lengths).state.sin().sum()))
    assert_close(*found, atol=2e-5, rtol=2e-5)


def test_weights_must_not_change_between_forward_and_backward():
    encoder = make()
    state = encoder(*given([4, 3])).state
    with torch.no_grad():
        encoder.cell.gates.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        state.sum().backward()


def test_a_gradient_may_be_asked_for_twice():
    encoder = make()
    loss = encoder(*given([4, 3])).state.sin().sum()
    first = gradients(encoder, loss, retain_graph=True)
    encoder(*given([4, 3], seed=1)).state.sum().backward()
    assert_close(first, gradients(encoder, loss), atol=1e-6, rtol=1e-6)


def test_a_result_is_not_changed_by_the_next_pass_of_its_size():
    encoder = make()
    with torch.no_grad():
        x, lengths = given([3])
        functions = function_of(encoder.cell), scorer_of(encoder.scorer, encoder.dim)
        charts = [gpu.encode(Samples(sign * x, lengths, *functions, 2)) for sign in (1, 1, -1)]
    one, other, _ = ((chart.store, chart.scores, chart.nodes, chart.actions) for chart in charts)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert not torch.equal(charts[2].scores, charts[1].scores)


@cells
def test_under_autocast_products_are_in_bfloat16(cell):
    """To its eight binary digits the engines agree; and they are not as in float32."""
    half = []
    for encoder in pair(cell=cell, stochastic=False):
        with torch.autocast(DEVICE, torch.bfloat16):
            half.append(everything(encoder, *given([4, 3])))
    assert_same(*half, atol=4e-2)
    with torch.no_grad():
        full = encoder(*given([4, 3])).state
    assert (full - half[1][0]["state"]).abs().max() > 1e-4


def test_what_it_cannot_do_is_said():
    x, lengths = given([5, 4])
    with pytest.raises(ValueError, match=r"engine 'triton' cannot do this: .*float64.*engine 'auto' can"):
        make().double()(x.double(), lengths)
