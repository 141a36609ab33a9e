"""Efficient Beam Tree Recursion: both engines against the model written out."""

import itertools
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import beamtree
from beamtree import Tree, interop
from nn.encoders.ebt_cases import both_engines, ebt
from support import action_sequences, assert_gradients_are_derivatives, assert_same, everything, inputs


def log_p(encoder, states):
    """Of the candidates of one sequence, by the paper's equation."""
    d, V, c = encoder.scorer.in_features, encoder.scorer.hidden.weight, encoder.scorer.hidden.bias
    seen = torch.stack([torch.cat((left[:d], right[:d])) for left, right in itertools.pairwise(states)])
    hidden = torch.nn.functional.gelu(seen @ V.mT + c)
    return (hidden @ encoder.scorer.weight.squeeze(0) + encoder.scorer.bias).log_softmax(0)


def follow(encoder, leaves, actions):
    """The root that these actions make of the leaves, and their log-probability."""
    states, score = list(leaves), torch.zeros((), dtype=leaves.dtype)
    for action in actions:
        score = score + log_p(encoder, states)[action]
        states[action : action + 2] = [encoder.cell(states[action], states[action + 1])]
    return states[0], score


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    padding=st.integers(0, 4),
    beam_size=st.integers(1, 6),
    duplicates=st.sampled_from(["keep", "drop", "merge"]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=30)
def test_padding_and_batch_mates_never_change_an_encoding(lengths, padding, beam_size, duplicates, seed):
    encoder = ebt(beam_size=beam_size, stochastic=False, duplicates=duplicates, seed=seed)
    x, batch = inputs(lengths, width=max(lengths) + padding, seed=seed)
    x = x.requires_grad_()
    together = encoder(x, batch)
    gradient = torch.autograd.grad(together.state.sin().sum(), x)[0]
    for i, n in enumerate(lengths):
        own = x[i : i + 1, :n].detach().requires_grad_()
        alone = encoder(own, batch[i : i + 1])
        torch.testing.assert_close(together.state[i], alone.state[0], atol=1e-11, rtol=1e-11)
        torch.testing.assert_close(together.beams.log_probs[i], alone.beams.log_probs[0], atol=1e-11, rtol=1e-11)
        assert together.beams.trees()[i] == alone.beams.trees()[0]
        own_gradient = torch.autograd.grad(alone.state.sin().sum(), own)[0][0]
        torch.testing.assert_close(gradient[i, :n], own_gradient, atol=1e-11, rtol=1e-11)
        assert not gradient[i, n:].any()


@both_engines
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_a_wide_beam_finds_every_action_sequence(engine, n):
    """With room for all (N−1)! action sequences the beams are all of them, weighted by their probabilities."""
    x, lengths = inputs([n])
    encoder = ebt(engine, beam_size=25, stochastic=False).eval()
    out = encoder(x, lengths)
    leaves = encoder.leaf(x)[0]
    expected = [(*follow(encoder, leaves, actions), actions) for actions in action_sequences(n)]
    expected.sort(key=lambda item: -item[1].item())
    scores = torch.stack([score for _, score, _ in expected])
    torch.testing.assert_close(out.beams.log_probs[0, : len(expected)], scores, atol=1e-12, rtol=0)
    assert out.beams.log_probs[0, len(expected) :].isneginf().all()
    state = sum(score.exp() * root for root, score, _ in expected)
    torch.testing.assert_close(out.state[0], state, atol=1e-12, rtol=0)
    assert out.beams.trees()[0] == [Tree.from_actions(actions) for _, _, actions in expected]


@both_engines
@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_narrow_beam_keeps_the_best_continuations(engine, k):
    """The search on Python lists, one sample."""
    x, lengths = inputs([12])
    encoder = ebt(engine, beam_size=k, stochastic=False).eval()
    beams = [(torch.zeros((), dtype=x.dtype), (), list(encoder.leaf(x)[0]))]
    while len(beams[0][2]) > 1:
        grown = []
        for score, actions, states in beams:
            new = log_p(encoder, states)
            for i in sorted(range(len(new)), key=lambda i: -new[i].item())[:k]:
                parent = encoder.cell(states[i], states[i + 1])
                grown.append((score + new[i], (*actions, i), [*states[:i], parent, *states[i + 2 :]]))
        beams = sorted(grown, key=lambda beam: -beam[0].item())[:k]
    weights = torch.stack([score for score, _, _ in beams]).softmax(0)
    out = encoder(x, lengths)
    torch.testing.assert_close(out.beams.log_probs[0].exp(), weights, atol=1e-12, rtol=0)
    state = sum(weight * states[0] for weight, (_, _, states) in zip(weights, beams, strict=True))
    torch.testing.assert_close(out.state[0], state, atol=1e-12, rtol=0)
    assert out.beams.trees()[0] == [Tree.from_actions(actions) for _, actions, _ in beams]


@both_engines
def test_gradients_are_derivatives(engine):
    encoder = ebt(engine, dim=3, slice=2, beam_size=2, stochastic=False)
    x, lengths = inputs([5, 3], dim=3)

    def outputs(x, *weights):
        out = encoder(x, lengths)
        return out.state, out.beams.log_probs[:1], out.beams.nodes.states

    assert_gradients_are_derivatives(outputs, (x.requires_grad_(), *encoder.parameters()), fast_mode=True)


def test_the_scorer_learns_from_the_encoding_alone():
    encoder = ebt(beam_size=3, stochastic=False)
    encoder(*inputs([9, 6])).state.sin().sum().backward()
    for name, weight in encoder.scorer.named_parameters():
        assert (weight.grad.abs().max() > 1e-5) == (name != "bias"), name  # a softmax does not see the bias


def test_numbers_beyond_the_slice_do_not_choose_the_first_merge():
    """The leaf states are given, so that nothing but the scorer can look at them."""
    encoder = ebt(beam_size=2, slice=2, stochastic=False).eval()
    encoder.leaf = torch.nn.Identity()
    x, lengths = inputs([3])
    other = x.clone()
    other[..., 2:] += 1
    first, second = encoder(x, lengths), encoder(other, lengths)
    assert torch.equal(first.beams.log_probs, second.beams.log_probs)
    assert not torch.equal(first.state, second.state)
    other[..., 1] += 1
    assert not torch.equal(first.beams.log_probs, encoder(other, lengths).beams.log_probs)


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_nodes_are_the_constituents_of_the_trees(training):
    encoder = ebt(beam_size=3).train(training)
    x, lengths = inputs([8, 5, 2, 1])
    beams = encoder(x, lengths).beams
    nodes = beams.nodes
    for sample, found in enumerate(beams.trees()):
        leaves = encoder.leaf(x)[sample]
        for beam, tree in enumerate(found):
            mask = nodes.mask[sample, beam]
            spans = [tuple(span) for span in nodes.spans[sample, beam][mask].tolist()]
            assert sorted(spans) == sorted(tree.spans())
            states = dict(zip(spans, nodes.states[sample, beam][mask], strict=True))
            for start, end in spans:
                if end - start == 1:
                    expected = leaves[start]
                else:
                    middle = next(m for m in range(start + 1, end) if {(start, m), (m, end)} <= set(spans))
                    expected = encoder.cell(states[start, middle], states[middle, end])
                torch.testing.assert_close(states[start, end], expected, atol=1e-12, rtol=0)
        assert not nodes.mask[sample, len(found) :].any()
    assert not nodes.states[~nodes.mask].any()


@both_engines
def test_a_seeded_run_repeats_exactly(engine):
    encoder = ebt(engine, dropout=0.2)
    x, lengths = inputs([11, 6])
    first = everything(encoder, x, lengths, seed=3)
    assert_same(first, everything(encoder, x, lengths, seed=3), atol=0)
    assert not torch.equal(first[0]["state"], everything(encoder, x, lengths, seed=4)[0]["state"])


def test_noise_is_for_training_only():
    x, lengths = inputs([12])

    def states(encoder):
        return {tuple(encoder(x, lengths).state[0].tolist()) for _ in range(6)}

    encoder = ebt(beam_size=2)
    assert len(states(encoder)) > 1
    assert len(states(encoder.eval())) == 1
    assert len(states(ebt(beam_size=2, stochastic=False))) == 1


@both_engines
def test_bfloat16_autocast_stays_close(engine):
    """The beam has room for all 24 action sequences, so that rounding cannot change which beams there are."""
    x, lengths = inputs([5, 4], dim=32, dtype=torch.float32)
    encoder = ebt(engine, dim=32, slice=16, beam_size=24, stochastic=False, dtype=torch.float32)
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


@pytest.mark.parametrize(("dim", "slice", "width"), [(128, "auto", 64), (48, "auto", 48), (128, None, 128), (8, 3, 3)])
def test_the_slice_is_what_the_scorer_reads(dim, slice, width):
    encoder = beamtree.encoder("ebt-grc", dim=dim, slice=slice)
    assert encoder.scorer.hidden.weight.shape == (width, 2 * width)
    assert encoder.scorer.weight.shape == (1, width)
    assert f"slice={width}" in repr(encoder)


@pytest.mark.parametrize("slice", [0, -1, 9, 2.0, True, "all"])
@pytest.mark.usefixtures("shape_checks_off")
def test_a_slice_that_is_none_is_refused(slice):
    state = torch.get_rng_state()
    message = f"slice is {slice!r}: it must be an integer from 1 to dim = 8, 'auto', or None for all"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        beamtree.encoder("ebt-grc", dim=8, slice=slice)
    assert torch.get_rng_state().equal(state)  # no weight was drawn


def test_it_has_every_engine():
    message = "unknown engine 'cuda'; known: auto, reference, torch, triton"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        beamtree.encoder("ebt-grc", dim=8, engine="cuda")
    for engine in ("auto", "reference", "torch", "triton"):
        assert f"engine={engine!r}" in repr(beamtree.encoder("ebt-grc", dim=8, engine=engine))


def test_weights_of_the_published_code_have_their_place():
    """By what each of them does there."""
    D, d = 6, 4
    encoder = beamtree.encoder("ebt-grc", dim=D, slice=d).double()
    theirs = nn.ModuleDict(
        {
            "initial_transform": nn.Sequential(nn.Linear(D, D), nn.LayerNorm(D)),
            "treecell_layer": nn.ModuleDict(
                {"wcell1": nn.Linear(2 * D, 4 * D), "wcell2": nn.Linear(4 * D, 4 * D), "NT": nn.LayerNorm(D)}
            ),
            "decision_module": nn.Sequential(nn.Linear(2 * d, d), nn.GELU(), nn.Linear(d, 1)),
        }
    ).double()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.normal_()
    interop.load_official(encoder, theirs.state_dict())
    assert set(interop.official_names(encoder)) == set(theirs.state_dict())

    x, _ = inputs([3], dim=D)
    assert_close(encoder.leaf(x), theirs["initial_transform"](x))
    left, right = x[0, :2], x[0, 1:]
    cell = theirs["treecell_layer"]
    gates = cell["wcell2"](F.gelu(cell["wcell1"](torch.cat((left, right), dim=1)))).view(2, 4, D)
    first, second, new = gates[:, :3].sigmoid().unbind(1)
    assert_close(encoder.cell(left, right), cell["NT"](first * left + second * right + new * gates[:, 3]))
    pairs = torch.stack((left, right), dim=1)  # (2, 2, D)
    assert_close(encoder.scorer.logits(pairs), theirs["decision_module"](pairs[..., :d].flatten(1)).squeeze(1))
