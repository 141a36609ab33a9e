"""Chains: what composing step by step gives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beamtree.nn.cells import GRC, function_of
from beamtree.nn.engine.dispatch import EngineError, select
from beamtree.nn.engine.dropout import NodeDropout
from beamtree.nn.engine.loops import chain as chains
from beamtree.nn.engine.loops.chain import CHAIN, ChainRequest


def steps(leaves, start, cell, dropout):
    """The same with the cell itself, under autograd."""
    states = [start]
    for t, leaf in enumerate(leaves):
        mask = None
        if dropout is not None:
            sample = torch.arange(len(leaf))
            left = torch.stack((sample, torch.zeros_like(sample), torch.full_like(sample, t)), dim=1)
            right = torch.stack((sample, torch.full_like(sample, t), torch.full_like(sample, t + 1)), dim=1)
            mask = dropout.mask(left, right)
        states.append(cell(states[-1], leaf, mask))
    return torch.stack(states[1:])


def chain(leaves, start, cell, dropout=None, engine="torch"):
    request = ChainRequest(leaves, start, function_of(cell), dropout)
    return select(CHAIN, request, engine)(request)


def gradients(states, *wanted):
    """Of a loss that depends on each state in its own way."""
    weights = torch.linspace(1, 2, states.numel(), dtype=states.dtype).view_as(states)
    return torch.autograd.grad((weights * states.sin()).sum(), wanted)


def start_and_leaves(N, B, D, seed, dtype=torch.float64):
    torch.manual_seed(seed)
    return torch.randn(B, D, dtype=dtype, requires_grad=True), torch.randn(N, B, D, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("rate", [0.0, 0.3])
@given(N=st.integers(1, 12), B=st.integers(1, 3), segment=st.integers(1, 13), seed=st.integers(0, 99))
@settings(max_examples=20)
def test_a_chain_is_the_cell_step_by_step(rate, N, B, segment, seed):
    """States and gradients, in segments of any size; the reference too."""
    start, leaves = start_and_leaves(N, B, 4, seed)
    cell = GRC(4, rate).double()
    dropout = NodeDropout(rate, cell.mask_dim, leaves) if rate else None
    wanted = (leaves, start, *cell.parameters())
    expected = steps(leaves, start, cell, dropout)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains, "SEGMENT", segment)
        found = chain(leaves, start, cell, dropout)
        found_gradients = gradients(found, *wanted)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    for a, b in zip(found_gradients, gradients(expected, *wanted), strict=True):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=0)
    torch.testing.assert_close(chain(leaves, start, cell, dropout, "reference"), expected, atol=1e-12, rtol=0)


def test_weights_must_not_change_between_forward_and_backward():
    start, leaves = start_and_leaves(3, 2, 4, 0, torch.float32)
    cell = GRC(4)
    states = chain(leaves, start, cell)
    with torch.no_grad():
        cell.gates.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        states.sum().backward()


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_captured_segments_are_the_same(rate, monkeypatch, workspaces):
    """The path of a CUDA device, with its kernels in the interpreter; buffers are used again with other contents."""
    pytest.importorskip("triton")
    from beamtree.nn.engine.gpu import chain as captured

    monkeypatch.setattr(chains, "SEGMENT", 3)
    monkeypatch.setattr(captured, "SEGMENT", 3)
    for seed, N in enumerate((4, 2)):
        start, leaves = start_and_leaves(N, 2, 16, seed, torch.float32)
        cell = GRC(16, rate)
        dropout = NodeDropout(rate, cell.mask_dim, leaves) if rate else None
        wanted = (leaves, start, *cell.parameters())
        found = chain(leaves, start, cell, dropout, "triton")
        found_gradients = gradients(found, *wanted)
        expected = steps(leaves, start, cell, dropout)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        for a, b in zip(found_gradients, gradients(expected, *wanted), strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    assert len(workspaces) == 1


@pytest.mark.parametrize(
    ("dtype", "interpreted", "message"),
    [(torch.float64, True, "float32, not in torch.float64"), (torch.float32, False, "CUDA device, not on cpu")],
)
def test_what_cannot_be_captured_is_refused(dtype, interpreted, message, monkeypatch):
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(triton.knobs.runtime, "interpret", interpreted)
    leaves = torch.zeros(3, 2, 4, dtype=dtype)
    with pytest.raises(EngineError, match=f"engine 'triton' cannot do this: .*{message}; engine 'auto' can"):
        chain(leaves, leaves[0], GRC(4), engine="triton")
