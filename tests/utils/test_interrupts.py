"""A forward pass stops at the step at which its check raises an exception, and leaves nothing behind."""

import pytest
import torch

import beamtree
from beamtree.utils.interrupts import interruptible

N = 12
SEARCHING = ["bt-grc", "bt-grc-soft", "ebt-grc", "bsrp-grc", "gumbel-tree-grc", "cyk-grc", "crvnn", "ordered-memory"]


class Stop(Exception):
    pass


class Check:
    def __init__(self, most):
        self.calls, self.most = 0, most

    def __call__(self):
        self.calls += 1
        if self.calls > self.most:
            raise Stop


@pytest.mark.parametrize("name", SEARCHING)
def test_a_forward_pass_can_be_stopped_at_every_step(name):
    torch.manual_seed(0)
    encoder = beamtree.encoder(name, dim=8).eval()
    x = torch.randn(1, N, 8)
    with torch.no_grad():
        state = encoder(x).state
        whole = Check(most=10**6)
        with interruptible(whole):
            assert torch.equal(encoder(x).state, state)
        assert N - 4 <= whole.calls <= 3 * N  # about once per step; CRvNN halts early
        for most in (0, whole.calls // 2, whole.calls - 1):
            check = Check(most)
            with pytest.raises(Stop), interruptible(check):
                encoder(x)
            assert check.calls == most + 1
        assert torch.equal(encoder(x).state, state)
        assert check.calls == most + 1  # outside of the block nothing is called
