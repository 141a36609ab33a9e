"""The faster interpreter of the tests computes what Triton's own does."""

import itertools

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("kernels run on the GPU", allow_module_level=True)

import triton.language as tl
from triton.runtime import interpreter as triton_interpreter

import interpreter

TYPES = {
    "int1": np.bool_,
    "int32": np.int32,
    "int64": np.int64,
    "uint32": np.uint32,
    "fp16": np.float16,
    "fp32": np.float32,
    "fp64": np.float64,
    "pointer": np.uint64,
}
SHAPES = [(), (4, 2), (1, 2)]
CONSTANTS = [0, 3, -2, 2**31, 2**40, True, 0.5, -1e-3, 1e300, float("inf"), float("nan"), tl.constexpr(7)]


def tensor(name, shape, seed):
    """A tensor with random contents. The data of a scalar has one element, as in the interpreter."""
    element = tl.pointer_type(tl.float32) if name == "pointer" else tl.dtype(name)
    data = np.random.default_rng(seed).integers(0, 100, shape or (1,)).astype(TYPES[name])
    handle = triton_interpreter.TensorHandle(data, element)
    return tl.tensor(handle, tl.block_type(element, list(shape)) if shape else element)


def outcome(call, left, right):
    try:
        result = call(left, right)
    except Exception as error:
        return type(error).__name__
    return result


def assert_same(found, expected):
    if isinstance(expected, str) or not isinstance(expected, tl.tensor):
        assert found == expected
        return
    np.testing.assert_array_equal(found.handle.data, expected.handle.data, strict=True)
    assert found.handle.dtype == expected.handle.dtype
    assert (found.type, found.dtype) == (expected.type, expected.dtype)
    assert [size.value for size in found.shape] == [size.value for size in expected.shape]


@pytest.fixture
def operator(request):
    triton_interpreter._patch_lang(lambda: tl)  # as the first kernel does
    return interpreter.Operator(request.param, interpreter.patched_operators[request.param].call)


@pytest.mark.parametrize("operator", interpreter.OPERATORS, indirect=True)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_operators_give_what_triton_gives(operator):
    """The second time too, when they do not ask Triton any more."""
    fast = operator.function()
    for left, right in itertools.product(itertools.product(TYPES, SHAPES), repeat=2):
        for seed in range(2):
            operands = tensor(*left, seed), tensor(*right, seed + 10)
            assert_same(outcome(fast, *operands), outcome(operator.call, *operands))
    for left, constant in itertools.product(itertools.product(TYPES, SHAPES), CONSTANTS):
        for seed in range(2):
            operand = tensor(*left, seed)
            assert_same(outcome(fast, operand, constant), outcome(operator.call, operand, constant))
    assert sum(plan is not None for plan in operator.plans.values()) > 50
