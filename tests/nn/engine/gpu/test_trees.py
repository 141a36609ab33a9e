"""Given trees on the GPU are what the torch engine composes. Without a GPU the kernels run in Triton's interpreter."""

import pytest
import torch

import beamtree
from beamtree import Tree
from support import assert_same, in_small_pieces, inputs

pytest.importorskip("triton")

from beamtree.nn.engine.gpu import forest
from beamtree.nn.engine.gpu.cache import CACHE

pytestmark = pytest.mark.kernels
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def no_workspaces(monkeypatch):
    if DEVICE == "cpu":
        in_small_pieces(monkeypatch)
    CACHE.clear()
    yield
    CACHE.clear()


def pair(name="gold-tree-grc", dim=8, **options):
    """The same encoder on both engines."""
    found = []
    for engine in ("torch", "triton"):
        torch.manual_seed(0)
        found.append(beamtree.encoder(name, dim=dim, engine=engine, **options).to(DEVICE))
    return found


def everything(encoder, x, lengths, trees=None, seed=7):
    """All outputs of a pass, and the gradients of a loss that depends on each of them."""
    x = x.clone().requires_grad_()
    given = {"trees": trees} if encoder.needs_trees else {}
    out = encoder(x, lengths, generator=torch.Generator(x.device).manual_seed(seed), **given)
    nodes = out.beams.nodes
    order = torch.arange(nodes.states.shape[2], device=x.device).unsqueeze(1)
    loss = out.state.sin().sum() + (order * nodes.states**2).mean()
    wanted = {"x": x, **dict(encoder.named_parameters())}
    found = torch.autograd.grad(loss, tuple(wanted.values()), allow_unused=True, materialize_grads=True)
    result = {"state": out.state, "nodes": nodes.states}
    result |= {f"gradient of {name}": gradient for name, gradient in zip(wanted, found, strict=True)}
    return {k: v.detach() for k, v in result.items()}, nodes, out.beams.trees()


def compare(lengths, trees=None, name="gold-tree-grc", dim=8, **options):
    x, lengths = (t.to(DEVICE) for t in inputs(lengths, dim=dim, dtype=torch.float32))
    results = [everything(encoder, x, lengths, trees) for encoder in pair(name, dim, **options)]
    assert_same(*results, atol=2e-5)


def chain(length):
    return Tree.from_actions([0] * (length - 1))


@pytest.mark.parametrize("cell", ["grc", "lstm"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_engines_agree_on_given_trees(cell, dropout):
    trees = [chain(6), "((a b) ((c d) e))", "(a (b c))", "(a b)", "a"]
    compare([6, 5, 3, 2, 1], trees, cell=cell, dropout=dropout)


@pytest.mark.parametrize("name", ["balanced-tree-grc", "random-tree-grc"])
def test_engines_agree_on_other_trees(name):
    compare([9, 4, 1], name=name, dropout=0.2)


@pytest.mark.parametrize("dim", [5, 17])
def test_any_width_will_do(dim):
    compare([5], [chain(5)], dim=dim)


@pytest.mark.parametrize("lengths", [[1], [1, 1], [2]])
def test_the_shortest_inputs_will_do(lengths):
    compare(lengths, [chain(length) for length in lengths])


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_nodes_are_replayed_in_chunks_of_any_size(rows, monkeypatch):
    for bound in ("FEWEST", "MOST"):
        monkeypatch.setattr(forest, bound, rows)
    compare([7, 4], [chain(7), "((a b) (c d))"], dropout=0.2)


def test_trees_of_any_shape_share_a_workspace_and_leave_nothing_behind():
    one, other = pair(dropout=0.2)
    for seed, trees in enumerate(([chain(9)], ["((a b) (c d))"], ["(a (b (c (d e))))"])):
        lengths = [len(Tree.parse(tree) if isinstance(tree, str) else tree) for tree in trees]
        x, lengths = (t.to(DEVICE) for t in inputs(lengths, dim=8, seed=seed, dtype=torch.float32))
        assert_same(everything(one, x, lengths, trees), everything(other, x, lengths, trees), atol=2e-5)
    assert len(CACHE) == 1


def test_two_passes_may_be_under_way_and_a_gradient_may_be_taken_twice():
    gradients = []
    for encoder in pair():
        x, lengths = (t.to(DEVICE) for t in inputs([5, 4], dim=8, dtype=torch.float32))
        trees = [chain(5), chain(4)]
        first = encoder(x, lengths, trees=trees).state.sin().sum()
        second = encoder(-x, lengths, trees=trees).state.cos().sum()
        weight = encoder.cell.gates.weight
        once = torch.autograd.grad(first, weight, retain_graph=True)[0]
        both = torch.autograd.grad(first + second, weight)[0]
        gradients.append((once, both))
    torch.testing.assert_close(*gradients, atol=2e-5, rtol=2e-5)


def test_without_gradients_the_workspace_is_released():
    _, encoder = pair()
    x, lengths = (t.to(DEVICE) for t in inputs([5, 4], dim=8, dtype=torch.float32))
    with torch.no_grad():
        kept = encoder(x, lengths, trees=[chain(5), chain(4)]).state
        before = kept.clone()
        encoder(-x, lengths, trees=[chain(5), chain(4)])
    assert torch.equal(kept, before)
    assert len(CACHE) == 1


def test_under_autocast_products_are_in_bfloat16():
    x, lengths = (t.to(DEVICE) for t in inputs([5, 4], dim=8, dtype=torch.float32))
    trees = [chain(5), chain(4)]
    encoders = pair()
    with torch.autocast(DEVICE, torch.bfloat16):
        half = [everything(encoder, x, lengths, trees) for encoder in encoders]
    for one, other in ((half[0][0][name], half[1][0][name]) for name in half[0][0]):
        assert (one - other).norm() < 0.03 * one.norm()  # eight binary digits, several times rounded
    assert (everything(encoders[1], x, lengths, trees)[0]["state"] - half[1][0]["state"]).abs().max() > 1e-4
