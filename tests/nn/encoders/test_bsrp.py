"""BSRP: a beam over shift and reduce, whose scores add up and are trained."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import gelu, logsigmoid
from torch.testing import assert_close

from beamtree.nn.encoders.bsrp import BSRP
from beamtree.trees import Tree
from support import assert_batch_does_not_matter, assert_same, everything, inputs

CATALAN = [1, 1, 2, 5, 14, 42]  # binary trees over 1, 2, … leaves


def make(dim=6, seed=0, dtype=torch.float64, **options):
    """With a scorer strong enough to prefer some actions."""
    torch.manual_seed(seed)
    encoder = BSRP(dim, **options).to(dtype)
    with torch.no_grad():
        encoder.scorer.weight.mul_(12)
    return encoder


def parse(encoder, leaves, k):
    """The docstring for one sample, on Python lists: [(score, tree, root)], best first."""
    n = len(leaves)
    begin = [(leaf, str(i)) for i, leaf in enumerate(leaves)]
    beams = [(torch.zeros((), dtype=leaves.dtype), begin[:2], begin[2:])]
    for _ in range(2 * n - 3):
        grown = []
        for score, stack, queue in beams:
            log_reduce = log_shift = 0
            if len(stack) > 1 and queue:
                decision = torch.cat((stack[-2][0], stack[-1][0], queue[0][0]))
                logit = encoder.scorer(gelu(encoder.features(decision))).squeeze()
                log_reduce, log_shift = logsigmoid(logit), logsigmoid(-logit)
            if len(stack) > 1:
                (left, first), (right, second) = stack[-2:]
                parent = encoder.cell(left, right), f"({first} {second})"
                grown.append((score + log_reduce, [*stack[:-2], parent], queue))
            if queue:
                grown.append((score + log_shift, [*stack, queue[0]], queue[1:]))
        beams = sorted(grown, key=lambda beam: -beam[0].item())[:k]
    return [(score, Tree.parse(stack[0][1]), stack[0][0]) for score, stack, _ in beams]


def trees_over(start, end):
    """All binary trees over these positions, as text."""
    if end - start == 1:
        return [str(start)]
    return [
        f"({left} {right})"
        for middle in range(start + 1, end)
        for left, right in itertools.product(trees_over(start, middle), trees_over(middle, end))
    ]


def follow(encoder, leaves, tree):
    """The log-probability of the one way to build a tree, and its root: shift a leaf, then all its reduces."""
    stack, queue, score = [], list(leaves), torch.zeros((), dtype=leaves.dtype)
    reduces = list(tree.reduces)
    while queue or len(stack) > 1:
        done = len(leaves) - len(queue)
        reduce = len(stack) > 1 and reduces[done - 1] > 0
        if done >= 2 and len(stack) > 1 and queue:
            logit = encoder.scorer(gelu(encoder.features(torch.cat((stack[-2], stack[-1], queue[0]))))).squeeze()
            score = score + logsigmoid(logit if reduce else -logit)
        if reduce:
            reduces[done - 1] -= 1
            right, left = stack.pop(), stack.pop()
            stack.append(encoder.cell(left, right))
        else:
            stack.append(queue.pop(0))
    return score, stack[0]


def gradients(loss, encoder, x):
    return torch.autograd.grad(loss, (x, *encoder.parameters()), allow_unused=True, materialize_grads=True)


def loss_of(log_probs, roots):
    """Depends on the encoding and on the scores."""
    return (log_probs.exp() @ roots).sin().sum() + log_probs.sin().sum()


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_a_wide_beam_holds_every_tree_with_its_probability(n):
    """All binary trees, each once, with the product of its decisions; encodings and gradients with them."""
    encoder = make(beam_size=50)
    x, lengths = inputs([n])
    x = x.requires_grad_()
    out = encoder(x, lengths)
    log_probs = out.beams.log_probs[0, : CATALAN[n - 1]]
    trees = out.beams.trees()[0]
    assert sorted(map(str, trees)) == sorted(trees_over(0, n))
    leaves = encoder.leaf(x)[0]
    expected, roots = zip(*(follow(encoder, leaves, tree) for tree in trees), strict=True)
    expected, roots = torch.stack(expected), torch.stack(roots)
    assert_close(expected.exp().sum(), torch.ones((), dtype=torch.float64))
    assert_close(log_probs, expected, atol=1e-12, rtol=0)
    assert_close(out.state[0], expected.exp() @ roots, atol=1e-12, rtol=0)
    found = gradients(out.state.sin().sum() + log_probs.sin().sum(), encoder, x)
    for a, b in zip(found, gradients(loss_of(expected.log_softmax(0), roots), encoder, x), strict=True):
        assert_close(a, b, atol=1e-11, rtol=0)


@pytest.mark.parametrize(("n", "k"), [(3, 1), (5, 1), (6, 2), (7, 3), (9, 5)])
def test_a_narrow_beam_keeps_the_best_at_each_step(n, k):
    encoder = make(beam_size=k, seed=n)
    x, lengths = inputs([n], seed=n)
    x = x.requires_grad_()
    out = encoder(x, lengths)
    beams = parse(encoder, encoder.leaf(x)[0], k)
    assert out.beams.trees()[0] == [tree for _, tree, _ in beams]
    log_probs = torch.stack([score for score, _, _ in beams]).log_softmax(0)
    assert_close(out.beams.log_probs[0], log_probs, atol=1e-12, rtol=0)
    expected = loss_of(log_probs, torch.stack([root for _, _, root in beams]))
    found = out.state.sin().sum() + out.beams.log_probs.sin().sum()
    for a, b in zip(gradients(found, encoder, x), gradients(expected, encoder, x), strict=True):
        assert_close(a, b, atol=1e-11, rtol=0)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    padding=st.integers(0, 3),
    beam_size=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
@settings(max_examples=30)
def test_padding_and_batch_mates_never_change_an_encoding(lengths, padding, beam_size, seed):
    encoder = make(seed=seed, beam_size=beam_size)
    assert_batch_does_not_matter(encoder, lengths, padding, seed)


def test_one_word_is_its_leaf_and_two_have_one_tree():
    encoder = make()
    x, lengths = inputs([2, 1])
    out = encoder(x, lengths)
    leaves = encoder.leaf(x)
    assert_close(out.state, torch.stack((encoder.cell(leaves[0, 0], leaves[0, 1]), leaves[1, 0])))
    assert out.beams.log_probs.exp().tolist() == [[1, 0, 0, 0, 0]] * 2
    assert out.beams.trees() == [[Tree.parse("(0 1)")], [Tree.parse("0")]]
    assert_close(encoder(x[1:, :1], lengths[1:]).state, leaves[1:, 0])


def test_scorer_and_features_are_trained():
    """By the encoding alone. START is not: where it stands the decision is forced."""
    encoder = make(beam_size=3)
    encoder(*inputs([9, 6])).state.sin().sum().backward()
    silent = [name for name, weight in encoder.named_parameters() if weight.grad.abs().max() < 1e-6]
    assert silent == ["start"]


@pytest.mark.parametrize("gradient", [True, False], ids=["gradient", "inference"])
def test_nodes_are_the_constituents_of_the_trees(gradient):
    encoder = make(beam_size=3)
    x, lengths = inputs([8, 5, 2, 1])
    with torch.set_grad_enabled(gradient):
        beams = encoder(x, lengths).beams
        leaves = encoder.leaf(x)
    nodes = beams.nodes
    for sample, found in enumerate(beams.trees()):
        for beam, tree in enumerate(found):
            mask = nodes.mask[sample, beam]
            spans = [tuple(span) for span in nodes.spans[sample, beam][mask].tolist()]
            assert spans == tree.spans()
            states = dict(zip(spans, nodes.states[sample, beam][mask], strict=True))
            for start, end in spans:
                if end - start == 1:
                    assert_close(states[start, end], leaves[sample, start])
                else:
                    (middle,) = (m for m in range(start + 1, end) if (start, m) in states and (m, end) in states)
                    expected = encoder.cell(states[start, middle], states[middle, end])
                    assert_close(states[start, end], expected, atol=1e-12, rtol=0)
        assert not nodes.mask[sample, len(found) :].any()


def test_gradients_are_derivatives():
    """Of encodings, weights and nodes, with dropout too: the replay meets the masks of the search."""
    encoder = make(dim=3, beam_size=2, dropout=0.3)
    x, lengths = inputs([5, 3, 1], dim=3)

    def outputs(x, *weights):
        out = encoder(x, lengths, generator=torch.Generator().manual_seed(1))
        return out.state, out.beams.log_probs[:2], out.beams.nodes.states

    assert torch.autograd.gradcheck(outputs, (x.requires_grad_(), *encoder.parameters()), fast_mode=True)


@pytest.mark.parametrize("options", [{}, {"dropout": 0.3}], ids=str)
def test_engines_agree(options):
    """Outputs, trees and every gradient, under the same dropout."""
    encoders = (make(beam_size=3, engine=engine, **options) for engine in ("torch", "reference"))
    assert_same(*(everything(encoder, *inputs([8, 5, 2, 1])) for encoder in encoders), atol=1e-11)


def test_beams_are_ordered_and_normalised():
    out = make(beam_size=7)(*inputs([9, 3, 2]))
    log_probs = out.beams.log_probs
    assert (log_probs[:, :-1] >= log_probs[:, 1:]).all()
    assert_close(log_probs.exp().sum(1), torch.ones(3, dtype=torch.float64))
    assert [len(trees) for trees in out.beams.trees()] == log_probs.isfinite().sum(1).tolist() == [7, 2, 1]


def test_a_seeded_run_repeats_exactly_and_dropout_is_for_training():
    encoder = make(dropout=0.3)
    x, lengths = inputs([8, 5])
    assert_same(everything(encoder, x, lengths, seed=3), everything(encoder, x, lengths, seed=3), atol=0)
    assert not torch.equal(encoder(x, lengths).state, encoder(x, lengths).state)
    encoder.eval()
    assert torch.equal(encoder(x, lengths).state, encoder(x, lengths).state)


def test_what_is_kept_for_backward_grows_with_the_beams_and_the_length_only():
    def kept(n, k):
        sizes = {}

        def pack(tensor):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            make(dropout=0.1, beam_size=k)(*inputs([n]))
        return sum(sizes.values())

    fixed = kept(1, 1)
    assert kept(80, 4) - fixed < 2.2 * (kept(40, 4) - fixed)
    assert kept(40, 8) - fixed < 2.2 * (kept(40, 4) - fixed)


def test_bfloat16_autocast_stays_close():
    """The beam has room for all trees, so that rounding cannot change which beams there are."""
    encoder = make(dim=32, beam_size=14, dtype=torch.float32)
    x, lengths = inputs([5, 4], dim=32, dtype=torch.float32)
    exact = encoder(x, lengths)
    with torch.autocast("cpu", torch.bfloat16):
        close = encoder(x, lengths)
    assert close.state.dtype == close.beams.log_probs.dtype == torch.float32
    assert_close(close.state, exact.state, atol=0.05, rtol=0.05)
    weights = [weight for name, weight in encoder.named_parameters() if name != "start"]
    expected = torch.autograd.grad(exact.state.sin().sum(), weights)
    for a, b in zip(torch.autograd.grad(close.state.sin().sum(), weights), expected, strict=True):
        assert (a - b).norm() <= 0.1 * b.norm() + 1e-3


def test_the_published_names_cover_every_parameter():
    encoder = make()
    own = dict(encoder.named_parameters())
    covered = {name for ours in BSRP.OFFICIAL.values() for name in own if name == ours or name.startswith(ours + ".")}
    assert covered == set(own)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 0}, "beam_size is 0: it must be an integer of at least 1"),
        ({"dropout": -0.1}, "dropout is -0.1: it must be a number from 0"),
        ({"engine": "cuda"}, "unknown engine 'cuda'; known: auto, reference, torch, triton"),
    ],
)
def test_wrong_options_are_named(options, message, shape_checks_off):
    with pytest.raises(ValueError, match=message):
        BSRP(4, **options)
