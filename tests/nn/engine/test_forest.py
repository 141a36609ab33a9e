"""Composing known trees level by level: the right trees, and what composing them node by node gives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beamtree import Tree
from beamtree.nn.cells import GRC, TreeLSTM, function_of
from beamtree.nn.engine import forest, merges
from beamtree.nn.engine.dispatch import select
from beamtree.nn.engine.dropout import NodeDropout
from beamtree.nn.engine.forest import TREES, TreeRequest
from support import action_sequences, inputs


@st.composite
def action_lists(draw, most=12):
    """For each sample of a batch, actions that build a tree."""
    lengths = draw(st.lists(st.integers(1, most), min_size=1, max_size=4))
    return [[draw(st.integers(0, n - 2 - step)) for step in range(n - 1)] for n in lengths]


def batch(rows, width):
    """Rows of actions as a tensor, with nonsense for padding, and the lengths."""
    padded = torch.tensor([row + [77] * (width - len(row)) for row in rows], dtype=torch.long)
    return padded.view(len(rows), width), torch.tensor([len(row) + 1 for row in rows])


def assert_are(merges, trees):
    """The merges of each sample are those of its tree, in every way of telling them."""
    N = merges.splits.shape[1] + 1
    for sample, tree in enumerate(trees):
        n = len(tree)
        spans = [tuple(span) for span in merges.spans[sample, : n - 1].tolist()]
        assert spans == tree.spans(leaves=False)
        assert merges.actions[sample, : n - 1].tolist() == tree.actions()
        assert merges.heights[sample, : n - 1].tolist() == tree.heights(leaves=False)
        known = [(i, i + 1) for i in range(N)] + spans
        for (start, end), split, (left, right) in zip(
            spans, merges.splits[sample].tolist(), merges.children[sample].tolist(), strict=False
        ):
            assert (known[left], known[right]) == ((start, split), (split, end))


@given(rows=action_lists(), padding=st.integers(0, 3))
def test_actions_in_any_order_give_their_tree(rows, padding):
    actions, lengths = batch(rows, max(map(len, rows)) + padding)
    assert_are(merges.from_actions(actions, lengths), [Tree.from_actions(row) for row in rows])


@given(rows=action_lists(), padding=st.integers(0, 3))
def test_trees_give_themselves(rows, padding):
    trees = [Tree.from_actions(row) for row in rows]
    assert_are(merges.from_trees(trees, max(map(len, trees)) + padding), trees)


def joined_by(times):
    """The tree of neighbours joined at these times, one pair after the other."""
    waiting, actions = list(times), []
    while waiting:
        actions.append(waiting.index(min(waiting)))
        del waiting[actions[-1]]
    return Tree.from_actions(actions)


@given(
    rows=st.lists(st.lists(st.integers(0, 9), max_size=20), min_size=1, max_size=4),
    padding=st.integers(0, 3),
    fill=st.sampled_from([-1, 5, 99]),
)
def test_times_give_the_tree_of_merges_in_their_order(rows, padding, fill):
    width = max(map(len, rows)) + padding
    times = torch.tensor([row + [fill] * (width - len(row)) for row in rows], dtype=torch.long).view(len(rows), width)
    lengths = torch.tensor([len(row) + 1 for row in rows])
    assert_are(merges.from_times(times, lengths), [joined_by(row) for row in rows])


def compose(leaves, lengths, trees, N, cell, dropout=None, engine="torch"):
    request = TreeRequest(leaves, lengths, merges.from_trees(trees, N), function_of(cell), dropout)
    return select(TREES, request, engine)(request)


def by_hand(leaves, tree, cell, mask):
    """States of a tree's merges, in post-order, node by node."""
    stack, found = [], []
    for start, end in sorted(tree.spans(), key=lambda span: (span[1], -span[0])):
        if end - start == 1:
            stack.append((start, end, leaves[start]))
            continue
        (middle, _, right), (_, _, left) = stack.pop(), stack.pop()
        found.append(cell(left, right, mask(start, middle, end)))
        stack.append((start, end, found[-1]))
    return found


@pytest.mark.parametrize("kind", [GRC, TreeLSTM])
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize(("engine", "at_once"), [("torch", 3), ("torch", 1000), ("reference", 3)])
@settings(max_examples=10)
@given(rows=action_lists(most=9), padding=st.integers(0, 2), seed=st.integers(0, 99))
def test_levels_give_what_node_by_node_does(kind, rate, engine, at_once, rows, padding, seed):
    """States of all nodes, and gradients of leaves and weights, however many nodes go at once."""
    torch.manual_seed(seed)
    cell = kind(4, rate).double()
    trees = [Tree.from_actions(row) for row in rows]
    N = max(map(len, trees)) + padding
    leaves, lengths = inputs([len(tree) for tree in trees], width=N, dim=cell.state_dim, seed=seed)
    leaves.requires_grad_()
    dropout = NodeDropout(rate, cell.mask_dim, leaves) if rate else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forest, "AT_ONCE", at_once)
        patch.setattr(forest, "batch_size", lambda device: at_once)
        chart = compose(leaves, lengths, trees, N, cell, dropout, engine)
        found = [chart.store[chart.nodes[b, 0, : len(tree) - 1]] for b, tree in enumerate(trees)]
        loss = sum((state.sin() * (1 + torch.arange(len(state)).unsqueeze(1))).sum() for state in found)
        loss = loss + chart.store[: len(trees) * N].cos().sum()
        gradients = torch.autograd.grad(loss, (leaves, *cell.parameters()), allow_unused=True, materialize_grads=True)

    def mask(sample):
        def at(start, middle, end):
            return dropout and dropout.mask(torch.tensor([sample, start, middle]), torch.tensor([sample, middle, end]))

        return at

    expected = [by_hand(leaves[b], tree, cell, mask(b)) for b, tree in enumerate(trees)]
    loss = sum((state.sin() * (1 + i)).sum() for states in expected for i, state in enumerate(states))
    loss = loss + leaves.cos().sum()
    wanted = torch.autograd.grad(loss, (leaves, *cell.parameters()), allow_unused=True, materialize_grads=True)
    for states, alike in zip(found, expected, strict=True):
        for a, b in zip(states, alike, strict=True):
            torch.testing.assert_close(a, b, atol=1e-12, rtol=0)
    for a, b in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=0)


class Counting(GRC):
    """Counts its calls."""

    calls = 0

    def forward(self, left, right, mask=None):
        self.calls += 1
        return super().forward(left, right, mask)


def test_the_cell_is_called_once_for_each_level():
    cell = Counting(3)
    trees = [Tree.from_actions(row) for row in action_sequences(5)] + [Tree.from_actions([0] * 8)]
    leaves, lengths = inputs([len(tree) for tree in trees], width=12, dim=3, dtype=torch.float32)
    compose(leaves, lengths, trees, 12, cell)  # nothing is composed of padding
    assert cell.calls == 8


def test_long_chains_are_ordinary():
    cell, n = GRC(2), 1500
    leaves, lengths = inputs([n], dim=2, dtype=torch.float32)
    chart = compose(leaves.requires_grad_(), lengths, [Tree.from_actions([0] * (n - 1))], n, cell)
    chart.store[chart.nodes[0, 0, -1]].sum().backward()
    assert leaves.grad.isfinite().all()
    assert chart.spans[0, 0, -1].tolist() == [0, n]


def test_weights_must_not_change_between_forward_and_backward():
    cell = GRC(3)
    leaves, lengths = inputs([4], dim=3, dtype=torch.float32)
    chart = compose(leaves, lengths, [Tree.parse("((a b) (c d))")], 4, cell)
    with torch.no_grad():
        cell.gates.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        chart.store.sum().backward()
