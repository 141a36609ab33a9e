"""Straight-through sampling: the reference is the published rule, and the pool gives the reference's function."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from beamtree.nn.cells.grc import GRCFunction
from beamtree.nn.encoders.gumbel_tree import GumbelTree
from beamtree.nn.engine.straight_through import nodes
from support import assert_same, everything, inputs

cells = pytest.mark.parametrize("cell", ["grc", "lstm"])
engines = pytest.mark.parametrize("engine", ["reference", "torch"])


def make(engine="torch", dim=6, seed=0, dtype=torch.float64, **options):
    """Weights that depend on the seed alone, and a scorer strong enough to prefer some candidates."""
    torch.manual_seed(seed)
    encoder = GumbelTree(dim, engine=engine, **options).to(dtype)
    with torch.no_grad():
        encoder.scorer.weight.mul_(3)
    return encoder


def compare(x, lengths, atol=1e-11, dtype=torch.float64, **options):
    results = []
    for engine in ("reference", "torch"):
        encoder = make(engine, dim=x.shape[2], dtype=dtype, **options)
        results.append(everything(encoder, x.to(dtype), lengths))
    assert_same(*results, atol=atol)


def one_sample(encoder, leaves):
    """The rule of a single sample without noise, on Python lists; the root and its score."""
    states, score = list(leaves), torch.zeros((), dtype=leaves.dtype)
    while len(states) > 2:
        parents = [encoder.cell(states[j], states[j + 1]) for j in range(len(states) - 1)]
        y = torch.cat([encoder.scorer(parent[: encoder.dim]) for parent in parents]).softmax(0)
        s = torch.eye(len(y), dtype=y.dtype)[y.argmax()] + y - y.detach()
        score = score + (s * y).sum().log()
        states = [
            s[j] * parents[j] + (1 - s[: j + 1].sum()) * states[j] + s[:j].sum() * states[j + 1]
            for j in range(len(parents))
        ]
    return (encoder.cell(*states) if len(states) == 2 else states[0])[: encoder.dim], score


@cells
@engines
@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_gradients_are_those_of_the_rule(cell, engine, n):
    """Through every term that a selection has a part in, and through the scores."""
    encoder = make(engine, cell=cell, stochastic=False)
    x, lengths = inputs([n])
    weights = tuple(encoder.parameters())
    out = encoder(x, lengths)
    root, score = one_sample(encoder, encoder.leaf(x)[0])
    assert_close(out.state[0], root, atol=1e-12, rtol=0)
    assert_close(out.beams.chart.scores[0, 0], score.detach(), atol=1e-12, rtol=0, check_dtype=False)
    found = torch.autograd.grad(out.state.sin().sum() + 2 * out.beams.chart.scores.sum(), weights, allow_unused=True)
    expected = torch.autograd.grad(root.sin().sum() + 2 * score, weights, allow_unused=True)
    for (name, weight), one, other in zip(encoder.named_parameters(), found, expected, strict=True):
        one, other = (torch.zeros_like(weight) if g is None else g for g in (one, other))
        assert_close(one, other, atol=1e-11, rtol=1e-11, msg=lambda m, n=name: f"{n}: {m}")


@cells
@pytest.mark.parametrize("weighted", [False, True], ids=["even", "weighted"])
@pytest.mark.parametrize("samples", [1, 3], ids=lambda k: f"K{k}")
@pytest.mark.parametrize("lengths", [[9, 9], [10, 6, 3, 2, 1], [1], [2, 2], [3, 1]], ids=str)
def test_engines_agree_under_the_same_noise_and_dropout(cell, weighted, samples, lengths):
    x, lengths = inputs(lengths)
    compare(x, lengths, cell=cell, weighted=weighted, samples=samples, dropout=0.3)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    padding=st.integers(0, 3),
    samples=st.integers(1, 3),
    cell=st.sampled_from(["grc", "lstm"]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=20)
def test_engines_agree_on_any_lengths(lengths, padding, samples, cell, seed):
    x, batch = inputs(lengths, width=max(lengths) + padding, seed=seed)
    compare(x, batch, samples=samples, cell=cell, seed=seed, weighted=True)


@cells
def test_engines_agree_in_float32(cell):
    x, lengths = inputs([30, 21, 5], dim=16)
    compare(x, lengths, cell=cell, samples=2, dropout=0.1, weighted=True, dtype=torch.float32, atol=2e-4)


def test_engines_agree_where_all_candidates_are_equal():
    """With a scorer of zeros every draw without noise is a tie: the first is taken."""
    x, lengths = inputs([9, 6, 3])
    results = []
    for engine in ("reference", "torch"):
        encoder = make(engine, stochastic=False)
        torch.nn.init.zeros_(encoder.scorer.weight)
        results.append(everything(encoder, x, lengths))
    assert_same(*results, atol=1e-12)
    assert str(results[0][2][2][0]) == "((0 1) 2)"


@cells
@pytest.mark.parametrize("size", [1, 5, 17])
def test_how_many_nodes_are_composed_again_at_once_does_not_matter(cell, size, monkeypatch):
    x, lengths = inputs([10, 6, 2])
    encoder = make(cell=cell, samples=2, dropout=0.2)
    at_once = everything(encoder, x, lengths)
    monkeypatch.setattr(nodes, "batch_size", lambda device: size)
    assert_same(at_once, everything(encoder, x, lengths), atol=1e-12)


def test_a_merge_composes_two_candidates(monkeypatch):
    """N−1 at first, and two for each sample and choice; backward composes them all again, in one call."""
    B, N, K = 2, 15, 3
    encoder, rows, call = make(samples=K), [], GRCFunction.__call__

    def counting(cell, left, right, mask=None):
        rows.append(left.shape[:-1].numel())
        return call(cell, left, right, mask)

    monkeypatch.setattr(GRCFunction, "__call__", counting)
    x, lengths = inputs([N] * B)
    state = encoder(x, lengths).state
    candidates = B * (N - 1 + 2 * K * (N - 2))
    assert sum(rows) == candidates
    state.sum().backward()
    assert rows[N - 1 :] == [candidates]


def test_what_backward_keeps_grows_with_the_nodes_not_with_the_candidates_of_all_steps():
    """Twice as long: about twice as much, where the reference keeps four times as much."""
    growth = {}
    for engine in ("reference", "torch"):
        encoder, kept = make(engine, dim=32, dtype=torch.float32), {}
        for n in (30, 60):
            sizes = {}

            def pack(tensor, sizes=sizes):
                sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
                return tensor

            x, lengths = inputs([n], dim=32, dtype=torch.float32)
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                out = encoder(x, lengths)
            weights = sum(p.untyped_storage().nbytes() for p in encoder.parameters())
            kept[n] = sum(sizes.values()) - weights
            del out
        growth[engine] = kept[60] / kept[30]
        assert engine == "reference" or kept[60] < 200_000
    assert growth["torch"] < 2.6
    assert growth["reference"] > 3.3


@cells
def test_autocast_keeps_states_and_gradients_in_full_precision(cell):
    encoder = make(cell=cell, dim=16, dtype=torch.float32, samples=2, weighted=True)
    x, lengths = inputs([9, 4], dim=16, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        state = encoder(x, lengths, generator=torch.Generator().manual_seed(1)).state
    state.sin().sum().backward()
    assert state.dtype == torch.float32
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in encoder.parameters())


def test_without_gradients_nothing_is_replayed():
    encoder = make(samples=2)
    x, lengths = inputs([9, 4])
    with torch.no_grad():
        plain = encoder(x, lengths, generator=torch.Generator().manual_seed(1))
    assert plain.state.grad_fn is None
    again = encoder(x, lengths, generator=torch.Generator().manual_seed(1))
    assert torch.equal(plain.state, again.state)
    assert plain.beams.trees() == again.beams.trees()


@engines
def test_weights_must_not_change_between_forward_and_backward(engine):
    encoder = make(engine)
    state = encoder(*inputs([6, 4])).state
    with torch.no_grad():
        encoder.cell.gates.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        state.sum().backward()
