"""The search finds what exhaustive enumeration and the paper's pseudocode find, and composes no node twice."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from beamtree import Tree
from beamtree.nn.cells import function_of
from beamtree.nn.engine.beam import search
from beamtree.nn.engine.onesoft import search as soft_search
from beamtree.nn.engine.request import Request
from beamtree.nn.engine.scorers import scorer_of
from support import ENCODER_IDS, ENCODERS, action_sequences, algorithm_2, follow, inputs, make

both_engines = pytest.mark.parametrize("engine", ["reference", "torch"])


@both_engines
@pytest.mark.parametrize("name", ["bt-grc", "bt-lstm"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
def test_a_wide_beam_finds_every_action_sequence(name, engine, n):
    """With room for all (N−1)! action sequences the beams are all of them, weighted by their probabilities."""
    x, lengths = inputs([n])
    encoder = make(name, engine, beam_size=121, stochastic=False).eval()
    out = encoder(x, lengths)
    leaves = encoder.leaf(x)[0]
    expected = [(*follow(encoder, leaves, actions), actions) for actions in action_sequences(n)]
    expected.sort(key=lambda item: -item[1].item())
    scores = torch.stack([score for _, score, _ in expected])
    torch.testing.assert_close(scores.exp().sum(), torch.ones((), dtype=x.dtype))
    torch.testing.assert_close(out.beams.log_probs[0, : len(expected)], scores, atol=1e-12, rtol=0)
    assert out.beams.log_probs[0, len(expected) :].isneginf().all()
    state = sum(score.exp() * root for root, score, _ in expected)
    torch.testing.assert_close(out.state[0], state, atol=1e-12, rtol=0)
    assert out.beams.trees()[0] == [Tree.from_actions(actions) for _, _, actions in expected]


@both_engines
@pytest.mark.parametrize("name", ["bt-grc", "bt-lstm"])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_narrow_beam_follows_algorithm_2(name, engine, k):
    x, lengths = inputs([12])
    encoder = make(name, engine, beam_size=k, stochastic=False).eval()
    out = encoder(x, lengths)
    expected = algorithm_2(encoder, encoder.leaf(x)[0], k)
    weights = torch.stack([score for score, _, _ in expected]).softmax(0)
    torch.testing.assert_close(out.beams.log_probs[0].exp(), weights, atol=1e-12, rtol=0)
    state = sum(weight * root for weight, (_, _, root) in zip(weights, expected, strict=True))
    torch.testing.assert_close(out.state[0], state, atol=1e-12, rtol=0)
    assert out.beams.trees()[0] == [Tree.from_actions(actions) for _, actions, _ in expected]


@both_engines
def test_duplicates_can_be_merged(engine):
    """Merged, the beams of a wide search are the different trees, each with the probability of all its orders."""
    x, lengths = inputs([5])
    encoder = make("bt-grc", engine, beam_size=30, stochastic=False, duplicates="merge").eval()
    beams = encoder(x, lengths).beams
    expected = {}
    leaves = encoder.leaf(x)[0]
    for actions in action_sequences(5):
        tree = Tree.from_actions(actions)
        expected[tree] = expected.get(tree, 0) + follow(encoder, leaves, actions)[1].exp().item()
    found = dict(zip(beams.trees()[0], beams.log_probs[0].exp().tolist(), strict=False))
    assert len(found) == len(beams.trees()[0]) == 14
    assert found == pytest.approx(expected, abs=1e-12)


@both_engines
@pytest.mark.parametrize("duplicates", ["drop", "merge"])
def test_beams_without_duplicates_are_all_different(engine, duplicates):
    x, lengths = inputs([10, 7])
    kept = make("bt-grc", engine, beam_size=5, stochastic=False).eval()(x, lengths).beams.trees()
    assert any(len(set(trees)) < len(trees) for trees in kept), "this input must have duplicates to begin with"
    encoder = make("bt-grc", engine, beam_size=5, stochastic=False, duplicates=duplicates).eval()
    for trees in encoder(x, lengths).beams.trees():
        assert len(set(trees)) == len(trees) == 5


def request(n, k, soft=None, batch=2, **options):
    encoder = make("bt-grc")
    leaves = torch.randn(batch, n, 6, dtype=torch.float64)
    lengths = torch.full((batch,), n)
    return Request(
        leaves, lengths, function_of(encoder.cell), scorer_of(encoder.scorer, encoder.dim), k, soft=soft, **options
    )


def test_a_search_composes_each_node_once():
    """N−1 + 2K(N−2) cells a sample, not K·N²/2."""
    asked, B, N, K = request(20, 5), 2, 20, 5
    composed = []

    class Counting(type(asked.cell)):
        def __call__(self, left, right, mask=None):
            composed.append(len(left))
            return super().__call__(left, right, mask)

    search.search(replace(asked, cell=Counting(**vars(asked.cell))))
    assert sum(composed) == B * (N - 1 + 2 * K * (N - 2))


class Operators(TorchDispatchMode):
    """Records which operators run, on what shapes."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        shapes = tuple(tuple(a.shape) if isinstance(a, torch.Tensor) else None for a in args)
        self.calls.append((func.overloadpacket.__name__, shapes))
        return func(*args, **(kwargs or {}))


# Operators whose result, or its shape, the host must wait for.
SYNCHRONISING = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "_unique2", "unique_dim"}


@pytest.mark.parametrize("options", [{}, {"stochastic": True}, {"duplicates": "merge"}])
@pytest.mark.parametrize("soft", [None, "paper", "official"])
def test_a_search_never_waits_for_a_result(soft, options):
    asked = request(9, 3, soft, **options)
    with Operators() as seen:
        (soft_search if soft else search).search(asked)
    names = {name for name, _ in seen.calls}
    assert len(seen.calls) > 100
    assert not names & SYNCHRONISING


def test_every_step_of_a_search_has_the_same_shapes(monkeypatch):
    seen, starts = Operators(), []
    propose = search.propose

    def marked(*args):
        starts.append(len(seen.calls))
        return propose(*args)

    monkeypatch.setattr(search, "propose", marked)
    with seen:
        search.search(request(12, 3, stochastic=True))
    steps = [seen.calls[a:b] for a, b in itertools.pairwise(starts)]
    assert len(steps) == 9
    assert all(step == steps[0] for step in steps)


@pytest.mark.parametrize(("name", "options"), ENCODERS, ids=ENCODER_IDS)
def test_memory_kept_for_backward(name, options):
    """It grows linearly with the length for the plain beams. The soft beam is dense, but only its states are kept."""

    def saved(engine, n):
        sizes = {}

        def pack(tensor):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        encoder = make(name, engine, beam_size=5, dropout=0.1, dtype=torch.float32, dim=32, **options)
        x, lengths = inputs([n] * 2, dim=32, dtype=torch.float32)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            encoder(x, lengths)
        return sum(sizes.values())

    growth = saved("torch", 128) / saved("torch", 64)
    ratio = saved("reference", 64) / saved("torch", 64)
    if "mix" in options:
        assert growth < 4.2
        assert ratio > 10
    else:
        assert growth < 2.3
        assert ratio > 30
