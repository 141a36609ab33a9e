"""Which engine runs a request."""

import pickle
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import beamtree
from beamtree.nn.engine import dispatch
from beamtree.nn.engine.dispatch import Engine, EngineError, select
from support import assert_same, everything, inputs, make


@dataclass(frozen=True)
class Asked:
    leaves: torch.Tensor


def refuses(request):
    return "it refuses everything"


ENGINES = (Engine("triton", lambda r: "t"), Engine("torch", lambda r: "p", refuses), Engine("reference", lambda r: "r"))


def test_auto_takes_the_first_that_can_and_triton_on_a_gpu_alone():
    assert select(ENGINES, Asked(torch.zeros(1))).name == "reference"
    assert select(ENGINES, Asked(torch.zeros(1)), "triton").name == "triton"


def test_a_refusal_has_its_reason():
    with pytest.raises(
        EngineError, match="engine 'torch' cannot do this: it refuses everything; engine 'auto' can"
    ) as info:
        select(ENGINES, Asked(torch.zeros(1)), "torch")
    assert info.value.reason == "it refuses everything"
    assert isinstance(info.value, ValueError)
    assert pickle.loads(pickle.dumps(info.value)).reason == info.value.reason


def test_an_engine_that_an_algorithm_does_not_have_is_refused():
    with pytest.raises(EngineError, match="the engines here are triton, torch"):
        select(ENGINES[:2], Asked(torch.zeros(1)), "reference")


def test_reasons_are_given_when_all_engines_refuse():
    engines = (ENGINES[0], ENGINES[1], Engine("reference", lambda r: "r", lambda r: "it is shy"))
    reasons = "'triton': it runs on a CUDA device, not on cpu; 'torch': it refuses everything; 'reference': it is shy"
    with pytest.raises(EngineError, match=f"^engine 'auto' cannot do this: {reasons}$") as info:
        select(engines, Asked(torch.zeros(1)))
    assert info.value.instead is None
    assert str(pickle.loads(pickle.dumps(info.value))) == str(info.value)


@pytest.mark.parametrize(
    ("name", "reason"), [("torch", "it refuses everything"), ("reference", "the engines here are triton, torch")]
)
def test_auto_is_not_recommended_when_it_refuses_too(name, reason):
    with pytest.raises(EngineError, match=f"^engine '{name}' cannot do this: {reason}$") as info:
        select(ENGINES[:2], Asked(torch.zeros(1)), name)
    assert info.value.instead is None


def test_an_engine_runs_on_the_device_of_its_leaves(monkeypatch):
    """Which need not be the current one."""
    entered = []

    class Guard:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            entered.append(self.device)

        def __exit__(self, *error):
            entered.append("left")

    class OnSecondCard(torch.Tensor):
        is_cuda, device = True, torch.device("cuda", 1)

    monkeypatch.setattr(torch.cuda, "device", Guard)
    request = Asked(torch.zeros(1).as_subclass(OnSecondCard))
    assert Engine("triton", lambda request: list(entered))(request) == [torch.device("cuda", 1)]
    assert entered[-1] == "left"


class Noisy(nn.Module):
    """A cell that draws its own dropout."""

    def __init__(self, dim):
        super().__init__()
        self.linear, self.dropout = nn.Linear(2 * dim, dim), nn.Dropout(0.5)

    def forward(self, left, right):
        return self.dropout(self.linear(torch.cat((left, right), dim=-1)))


def test_a_cell_with_dropout_of_its_own_is_composed_once():
    x, lengths = inputs([5, 4], dtype=torch.float32)
    encoder = beamtree.encoder("bt-grc", dim=6, beam_size=2, cell=Noisy(6))
    encoder(x, lengths).state.sum().backward()
    encoder.engine = "torch"
    with pytest.raises(EngineError, match="its cell draws random numbers"):
        encoder(x, lengths)
    encoder.eval()(x, lengths)


def last_first(scores, k):
    """The entries that are there, from the last to the first."""
    order = torch.arange(scores.shape[-1], dtype=scores.dtype).expand_as(scores)
    indices = (
        order.masked_fill(scores.isneginf(), -torch.inf).sort(dim=-1, descending=True, stable=True).indices[..., :k]
    )
    return beamtree.TopK(scores.gather(-1, indices), indices, ())


@pytest.mark.parametrize("name", ["bt-grc", "bt-lstm", "ebt-grc"])
def test_a_users_topk_operator_chooses_in_every_engine(name):
    x, lengths = inputs([7, 4, 1])
    results = [
        everything(make(name, engine, beam_size=2, stochastic=False, topk=last_first), x, lengths)
        for engine in ("reference", "torch")
    ]
    assert_same(*results, atol=1e-11)
    plain = everything(make(name, beam_size=2, stochastic=False), x, lengths)
    assert results[0][2] != plain[2]


def test_a_users_topk_operator_is_not_for_triton():
    pytest.importorskip("triton")
    x, lengths = inputs([5, 4], dtype=torch.float32)
    encoder = make("bt-grc", "triton", dtype=torch.float32, topk=last_first)
    with pytest.raises(EngineError, match="top-k operator is your own"):
        encoder(x, lengths)


def test_the_message_names_what_is_missing(monkeypatch):
    monkeypatch.setattr(dispatch, "is_installed", lambda package: False)
    assert dispatch.why_not_triton(torch.zeros(1)) == "the package triton is not installed"
