"""The scores of merges, against the scores of whole beams and against a plain walk through the steps."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import beamtree
from beamtree.nn.merge_scores import find_pairs, merge_scores

BEAM_SEARCH = ("bt-grc", "bt-lstm", "ebt-grc", "bt-grc-onesoft")


def encoded(name, B=3, N=9, dim=8, **options):
    torch.manual_seed(N)
    encoder = beamtree.encoder(name, dim=dim, **options).double().eval()
    lengths = torch.tensor([N, max(1, N // 2), 1])[:B]
    return encoder, encoder(torch.randn(B, N, dim, dtype=torch.double), lengths)


@pytest.mark.parametrize("name", BEAM_SEARCH)
@pytest.mark.parametrize("N", [1, 2, 3, 9])
def test_the_log_probabilities_of_a_beams_merges_sum_to_its_score(name, N):
    encoder, encoding = encoded(name, N=N)
    beams = encoding.beams
    found = encoder.merge_scores(beams)
    exists = beams.log_probs.isfinite()
    torch.testing.assert_close(found.log_probs.sum(2)[exists], beams.chart.scores[exists])
    assert (found.log_probs[~exists] == 0).all()


def test_a_gumbel_tree_merges_the_best_scored_neighbours():
    encoder, encoding = encoded("gumbel-tree-grc")
    found = encoder.merge_scores(encoding.beams)
    for sample, length in enumerate(encoding.beams.lengths.tolist()):
        left = torch.arange(length - 1, 0, -1, dtype=torch.double)  # merges that are possible at each step
        # The most probable of n has a probability of at least 1/n.
        assert (found.log_probs[sample, 0, : length - 1] >= -left.log() - 1e-12).all()


def test_the_score_of_a_merge_is_that_of_its_parents_state():
    encoder, encoding = encoded("bt-grc")
    beams = encoding.beams
    found = encoder.merge_scores(beams).scores
    states = beams.nodes.states[:, :, beams.chart.nodes.shape[2] + 1 :]
    exists = beams.nodes.mask[:, :, beams.chart.nodes.shape[2] + 1 :]
    torch.testing.assert_close(found[exists], encoder.scorer(states).squeeze(-1)[exists])


def test_an_encoder_that_does_not_score_neighbours_has_no_scores():
    encoder, encoding = encoded("balanced-tree-grc")
    assert encoder.merge_scores(encoding.beams) is None


@given(st.integers(1, 12), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_pairs_of_each_step_are_the_neighbours_of_the_sequence(length, random):
    actions = [random.randrange(size - 1) for size in range(length, 1, -1)]
    nodes = list(range(100, 100 + len(actions)))
    pairs = find_pairs(list(range(length)), actions, nodes)
    assert len(pairs.left) <= max(3 * length - 4, 0)
    rows = list(range(length))
    for step, (action, node) in enumerate(zip(actions, nodes, strict=True)):
        assert (pairs.left[pairs.merged[step]], pairs.right[pairs.merged[step]]) == (rows[action], rows[action + 1])
        present = {
            (left, right)
            for left, right, added, removed in zip(pairs.left, pairs.right, pairs.added, pairs.removed, strict=True)
            if added <= step < removed
        }
        assert present == set(pairwise(rows))
        rows[action : action + 2] = [node]


@pytest.mark.parametrize("limit", ["_CHUNK", "_BATCH"])
def test_steps_and_pairs_are_split_without_a_difference(monkeypatch, limit):
    encoder, encoding = encoded("bt-grc")
    whole = encoder.merge_scores(encoding.beams)
    monkeypatch.setattr(f"beamtree.nn.merge_scores.{limit}", 1)
    torch.testing.assert_close(encoder.merge_scores(encoding.beams), whole)


def test_any_function_of_two_states_can_score():
    _, encoding = encoded("bt-grc")
    found = merge_scores(encoding.beams, lambda left, right: left.new_zeros(len(left)))
    steps = [-torch.log(torch.tensor(float(size - 1))) for size in range(9, 1, -1)]
    torch.testing.assert_close(found.log_probs[0, 0], torch.stack(steps).double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", [*BEAM_SEARCH, "gumbel-tree-grc"])
def test_merges_are_scored_without_dropout_and_noise(name):
    options = {"dropout": 0.5, **({"state_noise": 0.5} if name in ("bt-grc", "ebt-grc") else {})}
    encoder, encoding = encoded(name, **options)
    expected, before = encoder.merge_scores(encoding.beams), torch.get_rng_state()
    found = encoder.train().merge_scores(encoding.beams)
    torch.testing.assert_close(found, expected, atol=0, rtol=0)
    assert torch.equal(torch.get_rng_state(), before)
