"""Ordered Memory on a CUDA device: in CUDA graphs beside launch by launch, in float32 without TF32."""

import pytest
import torch
from torch.testing import assert_close

from beamtree.nn.encoders.ordered_memory import OrderedMemory
from beamtree.nn.engine.gpu import cache
from captured import assert_a_seed_repeats, assert_inference_and_training_share_graphs, compare, on_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("workspaces")]
LENGTHS = [40, 33, 17, 3, 2, 1]


def make(seed=0, dim=16, strength=3.0, **options):
    """Weights depend on the seed alone; a stronger scorer makes a harder p."""
    torch.manual_seed(seed)
    encoder = OrderedMemory(dim, **{"slots": 5, **options})
    with torch.no_grad():
        encoder.scorer.weight.mul_(strength)
    return encoder.cuda()


def test_a_gpu_computes_what_a_cpu_does(workspaces):
    encoder = make(engine="triton").eval()
    x, lengths = on_gpu(LENGTHS)
    found = encoder(x, lengths).state.cpu()
    assert len(workspaces) == 1
    encoder.cpu().engine = "torch"
    assert_close(found, encoder(x.cpu(), lengths.cpu()).state, atol=5e-4, rtol=5e-4)


@pytest.mark.parametrize(
    "rates", [{}, {"dropout": 0.3}, {"memory_dropout": 0.3}, {"dropout": 0.2, "memory_dropout": 0.1}]
)
def test_graphs_are_the_launches(rates, workspaces):
    """Outputs, trees and every gradient. The first pass is launched and captured, the later ones replay, with other
    weights, inputs and lengths."""
    for seed, lengths in enumerate((LENGTHS, LENGTHS[::-1], [2] * 6, [70, 9, 8, 7, 6, 5])):
        compare(make(seed, **rates), lengths, seed)
    assert len(workspaces) == 1


@pytest.mark.parametrize("slots", [1, 2, 21])
@pytest.mark.parametrize("batch", [1, 3, 200], ids=lambda b: f"B{b}")
def test_any_number_of_slots_and_samples_will_do(slots, batch):
    """Twice, so that both graphs are replayed."""
    encoder = make(slots=slots, dropout=0.1)
    for seed in range(2):
        compare(encoder, [19] * batch, seed, atol=2e-3)


def test_the_papers_width_and_a_long_input():
    encoder = make(dim=128, slots=21, strength=1.0, dropout=0.1, memory_dropout=0.1)
    compare(encoder, [150], atol=5e-3)


def test_passes_of_two_sizes_may_be_under_way(workspaces):
    """Their buffers are used again before their gradients are taken."""
    encoder = make()
    cases = [list(on_gpu(lengths, seed)) for seed, lengths in enumerate(([20, 9], [33], [20, 9], [5]))]
    found = []
    for encoder.engine in ("torch", "triton"):
        passes = []
        for x, lengths in cases:
            x.requires_grad_()
            passes.append(encoder(x, lengths).state)
        weights = [weight for name, weight in encoder.named_parameters() if name != "scorer.bias"]
        found.append(
            [
                torch.autograd.grad(state.sin().sum(), (case[0], *weights))
                for case, state in zip(cases, passes, strict=True)
            ]
        )
    for one, other in zip(*found, strict=True):
        assert_close(one, other, atol=5e-4, rtol=5e-4)
    assert len(workspaces) == 2


def test_a_seeded_pass_repeats_exactly():
    assert_a_seed_repeats(make(dropout=0.3, memory_dropout=0.3), LENGTHS)


def test_inference_and_training_share_graphs(workspaces):
    assert_inference_and_training_share_graphs(make().eval(), *on_gpu(LENGTHS), workspaces)


@pytest.mark.parametrize("engine", ["torch", "triton"])
def test_bfloat16_autocast_stays_close(engine):
    """Also after a step of the optimizer: no graph may hold a rounded copy of old weights."""
    encoder = make(dim=32, strength=1.0, engine=engine)
    x, lengths = on_gpu([7, 4], dim=32)
    weights = [weight for name, weight in encoder.named_parameters() if name != "scorer.bias"]  # its gradient is 0
    for _ in range(3):
        exact = encoder(x, lengths).state
        expected = torch.autograd.grad(exact.sin().sum(), weights)
        with torch.autocast("cuda", torch.bfloat16):
            near = encoder(x, lengths).state
        found = torch.autograd.grad(near.sin().sum(), weights)
        assert_close(near, exact, atol=0.05, rtol=0.05)
        for a, b in zip(found, expected, strict=True):
            assert (a - b).norm() <= 0.05 * b.norm() + 1e-3
        with torch.no_grad():
            for weight, gradient in zip(weights, expected, strict=True):
                weight -= gradient


def test_tf32_is_heeded(workspaces):
    encoder = make(dim=64).eval()
    x, lengths = on_gpu([20], dim=64)
    with torch.no_grad():
        full = encoder(x, lengths).state
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            encoder(x, lengths)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False
        assert torch.equal(full, encoder(x, lengths).state)
    assert len(workspaces) == 2


def test_float64_is_launched(workspaces):
    encoder = make().double()
    x, lengths = on_gpu(LENGTHS)
    encoder(x.double(), lengths).state.sum().backward()
    assert not len(workspaces)


def test_changing_sizes_keep_memory_bounded(workspaces, monkeypatch):
    monkeypatch.setattr(cache, "MAX_IDLE", 2)
    encoder = make()
    for batch in range(1, 6):
        encoder(*on_gpu([9] * batch)).state.sum().backward()
    assert len(workspaces) == 2
    encoder.zero_grad()
    held = torch.cuda.memory_allocated()
    workspaces.clear()
    assert torch.cuda.memory_allocated() < held
