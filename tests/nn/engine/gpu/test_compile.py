"""Every kernel that a training step launches compiles for a GPU. The interpreter lets pass what Triton's compiler does
not, such as a variable that changes its type in a loop."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import beamtree
from support import in_small_pieces, inputs

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("kernels are compiled whenever they run", allow_module_level=True)

from triton.runtime.interpreter import InterpretedFunction

from beamtree.nn.engine.gpu import continuous, precision
from beamtree.nn.engine.gpu.cache import CACHE
from beamtree.nn.engine.gpu.kernels import masks, sinkhorn, windows

SCRIPT = Path(__file__).with_name("compile_kernels.py")
CASES = [
    ("bt-grc", {"beam_size": 2}),
    ("bt-lstm", {"beam_size": 2}),
    ("bt-grc-onesoft", {"beam_size": 2}),
    ("bt-grc-onesoft", {"beam_size": 2, "mix": "official"}),
    ("gumbel-tree-grc", {}),
    ("gumbel-tree-lstm", {}),
    ("recurrent-grc", {}),
    ("ebt-grc", {"beam_size": 2}),
    ("bsrp-grc", {"beam_size": 2}),
    ("balanced-tree-grc", {}),
    ("cyk-grc", {}),
    ("ordered-memory", {"slots": 2}),
]


@pytest.fixture
def launches(monkeypatch):
    """Filled by every launch, each kind once."""
    found = {}
    run = InterpretedFunction.run

    def noted(self, *arguments, grid, warmup, **options):
        kept = [one.dtype if isinstance(one, torch.Tensor) else one for one in arguments]
        launch = (self.fn.__module__, self.fn.__name__, kept, options)
        found[str(launch)] = launch
        return run(self, *arguments, grid=grid, warmup=warmup, **options)

    monkeypatch.setattr(InterpretedFunction, "run", noted)
    in_small_pieces(monkeypatch)
    CACHE.clear()
    yield found
    CACHE.clear()


def step(name, options, bf16=False):
    torch.manual_seed(0)
    encoder = beamtree.encoder(name, dim=16, dropout=0.1, engine="triton", **options).train()
    x, lengths = inputs([4], dim=16, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        state = encoder(x, lengths).state
    state.sum().backward()


def compile_all(launches):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    given = pickle.dumps(list(launches.values()))
    return subprocess.run([sys.executable, SCRIPT], input=given, env=environment, capture_output=True, check=False)


def test_kernels_compile(launches, monkeypatch):
    for name, options in CASES:
        step(name, options)
    monkeypatch.setattr(precision, "FEW", 0)
    CACHE.clear()
    for name in ("bt-grc", "bt-grc-onesoft"):
        step(name, {"beam_size": 2})
        step(name, {"beam_size": 2}, bf16=True)
    step("ordered-memory", {"slots": 2}, bf16=True)
    step("cyk-grc", {}, bf16=True)
    one = torch.ones(1, 3, 2, dtype=torch.float64)
    sinkhorn.scalings(one, one[..., :1], one[:, :2, :1], iterations=1)
    sinkhorn.cost_gradient(one.float() / 2, one.float(), epsilon=0.1)
    total, values = torch.arange(4.0, dtype=torch.float64)[None].requires_grad_(), torch.randn(1, 3, 4).requires_grad_()
    once = windows.averages(total, total.detach(), values)
    windows.averages(total, total.detach(), once).sum().backward()
    windows.averages(total, total.detach(), values.double()).sum().backward()
    existence, absorbable = torch.rand(1, 5, requires_grad=True), torch.ones(1, 5, dtype=torch.bool)
    average, active = continuous.neighbours(existence, absorbable, 0.1)
    sum(continuous.absorb(existence, active, existence, average, 600.0)).sum().backward()
    masks.masks(torch.ones(1, 1, dtype=torch.long), torch.ones(2, dtype=torch.int32), 4, threshold=0, scale=2.0)
    done = compile_all(launches)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    launched = {name for _, name, *_ in launches.values()}
    assert {
        "propose",
        "advance",
        "choose",
        "into_inner",
        "sequence_gradient",
        "gate_gradient",
        "iterate",
        "absorb",
    } <= launched
