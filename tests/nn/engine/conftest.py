"""The functions of the engines run under shape checks in tests/nn/encoders, and those for a GPU also in gpu/ here. The
other tests here compare numbers, many times: without shape checks they take half the time."""

import pytest

from support import no_shape_checks


@pytest.fixture(autouse=True)
def as_for_users(request):
    if "gpu" in request.path.parts:
        yield
    else:
        with no_shape_checks():
            yield
