"""Encoders that compose all pairs at each step, with the cell in kernels, against engine "torch"."""

import pytest
import torch

pytest.importorskip("triton")

import beamtree
from beamtree.nn.cells.grc.dense import DenseComposition
from beamtree.nn.engine.gpu import segments
from support import assert_same, everything, inputs

pytestmark = pytest.mark.kernels
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CASES = [
    ("crvnn", {}),
    ("crvnn", {"halt": False, "dropout": 0.2}),
    ("cyk-grc", {"dropout": 0.2}),
    ("cyk-grc", {"masks": "official"}),
    ("bt-grc-soft", {"beam_size": 2, "dropout": 0.2}),
]


@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda value: value if isinstance(value, str) else str(value))
def test_engines_agree(name, options, workspaces, monkeypatch):
    monkeypatch.setattr(segments, "MAX_STEPS", 2)  # without a GPU kernels take long
    calls, compose = [], DenseComposition.apply
    monkeypatch.setattr(DenseComposition, "apply", lambda *given: calls.append(1) or compose(*given))
    torch.manual_seed(0)
    encoder = beamtree.encoder(name, dim=6, **options).to(DEVICE)
    x, lengths = (given.to(DEVICE) for given in inputs([3, 1], dtype=torch.float32))
    found = {}
    for encoder.engine in ("torch", "triton"):
        calls.clear()
        found[encoder.engine] = everything(encoder, x, lengths)
        assert bool(calls) == (encoder.engine == "triton")
    assert_same(found["torch"], found["triton"], atol=2e-5)
