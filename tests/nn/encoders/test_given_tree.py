"""Encoders whose trees are given: balanced, random and gold ones."""

from collections import Counter
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from beamtree import Tree
from beamtree.nn.encoders.given_tree import BalancedTree, GoldTree, RandomTree
from beamtree.nn.engine.dispatch import EngineError
from golden_cases import FILES, Golden
from support import action_sequences, assert_gradients_are_derivatives, inputs

ENCODERS = [BalancedTree, RandomTree, GoldTree]
encoders = pytest.mark.parametrize("kind", ENCODERS)


def make(kind, dim=6, seed=0, dtype=torch.float64, **options):
    torch.manual_seed(seed)
    return kind(dim, **options).to(dtype)


def some_tree(n, seed=0):
    """A tree of n leaves."""
    generator = torch.Generator().manual_seed(seed)
    return Tree.from_actions([int(torch.randint(m, (), generator=generator)) for m in range(n - 1, 0, -1)])


def run(encoder, x, lengths, seed=7):
    """A pass under this seed; gold trees are drawn by it too."""
    trees = {"trees": [some_tree(n, seed + n) for n in lengths.tolist()]} if encoder.needs_trees else {}
    return encoder(x, lengths, generator=torch.Generator().manual_seed(seed), **trees)


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    padding=st.integers(0, 4),
    kind=st.sampled_from(ENCODERS),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40)
def test_padding_and_batch_mates_never_change_an_encoding(lengths, padding, kind, seed):
    """A sample alone, without padding, gives what it gives in a batch: encoding, tree and gradient. The root is
    composed in both. A random tree is drawn once and then composed alone as a gold one."""
    encoder = make(kind, seed=seed)
    x, batch = inputs(lengths, width=max(lengths) + padding, seed=seed)
    for i, n in enumerate(lengths):
        x[i, n:] = torch.nan
    x.requires_grad_()
    together = run(encoder, x, batch, seed)
    gradient = torch.autograd.grad(together.state.sin().sum(), x)[0]
    gold = make(GoldTree)
    gold.load_state_dict(encoder.state_dict())
    for i, n in enumerate(lengths):
        own = x[i : i + 1, :n].detach().requires_grad_()
        trees = together.beams.trees()[i]
        alone = encoder(own, batch[i : i + 1]) if kind is BalancedTree else gold(own, batch[i : i + 1], trees=trees)
        assert trees == alone.beams.trees()[0]
        assert_close(together.state[i], alone.state[0], atol=1e-11, rtol=0)
        own_gradient = torch.autograd.grad(alone.state.sin().sum(), own)[0][0]
        assert_close(gradient[i, :n], own_gradient, atol=1e-11, rtol=0)
        assert not gradient[i, n:].any()


def composed(cell, leaves, tree):
    """The state of a tree over positions."""
    if tree.is_leaf:
        return leaves[int(tree.leaves[0])]
    return cell(composed(cell, leaves, tree.left), composed(cell, leaves, tree.right))


@encoders
@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_the_encoding_is_the_root_of_the_tree(kind, n):
    encoder = make(kind)
    x, lengths = inputs([n])
    out = run(encoder, x, lengths)
    (tree,) = out.beams.trees()[0]
    assert_close(out.state[0], composed(encoder.cell, encoder.leaf(x)[0], tree), atol=1e-12, rtol=0)
    assert out.beams.log_probs.tolist() == [[0]]


@encoders
def test_nodes_are_the_constituents_of_the_tree(kind):
    beams = run(make(kind), *inputs([8, 5, 2, 1])).beams
    nodes = beams.nodes
    assert nodes.states.shape == (4, 1, 15, 6)
    for sample, (tree,) in enumerate(beams.trees()):
        mask = nodes.mask[sample, 0]
        assert [tuple(span) for span in nodes.spans[sample, 0][mask].tolist()] == tree.spans()
    assert not nodes.states[~nodes.mask].any()


@encoders
def test_gradients_are_derivatives(kind):
    encoder = make(kind, dim=2)
    x, lengths = inputs([4, 1], dim=2)

    def outputs(x, *weights):
        out = run(encoder, x, lengths)
        return out.state, out.beams.nodes.states

    assert_gradients_are_derivatives(outputs, (x.requires_grad_(), *encoder.parameters()))


@encoders
@pytest.mark.parametrize("cell", ["grc", "lstm"])
def test_engines_agree(kind, cell):
    """Encodings, nodes and gradients, under the same dropout and in the same trees."""
    found = []
    for engine in ("torch", "reference"):
        encoder, (x, lengths) = make(kind, dropout=0.3, engine=engine, cell=cell), inputs([9, 6, 2, 1])
        out = run(encoder, x.requires_grad_(), lengths)
        loss = out.state.sin().sum() + out.beams.nodes.states.square().mean()
        found.append((out.state, out.beams.nodes.states, *torch.autograd.grad(loss, (x, *encoder.parameters()))))
    assert_close(*found, atol=1e-11, rtol=0)


@encoders
def test_what_an_engine_cannot_do_is_refused(kind):
    pytest.importorskip("triton")
    with pytest.raises(EngineError, match=r"engine 'triton' cannot do this: .*float32, not in torch\.float64"):
        run(make(kind, engine="triton"), *inputs([3]))
    hooked = make(kind, engine="triton", dtype=torch.float32)
    hooked.cell.register_forward_hook(lambda *_: None)
    with pytest.raises(EngineError, match=r"engine 'triton' cannot do this: .*not plain"):
        run(hooked, *inputs([3], dtype=torch.float32))
    with pytest.raises(ValueError, match="unknown engine 'cuda'; known: auto, reference, torch, triton"):
        make(kind, engine="cuda")


@encoders
def test_every_parameter_has_a_gradient(kind):
    encoder = make(kind)
    run(encoder, *inputs([6, 2])).state.sin().sum().backward()
    assert all(parameter.grad.abs().max() > 1e-6 for parameter in encoder.parameters())


@encoders
def test_a_seeded_run_repeats_exactly(kind):
    encoder = make(kind, dropout=0.3)
    x, lengths = inputs([11, 6])
    assert torch.equal(run(encoder, x, lengths, seed=3).state, run(encoder, x, lengths, seed=3).state)
    trees = {"trees": [some_tree(11), some_tree(6)]} if encoder.needs_trees else {}
    torch.manual_seed(5)
    first = encoder(x, lengths, **trees).state
    assert not torch.equal(first, encoder(x, lengths, **trees).state)
    torch.manual_seed(5)
    assert torch.equal(first, encoder(x, lengths, **trees).state)


@encoders
def test_dropout_is_for_training_only(kind):
    encoder = make(kind, dropout=0.5)
    x, lengths = inputs([9])
    plain = make(kind)
    assert torch.equal(run(encoder.eval(), x, lengths).state, run(plain, x, lengths).state)
    assert not torch.equal(run(encoder.train(), x, lengths).state, run(plain, x, lengths).state)


@encoders
def test_bfloat16_autocast_stays_close(kind):
    encoder = make(kind, dim=32, dtype=torch.float32)
    x, lengths = inputs([7, 4], dim=32, dtype=torch.float32)
    exact = run(encoder, x, lengths).state
    with torch.autocast("cpu", torch.bfloat16):
        close = run(encoder, x, lengths).state
    assert close.dtype == torch.float32
    assert_close(close, exact, atol=0.05, rtol=0.05)
    expected, found = (torch.autograd.grad(state.sin().sum(), encoder.parameters()) for state in (exact, close))
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() <= 0.05 * b.norm() + 1e-4


@pytest.mark.parametrize(
    ("length", "tree"),
    [
        (4, "((0 1) (2 3))"),
        (5, "(((0 1) (2 3)) 4)"),
        (6, "(((0 1) (2 3)) (4 5))"),
        (7, "(((0 1) (2 3)) ((4 5) 6))"),
        (9, "((((0 1) (2 3)) ((4 5) (6 7))) 8)"),
        (11, "((((0 1) (2 3)) ((4 5) (6 7))) ((8 9) 10))"),
    ],
)
def test_balanced_trees_pair_neighbours_round_by_round(length, tree):
    x, lengths = inputs([length, 1], width=13)
    assert str(make(BalancedTree)(x, lengths).beams.trees()[0][0]) == tree


@given(length=st.integers(1, 2000))
@settings(max_examples=15)
def test_balanced_trees_are_as_low_as_can_be(length):
    x, lengths = inputs([length], dim=1, dtype=torch.float32)
    (tree,) = make(BalancedTree, dim=1, dtype=torch.float32)(x, lengths).beams.trees()[0]
    assert tree.height == (length - 1).bit_length()


def test_random_trees_are_uniform_over_orders_of_merges():
    """Of five leaves: 24 orders that make 14 trees, some by more orders than others."""
    draws = 8_000
    encoder = make(RandomTree, dim=1, dtype=torch.float32).eval()
    x, lengths = inputs([5] * draws, width=6, dim=1, dtype=torch.float32)
    found = Counter(tree for (tree,) in run(encoder, x, lengths).beams.trees())
    orders = [Tree.from_actions(actions) for actions in action_sequences(5)]
    expected = {tree: Fraction(count, len(orders)) for tree, count in Counter(orders).items()}
    assert set(found) == set(expected)
    for tree, p in expected.items():
        assert abs(found[tree] / draws - p) < 5 * (float(p) / draws) ** 0.5


def test_random_trees_are_new_each_time():
    encoder, (x, lengths) = make(RandomTree).eval(), inputs([12])
    assert len({encoder(x, lengths).beams.trees()[0][0] for _ in range(6)}) == 6


def test_gold_trees_may_be_brackets():
    encoder, (x, lengths) = make(GoldTree), inputs([4, 3, 1])
    brackets = ["((a b) (c d))", "(a (b c))", "word"]
    out = encoder(x, lengths, trees=brackets)
    assert torch.equal(out.state, encoder(x, lengths, trees=[Tree.parse(text) for text in brackets]).state)
    tokens = [list("abcd"), list("abc"), ["word"]]
    assert [str(tree) for (tree,) in out.beams.trees(tokens)] == brackets


@pytest.mark.usefixtures("shape_checks_off")
@pytest.mark.parametrize(
    ("trees", "message"),
    [
        (None, r"got no trees: gold-tree-grc needs trees=\[…\]"),
        ("(a b)", r"got one tree: gold-tree-grc needs trees=\[…\]"),
        (5, r"got 5: gold-tree-grc needs trees=\[…\]"),
        (["((a b) c)"], "got 1 trees for 2 samples"),
        (["((a b) c)", "(a"], r"trees\[1\]: unbalanced brackets"),
        (["((a b) c)", 3], r"trees\[1\] is of type int: it must be a Tree, or brackets"),
        (["(a b)", "(a b)"], r"trees\[0\] has 2 leaves and its sample 3"),
    ],
)
def test_wrong_gold_trees_are_refused_in_one_line(trees, message):
    x, lengths = inputs([3, 2])
    with pytest.raises(ValueError, match=message) as error:
        make(GoldTree)(x, lengths, trees=trees)
    assert "\n" not in str(error.value)


@encoders
@pytest.mark.usefixtures("shape_checks_off")
@pytest.mark.parametrize("options", [{"dim": 0}, {"dropout": 1.0}, {"check_nan": 1}])
def test_wrong_options_are_refused(kind, options):
    (name,) = options
    with pytest.raises(ValueError, match=f"{name} is {options[name]!r}"):
        kind(**{"dim": 4, **options})


@encoders
def test_every_parameter_has_a_name_in_the_published_code(kind):
    encoder = make(kind)
    own = [f"{ours}.{part}" for ours in kind.OFFICIAL.values() for part in ("weight", "bias")]
    assert sorted(own) == sorted(name for name, _ in encoder.named_parameters())


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.stem.startswith("balanced-tree-grc")], ids=lambda path: path.stem
)
def test_balanced_trees_give_what_the_published_code_does(path):
    case = Golden(path)
    encoder = make(BalancedTree, dim=case.meta["dim"]).eval()
    names = {f"{a}.{part}": f"{b}.{part}" for a, b in BalancedTree.OFFICIAL.items() for part in ("weight", "bias")}
    encoder.load_state_dict({ours: case.parameters[theirs] for theirs, ours in names.items()})
    x = case.arrays["x"].double().requires_grad_()
    state = encoder(x, case.arrays["lengths"]).state
    state.sin().sum().backward()
    own = {theirs: encoder.get_parameter(ours).grad for theirs, ours in names.items()}
    for found, expected in ((state, case.arrays["output"]), (x.grad, case.arrays["grad_x"]), (own, case.gradients)):
        assert_close(found, expected, atol=1e-9, rtol=0)
