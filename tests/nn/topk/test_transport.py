"""SOFT top-k: a plan of least cost, with the gradient that going back over all iterations would give."""

import math
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from beamtree.nn.topk.operators import plain_topk
from beamtree.nn.topk.transport import LEAST_EPSILON, soft_topk, transport

INF = math.inf
SCALINGS = pytest.mark.parametrize("scaling", ["sample", "official"])


def normal(*shape: int, seed: int = 0, spread: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(shape, dtype=torch.float64, generator=generator)


def unrolled(scores: Tensor, k: int, scaling: str, epsilon: float = 0.1, iterations: int = 200) -> Tensor:
    """The weights for rows (B, m) that are all there, by iterations in the log domain that autograd goes back over."""
    m = scores.shape[1]
    anchors = torch.arange(k, -1, -1, dtype=scores.dtype)
    if scaling == "sample":
        low, high = scores.amin(1, keepdim=True), scores.amax(1, keepdim=True)
        cost = (k * (scores - low) / (high - low).clamp(min=1)).unsqueeze(2).sub(anchors) ** 2 / k**2
    else:
        cost = (scores.unsqueeze(2) - anchors) ** 2
        cost = cost / cost.max().detach()
    nu = torch.tensor([1 / m] * k + [(m - k) / m], dtype=scores.dtype)
    f, g = torch.zeros_like(scores), torch.zeros_like(cost[:, 0])
    for _ in range(iterations):
        f = -math.log(m) - (g.unsqueeze(1) - cost / epsilon).logsumexp(2)
        g = nu.log() - (f.unsqueeze(2) - cost / epsilon).logsumexp(1)
    return m * (f.unsqueeze(2) + g.unsqueeze(1) - cost / epsilon).exp()[..., :k]


@SCALINGS
@pytest.mark.parametrize(("m", "k", "epsilon"), [(3, 1, 0.5), (6, 5, 0.1), (25, 5, 0.1), (7, 3, 0.2)])
@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0])
def test_weights_and_gradients_are_those_of_the_unrolled_iterations(
    m: int, k: int, epsilon: float, spread: float, scaling: str
) -> None:
    scores = (normal(3, m, spread=spread) - 4).requires_grad_()
    slopes = normal(3, m, k, seed=1)
    found = soft_topk(scores, k, epsilon=epsilon, scaling=scaling).weights
    expected = unrolled(scores, k, scaling, epsilon)
    assert_close(found, expected, atol=1e-10, rtol=0)
    found, expected = (torch.autograd.grad((weights * slopes).sum(), scores)[0] for weights in (found, expected))
    assert found.abs().max() > 1e-4
    assert_close(found, expected, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_gradients_agree_with_finite_differences(k: int) -> None:
    scores, payload = normal(2, 6, spread=2).requires_grad_(), normal(2, 6, 3, seed=1).requires_grad_()

    def outputs(scores: Tensor, payload: Tensor) -> tuple[Tensor, ...]:
        best = soft_topk(scores, k, payload, epsilon=0.5)
        return best.scores, *best.payloads, best.weights

    assert torch.autograd.gradcheck(outputs, (scores, payload))


def least_cost(cost: Tensor, k: int) -> tuple[float, Tensor]:
    """The transport without entropy, by enumeration: its best plans carry whole masses."""
    m = len(cost)
    best = (INF, torch.empty(0))
    for rows in permutations(range(m), k):  # the row that goes to each of the first k columns
        plan = torch.zeros_like(cost)
        plan[:, k] = 1
        for column, row in enumerate(rows):
            plan[row, column], plan[row, k] = 1, 0
        best = min(best, (float((cost * plan).sum()), plan), key=lambda found: found[0])
    return best


@pytest.mark.parametrize(("m", "k"), [(3, 1), (5, 3), (6, 2)])
@pytest.mark.parametrize("seed", range(3))
def test_a_small_entropy_gives_the_plan_of_least_cost(m: int, k: int, seed: int) -> None:
    cost = torch.rand(m, k + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    columns = torch.tensor([1.0] * k + [m - k], dtype=torch.float64)
    least, best = least_cost(cost, k)
    for epsilon in (0.1, 0.02, LEAST_EPSILON):
        plan = transport(cost, torch.ones(m, dtype=torch.bool), columns, epsilon, 3000)
        gap = float((cost * plan).sum()) - least
        assert -1e-3 < gap <= epsilon * m * math.log(k + 1)  # the entropy is worth no more
    assert_close(plan.round(), best)


@pytest.mark.parametrize("seed", range(3))
def test_no_other_plan_is_better(seed: int) -> None:
    """Moving mass around any square keeps all sums, and always costs more."""
    cost = torch.rand(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    columns = torch.tensor([1.0, 1, 1, 3], dtype=torch.float64)
    plan = transport(cost, torch.ones(6, dtype=torch.bool), columns, 0.1, 1000)
    assert_close(plan.sum(0), columns)
    assert_close(plan.sum(1), torch.ones(6, dtype=torch.float64))

    def objective(plan: Tensor) -> Tensor:
        return (cost * plan).sum() + 0.1 * (plan * plan.log()).sum()

    for i, j in permutations(range(6), 2):
        for a, b in permutations(range(4), 2):
            other = plan.clone()
            for row, column, sign in ((i, a, 1), (i, b, -1), (j, a, -1), (j, b, 1)):
                other[row, column] += sign * 1e-3 * plan.min()
            assert objective(other) > objective(plan)


@given(
    scores=st.lists(st.floats(-30, 30) | st.just(-INF), min_size=1, max_size=12),
    data=st.data(),
)
@settings(max_examples=40)
def test_every_row_of_a_batch_is_treated_alone_and_absent_entries_have_no_part(
    scores: list[float], data: st.DataObject
) -> None:
    """Other rows, and entries that are not there, change neither results nor gradients."""
    present = [score for score in scores if score > -INF]
    k = data.draw(st.integers(1, len(scores)))
    row = torch.tensor(scores, dtype=torch.float64)
    batch = torch.stack((row, normal(len(scores), spread=50))).requires_grad_()
    payload = torch.where(row.isneginf(), 1e3, normal(2, len(scores))).requires_grad_()
    best = soft_topk(batch, k, payload)
    there = ~row.isneginf()
    assert not best.weights[0, ~there].any()
    kept = min(k, len(present))
    assert best.scores[0].isfinite().sum() == kept
    assert_close(best.weights[0].sum(0), torch.tensor([1.0] * kept + [0.0] * (k - kept), dtype=torch.float64))
    together = torch.autograd.grad(best.payloads[0][0].sin().sum(), (batch, payload))
    assert all(gradient.isfinite().all() for gradient in together)
    if kept:
        alone_scores = torch.tensor(present, dtype=torch.float64, requires_grad=True)
        alone_payload = payload[0, there].detach().requires_grad_()
        alone = soft_topk(alone_scores, kept, alone_payload)
        assert_close(best.scores[0, :kept], alone.scores, atol=1e-10, rtol=0)
        assert_close(best.payloads[0][0, :kept], alone.payloads[0], atol=1e-10, rtol=0)
        gradients = torch.autograd.grad(alone.payloads[0].sin().sum(), (alone_scores, alone_payload))
        for found, expected in zip(together, gradients, strict=True):
            assert_close(found[0, there], expected, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("k", [3, 5, 6])
def test_all_that_have_a_place_are_kept_as_they_are(k: int) -> None:
    scores, payload = torch.tensor([[0.5, -INF, 2.0, -1.0, -INF, -INF]]).double(), normal(1, 6, 2)
    scores.requires_grad_()
    best, plain = soft_topk(scores, k, payload), plain_topk(scores, k, payload)
    assert_close(best.scores, plain.scores, atol=0, rtol=0)
    assert torch.equal(best.indices, plain.indices)
    assert_close(best.payloads[0][:, :3], plain.payloads[0][:, :3], atol=0, rtol=0)
    gradient = torch.autograd.grad(best.scores[:, :3].sum(), scores)[0]
    assert gradient.tolist() == [[1, 0, 1, 1, 0, 0]]


@pytest.mark.parametrize("iterations", [1, 200, 5000])
def test_what_is_kept_as_it_is_has_a_finite_gradient_after_any_number_of_iterations(iterations: int) -> None:
    few = [[1.0, 0.5, -INF, -INF], [0.3, -INF, -INF, -INF], [-INF] * 4, [0.2, 0.1, 0.4, -INF]]
    scores = torch.tensor([*few, [1.0, 0.2, 0.1, 0.0]], dtype=torch.float64, requires_grad=True)
    found, plain = soft_topk(scores, 3, iterations=iterations).scores, plain_topk(scores, 3).scores
    gradients = []
    for best in (found, plain):
        assert torch.equal(best[:4], plain[:4])
        gradients.append(torch.autograd.grad(best[best.isfinite()].sin().sum(), scores)[0])
    assert gradients[0].isfinite().all()
    assert_close(gradients[0][:4], gradients[1][:4])


def test_nothing_there_gives_nothing() -> None:
    scores = torch.full((2, 4), -INF, requires_grad=True)
    best = soft_topk(scores, 2, torch.ones(2, 4))
    assert best.scores.isneginf().all()
    assert not best.weights.any()
    best.payloads[0].sum().backward()
    assert not scores.grad.any()


@SCALINGS
def test_better_places_have_better_scores(scaling: str) -> None:
    scores = soft_topk(normal(50, 12, spread=3), 5, scaling=scaling).scores
    assert (scores[:, :-1] > scores[:, 1:]).all()


def test_every_entry_receives_a_gradient() -> None:
    scores, payload = normal(3, 7, spread=2).requires_grad_(), normal(3, 7, seed=1).requires_grad_()
    gradients = torch.autograd.grad(soft_topk(scores, 3, payload).payloads[0].sin().sum(), (scores, payload))
    assert all(gradient.all() for gradient in gradients)


def test_only_differences_count_and_beyond_one_nat_only_their_ratios() -> None:
    scores = normal(4, 8, spread=2)
    best = soft_topk(scores, 3).weights
    assert_close(soft_topk(scores - 1000, 3).weights, best, atol=1e-9, rtol=0)
    assert_close(soft_topk(scores * 50, 3).weights, best, atol=1e-9, rtol=0)
    alike = soft_topk(scores * 1e-6, 3).weights
    assert_close(alike, torch.full_like(alike, 1 / 8), atol=1e-4, rtol=0)


def test_a_small_epsilon_comes_close_to_the_plain_topk() -> None:
    scores, payload = torch.tensor([0.0, 3.0, 1.0, 4.0, 2.0]).double(), normal(5, 2)
    best, plain = soft_topk(scores, 3, payload, epsilon=LEAST_EPSILON, iterations=2000), plain_topk(scores, 3, payload)
    assert_close(best.scores, plain.scores, atol=0.05, rtol=0)
    assert torch.equal(best.indices, plain.indices)
    assert best.weights.max(0).values.min() > 0.95


def test_a_choice_that_hardly_mixes_has_a_finite_gradient() -> None:
    """The system that gives the gradient is then almost singular."""
    scores = torch.tensor([[0.0, 1000.0, 500.0], [0.0, 1e-3, 1.0]], requires_grad=True)
    soft_topk(scores, 2, epsilon=LEAST_EPSILON).weights.sin().sum().backward()
    assert scores.grad.isfinite().all()
    assert scores.grad.abs().max() < 1e3


def test_the_official_scaling_depends_on_the_batch() -> None:
    """With scores far below in another row, all weights are nearly the same: a reason for the operator's bad name."""
    scores = torch.linspace(-12, 0, 25, dtype=torch.float64).unsqueeze(0)
    alone = soft_topk(scores, 5, scaling="official").weights
    assert alone.max() < 0.15
    beside = soft_topk(torch.cat((scores, scores - 1000)), 5, scaling="official").weights[:1]
    assert beside.max() < 0.0405
    assert soft_topk(scores, 5).weights[:, :, 0].max() > 0.2


def test_the_official_scaling_puts_absent_entries_far_below() -> None:
    scores = torch.tensor([[-1.0, -2.0, -INF, -4.0]]).double()
    filled = torch.tensor([[-1.0, -2.0, -7.0, -4.0]]).double()
    best, expected = (soft_topk(s, 2, normal(1, 4), scaling="official") for s in (scores, filled))
    assert_close(best.weights, expected.weights)
    assert_close(best.scores, expected.scores)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("inner", [(), (4,), (2, 3)], ids=str)
def test_payloads_are_mixed_by_the_weights(batch: tuple[int, ...], inner: tuple[int, ...]) -> None:
    scores, payload = normal(*batch, 6), normal(*batch, 6, *inner, seed=1)
    best = soft_topk(scores, 2, payload, scores)
    expected = torch.einsum(
        "bmk,bmr->bkr", best.weights.view(-1, 6, 2), payload.reshape(-1, 6, max(1, math.prod(inner)))
    )
    assert_close(best.payloads[0], expected.view(*batch, 2, *inner))
    assert_close(best.payloads[1], best.scores)
    assert torch.equal(best.indices, best.weights.argmax(-2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_precisions_stay_close(dtype: torch.dtype) -> None:
    scores, payload = normal(4, 10, spread=3).to(dtype), normal(4, 10, 2).to(dtype)
    best, exact = soft_topk(scores, 3, payload), soft_topk(scores.double(), 3, payload.double())
    assert best.scores.dtype == best.payloads[0].dtype == dtype
    assert_close(best.weights.double(), exact.weights, atol=1e-5, rtol=0)
    assert_close(best.payloads[0].double(), exact.payloads[0], atol=10 * torch.finfo(dtype).eps, rtol=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 0.001}, r"epsilon is 0\.001: it must be a number of at least 0\.005"),
        ({"epsilon": INF}, "epsilon is inf"),
        ({"iterations": 0}, "iterations is 0: it must be an integer of at least 1"),
        ({"scaling": "batch"}, "unknown scaling 'batch'.*known: sample, official"),
        ({"k": 6}, "k = 6 with 5 scores"),
    ],
)
@pytest.mark.usefixtures("shape_checks_off")
def test_wrong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        soft_topk(torch.zeros(2, 5), options.pop("k", 2), **options)


def test_integers_cannot_be_averaged() -> None:
    with pytest.raises(ValueError, match=r"payload 1 is torch\.int64: SOFT averages payloads, pass floats"):
        soft_topk(torch.zeros(5), 2, torch.zeros(5), torch.zeros(5, dtype=torch.int64))
