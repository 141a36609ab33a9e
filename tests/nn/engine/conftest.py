"""The functions of the engines run under shape checks in tests/nn/encoders, and those for a GPU also in gpu/ here. The
other tests here compare numbers, many times: without shape checks they take half the time."""

import pytest


@pytest.fixture(autouse=True)
def as_for_users(request):
    if "gpu" not in request.path.parts:
        request.getfixturevalue("shape_checks_off")
