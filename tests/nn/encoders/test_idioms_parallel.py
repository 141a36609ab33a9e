"""DistributedDataParallel in two processes; threads."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from idioms import assert_same, every_encoder, inputs, make, run, start

pytestmark = pytest.mark.usefixtures("shape_checks_off")  # they take a third of the time

PASSES = 4


def test_two_processes_get_the_mean_of_their_gradients(tmp_path):
    process = start(Path(__file__).with_name("ddp.py"), tmp_path / "store")
    assert (process.returncode, process.stdout) == (0, ""), process.stderr


@pytest.fixture
def fast_switching():
    """Python switches between threads every 10 µs, not every 5 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@every_encoder
def test_threads_do_not_disturb_one_another(name, fast_switching):
    """Two threads share a model, a third has another model of the same size."""
    shared, other = make(name), make(name, seed=1)
    jobs = [(shared, *inputs(seed=0)), (shared, *inputs(seed=1)), (other, *inputs(seed=2))]
    truths, start = [run(name, *job) for job in jobs], threading.Barrier(len(jobs))

    def repeat(job):
        start.wait()
        return [run(name, *job) for _ in range(PASSES)]

    with ThreadPoolExecutor(len(jobs)) as pool:
        for truth, passes in zip(truths, pool.map(repeat, jobs), strict=True):
            for found in passes:
                assert_same(found, truth)
