"""What a user can get wrong is told in one line: the argument, its value, what is allowed, before any work."""

import re

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import beamtree
from support import BEAM_TREES

B, N, D = 2, 3, 4
NAN = float("nan")
ENCODERS = pytest.mark.parametrize("name", BEAM_TREES)

pytestmark = pytest.mark.usefixtures("shape_checks_off")


def whole(text: str) -> str:
    """A pattern for exactly this message."""
    return f"^{re.escape(text)}$"


def vectors(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


LENGTHS = "lengths must be between 1 and N = 3, the width of x"
BAD_INPUTS = [
    (vectors(B, N, D), torch.tensor([3, 0]), f"lengths[1] is 0: {LENGTHS}"),
    (vectors(B, N, D), torch.tensor([-2, 3]), f"lengths[0] is -2: {LENGTHS}"),
    (vectors(B, N, D), torch.tensor([3, 4]), f"lengths[1] is 4: {LENGTHS}"),
    (vectors(B, N, D), torch.tensor([3]), "lengths has shape (1,): it must be (2,), one for each sample of x"),
    (vectors(B, N, D), torch.tensor(3), "lengths has shape (): it must be (2,), one for each sample of x"),
    (vectors(B, N, D), torch.tensor([[3, 3]]), "lengths has shape (1, 2): it must be (2,), one for each sample of x"),
    (
        vectors(B, N, D),
        torch.tensor([3.0, 3.0]),
        "lengths is a tensor of torch.float32: it must be a tensor of int64 (or int32)",
    ),
    (
        vectors(B, N, D),
        torch.tensor([True, True]),
        "the mask has shape (2,): it must be (2, 3), as x has vectors",
    ),
    (
        vectors(B, N, D),
        torch.tensor([3, 3], device="meta"),
        "lengths is on meta and x on cpu: they must be on one device",
    ),
    (vectors(B, N, 5), torch.tensor([3, 3]), "x has shape (2, 3, 5): it must be (B, N, 4), 4 being the encoder's dim"),
    (vectors(N, D), torch.tensor([3, 3]), "x has shape (3, 4): it must be (B, N, 4), 4 being the encoder's dim"),
    (
        torch.ones(B, N, D, dtype=torch.int64),
        torch.tensor([3, 3]),
        "x is a tensor of torch.int64: it must be a floating-point tensor of shape (B, N, 4)",
    ),
    (
        vectors(B, N, D).double(),
        torch.tensor([3, 3]),
        "x is of torch.float64 and the encoder of torch.float32: convert one of them with .to(...)",
    ),
    (
        vectors(B, N, D).to("meta"),
        torch.tensor([3, 3]),
        "x is on meta and the encoder on cpu: move one of them with .to(...)",
    ),
    ([[[0.0] * D]], torch.tensor([1]), "x is of type list: it must be a floating-point tensor of shape (B, N, 4)"),
    (
        vectors(0, N, D),
        torch.tensor([], dtype=torch.int64),
        "x has shape (0, 3, 4): it must hold at least one sample of at least one vector",
    ),
    (
        vectors(B, 0, D),
        torch.tensor([0, 0]),
        "x has shape (2, 0, 4): it must hold at least one sample of at least one vector",
    ),
]


@ENCODERS
@pytest.mark.parametrize(
    ("x", "lengths", "message"), BAD_INPUTS, ids=[message.split(":")[0] for *_, message in BAD_INPUTS]
)
def test_bad_inputs_are_refused_before_any_work(name: str, x: object, lengths: object, message: str) -> None:
    encoder = beamtree.encoder(name, dim=D)
    encoder.leaf.register_forward_pre_hook(lambda *_: pytest.fail("work began"))
    with pytest.raises(ValueError, match=whole(message)):
        encoder(x, lengths)


INTEGER, RATE = "it must be an integer of at least 1", "it must be a number from 0 up to but not including 1"
BAD_SETTINGS = [
    ("beam_size", 0, f"beam_size is 0: {INTEGER}"),
    ("beam_size", -1, f"beam_size is -1: {INTEGER}"),
    ("beam_size", 2.5, f"beam_size is 2.5: {INTEGER}"),
    ("beam_size", True, f"beam_size is True: {INTEGER}"),
    ("dim", 0, f"dim is 0: {INTEGER}"),
    ("dim", "4", f"dim is '4': {INTEGER}"),
    ("dropout", 1.0, f"dropout is 1.0: {RATE}"),
    ("dropout", -0.1, f"dropout is -0.1: {RATE}"),
    ("dropout", NAN, f"dropout is nan: {RATE}"),
    ("dropout", "0.1", f"dropout is '0.1': {RATE}"),
    ("stochastic", "no", "stochastic is 'no': it must be True or False"),
    ("check_nan", 1, "check_nan is 1: it must be True or False"),
    ("engine", "trch", "unknown engine 'trch' (did you mean 'torch'?); known: auto, reference, torch, triton"),
    ("engine", "cuda", "unknown engine 'cuda'; known: auto, reference, torch, triton"),
    ("duplicates", "merged", "unknown duplicates 'merged' (did you mean 'merge'?); known: keep, drop, merge"),
    ("duplicates", None, "unknown duplicates None; known: keep, drop, merge"),
    ("cell", "gcr", "unknown cell 'gcr' (did you mean 'grc'?); known: grc, lstm"),
    ("topk", 3, "topk is 3: it must be a function such as beamtree.plain_topk"),
]


@ENCODERS
@pytest.mark.parametrize(
    ("option", "value", "message"), BAD_SETTINGS, ids=[f"{option}={value!r}" for option, value, _ in BAD_SETTINGS]
)
def test_bad_settings_are_refused(name: str, option: str, value: object, message: str) -> None:
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=whole(message)):
        beamtree.encoder(name, **({"dim": D} | {option: value}))
    assert torch.get_rng_state().equal(state)  # no weight was drawn


@ENCODERS
def test_an_unknown_option_is_named_with_the_known_ones(name: str) -> None:
    known = "dim, beam_size, dropout, stochastic, engine, duplicates, check_nan, cell"
    known += {
        "bt-grc": ", slice, state_noise, topk",
        "bt-lstm": ", slice, topk",
        "bt-grc-onesoft": ", mix, slice, topk",
    }[name]
    message = f"unknown option of {name} 'beamsize' (did you mean 'beam_size'?); known: {known}"
    with pytest.raises(ValueError, match=whole(message)):
        beamtree.encoder(name, dim=D, beamsize=5)


@ENCODERS
def test_a_missing_dim_is_asked_for(name: str) -> None:
    message = f"{name} needs dim, the width of its inputs: encoder('{name}', dim=128)"
    with pytest.raises(ValueError, match=whole(message)):
        beamtree.encoder(name, beam_size=3)


def test_what_makes_the_model_is_no_option_of_it() -> None:
    with pytest.raises(ValueError, match="unknown option of bt-grc 'mix'"):
        beamtree.encoder("bt-grc", dim=D, mix="paper")
    with pytest.raises(ValueError, match="unknown option of gumbel-tree-lstm 'noise_at_test'"):
        beamtree.encoder("gumbel-tree-lstm", dim=D, noise_at_test=True)


@pytest.mark.parametrize(("mix", "hint"), [("papr", " (did you mean 'paper'?)"), ("mean", ""), (1, "")])
def test_an_unknown_mix_is_refused(mix: object, hint: str) -> None:
    with pytest.raises(ValueError, match=whole(f"unknown mix {mix!r}{hint}; known: paper, official")):
        beamtree.encoder("bt-grc-onesoft", dim=D, mix=mix)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("bt-gcr", " (did you mean 'bt-grc'?)"),
        ("bt-lstn", " (did you mean 'bt-lstm'?)"),
        ("onesoft", " (did you mean 'bt-grc-onesoft'?)"),
        ("convolution", ""),
        (3, ""),
    ],
)
def test_an_unknown_encoder_is_named_with_the_known_ones(name: object, hint: str) -> None:
    message = f"unknown encoder {name!r}{hint}; known: {', '.join(beamtree.encoders())}"
    with pytest.raises(ValueError, match=whole(message)):
        beamtree.encoder(name, dim=D)


@ENCODERS
def test_32_bit_lengths_are_as_good(name: str) -> None:
    encoder, lengths = beamtree.encoder(name, dim=D).eval(), torch.tensor([3, 1])
    assert encoder(vectors(B, N, D), lengths.int()).state.equal(encoder(vectors(B, N, D), lengths).state)


@ENCODERS
def test_nan_is_looked_for_on_request(name: str) -> None:
    spoilt = vectors(B, N, D)
    spoilt[1, 2, 3] = NAN
    careful, careless = (beamtree.encoder(name, dim=D, check_nan=check) for check in (True, False))
    careful.leaf.register_forward_pre_hook(lambda *_: pytest.fail("work began"))
    with pytest.raises(ValueError, match=whole("x[1, 2] holds NaN: clean the input, or its embedding has diverged")):
        careful(spoilt, torch.tensor([3, 3]))
    state = careless(spoilt, torch.tensor([3, 3])).state
    assert state[0].isfinite().all()  # NaN stays in its own sample
    assert state[1].isnan().any()


@ENCODERS
@pytest.mark.parametrize("engine", ["reference", "torch"])
@pytest.mark.parametrize("check_nan", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_nan_in_padding_reaches_nothing(name: str, engine: str, check_nan: bool, training: bool) -> None:
    torch.manual_seed(0)
    encoder = beamtree.encoder(name, dim=D, engine=engine, check_nan=check_nan, dropout=0.2).train(training)
    lengths = torch.tensor([5, 3, 1])
    padding = torch.arange(5) >= lengths.unsqueeze(1)

    def encode(fill: float) -> tuple[Tensor, ...]:
        inputs = vectors(3, 5, D).masked_fill(padding.unsqueeze(2), fill).requires_grad_()
        state = encoder(inputs, lengths, generator=torch.Generator().manual_seed(0)).state
        return state, *torch.autograd.grad(state.sin().sum(), (inputs, *encoder.parameters()))

    found = encode(NAN)
    assert_close(found, encode(0.0), atol=0, rtol=0)
    assert not found[1][padding].any()
