"""Encoders that search for nothing, on a CUDA device."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from beamtree.nn.encoders.given_tree import BalancedTree, GoldTree, RandomTree
from beamtree.nn.encoders.recurrent import Recurrent
from support import inputs

pytestmark = pytest.mark.gpu
LENGTHS = [150, 97, 64, 3, 2, 1]


def results(encoder, x, lengths, **options):
    """The encoding, and the gradients of x and of the weights, on the CPU."""
    x = x.clone().requires_grad_()
    out = encoder(x, lengths, **options)
    wanted = (x, *encoder.parameters())
    return [t.cpu() for t in (out.state.detach(), *torch.autograd.grad(out.state.sin().sum(), wanted))], out


def compare(found, expected, atol):
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, atol=atol, rtol=atol)


@pytest.mark.parametrize("kind", [BalancedTree, RandomTree])
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-10), (torch.float32, 5e-4)], ids=str)
def test_given_trees_are_composed_as_on_a_cpu(kind, dtype, atol):
    torch.manual_seed(0)
    encoder, gold = kind(16).to(dtype), GoldTree(16).to(dtype)
    gold.load_state_dict(encoder.state_dict())
    x, lengths = inputs(LENGTHS, dim=16, dtype=dtype)
    found, out = results(encoder.cuda(), x.cuda(), lengths.cuda())
    trees = [tree for (tree,) in out.beams.trees()]
    compare(found, results(gold, x, lengths, trees=trees)[0], atol)
    compare(found, results(gold.cuda(), x.cuda(), lengths.cuda(), trees=trees)[0], atol)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(
    ("engine", "dtype", "atol"),
    [("torch", torch.float64, 1e-10), ("torch", torch.float32, 5e-4), ("triton", torch.float32, 5e-4)],
    ids=str,
)
def test_a_recurrent_network_reads_as_on_a_cpu(bidirectional, engine, dtype, atol):
    """Twice: captured graphs are used again, for other weights."""
    for seed in range(2):
        torch.manual_seed(seed)
        encoder = Recurrent(16, bidirectional=bidirectional).to(dtype)
        x, lengths = inputs(LENGTHS, dim=16, dtype=dtype, seed=seed)
        expected, _ = results(encoder, x, lengths)
        encoder.engine = engine
        compare(results(encoder.cuda(), x.cuda(), lengths.cuda())[0], expected, atol)


@pytest.mark.parametrize("kind", [BalancedTree, RandomTree, Recurrent])
def test_a_seeded_run_repeats_exactly_with_dropout(kind):
    torch.manual_seed(0)
    encoder = kind(16, dropout=0.3).cuda()
    x, lengths = (t.cuda() for t in inputs(LENGTHS, dim=16, dtype=torch.float32))
    seeds = (1, 1, 2)
    first, again, other = (encoder(x, lengths, generator=torch.Generator("cuda").manual_seed(s)).state for s in seeds)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_recurrent_engines_agree_under_the_same_dropout():
    torch.manual_seed(0)
    encoder = Recurrent(16, dropout=0.3).cuda()
    x, lengths = (t.cuda() for t in inputs(LENGTHS, dim=16, dtype=torch.float32))
    found = []
    for encoder.engine in ("torch", "triton"):
        found.append(results(encoder, x, lengths, generator=torch.Generator("cuda").manual_seed(1))[0])
    compare(*found, 5e-4)


@pytest.mark.parametrize("make", [BalancedTree, Recurrent, partial(Recurrent, engine="triton")])
def test_bfloat16_autocast_stays_close(make):
    torch.manual_seed(0)
    encoder = make(32).cuda()
    x, lengths = (t.cuda() for t in inputs([7, 4], dim=32, dtype=torch.float32))
    exact, _ = results(encoder, x, lengths)
    with torch.autocast("cuda", torch.bfloat16):
        close = encoder(x, lengths).state
    assert_close(close.cpu(), exact[0], atol=0.05, rtol=0.05)
    gradients = torch.autograd.grad(close.sin().sum(), tuple(encoder.parameters()))
    for a, b in zip(gradients, exact[2:], strict=True):
        assert (a.cpu() - b).norm() <= 0.05 * b.norm() + 1e-4
