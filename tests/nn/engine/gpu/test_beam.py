"""The fused engine computes what the torch engine does. Without a GPU its kernels run in Triton's interpreter."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from beamtree.nn.cells import GRC, function_of
from beamtree.nn.engine.request import Request
from beamtree.nn.engine.scorers import scorer_of
from support import assert_same, everything, in_small_pieces, inputs, make

pytest.importorskip("triton")

from beamtree.nn.engine.gpu import engine as gpu
from beamtree.nn.engine.gpu import forest, precision, workspace
from beamtree.nn.engine.gpu.cache import CACHE

pytestmark = pytest.mark.kernels
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def no_workspaces(monkeypatch):
    if DEVICE == "cpu":
        in_small_pieces(monkeypatch)
    CACHE.clear()
    yield
    CACHE.clear()


def pair(name="bt-grc", **options):
    """The same encoder on both engines."""
    return [make(name, engine, dtype=torch.float32, **options).to(DEVICE) for engine in ("torch", "triton")]


def compare(lengths, name="bt-grc", dim=8, training=True, **options):
    x, lengths = inputs(lengths, dim=dim, dtype=torch.float32)
    results = [everything(e.train(training), x.to(DEVICE), lengths.to(DEVICE)) for e in pair(name, dim=dim, **options)]
    assert_same(*results, atol=2e-5)


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
@pytest.mark.parametrize("name", ["bt-grc", "ebt-grc"])
def test_engines_agree(name, lengths, options):
    compare(lengths, name, **options)


@pytest.mark.parametrize("name", ["bt-grc", "bt-lstm", "ebt-grc"])
@pytest.mark.parametrize("dim", [5, 17])
def test_any_width_will_do(name, dim):
    compare([5, 4], name, dim=dim, beam_size=2, dropout=0.2)


@pytest.mark.parametrize("name", ["bt-grc", "bt-lstm", "bt-grc-onesoft", "ebt-grc"])
def test_products_of_many_rows_are_made_of_three(name, monkeypatch):
    monkeypatch.setattr(precision, "FEW", 0)
    for some in (0, 256):  # in large tiles and in small ones
        monkeypatch.setattr(precision, "SOME", some)
        compare([6, 4], name, beam_size=2, dropout=0.2)
        CACHE.clear()


@pytest.mark.parametrize("name", ["bt-grc", "bt-lstm", "bt-grc-onesoft", "ebt-grc"])
def test_under_autocast_products_are_in_bfloat16(name):
    """To its eight binary digits the engines agree; and they are not as in float32."""
    x, lengths = (t.to(DEVICE) for t in inputs([6, 4], dim=8, dtype=torch.float32))
    one, other = pair(name, dim=8, beam_size=2, stochastic=False)
    with torch.autocast(DEVICE, torch.bfloat16):
        half = [everything(encoder, x, lengths) for encoder in (one, other)]
    assert_same(*half, atol=4e-2)
    full = everything(other, x, lengths)
    assert (full[0]["state"] - half[1][0]["state"]).abs().max() > 1e-4


def test_engines_agree_at_inference():
    compare([6, 5], beam_size=3, dropout=0.5, training=False)


def test_ties_are_broken_alike():
    results = []
    x, lengths = inputs([6, 4], dim=8, dtype=torch.float32)
    for encoder in pair(dim=8, beam_size=3, stochastic=False):
        torch.nn.init.zeros_(encoder.scorer.weight)
        results.append(everything(encoder, x.to(DEVICE), lengths.to(DEVICE)))
    assert_same(*results, atol=2e-5)


def test_a_pass_is_not_changed_by_the_next_one_of_its_size():
    _, encoder = pair(dim=8, beam_size=2, stochastic=False)
    x, lengths = (t.to(DEVICE) for t in inputs([6, 5], dim=8, dtype=torch.float32))
    with torch.no_grad():
        first = encoder(x, lengths)
        kept = first.state.clone(), first.beams.nodes.states.clone(), first.beams.log_probs.clone()
        encoder(-x, lengths)
    now = first.state, first.beams.nodes.states, first.beams.log_probs
    assert all(torch.equal(a, b) for a, b in zip(now, kept, strict=True))


def test_inference_mode_and_training_share_a_workspace():
    gradients = []
    for encoder in pair(dim=8, beam_size=2, stochastic=False):
        x, lengths = (t.to(DEVICE) for t in inputs([5, 4], dim=8, dtype=torch.float32))
        with torch.inference_mode():
            first = encoder(x, lengths).state.clone()
        out = encoder(x, lengths).state
        out.sum().backward()
        with torch.inference_mode():
            assert torch.equal(encoder(x, lengths).state, first)
        gradients.append([weight.grad for weight in encoder.cell.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=2e-5)


def test_two_passes_may_be_under_way_and_weights_may_change_between():
    gradients = []
    for encoder in pair(dim=8, beam_size=2, stochastic=False):
        x, lengths = (t.to(DEVICE) for t in inputs([6, 5], dim=8, dtype=torch.float32))
        both = encoder(x, lengths).state.sin().sum() + encoder(x.flip(0), lengths).state.cos().sum()
        both.backward()
        with torch.no_grad():
            for weight in encoder.parameters():
                weight -= 0.1 * weight.grad
        encoder.zero_grad()
        encoder(x, lengths).state.sin().sum().backward()
        gradients.append([weight.grad for weight in encoder.cell.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=2e-5)


def test_encoders_of_one_size_do_not_touch_each_other():
    one, other = (make("bt-grc", "triton", dim=8, seed=seed, dtype=torch.float32).to(DEVICE).eval() for seed in (0, 1))
    x, lengths = (t.to(DEVICE) for t in inputs([5, 4], dim=8, dtype=torch.float32))
    with torch.no_grad():
        first, weights = one(x, lengths).state, [weight.clone() for weight in one.parameters()]
        assert not torch.equal(first, other(x, lengths).state)
        assert torch.equal(first, one(x, lengths).state)
    assert all(torch.equal(a, b) for a, b in zip(weights, one.parameters(), strict=True))


def test_lengths_share_a_workspace_and_leave_nothing_behind():
    """A short search after a long one must not see the steps that it does not take."""
    one, other = pair(dim=8, beam_size=2, dropout=0.2)
    for lengths in ([9, 7], [4, 3], [6, 6]):
        x, lengths = (t.to(DEVICE) for t in inputs(lengths, dim=8, dtype=torch.float32))
        assert_same(everything(one, x, lengths), everything(other, x, lengths), atol=2e-5)
    assert len(CACHE) == 1


def test_a_padded_length_is_little_more():
    lengths = [workspace.padded_length(length) for length in range(3, 5000)]
    assert all(length <= padded <= max(1.125 * length, length + 15) for length, padded in enumerate(lengths, start=3))
    assert all((padded + 1) % 16 == 0 for padded in lengths)
    assert len({padded for padded in lengths if padded < 113}) == 7
    assert workspace.padded_length(1023) == 1023


@pytest.mark.parametrize(
    ("options", "dtype", "reason"),
    [
        ({"name": "bt-grc", "duplicates": "merge"}, torch.float32, "duplicates"),
        ({"name": "bt-grc"}, torch.float64, "float64"),
    ],
    ids=["duplicates", "float64"],
)
def test_what_it_cannot_do_is_said(options, dtype, reason):
    encoder = make(**options, engine="triton", dtype=dtype).to(DEVICE)
    x, lengths = inputs([5, 4], dtype=dtype)
    with pytest.raises(ValueError, match=f"engine 'triton' cannot do this: .*{reason}.*engine 'auto' can"):
        encoder(x.to(DEVICE), lengths.to(DEVICE))


def request(cell=None, length=5):
    leaves = torch.zeros(1, 1, 6).expand(1, length, 6).to(DEVICE)
    scorer = scorer_of(torch.nn.Linear(6, 1), 6)
    return Request(leaves, torch.tensor([length]), function_of(cell or GRC(6)), scorer, 2)


def test_half_precision_of_another_kind_is_for_the_torch_engine():
    with torch.autocast(DEVICE, torch.float16):
        assert "bfloat16, not torch.float16" in gpu.why_not(request())


def test_a_cell_of_ones_own_is_for_the_torch_engine():
    class Own(GRC):
        pass

    assert "not plain" in gpu.why_not(request(Own(6)))


def test_a_length_beyond_its_reach_is_refused():
    assert "16384 tokens" in gpu.why_not(request(length=gpu.MAX_LENGTH + 1))


def test_deterministic_algorithms_are_for_the_torch_engine():
    torch.use_deterministic_algorithms(True)
    try:
        assert "torch.use_deterministic_algorithms" in gpu.why_not(request())
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", ["bt-grc", "bt-lstm", "ebt-grc"])
@pytest.mark.parametrize("rows", [1, 5], ids=lambda rows: f"{rows}-nodes")
def test_nodes_are_gone_through_in_chunks_of_any_size(name, rows, monkeypatch):
    for bound in ("FEWEST", "MOST"):
        monkeypatch.setattr(forest, bound, rows)
    compare([6, 3, 1], name, beam_size=3, dropout=0.2)


@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=9), rows=st.integers(1, 12))
def test_chunks_cover_every_node_once_and_parents_first(counts, rows):
    ends = [0, *itertools.accumulate(counts)]
    level = [number for number, count in enumerate(counts, start=1) for _ in range(count)]
    seen = []
    for low, high, highest, levels in forest.chunks(ends, rows):
        assert 0 < high - low <= rows
        assert {*level[low:high]} <= {*range(highest - levels + 1, highest + 1)}
        seen += sorted(range(low, high), key=lambda place: -level[place])
    assert sorted(seen) == list(range(len(level)))
    order = [level[place] for place in seen]
    assert order == [1] * counts[0] + sorted(level[counts[0] :], reverse=True)


@given(levels=st.integers(0, 50))
def test_all_levels_are_run(levels):
    runs = list(forest.graph_sizes(levels))
    assert levels <= sum(runs) < levels + forest.LEVELS
    assert {*runs} <= {forest.LEVELS, 1}


def test_a_gradient_may_be_taken_twice():
    _, encoder = pair(dim=8, beam_size=2)
    x, lengths = (t.to(DEVICE) for t in inputs([6, 4], dim=8, dtype=torch.float32))
    loss = encoder(x, lengths).state.sin().sum()
    first = torch.autograd.grad(loss, encoder.cell.gates.weight, retain_graph=True)[0]
    encoder(-x, lengths).state.sum().backward()  # has a workspace of its own
    again = torch.autograd.grad(loss, encoder.cell.gates.weight)[0]
    torch.testing.assert_close(first, again)
    assert len(CACHE) == 2


@pytest.mark.parametrize("name", ["bt-grc", "bt-lstm", "ebt-grc"])
def test_a_search_that_has_diverged_leaves_nothing_behind(name):
    one, other = pair(name, dim=8, beam_size=2, dropout=0.2)
    x, lengths = (t.to(DEVICE) for t in inputs([9, 7], dim=8, dtype=torch.float32))
    other(x * torch.nan, lengths).state.sum().backward()
    (other(x, lengths).state.sum() * torch.nan).backward()
    other.zero_grad()
    x, lengths = (t.to(DEVICE) for t in inputs([5, 3], dim=8, dtype=torch.float32))
    assert_same(everything(one, x, lengths), everything(other, x, lengths), atol=2e-5)
    assert len(CACHE) == 1
