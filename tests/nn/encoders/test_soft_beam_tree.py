"""Beam trees with SOFT top-k: what the equations say, for every input, and what the published code gives."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.functional import one_hot
from torch.testing import assert_close

from beamtree.nn.cells.grc import GRCFunction
from beamtree.nn.encoders import base
from beamtree.nn.encoders.beam_tree import BeamTree
from beamtree.nn.encoders.soft_beam_tree import SoftBeamTree
from beamtree.nn.engine.dispatch import EngineError, select
from beamtree.nn.engine.soft import loop, search
from beamtree.nn.interop import load_official, official_names
from beamtree.nn.topk import transport
from beamtree.nn.topk.transport import soft_topk
from beamtree.trees import Tree
from beamtree.utils.memory import watch_saved
from captured import assert_inference_and_training_share_graphs
from golden_cases import FILES, Golden
from support import (
    Replayed,
    assert_batch_does_not_matter,
    assert_gradients_are_derivatives,
    assert_same,
    everything,
    inputs,
)

GOLDEN = [path for path in FILES if path.stem.startswith("bt-grc-soft-")]
MIXES = pytest.mark.parametrize("mix", ["paper", "official"])


def make(dim=6, seed=0, **options):
    """An encoder whose weights depend on the seed alone, with a scorer strong enough to prefer some candidates."""
    torch.manual_seed(seed)
    encoder = SoftBeamTree(dim, **{"iterations": 30, **options}).double()
    with torch.no_grad():
        encoder.scorer.weight.mul_(3)
    return encoder


def by_hand(encoder, leaves):
    """The encoding of one sample: every continuation's sequence written out, and then mixed."""
    beams = [(torch.zeros((), dtype=leaves.dtype), leaves)]
    K = encoder.beam_size
    while len(beams[0][1]) > 2:
        grown = []
        for score, states in beams:
            parents = encoder.cell(states[:-1], states[1:])
            log_p = encoder.scorer(parents[:, : encoder.dim]).squeeze(1).log_softmax(0)
            for i in log_p.argsort(descending=True)[:K]:
                updated = torch.cat((states[:i], parents[i : i + 1], states[i + 2 :]))
                grown.append((score + log_p[i], updated, states, parents, one_hot(i, len(parents)).to(states)))
        scores, updated, states, parents, choices = (torch.stack(column) for column in zip(*grown, strict=True))
        options = {"iterations": encoder.iterations, "scaling": encoder.scaling, "epsilon": encoder.epsilon}
        best = soft_topk(scores, min(K, len(scores)), updated, states, parents, choices, **options)
        updated, states, parents, choices = best.payloads
        if encoder.mix == "official":
            s = choices.unsqueeze(2)
            cum = s.cumsum(1)
            updated = s * parents + (1 - cum) * states[:, :-1] + (cum - s) * states[:, 1:]
        beams = list(zip(best.scores, updated, strict=True))
    roots = torch.stack([encoder.cell(*states) if len(states) == 2 else states[0] for _, states in beams])
    return torch.stack([score for score, _ in beams]).softmax(0) @ roots[:, : encoder.dim]


@MIXES
@pytest.mark.parametrize("scaling", ["sample", "official"])
@pytest.mark.parametrize(
    ("n", "K", "cell"),
    [
        *((n, K, "grc") for n, K in ((1, 3), (2, 3), (3, 3), (4, 3), (4, 5), (7, 1), (7, 2), (8, 4))),
        *((n, 3, "lstm") for n in (1, 2, 3, 7)),  # whose states are wider than its encodings
    ],
)
def test_encodings_and_gradients_are_those_of_sequences_written_out(n, K, cell, scaling, mix):
    encoder = make(beam_size=K, scaling=scaling, mix=mix, cell=cell).eval()
    x, lengths = inputs([n])
    x.requires_grad_()
    found, expected = encoder(x, lengths).state[0], by_hand(encoder, encoder.leaf(x)[0])
    assert_close(found, expected, atol=1e-11, rtol=0)
    weights = (x, *encoder.parameters())
    found, expected = (
        torch.autograd.grad(state.sin().sum(), weights, allow_unused=True, materialize_grads=True)
        for state in (found, expected)
    )
    assert_close(found, expected, atol=1e-10, rtol=1e-10)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    padding=st.integers(0, 3),
    beam_size=st.integers(1, 5),
    mix=st.sampled_from(["paper", "official"]),
    training=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25)
def test_padding_and_batch_mates_never_change_an_encoding(lengths, padding, beam_size, mix, training, seed):
    encoder = make(beam_size=beam_size, stochastic=False, mix=mix, seed=seed).train(training)
    assert_batch_does_not_matter(encoder, lengths, padding, seed, atol=1e-10)


def test_one_two_and_three_words():
    encoder = make().eval()
    x, lengths = inputs([3, 2, 1])
    out, leaves = encoder(x, lengths), encoder.leaf(x)
    assert_close(out.state[2], leaves[2, 0])
    assert_close(out.state[1], encoder.cell(leaves[1, 0], leaves[1, 1]))
    probabilities = encoder.scorer(encoder.cell(leaves[0, :2], leaves[0, 1:])).squeeze(1).softmax(0)
    found = dict(zip(map(str, out.beams.trees()[0]), out.beams.log_probs[0].exp().tolist(), strict=False))
    assert found == pytest.approx({"((0 1) 2)": probabilities[0].item(), "(0 (1 2))": probabilities[1].item()})
    assert out.beams.trees()[1:] == [[Tree.parse("(0 1)")], [Tree.parse("0")]]


def test_a_finished_sample_is_left_alone():
    """Even where the published code's scaling would give beams that are not there a part."""
    encoder = make(scaling="official").eval()
    x, lengths = inputs([7, 2])
    out, leaves = encoder(x, lengths), encoder.leaf(x)
    assert out.beams.log_probs[1].exp().tolist() == [1, 0, 0, 0, 0]
    assert_close(out.state[1], encoder.cell(leaves[1, 0], leaves[1, 1]))


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_nodes_are_the_constituents_of_the_trees(training):
    encoder = make(beam_size=3).train(training)
    x, lengths = inputs([8, 5, 2, 1])
    beams = encoder(x, lengths).beams
    assert beams.nodes.states.shape == (4, 3, 15, 6)
    assert [len(found) for found in beams.trees()] == [3, 3, 1, 1]
    for sample, found in enumerate(beams.trees()):
        for beam, tree in enumerate(found):
            mask = beams.nodes.mask[sample, beam]
            spans = [tuple(span) for span in beams.nodes.spans[sample, beam][mask].tolist()]
            assert sorted(spans) == sorted(tree.spans())
    assert all((a >= b).all() for a, b in pairwise(beams.log_probs.T))


def test_a_beam_is_shown_by_its_heaviest_merges(monkeypatch):
    """With weights that hardly mix, the trees are those of the plain beam search."""
    encoder = make(beam_size=2, seed=3).eval()

    def hard(scores, k, **options):
        best = soft_topk(scores, k, iterations=1)
        kept = one_hot(scores.argsort(1, descending=True)[:, :k], scores.shape[1]).mT.to(scores)
        return best._replace(indices=kept.argmax(1), weights=kept, scores=(kept * scores.unsqueeze(2)).sum(1))

    monkeypatch.setattr(loop, "soft_topk", hard)
    x, lengths = inputs([7])
    plain = BeamTree(6, beam_size=2).double().eval()
    plain.load_state_dict(encoder.state_dict())
    found, expected = encoder(x, lengths), plain(x, lengths)
    assert found.beams.trees() == expected.beams.trees()
    assert_close(found.state, expected.state)


@MIXES
def test_gradients_are_derivatives(mix):
    encoder = make(dim=3, beam_size=2, stochastic=False, mix=mix, epsilon=0.5)
    x, lengths = inputs([5, 3], dim=3)

    def outputs(x, *weights):
        out = encoder(x, lengths)
        return out.state, out.beams.log_probs[:1], out.beams.nodes.states

    assert_gradients_are_derivatives(outputs, (x.requires_grad_(), *encoder.parameters()), fast_mode=True)


def test_every_weight_learns():
    encoder = make(beam_size=2)
    encoder(*inputs([7, 4])).state.sin().sum().backward()
    for name, weight in encoder.named_parameters():
        assert name == "scorer.bias" or weight.grad.abs().max() > 1e-6, name  # the softmax takes no notice of a bias


def test_a_seeded_run_repeats_exactly():
    encoder = make(dropout=0.2)
    x, lengths = inputs([8, 5])
    assert_same(everything(encoder, x, lengths, seed=3), everything(encoder, x, lengths, seed=3), atol=0)


def test_noise_is_for_training_only():
    x, lengths = inputs([9])

    def states(**options):
        encoder = make(beam_size=2, **options).train(options.get("stochastic") is not None)
        return {tuple(encoder(x, lengths).state[0].tolist()) for _ in range(5)}

    assert len(states(stochastic=True)) > 1
    assert len(states(stochastic=False)) == 1
    assert len(states()) == 1
    assert len(states(stochastic=False, dropout=0.5)) > 1


def test_backward_composes_again_what_it_needs(monkeypatch):
    """With dropout and noise too, the gradient is that of a pass which keeps everything, as one with a module does."""
    encoder = make(dropout=0.3, beam_size=3)
    x, lengths = inputs([7, 4])
    calls, compose = [], GRCFunction.__call__
    monkeypatch.setattr(GRCFunction, "__call__", lambda *given: (calls.append(given), compose(*given))[1])
    found = everything(encoder, x, lengths)
    assert len(calls) == 6 + 5  # N−1 in forward, and all but the last again
    with monkeypatch.context() as patch:
        patch.setattr(search, "checkpoint", lambda function, *arguments, **_: function(*arguments))
        assert_same(found, everything(encoder, x, lengths), atol=1e-13)
    calls.clear()
    encoder.cell.register_forward_hook(lambda *given: calls.append(given))  # weights may be others in backward
    assert_same(found, everything(encoder, x, lengths), atol=1e-13)
    assert len(calls) == 6


def test_weights_must_not_change_between_forward_and_backward():
    encoder = make()
    state = encoder(*inputs([6, 4])).state
    with torch.no_grad():
        encoder.cell.gates.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        state.sum().backward()


def test_bfloat16_autocast_stays_close():
    torch.manual_seed(0)
    encoder = SoftBeamTree(32, beam_size=3, stochastic=False).eval()
    x, lengths = inputs([5, 4], dim=32, dtype=torch.float32)
    exact = encoder(x, lengths)
    with torch.autocast("cpu", torch.bfloat16):
        close = encoder(x, lengths)
    assert close.state.dtype == close.beams.log_probs.dtype == torch.float32
    assert_close(close.state, exact.state, atol=0.05, rtol=0.05)
    close.state.sin().sum().backward()
    assert encoder.cell.gates.weight.grad.isfinite().all()


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_encodings_and_gradients_are_those_of_the_published_code(path: Path, monkeypatch):
    """Its masses 1/m are rounded to float32, in float64 too. To 1e-6 that does not matter; with the same rounding the
    encodings agree to 1e-10."""
    case = Golden(path)
    assert case.meta["mode"] == "eval"
    encoder = SoftBeamTree(case.meta["dim"], case.meta["beam_size"], scaling="official", mix="official").double().eval()
    load_official(encoder, case.parameters)
    x = case.arrays["x"].double().requires_grad_()
    state = encoder(x, case.arrays["lengths"]).state
    state.sin().sum().backward()
    own = {theirs: encoder.get_parameter(ours).grad for theirs, ours in official_names(encoder).items()}
    for found, expected in ((state, case.arrays["output"]), (x.grad, case.arrays["grad_x"]), (own, case.gradients)):
        assert_close(found, expected, atol=1e-6, rtol=0)
    assert len(own) == len(list(encoder.parameters()))
    exact = transport.transport

    def rounded(cost, present, columns, *options):
        m = cost.shape[-2]
        return exact(cost, present, (columns / m).float().double() * m, *options)

    monkeypatch.setattr(transport, "transport", rounded)
    assert_close(encoder(x, case.arrays["lengths"]).state, case.arrays["output"], atol=1e-10, rtol=0)


@pytest.fixture
def segments(workspaces, monkeypatch):
    """The module of captured segments, with what makes a real graph harder to use, in float64."""
    from beamtree.nn.engine.gpu import segments

    monkeypatch.setattr(segments, "Captured", Replayed)
    monkeypatch.setattr(loop, "why_not_triton", lambda leaves: None)  # which wants float32
    return segments


def both_engines(lengths, seed=0, **options):
    encoder = make(seed=seed, **options)
    x, lengths = inputs(lengths, seed=seed)
    found = []
    for encoder.engine in ("torch", "triton"):
        found.append(everything(encoder, x, lengths))
    return found


@MIXES
@pytest.mark.parametrize(
    "options", [{}, {"stochastic": False}, {"dropout": 0.3}, {"dropout": 0.3, "cell": "lstm"}], ids=str
)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    beam_size=st.integers(1, 5),
    longest=st.integers(1, 4),
    seed=st.integers(0, 99),
)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_engines_agree(options, mix, lengths, beam_size, longest, seed, segments):
    """Outputs, trees and every gradient, under the same noise and dropout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "MAX_STEPS", longest)
        assert_same(*both_engines(lengths, seed, beam_size=beam_size, mix=mix, **options), atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"dropout": 0.3}], ids=str)
def test_a_graph_is_used_again_for_other_weights_inputs_and_lengths(options, segments, workspaces, monkeypatch):
    monkeypatch.setattr(segments, "MAX_STEPS", 3)
    for seed, lengths in enumerate(([9, 6], [2, 9], [9, 9])):
        assert_same(*both_engines(lengths, seed, **options), atol=1e-10)
    assert len(workspaces) == 1


@pytest.mark.usefixtures("segments")
def test_a_captured_search_keeps_a_fraction_of_what_torch_does():
    """The beams before each segment of sixteen, and the noise."""
    x, lengths = inputs([49])
    encoder, kept = make(beam_size=3), {}
    for encoder.engine in ("torch", "triton"):
        saved = {}
        with watch_saved(saved, [*encoder.parameters(), x]):
            encoder(x, lengths)
        kept[encoder.engine] = sum(saved.values())
    assert 0 < 3 * kept["triton"] < kept["torch"]


@pytest.mark.usefixtures("segments")
def test_inference_and_training_share_graphs(workspaces):
    encoder = make(engine="triton").eval()
    assert_inference_and_training_share_graphs(encoder, *inputs([7, 4]), workspaces)


@pytest.mark.usefixtures("segments")
@pytest.mark.parametrize("engine", ["torch", "triton"])
def test_no_engine_has_a_second_derivative(engine):
    """So the error recommends none."""
    encoder, (x, lengths) = make(engine=engine), inputs([4])
    first = torch.autograd.grad(encoder(x.requires_grad_(), lengths).state.sin().sum(), x, create_graph=True)[0]
    with pytest.raises(RuntimeError, match=r"^soft_topk has no second derivative, and so the encoder 'bt-grc-soft'"):
        first.sum().backward()


class OnGPU(torch.Tensor):
    """Says that it is on a CUDA device."""

    is_cuda = True


@pytest.mark.usefixtures("segments")
def test_the_published_scaling_is_not_captured(monkeypatch):
    """Not where a graph could be captured either: there "auto" captures all else."""
    chosen = {}

    def noted(engines, request, name, parameters):
        there = replace(request, leaves=request.leaves.as_subclass(OnGPU))
        chosen[request.operator.scaling] = select(engines, there, name).name
        return select(engines, request, name, parameters)

    monkeypatch.setattr(base, "select", noted)
    for scaling in ("sample", "official"):
        make(scaling=scaling)(*inputs([5]))
    assert chosen == {"sample": "triton", "official": "torch"}
    with pytest.raises(EngineError, match="engine 'triton' cannot do this: with scaling 'official'"):
        make(scaling="official", engine="triton")(*inputs([5]))


@pytest.mark.usefixtures("shape_checks_off")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "reference"}, "unknown engine 'reference'"),
        ({"scaling": "batch"}, "unknown scaling 'batch'"),
        ({"epsilon": 0}, "epsilon is 0"),
        ({"iterations": 0}, "iterations is 0"),
        ({"mix": "hard"}, "unknown mix 'hard'"),
        ({"beam_size": 0}, "beam_size is 0"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        SoftBeamTree(6, **options)
