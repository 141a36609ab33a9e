"""Loops in segments: what the same loop gives under autograd.

Without a GPU a graph is launched each time; `support.Replayed` does more of what a real one does.
"""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

pytest.importorskip("triton")  # the package of the captured engines needs it

from beamtree.nn.engine.functional import Composite, LinearFunction
from beamtree.nn.engine.gpu import cache, segments
from beamtree.nn.engine.gpu.cache import CACHE
from support import Replayed

TOLD = []  # whether a segment was told its states


@dataclass(frozen=True)
class Average(Composite):
    """h′ = tanh(h W + k ⊙ x + b), a′ = a ⊙ decay + h′ ⊙ y: the states are all h′, the notes all a′."""

    linear: LinearFunction
    decay: float = 0.5

    def segment(self, carry, inputs, masks, made):
        TOLD.append(made is not None)
        (h, a), states, notes = carry, [], []
        for t, (x, y) in enumerate(zip(*inputs, strict=True)):
            kept = x if masks[0] is None else x * masks[0][t]
            new = torch.tanh(self.linear(h) + kept)
            h = new if made is None else new + (made[t] - new).detach()  # the value is what it was told
            a = a * self.decay + h * y
            states.append(h)
            notes.append(a.detach())
        return (h, a), torch.stack(states), torch.stack(notes)

    def step_bytes(self, carry):
        return len(carry[0]) * 2**18


@pytest.fixture
def replayed(monkeypatch):
    monkeypatch.setattr(segments, "Captured", Replayed)


@pytest.fixture(autouse=True)
def nothing_is_kept():
    CACHE.clear()
    TOLD.clear()
    yield
    CACHE.clear()


def make(N, B, D=3, seed=0, rate=0.0, **options):
    """A loop, its start, its inputs and its masks, one for each step."""
    torch.manual_seed(seed)
    linear = nn.Linear(D, D).double()
    loop = Average(LinearFunction((linear.weight, linear.bias)), **options)
    carry, inputs = (
        tuple(torch.randn(*shape, dtype=torch.float64, requires_grad=True) for _ in range(2))
        for shape in ((B, D), (N, B, D))
    )
    return loop, carry, inputs, torch.rand(N, B, D) > rate if rate else None


def plainly(loop, carry, inputs, mask):
    _, states, notes = loop.segment(carry, inputs, (mask,), None)
    return states, notes


def run_all(loop, carry, inputs, mask, **options):
    def draw(steps):
        return (None if mask is None else mask[steps.start : steps.stop],)

    return segments.run(loop, carry, inputs, draw, len(inputs[0]), **options)


def in_segments(*case, **options):
    states, notes, _ = run_all(*case, **options)
    return states, notes


def gradients(states, loop, carry, inputs, mask):
    """Of a loss that depends on each state in its own way; the average has a part in none."""
    weights = torch.linspace(1, 2, states.numel(), dtype=states.dtype, device=states.device).view_as(states)
    wanted = (*carry, *inputs, *loop.weights)
    return torch.autograd.grad((weights * states.sin()).sum(), wanted, allow_unused=True, materialize_grads=True)


def assert_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


@pytest.mark.parametrize("rate", [0.0, 0.4])
@given(N=st.integers(1, 9), B=st.integers(1, 3), longest=st.integers(1, 10), seed=st.integers(0, 99))
@settings(max_examples=20)
def test_segments_of_any_size_give_what_the_loop_does(rate, N, B, longest, seed):
    case = make(N, B, seed=seed, rate=rate)
    expected = plainly(*case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "MAX_STEPS", longest)
        found = in_segments(*case)
        found_gradients = gradients(found[0], *case)
    assert_same(found, expected)
    assert_same(found_gradients, gradients(expected[0], *case))
    assert not found[1].requires_grad


@pytest.mark.parametrize("rate", [0.0, 0.4])
@given(segment_count=st.integers(1, 4), longest=st.integers(1, 4), seed=st.integers(0, 99))
@settings(max_examples=20)
def test_the_carry_has_a_gradient_too(rate, segment_count, longest, seed):
    """Of whole segments; and what was drawn in them can be drawn again."""
    loop, carry, inputs, mask = case = make(segment_count * longest, 2, seed=seed, rate=rate)
    wanted = (*carry, *inputs, *loop.weights)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "MAX_STEPS", longest)
        for redraw in (False, True):
            after = run_all(*case, redraw=redraw).carry
            found.append((after, torch.autograd.grad(sum(part.sin().sum() for part in after), wanted)))
    after, _, _ = loop.segment(carry, inputs, (mask,), None)
    expected = torch.autograd.grad(sum(part.sin().sum() for part in after), wanted)
    for found_after, found_gradients in found:
        assert_same(found_after, after)
        assert_same(found_gradients, expected)


def test_a_loop_ends_when_it_is_enough(monkeypatch):
    monkeypatch.setattr(segments, "MAX_STEPS", 3)
    case = make(11, 2, rate=0.3)
    seen = []

    def should_stop(carry):
        seen.append(carry)
        return len(seen) == 2

    found, expected = in_segments(*case, should_stop=should_stop), plainly(*case)
    assert [len(part) for part in found] == [6, 6]
    assert_same(found, (part[:6] for part in expected))
    weights = torch.linspace(1, 2, expected[0].numel(), dtype=torch.float64).view_as(expected[0])[:6]
    wanted = (*case[1], *case[2], *case[0].weights)
    gradients = (
        torch.autograd.grad((weights * states[:6].sin()).sum(), wanted, allow_unused=True, materialize_grads=True)
        for states in (found[0], expected[0])
    )
    assert_same(*gradients)
    assert len(seen) == 2


@pytest.mark.usefixtures("replayed")
def test_a_graph_is_used_again_for_other_weights_inputs_and_lengths(monkeypatch):
    monkeypatch.setattr(segments, "MAX_STEPS", 3)
    for seed, N in enumerate((8, 3, 1, 5, 10)):
        case = make(N, 2, seed=seed, rate=0.3)
        found, expected = in_segments(*case), plainly(*case)
        assert_same(found, expected)
        assert_same(gradients(found[0], *case), gradients(expected[0], *case))
    assert len(CACHE) == 1


def test_backward_is_told_what_forward_made(monkeypatch):
    monkeypatch.setattr(segments, "MAX_STEPS", 2)
    case = make(5, 1)
    states, _ = in_segments(*case)
    assert TOLD == [False] * 3
    gradients(states, *case)
    assert TOLD == [False] * 3 + [True] * 3


@pytest.mark.usefixtures("replayed")
def test_several_passes_may_be_under_way(monkeypatch):
    """Of one size, so that they share a workspace one after the other, and with weights of their own."""
    monkeypatch.setattr(segments, "MAX_STEPS", 3)
    cases = [make(N, 2, seed=seed, rate=0.3) for seed, N in enumerate((7, 2, 4))]
    passes = [in_segments(*case)[0] for case in cases]
    assert len(CACHE) == 1
    for case, states in zip(cases, passes, strict=True):
        assert_same(gradients(states, *case), gradients(plainly(*case)[0], *case))


@pytest.mark.parametrize("other", [{"B": 3}, {"D": 4}, {"rate": 0.3}, {"decay": 0.25}], ids=str)
def test_what_would_give_another_graph_is_another_size(other):
    for options in ({}, other):
        case = make(**{"N": 4, "B": 2, **options})
        assert_same(in_segments(*case), plainly(*case))
    assert len(CACHE) == 2


@pytest.mark.parametrize(("B", "T"), [(1, 16), (128, 16), (256, 8), (4000, 1)])
def test_the_larger_the_batch_the_shorter_a_segment(B, T):
    in_segments(*make(2, B))
    (graphs,) = CACHE.idle()
    assert len(graphs.inputs[0]) == T


def test_what_is_kept_is_bounded_and_can_be_released(monkeypatch):
    monkeypatch.setattr(cache, "MAX_IDLE", 2)
    for B in (1, 2, 3, 1):
        in_segments(*make(2, B))
    assert [graphs.inputs[0].shape[1] for graphs in CACHE.idle()] == [3, 1]
    CACHE.clear()
    assert not len(CACHE)


@pytest.mark.usefixtures("replayed")
def test_inference_and_training_share_their_buffers():
    case = make(4, 2)
    with torch.inference_mode():
        inferred = in_segments(*case)
    states, notes = in_segments(*case)
    assert_same(inferred, (states, notes))
    assert_same(gradients(states, *case), gradients(plainly(*case)[0], *case))
    assert len(CACHE) == 1


@pytest.mark.usefixtures("replayed")
def test_under_autocast_products_are_in_half_precision(monkeypatch):
    """In both passes, and in those only: the same steps under autograd, and a pass in float32 before and after."""
    monkeypatch.setattr(segments, "MAX_STEPS", 2)
    loop, carry, inputs, _ = make(6, 2)
    loop = loop.bind([weight.detach().float().requires_grad_() for weight in loop.weights])
    case = loop, *(tuple(t.detach().float().requires_grad_() for t in given) for given in (carry, inputs)), None
    passes = {}
    for number, bf16 in enumerate((False, True, False, True)):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            states, _ = in_segments(*case)
            expected, _ = plainly(*case)
        assert torch.equal(states, expected)
        passes[number] = states, *gradients(states, *case)
        for found, truth in zip(passes[number], (expected, *gradients(expected, *case)), strict=True):
            assert found.dtype == torch.float32
            # autograd adds the steps' gradients of a weight in bfloat16
            assert (found - truth).norm() <= (2**-7 if bf16 else 1e-6) * truth.norm()
    for first, again in ((0, 2), (1, 3)):
        assert all(torch.equal(a, b) for a, b in zip(passes[first], passes[again], strict=True))
    assert not torch.equal(passes[0][0], passes[1][0])
    assert len(CACHE) == 2


def test_frozen_weights_are_no_hindrance():
    loop, carry, inputs, _ = make(4, 2)
    loop = loop.bind([weight.detach() for weight in loop.weights])
    found, expected = (
        torch.autograd.grad(run(loop, carry, inputs, None)[0].sum(), inputs[0]) for run in (in_segments, plainly)
    )
    assert_same(found, expected)
    assert not any(weight.requires_grad for weight in loop.weights)


def test_a_launch_reuses_no_leaf_of_autograd(monkeypatch):
    """A leaf's gradient belongs to the stream of its first use: in a capture, one of a direct launch is an error."""
    monkeypatch.setattr(segments, "MAX_STEPS", 3)
    segment, leaves = Average.segment, []

    def watched(self, carry, inputs, masks, made):
        leaves.extend(tensor for tensor in (*carry, *inputs, *self.weights) if tensor.requires_grad and tensor.is_leaf)
        return segment(self, carry, inputs, masks, made)

    case = make(6, 2)
    states, _ = in_segments(*case)
    monkeypatch.setattr(Average, "segment", watched)
    gradients(states, *case)
    assert len(leaves) == 2 * (2 + 2 + 2)  # carry, inputs and weights, in both segments
    assert len({id(leaf) for leaf in leaves}) == len(leaves)


@pytest.mark.gpu
def test_a_graph_of_autograd_that_lives_on_does_not_disturb_the_capture(monkeypatch):
    monkeypatch.setattr(segments, "MAX_STEPS", 3)
    segment, alive = Average.segment, []

    def watched(self, *given):
        alive.append(segment(self, *given))
        return alive[-1]

    loop, carry, inputs, _ = make(9, 2)
    loop = loop.bind([weight.detach().cuda().requires_grad_() for weight in loop.weights])
    case = loop, *(tuple(own.detach().cuda().requires_grad_() for own in part) for part in (carry, inputs)), None
    expected = gradients(plainly(*case)[0], *case)
    monkeypatch.setattr(Average, "segment", watched)
    assert_same(gradients(in_segments(*case)[0], *case), expected)  # three segments: launched, captured and replayed


def test_weights_must_not_change_between_forward_and_backward():
    case = make(3, 2)
    states, _ = in_segments(*case)
    with torch.no_grad():
        case[0].weights[0].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        states.sum().backward()


def test_a_second_derivative_is_refused():
    case = make(3, 2)
    states, _ = in_segments(*case)
    (once,) = torch.autograd.grad(states.sin().sum(), case[2][0], create_graph=True)
    with pytest.raises(RuntimeError, match='engine="reference"'):
        once.sum().backward()
