"""Efficient Beam Tree Recursion: the engines against each other, and what they compute and keep."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beamtree.nn.cells import function_of
from beamtree.nn.cells.grc import GRCFunction
from beamtree.nn.engine import forest, pool
from beamtree.nn.engine.beam import replay, score_gradient, search
from beamtree.nn.engine.pool import Pool
from beamtree.nn.engine.request import Request
from beamtree.nn.engine.scorers import ChildScorerFunction, scorer_of
from nn.encoders.ebt_cases import both_engines, ebt, every_duplicates
from support import assert_same, everything, inputs


def compare(x, lengths, atol=1e-11, dtype=torch.float64, training=True, **options):
    results = []
    for engine in ("reference", "torch"):
        encoder = ebt(engine, dim=x.shape[2], dtype=dtype, **options).train(training)
        results.append(everything(encoder, x.to(dtype), lengths))
    assert_same(*results, atol=atol)


@every_duplicates
@pytest.mark.parametrize("beam_size", [1, 2, 5], ids=lambda k: f"K{k}")
@pytest.mark.parametrize("lengths", [[12, 12], [11, 7, 3, 2, 1]], ids=["even", "padded"])
def test_engines_agree(duplicates, beam_size, lengths):
    compare(*inputs(lengths), beam_size=beam_size, duplicates=duplicates, stochastic=False)


@every_duplicates
@pytest.mark.parametrize("slice", [1, 4, None])
def test_engines_agree_under_the_same_noise_and_dropout(duplicates, slice):
    compare(*inputs([13, 9, 4, 2, 1]), beam_size=4, duplicates=duplicates, dropout=0.3, slice=slice)


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_engines_agree_on_short_inputs(length):
    compare(*inputs([length] * 3), dropout=0.2)


def test_engines_agree_at_inference():
    compare(*inputs([10, 6, 1]), beam_size=3, dropout=0.5, training=False)


def test_engines_agree_in_float32():
    compare(*inputs([40, 33, 5], dim=16), dropout=0.1, dtype=torch.float32, atol=2e-4)


def test_engines_agree_on_equal_words_and_scores():
    """Every first candidate is a tie, and only the rule for ties decides."""
    x, lengths = inputs([8, 5])
    compare(x[:, :1].expand(-1, 8, -1), lengths, beam_size=3, stochastic=False)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    padding=st.integers(0, 3),
    beam_size=st.integers(1, 6),
    slice=st.integers(1, 6),
    duplicates=st.sampled_from(["keep", "drop", "merge"]),
    stochastic=st.booleans(),
    dropout=st.sampled_from([0.0, 0.4]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40)
def test_engines_agree_always(lengths, padding, beam_size, slice, duplicates, stochastic, dropout, seed):
    x, lengths = inputs(lengths, width=max(lengths) + padding, seed=seed)
    options = {"beam_size": beam_size, "duplicates": duplicates, "stochastic": stochastic, "dropout": dropout}
    compare(x, lengths, seed=seed, slice=slice, **options)


@both_engines
def test_a_merge_is_composed_once_in_each_beam_that_is_kept(engine, monkeypatch):
    """K(N−1) cells a sample, and with the pool N−1 + 2K(N−2) scores; and there what another beam chose in an earlier
    step is not composed again."""
    B, N, K = 2, 20, 5
    encoder = ebt(engine, beam_size=K).eval()
    composed, scored, chosen = [], [], []

    def watch(kind, name, note):
        """Take note of what a method is given besides its object."""
        real = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda self, x, *rest: (note(x), real(self, x, *rest))[1])

    watch(Pool, "compose_chosen", lambda some: chosen.append(some.flatten().tolist()))
    watch(GRCFunction, "__call__", lambda left: composed.append(left[..., 0].numel()))
    watch(ChildScorerFunction, "logits", lambda pairs: scored.append(pairs[..., 0, 0].numel()))
    with torch.no_grad():
        encoder(*inputs([N] * B))
    if engine == "reference":
        assert sum(composed) == B * K * (N - 1)
        assert sum(scored) == B * K * sum(range(2, N))
        return
    assert sum(map(len, chosen)) == B * K * (N - 1)
    new, before = 0, set()
    for ids in chosen:
        new += sum(node not in before for node in ids)
        before.update(ids)
    assert sum(composed) == new < sum(map(len, chosen))
    assert sum(scored) == B * (N - 1 + 2 * K * (N - 2))


def test_memory_kept_for_backward_is_linear():
    def saved(engine, n):
        sizes = {}

        def pack(tensor):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        encoder = ebt(engine, slice=32, dim=32, dropout=0.1, dtype=torch.float32)
        x, lengths = inputs([n] * 2, dim=32, dtype=torch.float32)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            encoder(x, lengths)
        return sum(sizes.values())

    assert saved("torch", 128) / saved("torch", 64) < 2.3
    assert saved("reference", 64) / saved("torch", 64) > 30


@every_duplicates
def test_it_does_not_matter_how_much_is_done_at_once(duplicates, monkeypatch):
    x, lengths = inputs([9, 6, 1])
    whole = everything(ebt(dropout=0.2, duplicates=duplicates), x, lengths)
    monkeypatch.setattr(pool, "AT_ONCE", 3)
    for module in (forest, score_gradient):
        monkeypatch.setattr(module, "batch_size", lambda device: 5)
    assert_same(whole, everything(ebt(dropout=0.2, duplicates=duplicates), x, lengths), atol=1e-12)


def test_candidates_that_nobody_chose_are_not_stored():
    """The gradient goes over leaves and chosen nodes alone; candidates are pairs of them."""
    encoder = ebt(beam_size=4)
    x, lengths = inputs([16, 9])
    asked = Request(encoder.leaf(x), lengths, function_of(encoder.cell), scorer_of(encoder.scorer, 6), 4)
    trace = search.search(asked)
    history = replay.look_back(trace, gradient=True)
    plan = replay.make_plan(trace, history)
    levels = plan.forest.levels
    assert levels[0] == levels[1] == 2 * 16
    assert levels[-1] - levels[0] == len(plan.states) <= 4 * (15 + 8)
    assert plan.states.isfinite().all()  # memory that nothing has written is NaN
    assert plan.pairs.max() < levels[-1]


@both_engines
def test_weights_must_not_change_between_forward_and_backward(engine):
    encoder = ebt(engine)
    state = encoder(*inputs([6, 4])).state
    with torch.no_grad():
        encoder.scorer.hidden.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        state.sum().backward()


def test_the_fused_engine_takes_a_scorer_of_children():
    fused = pytest.importorskip("beamtree.nn.engine.gpu.engine")
    encoder = ebt(dtype=torch.float32)
    x, lengths = inputs([5], dtype=torch.float32)
    cell, scorer = function_of(encoder.cell), scorer_of(encoder.scorer, 6)
    assert scorer.reads_children
    assert fused.why_not(Request(x, lengths, cell, scorer, 3)) is None
