"""The option `topk`: operators that engines know, and a user's own."""

import pytest
import torch

import beamtree
from beamtree.nn.topk.transport import soft_topk
from support import assert_same, everything, inputs

EQUAL = [
    (beamtree.plain_topk, "bt-grc", {"stochastic": False}),
    (beamtree.stochastic_topk, "bt-grc", {"stochastic": True}),
    (beamtree.onesoft_topk, "bt-grc-onesoft", {}),
    (beamtree.plain_topk, "ebt-grc", {"stochastic": False}),
]


def make(name, **options):
    torch.manual_seed(0)
    return beamtree.encoder(name, dim=6, beam_size=3, **options).double()


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("engine", ["auto", "reference"])
@pytest.mark.parametrize(("operator", "name", "options"), EQUAL, ids=["plain", "stochastic", "onesoft", "ebt"])
def test_operators_that_engines_know_are_options(operator, name, options, engine, training):
    base = "ebt-grc" if name == "ebt-grc" else "bt-grc"
    found = make(base, topk=operator, engine=engine).train(training)
    expected = make(name, engine=engine, **options).train(training)
    assert_same(*(everything(encoder, *inputs([5, 1, 4])) for encoder in (found, expected)), atol=1e-12)


def test_a_users_operator_that_does_the_same_gives_the_same():
    def own(scores, k):
        return beamtree.plain_topk(scores, k)

    found, expected = make("bt-grc", topk=own, stochastic=False), make("bt-grc", topk=beamtree.plain_topk)
    assert found.topk is own
    assert expected.topk is None
    assert_same(*(everything(encoder, *inputs([5, 4])) for encoder in (found, expected)), atol=1e-12)


@pytest.mark.parametrize(
    ("name", "operator", "message"),
    [
        ("bt-grc", soft_topk, "use the encoder 'bt-grc-soft'"),
        ("ebt-grc", beamtree.onesoft_topk, "has no OneSoft, use 'bt-grc-onesoft'"),
    ],
)
def test_what_is_no_operator_of_an_encoder_is_refused(name, operator, message):
    with pytest.raises(ValueError, match=message):
        make(name, topk=operator)
