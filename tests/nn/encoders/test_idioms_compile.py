"""`torch.compile` and `torch.export`."""

from pathlib import Path

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
    torch.manual_seed(0)
    truth = encoder(x, lengths, **given).state
    try:
        exported = torch.export.export(encoder, (x, lengths), given)
    except Exception as error:
        reason = str(error).splitlines()[0]  # PyTorch appends lines of its own
    else:
        reason = "torch.export works"
        torch.manual_seed(0)
        torch.testing.assert_close(exported.module()(x, lengths, **given).state, truth)
    assert "torch.export" in reason
