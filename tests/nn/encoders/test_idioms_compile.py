"""`torch.compile` and `torch.export`."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from idioms import every_encoder, inputs, make, options, start

PROGRAM = Path(__file__).with_name("compiled.py")
COMPILER = os.environ.get("CXX", "g++")  # as inductor chooses it on Linux


def test_compiled_encoders_compute_the_same_over_many_shapes():
    """In training and at inference, without a compilation for each shape."""
    process = start(PROGRAM)
    report = process.stdout + process.stderr
    assert (process.returncode, report) == (0, ""), report


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"inductor needs a C++ compiler, and there is no {COMPILER}")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_an_encoder_between_generated_code_computes_the_same(device):
    process = start(PROGRAM, device)
    assert (process.returncode, process.stdout) == (0, ""), process.stdout + process.stderr


@every_encoder
def test_export_works_or_says_why_not(name):
    encoder, (x, lengths) = make(name).eval(), inputs()
    given = {key: value for key, value in options(name, lengths.tolist()).items() if key != "generator"}
    if given:
        with pytest.raises(ValueError, match=r"Unsupported input type .*Tree"):
            torch.export.export(encoder, (x, lengths), given)
        with pytest.raises(RuntimeError, match=r"torch.export cannot export GoldTree: .* Python objects"):
            torch.export.export(encoder, (x, lengths))
        return
    program = torch.export.export(encoder, (x, lengths)).module()
    torch.manual_seed(0)
    seed = int(torch.randint(2**62, ()))  # which the program draws for its noise
    truth = encoder(x, lengths, torch.Generator().manual_seed(seed)).state
    torch.manual_seed(0)
    torch.testing.assert_close(program(x, lengths).state, truth)
