"""Beam tree encoders: what holds for every input, on the default engine."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beamtree import Tree
from support import (
    ENCODER_IDS,
    ENCODERS,
    assert_batch_does_not_matter,
    assert_gradients_are_derivatives,
    assert_same,
    everything,
    inputs,
    make,
)

encoders = pytest.mark.parametrize(("name", "options"), ENCODERS, ids=ENCODER_IDS)


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    padding=st.integers(0, 4),
    beam_size=st.integers(1, 6),
    which=st.sampled_from(ENCODERS),
    training=st.booleans(),
    duplicates=st.sampled_from(["keep", "drop", "merge"]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60)
def test_padding_and_batch_mates_never_change_an_encoding(
    lengths, padding, beam_size, which, training, duplicates, seed
):
    """A sample alone, without padding, gives what it gives in a batch: encoding, weights, trees and gradient."""
    name, options = which
    encoder = make(name, beam_size=beam_size, stochastic=False, duplicates=duplicates, seed=seed, **options)
    encoder.train(training)
    assert_batch_does_not_matter(encoder, lengths, padding, seed)


@encoders
def test_what_stands_in_the_padding_does_not_matter(name, options):
    encoder = make(name, **options)
    x, lengths = inputs([6, 3, 1])
    spoiled = x.clone()
    spoiled[1, 3:], spoiled[2, 1:] = torch.nan, torch.inf
    assert_same(everything(encoder, x, lengths), everything(encoder, spoiled, lengths), atol=0)


@encoders
def test_one_word_is_its_leaf(name, options):
    encoder = make(name, **options)
    x, lengths = inputs([1])
    out = encoder(x, lengths)
    assert torch.equal(out.state, encoder.leaf(x)[:, 0, :6])
    assert out.beams.log_probs.exp().tolist() == [[1, 0, 0, 0, 0]]
    assert out.beams.trees() == [[Tree.parse("0")]]


@encoders
def test_two_words_have_one_tree(name, options):
    encoder = make(name, **options)
    x, lengths = inputs([2])
    out = encoder(x, lengths)
    leaves = encoder.leaf(x)
    torch.testing.assert_close(out.state, encoder.cell(leaves[:, 0], leaves[:, 1])[:, :6])
    assert out.beams.log_probs.exp().tolist() == [[1, 0, 0, 0, 0]]
    assert out.beams.trees() == [[Tree.parse("(0 1)")]]


@encoders
def test_three_words_have_two_trees_weighted_by_the_scorer(name, options):
    encoder = make(name, **options).eval()
    x, lengths = inputs([3])
    out = encoder(x, lengths)
    left, right = (
        encoder.cell(a, b)[..., :6] for a, b in ((encoder.leaf(x)[0, i], encoder.leaf(x)[0, i + 1]) for i in (0, 1))
    )
    expected = torch.cat((encoder.scorer(left), encoder.scorer(right))).softmax(0)
    found = dict(zip(map(str, out.beams.trees()[0]), out.beams.log_probs[0].exp().tolist(), strict=False))
    assert found == pytest.approx({"((0 1) 2)": expected[0].item(), "(0 (1 2))": expected[1].item()})


@encoders
def test_beams_are_ordered_and_normalised(name, options):
    out = make(name, beam_size=7, **options)(*inputs([9, 3, 2]))
    log_probs = out.beams.log_probs
    assert (log_probs[:, :-1] >= log_probs[:, 1:]).all()
    torch.testing.assert_close(log_probs.exp().sum(1), torch.ones(3, dtype=torch.float64))
    found = [len(trees) for trees in out.beams.trees()]
    assert found == log_probs.isfinite().sum(1).tolist()
    assert found == [7, 2, 1]


@encoders
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_nodes_are_the_constituents_of_the_trees(name, options, training):
    encoder = make(name, beam_size=3, **options).train(training)
    x, lengths = inputs([8, 5, 2, 1])
    beams = encoder(x, lengths).beams
    nodes, trees = beams.nodes, beams.trees()
    assert nodes.states.shape == (4, 3, 15, 6)
    for sample, found in enumerate(trees):
        for beam, tree in enumerate(found):
            mask = nodes.mask[sample, beam]
            spans = [tuple(span) for span in nodes.spans[sample, beam][mask].tolist()]
            assert len(spans) == 2 * len(tree) - 1
            assert sorted(spans) == sorted(tree.spans())
        assert not nodes.mask[sample, len(found) :].any()
    assert not nodes.states[~nodes.mask].any()


@encoders
def test_the_encoding_is_the_average_of_the_roots(name, options):
    out = make(name, beam_size=3, **options)(*inputs([8, 5]))
    nodes = out.beams.nodes
    for sample, n in enumerate([8, 5]):
        roots = nodes.states[sample, :, 8 + n - 2]  # the last of the N leaves and n−1 merged nodes
        expected = out.beams.log_probs[sample].exp() @ roots
        torch.testing.assert_close(out.state[sample], expected)


def test_states_of_nodes_are_those_of_their_trees():
    """Composing a beam's tree by hand gives each node's state."""
    encoder = make("bt-grc", beam_size=3).eval()
    x, lengths = inputs([7])
    beams = encoder(x, lengths).beams
    leaves = encoder.leaf(x)[0]
    for beam, tree in enumerate(beams.trees()[0]):
        states = {span: leaves[span[0]] for span in tree.spans()[:7]}
        stack = []
        for start, end in sorted(tree.spans(), key=lambda span: (span[1], -span[0])):
            if end - start > 1:
                right, left = stack.pop(), stack.pop()
                states[start, end] = encoder.cell(states[left], states[right])
            stack.append((start, end))
        for span, state in zip(beams.nodes.spans[0, beam].tolist(), beams.nodes.states[0, beam], strict=True):
            torch.testing.assert_close(state, states[tuple(span)], atol=1e-12, rtol=0)


@encoders
def test_gradients_are_derivatives(name, options):
    encoder = make(name, dim=3, beam_size=2, stochastic=False, **options)
    x, lengths = inputs([5, 3], dim=3)

    def outputs(x, *weights):
        out = encoder(x, lengths)
        return out.state, out.beams.log_probs[:1], out.beams.nodes.states

    assert_gradients_are_derivatives(outputs, (x.requires_grad_(), *encoder.parameters()))


@encoders
def test_a_seeded_run_repeats_exactly(name, options):
    encoder = make(name, dropout=0.2, **options)
    x, lengths = inputs([11, 6])
    assert_same(everything(encoder, x, lengths, seed=3), everything(encoder, x, lengths, seed=3), atol=0)
    torch.manual_seed(5)
    first = encoder(x, lengths).state
    torch.manual_seed(5)
    assert torch.equal(first, encoder(x, lengths).state)


@encoders
def test_noise_is_for_training_only(name, options):
    x, lengths = inputs([12])

    def states(encoder):
        return {tuple(encoder(x, lengths).state[0].tolist()) for _ in range(6)}

    encoder = make(name, beam_size=2, dropout=0.0, stochastic=True, **options)
    assert len(states(encoder)) > 1
    assert len(states(encoder.eval())) == 1
    assert len(states(make(name, beam_size=2, dropout=0.0, stochastic=False, **options))) == 1
    assert len(states(make(name, beam_size=2, dropout=0.5, stochastic=False, **options))) > 1


def test_onesoft_is_plain_at_inference():
    plain, soft = make("bt-grc").eval(), make("bt-grc-onesoft").eval()
    x, lengths = inputs([9, 4])
    assert_same(everything(plain, x, lengths), everything(soft, x, lengths), atol=0)


def test_onesoft_trains_what_falls_out_of_the_beam():
    """With one beam the plain model's scorer has no gradient at all; OneSoft's with two has."""
    x, lengths = inputs([9])
    for name, beam_size, trained in (("bt-grc", 1, False), ("bt-grc-onesoft", 2, True)):
        encoder = make(name, beam_size=beam_size, stochastic=False)
        encoder(x, lengths).state.sin().sum().backward()
        assert (encoder.scorer.weight.grad.abs().max() > 1e-6) == trained


@encoders
@pytest.mark.parametrize("engine", ["reference", "torch"])
def test_bfloat16_autocast_stays_close(name, options, engine):
    """Matrix products in bfloat16, states and scores in float32. The inputs are short and the beam has room for all
    24 action sequences, so that rounding cannot change which beams there are."""
    x, lengths = inputs([5, 4], dim=32, dtype=torch.float32)
    beam_size = 4 if "mix" in options else 24
    encoder = make(name, engine, dim=32, beam_size=beam_size, stochastic=False, dtype=torch.float32, **options)
    exact = encoder(x, lengths)
    with torch.autocast("cpu", torch.bfloat16):
        close = encoder(x, lengths)
    assert close.state.dtype == close.beams.log_probs.dtype == torch.float32
    torch.testing.assert_close(close.state, exact.state, atol=0.05, rtol=0.05)
    weights = [weight for name, weight in encoder.named_parameters() if name != "scorer.bias"]  # its gradient is 0
    expected = torch.autograd.grad(exact.state.sin().sum(), weights)
    found = torch.autograd.grad(close.state.sin().sum(), weights)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() <= 0.05 * b.norm() + 1e-4


def test_distinct_trees_add_up():
    beams = make("bt-grc", beam_size=5).eval()(*inputs([10, 7])).beams
    for found, trees, log_probs in zip(beams.distinct(), beams.trees(), beams.log_probs, strict=True):
        assert {tree for tree, _ in found} == set(trees)
        assert sum(p for _, p in found) == pytest.approx(1)
        assert [p for _, p in found] == sorted((p for _, p in found), reverse=True)
        tree, p = found[0]
        assert p == pytest.approx(sum(q for t, q in zip(trees, log_probs.exp().tolist(), strict=True) if t == tree))


def test_trees_over_tokens():
    encoder = make("bt-grc").eval()
    x, lengths = inputs([3, 2])
    trees = encoder(x, lengths).beams.trees([["a", "b", "c"], ["d", "e"]])
    assert {str(tree) for tree in trees[0]} == {"((a b) c)", "(a (b c))"}
    assert trees[1] == [Tree.parse("(d e)")]
    with pytest.raises(ValueError, match=r"tokens of lengths \[3\] for inputs of lengths \[3, 2\]"):
        encoder(x, lengths).beams.trees([["a", "b", "c"]])


def test_a_state_dict_is_all_there_is():
    """Weights saved from one encoder make another the same."""
    a, b = make("bt-grc", seed=1).eval(), make("bt-grc", seed=2).eval()
    b.load_state_dict(a.state_dict())
    x, lengths = inputs([6])
    assert torch.equal(a(x, lengths).state, b(x, lengths).state)


def test_memory_is_given_back_after_backward():
    """Nothing keeps a pass alive once its outputs are gone."""
    encoder = make("bt-grc")
    x, lengths = inputs([8])
    out = encoder(x, lengths)
    watched = weakref.ref(out.beams.chart)
    out.state.sum().backward()
    del out
    gc.collect()
    assert watched() is None


@encoders
@pytest.mark.parametrize("engine", ["reference", "torch"])
def test_weights_must_not_change_between_forward_and_backward(name, options, engine):
    """A gradient at other weights than those of the forward pass would be wrong; PyTorch says so."""
    encoder = make(name, engine, **options)
    state = encoder(*inputs([6, 4])).state
    with torch.no_grad():
        encoder.cell.gates.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        state.sum().backward()


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    padding=st.integers(0, 3),
    beam_size=st.integers(1, 6),
    which=st.sampled_from([*ENCODERS, ("bsrp-grc", {})]),
    training=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60)
def test_the_best_tree_is_the_first_of_the_parses(lengths, padding, beam_size, which, training, seed):
    """Also if several beams found it, in different merge orders."""
    name, options = which
    torch.manual_seed(seed)
    beams = make(name, beam_size=beam_size, **options).train(training)(
        *inputs(lengths, width=max(lengths) + padding, seed=seed)
    ).beams  # fmt: skip
    words = [[f"{place}{'abcd'[sample]}" for place in range(length)] for sample, length in enumerate(lengths)]
    for tokens in (None, words):
        assert beams.best_trees(tokens) == [parses[0].tree for parses in beams.parses(tokens)]


def test_the_best_tree_of_a_sample_may_be_that_of_several_beams():
    beams = make("bt-grc", beam_size=6, duplicates="keep").eval()(*inputs([4])).beams
    trees, balanced = beams.trees()[0], Tree.parse("((0 1) (2 3))")
    assert trees.count(balanced) == 2  # whichever pair is merged first
    probabilities = torch.tensor([[0.13 if tree == balanced else 0.185 for tree in trees]])
    changed = replace(beams, log_probs=probabilities.log())
    assert changed.best_trees() == [balanced] == [changed.parses()[0][0].tree]


def test_there_must_be_a_token_for_each_position():
    beams = make("bt-grc").eval()(*inputs([4])).beams
    for method in (beams.trees, beams.parses, beams.best_trees):
        with pytest.raises(ValueError, match=r"tokens of lengths \[3\] for inputs of lengths \[4\]"):
            method([["a", "b", "c"]])
