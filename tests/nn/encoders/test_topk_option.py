"""The option `topk`: operators that engines know, and a user's own."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch

import beamtree
from beamtree.nn.topk.transport import soft_topk
from support import BEAM_TREES, assert_same, everything, inputs

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


@pytest.mark.parametrize("mix", ["paper", "official"])
def test_onesoft_as_an_operator_keeps_the_mix(mix):
    assert make("bt-grc-onesoft", topk=beamtree.onesoft_topk, mix=mix).mix == mix
    assert make("bt-grc", topk=beamtree.onesoft_topk).mix == "paper"


def test_a_users_operator_that_does_the_same_gives_the_same():
    def own(scores, k):
        return beamtree.plain_topk(scores, k)

    found, expected = make("bt-grc", topk=own, stochastic=False), make("bt-grc", topk=beamtree.plain_topk)
    assert found.topk is own
    assert expected.topk is None
    assert_same(*(everything(encoder, *inputs([5, 4])) for encoder in (found, expected)), atol=1e-12)


@pytest.mark.parametrize(("operator", "name", "options"), EQUAL, ids=["plain", "stochastic", "onesoft", "ebt"])
def test_a_partial_without_arguments_is_the_operator(operator, name, options):
    base = "ebt-grc" if name == "ebt-grc" else "bt-grc"
    found, expected = make(base, topk=partial(operator)), make(name, **options)
    assert (found.stochastic, found.mix, found.topk) == (expected.stochastic, expected.mix, None)
    assert_same(*(everything(encoder, *inputs([5, 4])) for encoder in (found, expected)), atol=1e-12)


@dataclass
class Unhashable:
    """An operator with a state, whose class defines equality but no hash."""

    calls: int = 0

    def __call__(self, scores, k):
        self.calls += 1
        return beamtree.plain_topk(scores, k)


def test_a_users_operator_may_be_any_callable():
    operator = Unhashable()
    make("bt-grc", topk=operator)(*inputs([5]))
    assert operator.calls == 2 * 3


WITH_ARGUMENTS = "with arguments, which the engines would ignore: pass the function alone"


@pytest.mark.parametrize(
    ("name", "operator", "message"),
    [
        ("bt-grc", soft_topk, "use the encoder 'bt-grc-soft'"),
        ("bt-grc", partial(soft_topk, epsilon=0.2), "use the encoder 'bt-grc-soft', which has its options"),
        ("bt-grc-onesoft", soft_topk, "use the encoder 'bt-grc-soft'"),
        ("bt-grc", partial(beamtree.onesoft_topk, hard=True), f"topk is onesoft_topk {WITH_ARGUMENTS}"),
        ("bt-grc", partial(beamtree.stochastic_topk, generator=None), f"topk is stochastic_topk {WITH_ARGUMENTS}"),
        ("ebt-grc", beamtree.onesoft_topk, "has no OneSoft, use 'bt-grc-onesoft'"),
        ("ebt-grc", partial(beamtree.onesoft_topk), "has no OneSoft, use 'bt-grc-onesoft'"),
        ("bt-grc-onesoft", Unhashable(), "mix is 'paper' with a top-k operator of your own: pass only one"),
    ],
)
def test_what_is_no_operator_of_an_encoder_is_refused(name, operator, message):
    with pytest.raises(ValueError, match=message):
        make(name, topk=operator)


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("engine", ["auto", "torch", "reference"])
@pytest.mark.parametrize("mixture", [beamtree.onesoft_topk, soft_topk])
@pytest.mark.parametrize("name", [*(name for name in BEAM_TREES if name != "bt-grc-onesoft"), "ebt-grc"])
def test_mixtures_that_the_search_would_ignore_are_refused(name, mixture, engine, training):
    """However they are hidden: by what the operator returns."""
    encoder = make(name, topk=lambda scores, k: mixture(scores, k), engine=engine).train(training)
    with pytest.raises(ValueError, match=r"returned mixture weights, .*'bt-grc-onesoft' and 'bt-grc-soft' mix beams$"):
        encoder(*inputs([5, 4]))


def too_few(scores, k):
    return beamtree.plain_topk(scores, max(k - 1, 1))


def plain_tuple(scores, k):
    return tuple(beamtree.plain_topk(scores, k))


def absent(scores, k):
    """The entries with the lowest scores, of which absent ones have the lowest."""
    return beamtree.TopK(*(-scores).topk(k), ())


@pytest.mark.parametrize("engine", ["torch", "reference"])
@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (too_few, r"returned indices of shape \(2, 3, 2\): it must return a TopK with indices of shape \(2, 3, 3\)"),
        (plain_tuple, r"returned a tuple: it must return a TopK with indices of shape \(2, 3, 3\)"),
        (absent, "chose an entry with a score of −inf, which is absent, and left others"),
    ],
)
def test_what_a_users_operator_returns_is_checked(operator, message, engine):
    with pytest.raises(ValueError, match=f"^the top-k operator {message}"):
        make("bt-grc", topk=operator, engine=engine)(*inputs([5, 3]))


@pytest.mark.parametrize("engine", ["torch", "reference"])
def test_a_users_operator_may_modify_its_scores(engine):
    def modifying(scores, k):
        found = beamtree.plain_topk(scores, k)
        scores.zero_()
        return found

    def plain(scores, k):
        return beamtree.plain_topk(scores, k)

    found, truth = (make("bt-grc", topk=topk, engine=engine)(*inputs([6, 4])) for topk in (modifying, plain))
    assert found.beams.trees() == truth.beams.trees()
    torch.testing.assert_close(found.state, truth.state)
