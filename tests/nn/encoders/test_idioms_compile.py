"""`torch.compile` and `torch.export`."""

from pathlib import Path

import pytest
import torch

from idioms import every_encoder, inputs, make, options, start


def test_compiled_encoders_compute_the_same_over_many_shapes():
    """In training and at inference, without a compilation for each shape."""
    process = start(Path(__file__).with_name("compiled.py"))
    report = process.stdout + process.stderr
    assert (process.returncode, report) == (0, ""), report


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
