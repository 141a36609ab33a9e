"""Dropout that belongs to a node: a mask is a function of a seed and a key, and nothing but."""

import math

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

import beamtree
from beamtree.nn.engine.dropout import NodeDropout
from support import BEAM_TREES

NODES, WIDTH = 2000, 64
# Standard deviations: of two million honest numbers one lies further out.
SIGMAS = 5


def dropout(rate: float = 0.5, width: int = WIDTH, seed: int = 0, dtype: torch.dtype = torch.float64) -> NodeDropout:
    return NodeDropout(rate, width, torch.zeros((), dtype=dtype), torch.Generator().manual_seed(seed))


def keys(count: int = NODES) -> tuple[Tensor, ...]:
    """Samples, starts, splits and ends of different nodes, small numbers as in real batches."""
    start, left, right = torch.arange(count) % 20, torch.arange(count) // 20 % 10 + 1, torch.arange(count) // 200 + 1
    return torch.arange(count) % 7, start, start + left, start + left + right


def masks_of(drop: NodeDropout, sample: Tensor, start: Tensor, split: Tensor, end: Tensor) -> Tensor:
    """The masks of the nodes that join [start, split) and [split, end)."""
    return drop.mask(torch.stack((sample, start, split), dim=-1), torch.stack((sample, split, end), dim=-1))


def assert_independent(one: Tensor, other: Tensor) -> None:
    pair = torch.stack((one.flatten(), other.flatten()))
    assert abs(float(pair.corrcoef()[0, 1])) < SIGMAS / math.sqrt(one.numel())


@pytest.mark.parametrize("width", [1, 7, WIDTH])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_every_number_of_a_mask_is_dropped_at_the_rate(rate: float, width: int) -> None:
    dropped = (masks_of(dropout(rate, width), *keys()) == 0).double()
    assert dropped.shape == (NODES, width)
    sigma = math.sqrt(rate * (1 - rate))
    assert_close(dropped.mean().item(), rate, atol=SIGMAS * sigma / math.sqrt(NODES * width), rtol=0)
    assert_close(
        dropped.mean(0), torch.full((width,), rate), atol=SIGMAS * sigma / math.sqrt(NODES), rtol=0, check_dtype=False
    )
    assert_close(dropped.mean(1).var().item(), sigma**2 / width, atol=0, rtol=0.25)  # nodes differ as chance has it


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_what_stays_is_scaled_up(rate: float, dtype: torch.dtype) -> None:
    mask = masks_of(dropout(rate, dtype=dtype), *keys())
    assert mask.dtype == dtype
    assert mask.unique().tolist() == [0, torch.tensor(1 / (1 - rate), dtype=dtype)]


def test_rate_0_drops_nothing() -> None:
    assert (masks_of(dropout(0.0), *keys()) == 1).all()


def test_a_node_has_one_mask_wherever_it_stands() -> None:
    """In a batch of another shape or order, alone, or twice."""
    drop, nodes = dropout(), keys(24)
    masks = masks_of(drop, *nodes)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    assert masks_of(drop, *(part[order] for part in nodes)).equal(masks[order])
    assert masks_of(drop, *(part.view(2, 3, 4) for part in nodes)).equal(masks.view(2, 3, 4, WIDTH))
    assert masks_of(drop, *(part[5] for part in nodes)).equal(masks[5])
    assert masks_of(drop, *nodes).equal(masks)


@pytest.mark.parametrize("part", range(4), ids=["sample", "start", "split", "end"])
@pytest.mark.parametrize("step", [1, 2, 64])
def test_nodes_that_differ_in_one_part_of_the_key_have_independent_masks(part: int, step: int) -> None:
    other = [key + step * (number == part) for number, key in enumerate(keys())]
    assert_independent(masks_of(dropout(), *keys()), masks_of(dropout(), *other))


def test_seeds_give_independent_masks() -> None:
    assert_independent(masks_of(dropout(seed=0), *keys()), masks_of(dropout(seed=1), *keys()))


@pytest.mark.parametrize("distance", [1, 2, WIDTH // 2])
def test_the_numbers_of_a_mask_are_independent(distance: int) -> None:
    mask = masks_of(dropout(), *keys())
    assert_independent(mask[:, :-distance], mask[:, distance:])


def test_all_nodes_of_a_sentence_have_different_masks() -> None:
    ends = torch.combinations(torch.arange(26), 3)  # every split of every span of 25 tokens
    masks = masks_of(dropout(), torch.zeros(len(ends), dtype=torch.int64), *ends.T)
    assert len(masks.unique(dim=0)) == len(ends) == 2600


def test_a_generator_repeats_the_masks_and_leaves_the_global_one_alone() -> None:
    state = torch.get_rng_state()
    assert masks_of(dropout(seed=3), *keys()).equal(masks_of(dropout(seed=3), *keys()))
    assert torch.get_rng_state().equal(state)


def test_without_a_generator_the_global_seed_repeats_the_masks() -> None:
    def draw() -> Tensor:
        return masks_of(NodeDropout(0.5, WIDTH, torch.zeros(())), *keys())

    torch.manual_seed(0)
    first, second = draw(), draw()
    torch.manual_seed(0)
    assert draw().equal(first)
    assert not second.equal(first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.9, 0.999999])
@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_other_devices_see_the_masks_of_a_cpu(rate: float, dtype: torch.dtype, noise: float) -> None:
    like, draw = torch.zeros((), dtype=dtype), torch.Generator().manual_seed(5)
    drop = NodeDropout(rate, 33, like, draw, noise=noise, noise_width=12)
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randint(-(2**20), 2**20, (2, 50, 3), generator=generator) for _ in range(2))
    masks = drop.mask(left, right)
    assert masks.shape == (2, 50, 45 if noise else 33)
    assert masks.dtype == dtype
    assert masks.equal(drop._by_torch(drop._key(left, right)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_graph_serves_noise_of_any_deviation(dtype: torch.dtype) -> None:
    """Like a captured graph, that of `make_fx` has the tensors of the first run, and its numbers."""
    like, draw = torch.zeros((), dtype=dtype), torch.Generator().manual_seed(5)
    low, high = (NodeDropout(0.3, 33, like, draw, noise=noise, noise_width=12) for noise in (0.2, 0.9))
    own, span = low.duplicate(), torch.tensor([[0, 0, 1], [1, 2, 5]])
    graph = make_fx(lambda: own._by_torch(own._key(span, span)))()
    for other in (low, high, low):
        own.copy_(other)
        assert graph().equal(other.mask(span, span))


@pytest.mark.parametrize("name", BEAM_TREES)
def test_every_engine_sees_the_same_masks_and_repeats_them(name: str) -> None:
    """With a generator they depend on it alone; the encoding and all gradients come out the same."""
    torch.manual_seed(0)
    x, lengths = torch.randn(3, 7, 6, dtype=torch.float64, requires_grad=True), torch.tensor([7, 4, 2])
    one = beamtree.encoder(name, dim=6, dropout=0.4, stochastic=False).double()

    def encode(engine: str, seed: int) -> tuple[Tensor, ...]:
        one.engine = engine
        state = one(x, lengths, generator=torch.Generator().manual_seed(seed)).state
        return state, *torch.autograd.grad(state.sin().sum(), (x, *one.parameters()))

    before, expected = torch.get_rng_state(), encode("reference", 0)
    assert_close(encode("reference", 0), expected, atol=0, rtol=0)
    assert_close(encode("torch", 0), expected, atol=1e-10, rtol=0)
    assert not encode("torch", 1)[0].equal(expected[0])
    assert torch.get_rng_state().equal(before)
