"""Passes on a GPU that share nothing: in threads, on streams, interleaved, of any shape."""

import random
import threading

import pytest
import torch
from torch.func import functional_call

import beamtree
from beamtree import Tree
from beamtree.nn.engine.gpu.cache import CACHE, budget

pytestmark = pytest.mark.gpu

DIM = 32
CASES = {
    "bt-grc": {},
    "bt-lstm": {},
    "bt-grc-onesoft": {},
    "ebt-grc": {},
    "bsrp-grc": {},
    "gumbel-tree-grc": {},
    "recurrent-grc": {},
    "gold-tree-grc": {},
    "ordered-memory": {"slots": 6, "memory_dropout": 0.1},
    "crvnn": {},
    "bt-grc-soft": {"iterations": 20},
}
every_case = pytest.mark.parametrize("name", CASES)


def make(name, engine="triton", seed=0):
    torch.manual_seed(seed)
    encoder = beamtree.encoder(name, dim=DIM, dropout=0.1, engine=engine, **CASES[name]).cuda()
    if hasattr(encoder, "scorer"):
        with torch.no_grad():
            encoder.scorer.weight.mul_(3)  # so that rounding decides nothing
    return encoder


def inputs(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(lengths), max(lengths), DIM, generator=generator).cuda(), torch.tensor(lengths).cuda()


def run(encoder, x, lengths, seed=3, weights=None):
    """The state, and the gradients of x and of all weights."""
    x = x.clone().requires_grad_()
    given = {"generator": torch.Generator("cuda").manual_seed(seed)}
    if encoder.needs_trees:
        given["trees"] = [Tree.from_actions([0] * (length - 1)) for length in lengths.tolist()]
    if weights is None:
        weights, state = dict(encoder.named_parameters()), encoder(x, lengths, **given).state
    else:
        state = functional_call(encoder, weights, (x, lengths), given).state
    wanted = (x, *weights.values())
    found = torch.autograd.grad(state.sin().sum(), wanted, allow_unused=True, materialize_grads=True)
    return [state.detach(), *found]


def distance(found, expected):
    """The largest difference of one of the tensors, relative to the largest of them all."""
    scale = max(tensor.norm().item() for tensor in expected)
    return max((a - b).norm().item() for a, b in zip(found, expected, strict=True)) / scale


@every_case
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


@every_case
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


@every_case
def test_random_shapes_interleaved_are_what_the_torch_engine_gives(name):
    """Two passes are always under way; some are never finished. Memory stays within its budget."""
    draw, (plain, fused) = random.Random(0), (make(name, engine) for engine in ("torch", "triton"))
    pending, worst = [], []
    for step in range(45):
        x, lengths = inputs([draw.randint(1, 24) for _ in range(draw.randint(1, 6))], seed=step)
        given = {}
        if fused.needs_trees:
            given["trees"] = [Tree.from_actions([0] * (length - 1)) for length in lengths.tolist()]
        generator = torch.Generator("cuda").manual_seed(step)
        state = fused(x, lengths, generator=generator, **given).state
        pending.append((step, x, lengths, state))
        if len(pending) == 3:
            step, x, lengths, state = pending.pop(draw.randrange(3))
            if draw.random() < 0.8:  # the others are forgotten
                weights = tuple(fused.parameters())
                found = torch.autograd.grad(state.sin().sum(), weights, allow_unused=True, materialize_grads=True)
                expected = run(plain, x, lengths, seed=step)
                worst.append(distance([state.detach(), *found], [expected[0], *expected[2:]]))
    assert sum(one > 1e-3 for one in worst) <= len(worst) // 20  # where rounding decided between two trees
    assert sum(workspace.bytes for workspace in CACHE.idle()) <= budget(torch.device("cuda"))


@every_case
def test_backward_uses_the_tensors_that_forward_got(name):
    encoder, other = make(name), make(name, seed=1)
    weights = {key: value.detach().clone().requires_grad_() for key, value in other.named_parameters()}
    case = inputs([12, 7, 3])
    assert distance(run(encoder, *case, weights=weights), run(other, *case)) < 1e-4


@every_case
def test_half_precision_modules_learn(name):
    encoder = make(name, "auto").bfloat16()
    x, lengths = inputs([9, 4])
    found = run(encoder, x.bfloat16(), lengths)
    assert all(tensor.dtype == torch.bfloat16 and tensor.isfinite().all() for tensor in found)


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
