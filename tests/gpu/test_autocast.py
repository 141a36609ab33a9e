"""Loops on a CUDA device under autocast in bfloat16, and with TF32: beside the torch engine, and beside float32."""

import pytest
import torch

import beamtree
from captured import on_gpu
from support import everything

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("workspaces")]
DIM, LENGTHS = 32, [6, 3, 1]
CASES = {
    "crvnn": {"dropout": 0.1},
    "cyk-grc": {"dropout": 0.1},
    "bt-grc-soft": {"beam_size": 2, "stochastic": False, "dropout": 0.1},
    "ordered-memory": {"slots": 4, "dropout": 0.1, "memory_dropout": 0.1},
}
every_encoder = pytest.mark.parametrize("name", CASES)


def make(name, engine="triton"):
    torch.manual_seed(0)
    return beamtree.encoder(name, dim=DIM, engine=engine, **CASES[name]).cuda()


def run(encoder, bf16):
    with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
        return everything(encoder, *on_gpu(LENGTHS, dim=DIM))


def outputs(result, trees):
    """All that is not a gradient; nodes only if these are their trees: in bfloat16, close scores may change places."""
    left_out = ("gradient",) if result[2] == trees else ("gradient", "nodes")
    return {name: value for name, value in result[0].items() if not name.startswith(left_out)}


def gradient_error(found, truth):
    """In norm, relative, all of them together: some are small, as sums in which larger terms cancel."""
    both = [(found[0][name], value) for name, value in truth[0].items() if "gradient" in name]
    error = sum((mine - theirs).square().sum() for mine, theirs in both)
    return (error / sum(theirs.square().sum() for _, theirs in both)).sqrt().item()


@every_encoder
def test_products_are_in_bfloat16(name):
    """Launched, captured and replayed, with other weights each time, and passes in float32 in between.

    Gradients are compared with those in float32: engine "torch" adds the gradients of a weight in bfloat16."""
    encoder = make(name)
    for _ in range(4):
        found = {}
        for encoder.engine in ("torch", "triton"):
            found[encoder.engine] = [run(encoder, bf16) for bf16 in (True, False)]
        for one, other, atol in zip(*found.values(), (4e-2, 1e-3), strict=True):
            torch.testing.assert_close(outputs(one, other[2]), outputs(other, one[2]), atol=atol, rtol=atol)
        assert found["triton"][1][2] == found["torch"][1][2]  # the trees, in float32
        half, full = found["triton"]
        assert gradient_error(full, found["torch"][1]) < 1e-3
        assert 1e-3 < gradient_error(half, found["torch"][1]) < 5e-2
        assert (half[0]["state"] - full[0]["state"]).abs().max() > 1e-3
        with torch.no_grad():
            for weight in encoder.parameters():
                weight.mul_(1.02)


@every_encoder
def test_precisions_share_no_graph(name, workspaces):
    encoder = make(name).eval()
    x, lengths = on_gpu(LENGTHS, dim=DIM)
    found = {"full": [], "tf32": [], "bf16": []}
    for _ in range(3):
        for precision, states in found.items():
            torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
            try:
                with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
                    state = encoder(x, lengths).state
                state.sum().backward()
            finally:
                torch.backends.cuda.matmul.allow_tf32 = False
            states.append(state.detach())
    for states in found.values():
        assert all(torch.equal(states[0], state) for state in states)
    assert not torch.equal(found["full"][0], found["tf32"][0])
    assert not torch.equal(found["full"][0], found["bf16"][0])
    assert len(workspaces) == (0 if name == "cyk-grc" else 3)  # which has no graph


@every_encoder
def test_modules_in_bfloat16_stay_close(name):
    half, full = make(name).eval().bfloat16(), make(name).eval().bfloat16().float()
    x, lengths = on_gpu(LENGTHS, dim=DIM)
    x = x.bfloat16()
    expected = full(x.float(), lengths).state
    for _ in range(3):
        half.zero_grad()
        state = half(x, lengths).state
        state.float().sin().sum().backward()
        torch.testing.assert_close(state.float(), expected, atol=0.05, rtol=0.05)
        assert all(weight.grad.dtype == torch.bfloat16 and weight.grad.isfinite().all() for weight in half.parameters())
