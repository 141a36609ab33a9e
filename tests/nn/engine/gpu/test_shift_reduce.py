"""The fused parser computes what the torch engine does. Without a GPU its kernels run in Triton's interpreter."""

import pytest
import torch
from torch.func import functional_call
from torch.testing import assert_close

from support import assert_same, everything, in_small_pieces, inputs, make

pytest.importorskip("triton")

from beamtree.nn.cells.grc import gpu as grc
from beamtree.nn.engine.gpu import precision
from beamtree.nn.engine.gpu.cache import CACHE

pytestmark = pytest.mark.kernels
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAME = "bsrp-grc"


@pytest.fixture(autouse=True)
def no_workspaces(monkeypatch):
    if DEVICE == "cpu":
        in_small_pieces(monkeypatch)
    CACHE.clear()
    yield
    CACHE.clear()


def pair(dim=8, **options):
    """The same encoder on both engines."""
    return [make(NAME, engine, dim=dim, dtype=torch.float32, **options).to(DEVICE) for engine in ("torch", "triton")]


def sentences(lengths, dim=8, **options):
    return (tensor.to(DEVICE) for tensor in inputs(lengths, dim=dim, dtype=torch.float32, **options))


def compare(lengths, dim=8, training=True, width=None, **options):
    x, lengths = sentences(lengths, dim, width=width)
    results = [everything(encoder.train(training), x, lengths) for encoder in pair(dim, **options)]
    assert_same(*results, atol=2e-5)


@pytest.mark.parametrize(
    ("lengths", "options"),
    [
        ([4, 3, 2, 1], {"beam_size": 2}),
        ([5], {"beam_size": 3, "dropout": 0.3}),
        ([4], {"beam_size": 1, "dropout": 0.2}),
        ([3], {"beam_size": 4}),  # more beams than trees
        ([3], {"beam_size": 2, "width": 5}),
        ([3], {"beam_size": 2}),
        ([2, 1], {"beam_size": 2}),
        ([1], {"beam_size": 2}),
    ],
    ids=["padded", "dropout", "one-beam", "wide-beam", "more-padding", "three", "two", "one"],
)
def test_engines_agree(lengths, options):
    compare(lengths, **options)


@pytest.mark.parametrize("dim", [5, 17])
def test_any_width_will_do(dim):
    compare([4], dim=dim, beam_size=2, dropout=0.2)


@pytest.mark.parametrize("some", [0, 256], ids=["large-tiles", "small-tiles"])
def test_products_of_many_rows_are_made_of_three(some, monkeypatch):
    monkeypatch.setattr(precision, "FEW", 0)
    monkeypatch.setattr(precision, "SOME", some)
    compare([4, 2], beam_size=2, dropout=0.2)


@pytest.mark.parametrize("many", [0, 1024], ids=["products-of-pytorch", "products-of-triton"])
def test_beams_that_shift_compose_nothing(many, monkeypatch):
    monkeypatch.setattr(grc, "MANY", many)
    _, encoder = pair(beam_size=2)
    x, lengths = sentences([4])
    with torch.no_grad():
        first = encoder(x, lengths).state
        (used,) = CACHE.idle()
        states, parents = used.search.tables.states, used.search.records.parent[: 2 * 4 - 3]
        made = states[used.search.size.composed :]
        made.fill_(torch.nan)
        assert torch.equal(encoder(x, lengths).state, first)
    absent = parents.flatten() == used.search.size.nodes
    assert 0 < absent.sum() < len(absent)
    assert torch.equal(made[: len(absent)].isnan().any(1), absent)


def test_inference_finds_what_training_does_and_keeps_it():
    """In training a replay computes the scores again. The next pass of the size uses the same workspace."""
    one, other = pair(beam_size=2, dropout=0.5)
    x, lengths = sentences([4])
    other.eval()
    trained = other(x, lengths)
    with torch.no_grad():
        found = other(x, lengths)
        other(-x, lengths)
        expected = one.eval()(x, lengths)
    for same in (trained, expected):
        assert_close(found.beams.log_probs, same.beams.log_probs, atol=2e-6, rtol=2e-6)
        assert_close(found.state, same.state, atol=2e-6, rtol=2e-6)
        assert_close(found.beams.nodes.states, same.beams.nodes.states, atol=2e-6, rtol=2e-6)
        assert found.beams.trees() == same.beams.trees()


def test_ties_are_broken_alike():
    results = []
    x, lengths = sentences([5])
    for encoder in pair(beam_size=3):
        torch.nn.init.zeros_(encoder.scorer.weight)
        torch.nn.init.zeros_(encoder.scorer.bias)
        results.append(everything(encoder, x, lengths))
    assert_same(*results, atol=2e-5)


def test_under_autocast_products_are_in_bfloat16():
    """To its eight binary digits the engines agree; and they are not as in float32."""
    x, lengths = sentences([4])
    both = pair(beam_size=2)
    with torch.autocast(DEVICE, torch.bfloat16):
        half = [everything(encoder, x, lengths) for encoder in both]
    assert_same(*half, atol=4e-2)
    with torch.no_grad():
        full = both[1](x, lengths).state
    assert (full - half[1][0]["state"]).abs().max() > 1e-4


def gradients(state, encoder):
    return torch.autograd.grad(state, tuple(encoder.parameters()), allow_unused=True, materialize_grads=True)


def test_two_passes_may_be_under_way_and_weights_may_change_between():
    found = []
    x, lengths = sentences([4])
    for encoder in pair(beam_size=2):
        both = encoder(x, lengths).state.sin().sum() + encoder(x.flip(1), lengths).state.cos().sum()
        first = gradients(both, encoder)
        with torch.no_grad():
            for weight, gradient in zip(encoder.parameters(), first, strict=True):
                weight -= 0.1 * gradient
        found.append((*first, *gradients(encoder(x, lengths).state.sin().sum(), encoder)))
    assert_close(*found, atol=2e-5, rtol=2e-5)
    assert len(CACHE) == 2


def test_lengths_share_a_workspace_and_leave_nothing_behind():
    """A short search after a long one must not see the steps that it does not take."""
    one, other = pair(beam_size=2, dropout=0.2)
    for lengths in ([5], [3], [4]):
        x, lengths = sentences(lengths)
        assert_same(everything(one, x, lengths), everything(other, x, lengths), atol=2e-5)
    assert len(CACHE) == 1


def test_a_search_that_has_diverged_leaves_nothing_behind():
    one, other = pair(beam_size=2, dropout=0.2)
    x, lengths = sentences([4])
    assert other(x * torch.nan, lengths).state.isnan().all()
    (other(x, lengths).state.sum() * torch.nan).backward()
    other.zero_grad()
    x, lengths = sentences([3])
    assert_same(everything(one, x, lengths), everything(other, x, lengths), atol=2e-5)
    assert len(CACHE) == 1


def test_a_gradient_may_be_taken_twice():
    _, encoder = pair(beam_size=2)
    x, lengths = sentences([4])
    loss = encoder(x, lengths).state.sin().sum()
    first = torch.autograd.grad(loss, encoder.cell.gates.weight, retain_graph=True)[0]
    encoder(-x, lengths).state.sum().backward()  # has a workspace of its own
    assert_close(torch.autograd.grad(loss, encoder.cell.gates.weight)[0], first)
    assert len(CACHE) == 2


def test_other_weights_in_place_of_the_encoders_own():
    """Backward uses the tensors that forward was called with."""
    found = []
    x, lengths = sentences([4])
    for encoder in pair(beam_size=2):
        weights = {key: (weight + 0.1).detach().requires_grad_() for key, weight in encoder.named_parameters()}
        state = functional_call(encoder, weights, (x, lengths)).state
        wanted = tuple(weights.values())
        found.append(torch.autograd.grad(state.sin().sum(), wanted, allow_unused=True, materialize_grads=True))
        assert all(weight.grad is None for weight in encoder.parameters())
    assert_close(*found, atol=2e-5, rtol=2e-5)


def test_a_workspace_is_free_at_once_where_no_gradient_goes_through_the_nodes():
    """Those of the decision do not need it."""
    found = []
    x, lengths = sentences([4])
    for encoder in pair(beam_size=2):
        for part in (encoder.leaf, encoder.cell):
            part.requires_grad_(False)
        state = encoder(x, lengths).state
        wanted = (*encoder.features.parameters(), *encoder.scorer.parameters())
        found.append(torch.autograd.grad(state.sin().sum(), wanted))
        assert len(CACHE) == (encoder.engine == "triton")
    assert_close(*found, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("layer", ["features", "scorer"])
def test_a_decision_that_is_not_plain_is_for_the_torch_engine(layer):
    _, encoder = pair(beam_size=2)
    encoder.get_submodule(layer).register_forward_hook(lambda module, given, result: 2 * result)
    with pytest.raises(ValueError, match=r"engine 'triton' cannot do this: .* not plain.*engine 'auto' can"):
        encoder(*sentences([3]))
