"""A fake clock for progress lines, so that they do not depend on the speed of the machine."""

import pytest

from beamtree.utils import terminal


class Clock:
    """A clock that advances by `step` seconds with every call."""

    def __init__(self):
        self.now = self.step = 0

    def __call__(self):
        self.now += self.step
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(terminal, "_clock", clock)
    return clock
