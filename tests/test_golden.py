"""Every engine gives the published code's encodings and gradients."""

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from beamtree.interop import load_official, official_names
from golden_cases import FILES, Golden


def test_all_cases_are_there() -> None:
    assert len(FILES) == 20


@pytest.mark.parametrize("engine", ["reference", "torch"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_encodings_and_gradients_are_those_of_the_published_code(path: Path, engine: str) -> None:
    case = Golden(path)
    encoder = case.encoder(engine)
    load_official(encoder, case.parameters)
    x = case.arrays["x"].double().requires_grad_()
    state = encoder(x, case.arrays["lengths"]).state
    state.sin().sum().backward()
    own = {theirs: encoder.get_parameter(ours).grad for theirs, ours in official_names(encoder).items()}
    # Rounding is 1e-15; the published code's masks add up to 2e-11 where OneSoft trains.
    for found, expected in ((state, case.arrays["output"]), (x.grad, case.arrays["grad_x"]), (own, case.gradients)):
        assert_close(found, expected, atol=1e-9, rtol=0)
    assert len(own) == len(list(encoder.parameters()))
    assert all(torch.any(gradient.abs() > 1e-6) for name, gradient in own.items() if name != "decide_linear.bias")
