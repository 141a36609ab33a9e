"""What the tests of PyTorch's idioms share: small encoders, a pass with all its gradients, and the comparison of a
changed encoder with a plain one that has the same effective weights.

The loss is `state.sin().sum()`: the gradient of a plain sum vanishes in a LayerNorm.
"""

import os
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import beamtree

DIM = 8
LENGTHS = (4, 1, 3)
# Small; noise and dropout are on. A bidirectional recurrent-grc has two cells.
OPTIONS = {
    "recurrent-grc": {"bidirectional": True},
    "mc-gumbel-tree-grc": {"samples": 2},
    "ordered-memory": {"slots": 3, "memory_dropout": 0.1},
    "bsrp-grc": {"beam_size": 2},
    "ndr": {"heads": 2, "feed_forward": 8, "layers": 2, "layers_at_test": 3, "gate_dropout": 0.2},
    "bt-grc": {"beam_size": 2},
    "bt-lstm": {"beam_size": 2},
    "bt-grc-onesoft": {"beam_size": 2},
    "bt-grc-soft": {"beam_size": 3},  # with two, its transport converges slowly
    "ebt-grc": {"beam_size": 2},
    "lstm": {"layers": 2},  # dropout is between layers
    "transformer": {"heads": 2, "feed_forward": 8},
}


def make(name, seed=0, dtype=torch.float64, **options):
    """An encoder whose weights depend on the seed alone. No bias is zero."""
    torch.manual_seed(seed)
    given = {"dropout": 0.2, **OPTIONS.get(name, {}), **options}
    encoder = beamtree.encoder(name, dim=DIM, **given).to(dtype)
    with torch.no_grad():
        for weight in encoder.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    return encoder


def has_reference(name):
    """Whether the encoder has an engine "reference", which is plain autograd."""
    try:
        make(name, engine="reference")
    except ValueError:
        return False
    return True


NAMES = beamtree.encoders()
REFERENCE = [name for name in NAMES if has_reference(name)]
CELLS = [name for name in NAMES if hasattr(make(name), "cell")]
OWN_CELLS = [name for name in NAMES if "cell" in beamtree.nn.encoders.options(name)]  # which take a user's module
SCORERS = [name for name in NAMES if hasattr(make(name), "scorer")]
STRAIGHT_THROUGH = [name for name in NAMES if "gumbel" in name]  # whose gradient is not the derivative of the loss

every_encoder = pytest.mark.parametrize("name", NAMES)
every_cell = pytest.mark.parametrize("name", CELLS)


def inputs(lengths=LENGTHS, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(lengths), max(lengths), DIM, generator=generator, dtype=torch.float64)
    return x.to(dtype), torch.tensor(lengths)


def options(name, lengths, seed=1, device="cpu"):
    """The other arguments of `forward`: a generator that makes passes repeatable, and trees where they are needed."""
    given = {"generator": torch.Generator(device).manual_seed(seed)}
    if name == "gold-tree-grc":
        given["trees"] = [beamtree.Tree.from_actions(list(range(n - 2, -1, -1))) for n in lengths]
    return given


class Pass(NamedTuple):
    state: Tensor
    gradients: dict[str, Tensor]  # zeros for tensors that the loss does not depend on


def encode(name, encoder, x, lengths, seed=1):
    return encoder(x, lengths, **options(name, lengths.tolist(), seed, x.device)).state


def run(name, encoder, x=None, lengths=None, wanted=None, more=0, seed=1):
    """The state that `encoder`, a module or a function, returns, and the gradients of x and of the tensors `wanted`, by
    default the module's parameters. `more` is added to the loss."""
    if x is None:
        x, lengths = inputs()
    x = x.detach().requires_grad_()
    wanted = {"x": x, **(dict(encoder.named_parameters()) if wanted is None else wanted)}
    state = encode(name, encoder, x, lengths, seed)
    found = gradients(state.sin().sum() + more, tuple(wanted.values()))
    return Pass(state.detach(), dict(zip(wanted, found, strict=True)))


def gradients(outputs, wanted, given=None):
    """With `given`, the gradients of the outputs, the graph is kept."""
    keep = given is not None
    return torch.autograd.grad(outputs, wanted, given, retain_graph=keep, allow_unused=True, materialize_grads=True)


def assert_same(found, truth, atol=1e-10):
    """Two passes agree in their state and in every gradient."""
    torch.testing.assert_close(found.state, truth.state, atol=atol, rtol=atol)
    assert found.gradients.keys() == truth.gradients.keys()
    for key, gradient in truth.gradients.items():
        torch.testing.assert_close(
            found.gradients[key], gradient, atol=atol, rtol=atol, msg=lambda text, key=key: f"gradient of {key}: {text}"
        )


def assert_equals_plain(name, encoder, effective=None, wanted=None, **changes):
    """`encoder`, a changed module or a function, equals a plain encoder whose weights are `effective`, functions of the
    tensors `wanted`: the same state, and by the chain rule the same gradients.

    By default `wanted` are the module's parameters, and `effective` is what it holds under the names of the plain
    encoder's parameters, updated by `changes`.
    """
    plain = make(name)
    if effective is None:
        plain.train(encoder.training)
        keys = [key for key, _ in plain.named_parameters() if key not in changes]
        effective = {key: attrgetter(key)(encoder) for key in keys} | changes
    wanted = dict(encoder.named_parameters()) if wanted is None else wanted
    with torch.no_grad():
        for key, weight in plain.named_parameters():
            weight.copy_(effective[key])
    truth = run(name, plain)
    given = [truth.gradients[key] for key in effective]
    through = gradients(tuple(effective.values()), tuple(wanted.values()), given)
    expected = dict(zip(wanted, through, strict=True), x=truth.gradients["x"])
    assert_same(run(name, encoder, wanted=wanted), Pass(truth.state, expected))


def start(program, *arguments):
    """Run a program to its end. One for all encoders, since it takes seconds to import PyTorch."""
    places = (Path(beamtree.__file__).parents[1], Path(__file__).parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
