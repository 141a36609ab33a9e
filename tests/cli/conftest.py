"""A clock for the lines of progress, which tests set: however slow the machine, no line is due by itself."""

import pytest

from beamtree.utils import terminal


class Clock:
    """Seconds, which advance by `step` with every look at the clock."""

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
