"""A program, `python compiled.py`: compares every encoder under `torch.compile` with itself. It prints what is wrong.
With a device, `python compiled.py cpu`, it compares one encoder between layers for which inductor generates code.

Not part of a test's process, where Dynamo would trace the shape checks too.
"""

import sys
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._dynamo.eval_frame import skip_code

from beamtree.nn.encoders.base import Encoder
from idioms import DIM, NAMES, assert_same, encode, inputs, make, run

SHAPES = [(2, 3), (3, 4), (1, 5), (2, 6), (3, 2), (2, 5), (1, 2), (3, 3), (1, 6), (2, 4)]  # (B, N)
# At most, for any frame: the first shape, all shapes, a batch of one; and lists of trees, whose length is a constant.
COMPILATIONS = 4
# Of the operator, also: inputs with one merge, in a batch of one and of more.
COMPILATIONS_WITH_MERGES = 5
NO_OPERATOR = ("gold-tree-grc",)  # its trees are Python objects
BACKENDS = ("aot_eager",)  # traces backward too, and generates no code


class Output(NamedTuple):
    state: Tensor


class Model(nn.Module):
    """An encoder between other layers."""

    def __init__(self, encoder):
        super().__init__()
        self.before, self.encoder, self.after = nn.Linear(DIM, DIM), encoder, nn.Linear(DIM, DIM)

    def forward(self, x, lengths, **options):
        return Output(self.after(self.encoder(self.before(x).tanh(), lengths, **options).state.tanh()))


def batches():
    return [inputs([length, *[max(length - 1, 1)] * (batch - 1)]) for batch, length in SHAPES]


def compile_afresh(module, backend):
    torch._dynamo.reset()
    return torch.compile(module, backend=backend)


def check_training(name, module, backends=BACKENDS):
    own = dict(module.named_parameters())
    truths = [run(name, module, *batch) for batch in batches()]
    for backend in backends:
        other = compile_afresh(module, backend)
        for batch, truth in zip(batches(), truths, strict=True):
            assert_same(run(name, other, *batch, wanted=own), truth)


@torch.no_grad()
def check_inference(name, module):
    some = batches() if name in NO_OPERATOR else batches()[:4]  # `check_operator` has all shapes
    states = [encode(name, module, *batch) for batch in some]
    for backend in BACKENDS:
        other = compile_afresh(module, backend)
        for batch, state in zip(some, states, strict=True):
            torch.testing.assert_close(encode(name, other, *batch), state, atol=1e-10, rtol=1e-10)


@torch._dynamo.config.patch(recompile_limit=COMPILATIONS_WITH_MERGES)
@torch.no_grad()
def check_operator(name, encoder, fullgraph=True):
    """Without a generator inference is one graph, in which the encoder is an operator with a seed."""
    torch._dynamo.reset()
    other = torch.compile(encoder, backend="aot_eager", fullgraph=fullgraph)
    for x, lengths in batches():
        torch.manual_seed(0)
        state = encoder(x, lengths, torch.Generator().manual_seed(int(torch.randint(2**62, ())))).state
        torch.manual_seed(0)
        torch.testing.assert_close(other(x, lengths).state, state, atol=1e-10, rtol=1e-10)


@torch.no_grad()
def check_changes():
    """Of options after compilation; and an encoder that is no operator, which breaks the graph."""
    torch._dynamo.reset()
    encoder, (x, lengths) = make("bt-grc").eval(), inputs()
    other = torch.compile(encoder, backend="eager")
    assert other(x, lengths).beams.log_probs.shape == (len(x), 2)
    encoder.beam_size = 3
    assert other(x, lengths).beams.log_probs.shape == (len(x), 3)
    torch._dynamo.reset()
    encoder.leaf[0].register_forward_hook(lambda module, given, output: -output)
    torch.testing.assert_close(torch.compile(encoder, backend="eager")(x, lengths).state, encoder(x, lengths).state)


def check_random_modules():
    """Which are called once more beforehand, to find out that they draw random numbers."""
    encoder = make("bt-grc")
    encoder.scorer = nn.Sequential(nn.Dropout(0.5), nn.Linear(DIM, 1)).double()
    own, found = dict(encoder.named_parameters()), []
    for module in (encoder, compile_afresh(encoder, "aot_eager")):
        torch.manual_seed(0)
        found.append(run("bt-grc", module, wanted=own))
    assert_same(*found)


@torch.no_grad()
def check_lengths():
    """In all their forms."""
    torch._dynamo.reset()
    encoder, (x, lengths) = make("bt-grc").eval(), inputs()
    other = torch.compile(encoder, backend="eager", fullgraph=True)
    for given in (lengths, lengths.tolist(), torch.arange(x.shape[1]) < lengths.unsqueeze(1), None):
        torch.testing.assert_close(other(x, given).state, encoder(x, given).state)


def check_skipped_functions():
    """Dynamo may skip a function, run it, and compile the functions that it calls."""
    torch._dynamo.reset()
    for function in (Model.forward, Encoder.forward, Encoder._call):
        skip_code(function.__code__)
    model = Model(make("bt-grc")).double()
    own, other = dict(model.named_parameters()), torch.compile(model, backend="eager")
    assert_same(*(run("bt-grc", module, wanted=own) for module in (model, other)))


def check_inductor(name, device):
    """In training and at inference, where the encoder is an operator of the graph. Few shapes: a compiler takes
    seconds. On a GPU the encoder is computed by its kernels."""
    dtype, atol = (torch.float64, 1e-10) if device == "cpu" else (torch.float32, 5e-4)
    model = Model(make(name, dtype=dtype)).to(device, dtype)
    own, some = dict(model.named_parameters()), [(x.to(device, dtype), n.to(device)) for x, n in batches()[:2]]
    truths = [run(name, model, *batch) for batch in some]
    torch._dynamo.reset()
    other = torch.compile(model, backend="inductor", dynamic=True)
    for batch, truth in zip(some, truths, strict=True):
        assert_same(run(name, other, *batch, wanted=own), truth, atol)
    with torch.no_grad():
        states = [model.eval()(*batch).state for batch in some]
        for batch, state in zip(some, states, strict=True):
            torch.testing.assert_close(other(*batch).state, state, atol=atol, rtol=atol)


def check_all():
    for name in NAMES:
        try:
            check_training(name, make(name))
            check_inference(name, make(name).eval())
            if name not in NO_OPERATOR:
                check_operator(name, make(name).eval(), fullgraph=name != "lstm")  # Dynamo does not trace nn.LSTM
            if name == "bt-grc":
                check_changes()
                check_lengths()
                check_random_modules()
                # This takes longer, and they all break a graph in the same way.
                check_training(name, Model(make(name)).double(), ["aot_eager"])
        except Exception as error:
            print(f"{name}: {error!r}")
    check_skipped_functions()  # at the end: they stay skipped


def profile_nothing(*arguments):
    """In place of Dynamo's measurement of its guards, which is for its logs and takes a tenth of the time."""
    return 0.0


if __name__ == "__main__":
    if hasattr(torch._dynamo.guards, "profile_guard_manager"):
        torch._dynamo.guards.profile_guard_manager = profile_nothing
    torch._dynamo.config.recompile_limit = COMPILATIONS
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    if sys.argv[1:]:
        check_inductor("bt-grc", *sys.argv[1:])
    else:
        check_all()
