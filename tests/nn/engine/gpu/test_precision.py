"""Products of float32 from three of TF32: no number loses more than float32 itself does."""

import pytest
import torch

pytest.importorskip("triton")

import triton

from beamtree.nn.cells.grc import kernels
from beamtree.nn.engine.gpu.precision import (
    FEW,
    MANY,
    SOME,
    buffer_for,
    lay_out,
    method,
    tile,
    to_tf32,
    weight_gradient,
)

pytestmark = pytest.mark.kernels
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_tf32_has_eleven_bits():
    x = random(1000) * random(1000, seed=1).mul(9).exp()
    rounded = to_tf32(x)
    assert (rounded.view(torch.int32) % (1 << 13) == 0).all()
    assert torch.equal(to_tf32(rounded), rounded)
    assert ((x - rounded).abs() <= x.abs() * 2**-11).all()
    assert to_tf32(torch.tensor([1 + 2**-11 + 2**-20, -1 - 2**-12])).tolist() == [1 + 2**-10, -1.0]


def test_two_parts_make_the_number():
    matrix = random(30, 20)
    buffer = buffer_for(matrix.mT, "split")
    lay_out(buffer, matrix.mT)
    assert torch.equal(to_tf32(buffer), buffer)
    assert ((buffer.double().sum(1) - matrix.mT).abs() <= matrix.mT.abs() * 2**-22).all()


def test_a_weight_that_lies_in_its_place_stays_there():
    matrix = random(3, 4)
    lay_out(matrix, matrix)
    assert torch.equal(matrix, random(3, 4))
    buffer = buffer_for(matrix.mT, "ieee")
    lay_out(buffer, matrix.mT)
    assert buffer.is_contiguous()
    assert torch.equal(buffer, matrix.mT)


def test_gradients_of_weights_have_the_precision_of_the_products():
    gradient, x = random(50, 4), random(50, 6, seed=1)
    exact = gradient.double().mT @ x.double()
    for how in ("ieee", "split", "tf32"):
        torch.testing.assert_close(weight_gradient(gradient, x, how), gradient.mT @ x, atol=0, rtol=0)
    rough = weight_gradient(gradient, x, "bf16")
    assert rough.dtype == torch.float32
    assert 1e-4 < (rough - exact).norm() / exact.norm() < 2**-7


def test_only_full_float32_with_many_rows_is_split():
    assert method(FEW, "ieee") == "ieee"
    assert method(FEW + 1, "ieee") == "split"
    assert {method(FEW + 1, precision) for precision in ("tf32", "bf16")} == {"tf32", "bf16"}


@pytest.mark.parametrize("rows", [3, FEW + 1, SOME + 1, MANY + 1] if DEVICE == "cuda" else [3, 20], ids=str)
@pytest.mark.parametrize("width", [512, 320] if DEVICE == "cuda" else [48], ids=lambda E: f"E{E}")
def test_a_product_of_three_is_as_exact_as_one(rows, width):
    x, weight, bias = (t.to(DEVICE) for t in (random(rows, width), random(width, width, seed=1), random(width)))
    exact = x.double() @ weight.double() + bias.double()
    error = {}
    for how in ("ieee", "split"):
        buffer, out, sizes = buffer_for(weight, how), torch.empty_like(x), tile(rows, how)
        lay_out(buffer, weight)
        grid = triton.cdiv(rows, sizes["BM"]), triton.cdiv(width, sizes["BN"])
        kernels.gates[grid](x, buffer, bias, out, rows, width, **sizes)
        error[how] = (out - exact).square().mean().sqrt().item()
    assert error["split"] < 1.5 * error["ieee"]
    assert error["split"] < 1e-6 * exact.abs().mean()
