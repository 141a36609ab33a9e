"""The attention of the Neural Data Router, and its kernels: in Triton's interpreter, or on the GPU."""

import os
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from beamtree.nn.engine.ndr import attention as ndr_attention
from beamtree.nn.engine.ndr import layer as ndr_layer
from beamtree.nn.engine.ndr.attention import Distances, attend, directed, geometric
from beamtree.nn.engine.ndr.layer import LayerDropout, kept
from nn.encoders.ndr_cases import DEVICE, attention_inputs, found_with_gradients, plain_attention


def test_the_right_neighbour_is_the_closest():
    order = Distances.of(5, torch.device("cpu")).closest_first.view(5, 5) - 5 * torch.arange(5).unsqueeze(1)
    assert order.tolist() == [
        [0, 1, 2, 3, 4],
        [1, 2, 0, 3, 4],
        [2, 3, 1, 4, 0],
        [3, 4, 2, 1, 0],
        [4, 3, 2, 1, 0],
    ]


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9])
def test_sorted_rows_are_found_again(n):
    distances = Distances.of(n, torch.device("cpu"))
    offset = torch.arange(n) - torch.arange(n).unsqueeze(1)
    order = (2 * offset.abs() - (offset > 0).long()).argsort(1)
    row = n * torch.arange(n).unsqueeze(1)
    assert torch.equal(distances.closest_first.view(n, n), order + row)
    place = order.argsort(1)
    assert torch.equal(distances.closer.view(n, n) - row, (place - 1).clamp(min=0))
    assert torch.equal(distances.farthest_first[distances.from_farthest], torch.arange(n * n))
    assert torch.equal(distances.farthest_first.view(n, n), (order + row).flip(1))


def weigh(logits, present=None):
    """The weights of the attention: no position sees itself."""
    n = logits.shape[-1]
    hidden = torch.eye(n, dtype=torch.bool)
    if present is not None:
        hidden = hidden | ~present[:, None, None, :]
    return geometric(logits.masked_fill(hidden, -torch.inf), Distances.of(n, logits.device))


def test_attention_stops_at_the_first_match():
    """Where everything matches, position i looks at i+1, the last at the one before it; what matches nothing is
    passed over."""
    n = 5
    assert_close(weigh(torch.full((1, 1, n, n), 50.0))[0, 0], torch.eye(n)[[1, 2, 3, 4, 3]])
    logits = torch.full((1, 1, n, n), -50.0)
    logits[..., 0] = 50
    assert_close(weigh(logits)[0, 0, 1:], torch.eye(n)[[0] * 4])


def test_attention_far_away_loses_no_digits():
    """Products of a thousand probabilities are added up as logarithms."""
    n = 1000
    logits = torch.full((1, 1, n, n), 2.0)
    weights = weigh(logits)
    assert_close(weights.sum(3), torch.ones(1, 1, n))
    p = logits[0, 0, 0, 0].sigmoid()
    assert_close(weights[0, 0, 0, 1:9], p * (1 - p) ** torch.arange(8), rtol=1e-5, atol=0)


@given(
    lengths=st.lists(st.integers(3, 12), min_size=1, max_size=3),
    scale=st.sampled_from([0.1, 1.0, 5.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25)
def test_attention_and_its_gradient_are_those_of_the_plain_formula(lengths, scale, seed):
    tensors, present = attention_inputs(lengths, 4, scale=scale, seed=seed)
    distances = Distances.of(max(lengths), torch.device("cpu"))
    found = found_with_gradients(partial(attend, present, distances), tensors)
    expected = found_with_gradients(lambda *heads: plain_attention(*heads, present), tensors)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, atol=1e-12, rtol=1e-11)


@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_float32_keeps_its_digits_where_logits_are_large(scale):
    """Rows of 200 logits up to ±3000: the sums from the closest on never cancel."""
    tensors, present = attention_inputs([200, 150], 1, scale=scale**0.5, dtype=torch.float32)
    exact = found_with_gradients(
        lambda *heads: plain_attention(*heads, present), [one.detach().double().requires_grad_() for one in tensors]
    )
    # Beside the rounding of the products and of their sums, which the plain formula has too.
    plain = found_with_gradients(lambda *heads: plain_attention(*heads, present), tensors)
    distances = Distances.of(200, torch.device("cpu"))
    found = found_with_gradients(partial(attend, present, distances), tensors)
    for one, same, truth in zip(found, plain, exact, strict=True):
        error, allowed = ((other - truth).norm() / truth.norm() for other in (one, same))
        assert error < 1.5 * allowed + 1e-6


def test_second_derivatives_of_the_attention_are_derivatives():
    tensors, present = attention_inputs([5, 3], 2, heads=1)
    distances = Distances.of(5, torch.device("cpu"))
    assert torch.autograd.gradgradcheck(lambda *heads: attend(present, distances, *heads).sin(), tensors)


@pytest.fixture
def kernels():
    pytest.importorskip("triton")
    from beamtree.nn.engine.gpu.kernels import ndr as kernels

    return kernels


@pytest.mark.kernels
@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("lengths", [[3], [9, 4, 8]], ids=str)
def test_kernels_compute_the_attention_and_its_gradient(kernels, monkeypatch, lengths, scale):
    tensors, present = attention_inputs(lengths, 4, heads=1, scale=scale**0.5, dtype=torch.float32, device=DEVICE)
    distances = Distances.of(max(lengths), present.device)
    exact = found_with_gradients(
        lambda *heads: plain_attention(*heads, present), [one.detach().double().requires_grad_() for one in tensors]
    )
    monkeypatch.setattr(ndr_attention, "_kernels", lambda content: kernels)
    found = found_with_gradients(partial(attend, present, distances), tensors)
    for one, other in zip(found, exact, strict=True):
        assert_close(one.double(), other, atol=2e-5 * scale, rtol=2e-5)


@pytest.mark.kernels
def test_kernels_lose_no_digits_to_large_logits(kernels):
    """Weights of logits that are given, beside those in float64."""
    n = 16
    content = 300 * torch.randn(2, 2, n, n, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    content[0, 0], content[0, 1] = content[0, 0] / 300 - 18, 1e4  # all nearly 0, where 1 + e^ℓ is 1; all far above it
    sides, present = torch.zeros(2, 2, n, 1, device=DEVICE), torch.ones(2, n, dtype=torch.bool, device=DEVICE)
    found = kernels.geometric(content, sides, sides, present)
    exact = geometric(
        directed(content.double(), sides.double(), sides.double(), present), Distances.of(n, content.device)
    )
    assert_close(found.double(), exact, atol=1e-6, rtol=1e-6)


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_kernels_take_half_precision(kernels, monkeypatch, dtype):
    tensors, present = attention_inputs([7, 5], 4, heads=1, dtype=dtype, device=DEVICE)
    distances = Distances.of(7, present.device)
    expected = found_with_gradients(partial(attend, present, distances), tensors)
    monkeypatch.setattr(ndr_attention, "_kernels", lambda content: kernels)
    found = found_with_gradients(partial(attend, present, distances), tensors)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        assert_close(one, other, atol=0.03, rtol=0.03)


@pytest.mark.kernels
@pytest.mark.parametrize(("rate", "gate_rate"), [(0.1, 0.05), (0.0, 0.3), (0.5, 0.0), (1 - 1e-9, 0.2)])
def test_kernels_draw_the_same_masks(kernels, monkeypatch, rate, gate_rate):
    monkeypatch.setattr(kernels, "COLUMNS", 16)
    dropout = LayerDropout(rate, gate_rate, 6, 17, torch.device(DEVICE))
    for layer in (ndr_layer.INPUTS, 0, 1, 16, 40):
        arguments = dropout.offsets, layer, 3, 5, dropout.width, *dropout.limits
        assert torch.equal(kernels.kept(*arguments), kept(*arguments))


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled whenever they run")
def test_kernels_compile(kernels):
    """The interpreter lets pass what Triton's compiler does not."""
    launches = []
    for dtype, n, block in ((torch.float32, 102, 128), (torch.bfloat16, 1002, 1024)):
        options = {"BLOCK": block, "num_warps": max(block // 256, 1)}
        pointers = [dtype] * 3 + [torch.uint8]
        launches.append((kernels.__name__, "weigh", [*pointers, dtype, 16, n], options))
        launches.append((kernels.__name__, "weigh_gradient", [*pointers, *[dtype] * 4, 16, n], options))
    mask = [torch.int32, torch.uint8, 3, 102, 1409, -26215, -29492]
    launches.append((kernels.__name__, "draw", mask, {"BLOCK": 1024, "num_warps": 4}))
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    (script,) = Path(__file__).parents[1].rglob("compile_kernels.py")
    done = subprocess.run(
        [sys.executable, script], input=pickle.dumps(launches), env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
