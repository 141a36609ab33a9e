"""Shared by the tests of Efficient Beam Tree Recursion: small encoders, and what tests are run with."""

import pytest

from support import make

both_engines = pytest.mark.parametrize("engine", ["reference", "torch"])
every_duplicates = pytest.mark.parametrize("duplicates", ["keep", "drop", "merge"])


def ebt(engine="torch", slice=4, **options):
    """States have 6 numbers, of which the scorer reads 4."""
    return make("ebt-grc", engine, slice=slice, **options)
