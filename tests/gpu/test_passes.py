"""Passes on a GPU that share nothing: in threads, on streams, with other weights."""

import threading

import pytest
import torch

import beamtree
from beamtree.nn.engine.gpu import cache
from beamtree.nn.engine.gpu.cache import CACHE
from gpu_cases import DEVICE, KERNELS, NAMES, distance, inputs, make, run

pytestmark = pytest.mark.gpu

every_encoder = pytest.mark.parametrize("name", NAMES)
every_kernel = pytest.mark.parametrize("name", KERNELS)


@every_encoder
@pytest.mark.parametrize("models", [1, 2], ids=["one-model", "two-models"])
def test_threads_do_not_touch_each_other(name, models):
    encoders = [make(name, seed=seed) for seed in range(models)] * (3 - models)
    cases = [inputs([14, 9, 6], seed=seed) for seed in (0, 1)]
    expected = [run(encoder, *case) for encoder, case in zip(encoders, cases, strict=True)]
    wrong, errors = [], []

    def work(index):
        try:
            for step in range(15):
                if distance(run(encoders[index], *cases[index]), expected[index]) > 1e-4:
                    wrong.append((index, step))
        except Exception as error:  # shown below: a thread's own would be lost
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert not wrong


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # PyTorch's, of gradients on other streams
@every_kernel
def test_streams_do_not_touch_each_other(name):
    encoder, cases = make(name), [inputs([14, 9, 6], seed=seed) for seed in (0, 1)]
    expected = [run(encoder, *case) for case in cases]
    streams, found = [torch.cuda.Stream() for _ in cases], [[], []]
    torch.cuda.synchronize()
    for _ in range(5):
        for index, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                found[index].append(run(encoder, *cases[index]))
    torch.cuda.synchronize()
    for index in (0, 1):
        assert all(distance(one, expected[index]) < 1e-4 for one in found[index])


@every_kernel
def test_an_evicted_workspace_takes_nothing_from_the_others(name, workspaces, monkeypatch):
    encoder, kept = make(name), inputs([14, 9, 6])
    expected = [run(encoder, *kept) for _ in range(3)][-1]  # the second pass captures, the third replays
    for _ in range(3):
        run(encoder, *inputs([40, 9]))
    run(encoder, *kept)  # used last, so the other workspaces are evicted first
    monkeypatch.setattr(cache, "budget", lambda device: 0)
    run(encoder, *kept)
    monkeypatch.undo()
    filled = [torch.full((2**20,), float("nan"), device=DEVICE) for _ in range(64)]  # what was freed is in use again
    assert distance(run(encoder, *kept), expected) < 1e-4
    del filled


@every_kernel
def test_backward_uses_the_tensors_that_forward_got(name):
    encoder, other = make(name), make(name, seed=1)
    weights = {key: value.detach().clone().requires_grad_() for key, value in other.named_parameters()}
    case = inputs([12, 7, 3])
    assert distance(run(encoder, *case, weights=weights), run(other, *case)) < 1e-4


@pytest.mark.parametrize("name", ["bt-grc", "gumbel-tree-grc", "gold-tree-grc"])
def test_deterministic_algorithms_are_honoured(name):
    encoder, case = make(name, "auto"), inputs([12, 7, 3])
    torch.use_deterministic_algorithms(True)
    try:
        first, second = run(encoder, *case), run(encoder, *case)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_memory_can_be_released():
    run(make("bt-grc"), *inputs([20, 10]))
    assert len(CACHE) > 0
    beamtree.release_memory()
    assert len(CACHE) == 0
