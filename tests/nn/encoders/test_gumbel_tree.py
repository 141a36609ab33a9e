"""Gumbel-Tree encoders, with one sample and with several."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from beamtree import Tree
from beamtree.nn.encoders.gumbel_tree import GumbelTree
from beamtree.nn.interop import load_official, official_names
from golden_cases import FILES, Golden
from support import assert_batch_does_not_matter, assert_same, everything, inputs

GOLDEN = [path for path in FILES if path.stem.startswith("gumbel-tree")]
cells = pytest.mark.parametrize("cell", ["grc", "lstm"])


def make(dim=6, seed=0, dtype=torch.float64, **options):
    """Weights that depend on the seed alone, and a scorer strong enough to prefer some candidates."""
    torch.manual_seed(seed)
    encoder = GumbelTree(dim, **options).to(dtype)
    with torch.no_grad():
        encoder.scorer.weight.mul_(3)
    return encoder


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("engine", ["reference", "torch"])
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_encodings_and_gradients_are_those_of_the_published_code(path, engine):
    case = Golden(path)
    encoder = GumbelTree(case.meta["dim"], engine=engine, cell="lstm" if "lstm" in path.stem else "grc")
    encoder = encoder.double().eval()
    load_official(encoder, case.parameters)
    x = case.arrays["x"].double().requires_grad_()
    state = encoder(x, case.arrays["lengths"]).state
    state.sin().sum().backward()
    own = {theirs: encoder.get_parameter(ours).grad for theirs, ours in official_names(encoder).items()}
    for found, expected in ((state, case.arrays["output"]), (x.grad, case.arrays["grad_x"]), (own, case.gradients)):
        assert_close(found, expected, atol=1e-12, rtol=0)
    assert all(gradient.abs().max() > 1e-3 for name, gradient in own.items() if name != "decide_linear.bias")


@given(
    lengths=st.lists(st.integers(1, 10), min_size=1, max_size=4),
    padding=st.integers(0, 4),
    cell=st.sampled_from(["grc", "lstm"]),
    training=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=12)
def test_padding_and_batch_mates_never_change_an_encoding(lengths, padding, cell, training, seed):
    """Without noise, whose numbers are drawn for a whole batch."""
    encoder = make(cell=cell, stochastic=False, seed=seed).train(training)
    assert_batch_does_not_matter(encoder, lengths, padding, seed, atol=1e-10)


def test_the_noise_of_a_sample_is_not_that_of_its_mates():
    """With noise too, what the others are does not matter, only where a sample stands."""
    encoder = make(samples=3, weighted=True)
    x, lengths = inputs([8, 6, 3])
    other = x.clone()
    other[1:] = torch.randn_like(other[1:])
    first, second = (encoder(batch, lengths, generator=seeded(3)).state for batch in (x, other))
    assert_close(first[0], second[0], atol=1e-12, rtol=0)
    assert (first[1:] - second[1:]).abs().min(1).values.all()


@cells
def test_one_word_is_its_leaf_and_two_have_one_tree(cell):
    encoder = make(cell=cell, samples=3, noise_at_test=True).eval()
    x, lengths = inputs([2, 1])
    out = encoder(x, lengths)
    leaves = encoder.leaf(x)
    assert_close(out.state[0], encoder.cell(leaves[0, 0], leaves[0, 1])[:6])
    assert_close(out.state[1], leaves[1, 0, :6])
    assert out.beams.trees() == [[Tree.parse("(0 1)")] * 3, [Tree.parse("0")] * 3]


def test_the_best_candidate_is_taken_at_test():
    encoder = make().eval()
    x, lengths = inputs([5])
    beams = encoder(x, lengths).beams
    states, actions = list(encoder.leaf(x)[0]), []
    while len(states) > 1:
        parents = [encoder.cell(a, b) for a, b in itertools.pairwise(states)]
        best = max(range(len(parents)), key=lambda i: encoder.scorer(parents[i]).item())
        actions.append(best)
        states[best : best + 2] = [parents[best]]
    assert beams.trees() == [[Tree.from_actions(actions)]]
    assert beams.log_probs.tolist() == [[0]]


@pytest.mark.parametrize("training", [True, False], ids=["training", "test"])
def test_trees_are_drawn_from_the_scorers_probabilities(training):
    """Three words have two trees; over many samples each comes as often as its probability says."""
    encoder = make(samples=4000, noise_at_test=True).train(training)
    x, lengths = inputs([3])
    leaves = encoder.leaf(x)[0]
    logits = torch.cat([encoder.scorer(encoder.cell(leaves[i], leaves[i + 1])) for i in (0, 1)])
    found = encoder(x, lengths, generator=seeded(0)).beams.trees()[0]
    share = sum(str(tree) == "((0 1) 2)" for tree in found) / len(found)
    assert share == pytest.approx(logits.softmax(0)[0].item(), abs=0.03)
    assert 0.1 < share < 0.9


@pytest.mark.parametrize("weighted", [False, True], ids=["even", "weighted"])
def test_the_encoding_is_the_average_of_the_samples(weighted):
    encoder = make(samples=4, weighted=weighted)
    out = encoder(*inputs([8, 5]), generator=seeded(2))
    nodes, scores = out.beams.nodes, out.beams.chart.scores
    expected = scores.log_softmax(1) if weighted else torch.full_like(scores, 0.25).log()
    assert_close(out.beams.log_probs, expected)
    assert (scores[:, :-1] >= scores[:, 1:]).all()
    for sample, n in enumerate([8, 5]):
        roots = nodes.states[sample, :, 8 + n - 2]  # the last of the N leaves and n−1 merged nodes
        assert_close(out.state[sample], out.beams.log_probs[sample].exp() @ roots)


def test_a_samples_score_is_the_log_probability_of_its_merges():
    encoder = make(samples=3)
    x, lengths = inputs([6])
    chart = encoder(x, lengths, generator=seeded(4)).beams.chart
    for actions, found in zip(chart.actions[0].tolist(), chart.scores[0], strict=True):
        states, score = list(encoder.leaf(x)[0]), 0
        for action in actions:
            parents = torch.stack([encoder.cell(a, b) for a, b in itertools.pairwise(states)])
            score += encoder.scorer(parents).squeeze(1).log_softmax(0)[action].item()
            states[action : action + 2] = [parents[action]]
        assert found.item() == pytest.approx(score, abs=1e-10)


@cells
@pytest.mark.parametrize("training", [True, False], ids=["training", "test"])
def test_nodes_are_the_constituents_of_the_trees(cell, training):
    encoder = make(cell=cell, samples=2, noise_at_test=True).train(training)
    beams = encoder(*inputs([8, 5, 2, 1])).beams
    nodes = beams.nodes
    for sample, trees in enumerate(beams.trees()):
        assert len(trees) == 2
        for beam, tree in enumerate(trees):
            spans = [tuple(span) for span in nodes.spans[sample, beam][nodes.mask[sample, beam]].tolist()]
            assert sorted(spans) == sorted(tree.spans())


@cells
@pytest.mark.parametrize("weighted", [False, True], ids=["even", "weighted"])
def test_every_weight_has_a_gradient(cell, weighted):
    encoder = make(cell=cell, samples=3, weighted=weighted)
    encoder(*inputs([7, 4]), generator=seeded(1)).state.sin().sum().backward()
    for name, weight in encoder.named_parameters():  # a constant added to all logits changes nothing
        assert (weight.grad.abs().max() > 1e-3) == (name != "scorer.bias"), name


def test_a_seeded_run_repeats_exactly_also_at_test():
    encoder = make(samples=3, dropout=0.2, noise_at_test=True)
    x, lengths = inputs([11, 6])
    for training in (True, False):
        encoder.train(training)
        assert_same(everything(encoder, x, lengths, seed=3), everything(encoder, x, lengths, seed=3), atol=0)
        torch.manual_seed(5)
        first = encoder(x, lengths).state
        assert not torch.equal(first, encoder(x, lengths).state)
        torch.manual_seed(5)
        assert torch.equal(first, encoder(x, lengths).state)


def test_there_is_noise_while_training_and_at_test_if_asked_for():
    x, lengths = inputs([12])

    def noisy(training, **options):
        encoder = make(**options).train(training)
        return len({tuple(encoder(x, lengths).state[0].tolist()) for _ in range(6)}) > 1

    assert noisy(True)
    assert not noisy(False)
    assert noisy(False, noise_at_test=True)
    assert not noisy(True, stochastic=False)
    assert not noisy(False, stochastic=False, noise_at_test=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples is 0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"weighted": 1}, "weighted is 1"),
        ({"stochastic": None}, "stochastic is None"),
        ({"engine": "trition"}, "unknown engine 'trition'.*'triton'"),
        ({"cell": "gru"}, "unknown cell 'gru'"),
        ({"noise_at_test": "yes"}, "noise_at_test is 'yes'"),
    ],
)
@pytest.mark.usefixtures("shape_checks_off")
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        GumbelTree(6, **options)
