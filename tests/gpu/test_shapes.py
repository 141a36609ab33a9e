"""Passes of many shapes on a GPU: right when they are interleaved, and in bounded memory."""

import gc
import itertools
import random

import pytest
import torch

import beamtree
from beamtree.nn.engine.gpu import cache
from gpu_cases import DEVICE, KERNELS, arguments, distance, gradients, inputs, make, make_plain, run

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("workspaces")]

SHAPES = 500  # to compare, of all encoders together


def held():
    """Bytes in tensors. cuBLAS allocates workspaces of its own when it is first used, which are freed here: the graphs
    that hold their addresses must not be replayed any more."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()


def interleaved(fused, plain, passes=45):
    """The distances of passes of two encoders. Two of the first are always under way; some are never finished."""
    draw, pending, distances = random.Random(0), [], []
    for step in range(passes):
        x, lengths = inputs([draw.randint(1, 24) for _ in range(draw.randint(1, 6))], seed=step)
        state = fused(x.requires_grad_(), lengths, **arguments(fused, lengths, step)).state
        pending.append((step, x, lengths, state))
        if len(pending) == 3:
            step, x, lengths, state = pending.pop(draw.randrange(3))
            if draw.random() < 0.8:  # the others are forgotten
                found = [state.detach(), *gradients(state, x, fused.parameters())]
                same = x.detach().to(next(plain.parameters()).dtype)
                distances.append(distance(found, run(plain, same, lengths, seed=step)))
    return distances


@pytest.mark.parametrize("name", KERNELS)
def test_random_shapes_interleaved_are_what_the_torch_engine_gives(name, workspaces):
    """The state, and the gradients of x and of all weights."""
    fused, plain = make(name), make_plain(name)
    before = held()
    distances = interleaved(fused, plain)
    assert len(distances) * len(KERNELS) >= SHAPES
    assert sum(one > 1e-3 for one in distances) <= len(distances) // 20  # where rounding decided between two trees
    limit = cache.budget(torch.device(DEVICE))
    assert sum(workspace.bytes for workspace in workspaces.idle()) <= limit
    assert held() - before <= limit


LIMIT = 2**26
# The samples of a batch, and the padded lengths: a workspace for each, none of which is larger than half the limit.
SIZES = {
    "bt-grc": (8, range(20, 324, 16)),
    "bsrp-grc": (4, range(20, 324, 16)),
    "gumbel-tree-grc": (32, range(20, 324, 16)),
    "bt-grc-onesoft": (2, range(20, 96, 4)),
}


def step_in_all_sizes(encoders):
    for sizes in itertools.zip_longest(*(lengths for _, lengths in SIZES.values())):
        for (name, (batch, _)), length in zip(SIZES.items(), sizes, strict=True):
            if length is not None:
                run(encoders[name], *inputs([length] * batch))


def test_memory_keeps_to_the_budget_over_many_shapes(workspaces, monkeypatch):
    """What is allocated, not only what the cache counts. It counts the large buffers of a workspace; the weights, the
    results of graphs and other small tensors may take as much again."""
    encoders = {name: make(name) for name in SIZES}
    before = held()
    monkeypatch.setattr(cache, "budget", lambda device: LIMIT)
    step_in_all_sizes(encoders)
    assert held() - before <= 2 * LIMIT
    beamtree.release_memory()
    assert held() - before <= LIMIT // 8
    monkeypatch.setattr(cache, "budget", lambda device: float("inf"))
    monkeypatch.setattr(cache, "MAX_IDLE", 1000)
    step_in_all_sizes(encoders)
    assert held() - before > 4 * LIMIT  # so the budget was what bounded it
