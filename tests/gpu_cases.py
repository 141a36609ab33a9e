"""Small encoders on a GPU: every one of them, a pass with all its gradients, and the distance of two passes."""

import random

import torch
from torch.func import functional_call

import beamtree
from beamtree import Tree
from beamtree.nn.encoders import options

DEVICE = "cuda"
DIM = 32
# Small; noise and dropout are on.
OPTIONS = {
    "ordered-memory": {"slots": 6, "memory_dropout": 0.1},
    "ndr": {"heads": 4, "feed_forward": 64, "layers": 3, "gate_dropout": 0.1},
    "bt-grc-soft": {"iterations": 20},
    "mc-gumbel-tree-grc": {"samples": 3},
    "lstm": {"layers": 2},  # dropout is between layers
}
NAMES = beamtree.encoders()
KERNELS = [name for name in NAMES if name not in ("lstm", "transformer")]  # which PyTorch computes alone


def make(name, engine="triton", seed=0):
    torch.manual_seed(seed)
    given = {"engine": engine} if "engine" in options(name) else {}
    encoder = beamtree.encoder(name, dim=DIM, dropout=0.1, **given, **OPTIONS.get(name, {})).to(DEVICE)
    if hasattr(encoder, "scorer"):
        with torch.no_grad():
            encoder.scorer.weight.mul_(3)  # so that rounding decides nothing
    return encoder


def make_plain(name):
    """The same encoder without kernels of its own. Those of `ndr`, which has no engines, are for float32."""
    return make(name).double() if name == "ndr" else make(name, "torch")


def inputs(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(lengths), max(lengths), DIM, generator=generator)
    return x.to(DEVICE), torch.tensor(lengths).to(DEVICE)


def arguments(encoder, lengths, seed):
    """The other arguments of `forward`: a generator that makes passes repeatable, and random trees for gold."""
    given = {"generator": torch.Generator(DEVICE).manual_seed(seed)}
    if encoder.needs_trees:
        draw = random.Random(seed)
        merges = ([draw.randrange(pairs) for pairs in range(length - 1, 0, -1)] for length in lengths.tolist())
        given["trees"] = [Tree.from_actions(actions) for actions in merges]
    return given


def gradients(state, x, weights):
    """Of a loss whose gradient does not vanish in a LayerNorm; zeros for tensors that it does not depend on."""
    return torch.autograd.grad(state.sin().sum(), (x, *weights), allow_unused=True, materialize_grads=True)


def run(encoder, x, lengths, seed=3, weights=None):
    """The state, and the gradients of x and of all weights."""
    x = x.clone().requires_grad_()
    given = arguments(encoder, lengths, seed)
    if weights is None:
        weights, state = dict(encoder.named_parameters()), encoder(x, lengths, **given).state
    else:
        state = functional_call(encoder, weights, (x, lengths), given).state
    return [state.detach(), *gradients(state, x, weights.values())]


def distance(found, expected):
    """The largest difference of one of the tensors, relative to the largest of them all."""
    scale = max(tensor.norm().item() for tensor in expected)
    return max((a - b).norm().item() for a, b in zip(found, expected, strict=True)) / scale
