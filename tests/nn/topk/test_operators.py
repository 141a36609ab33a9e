"""Top-k operators: ties in a known order, honest draws, and OneSoft as the paper writes it (§3.1)."""

import math
from collections.abc import Callable, Iterator
from itertools import permutations, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from beamtree.nn.topk.operators import SoftTopK, TopK, gumbel, onesoft_topk, plain_topk, stochastic_topk

INF = math.inf
OPERATORS = [plain_topk, stochastic_topk, onesoft_topk]
BATCHES = [(), (3,), (2, 3)]
INNERS = [(), (4,), (2, 3)]
# Few values make ties, zeros of both signs among them; any float32 is exact in float64 too.
SCORES = st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, -INF]) | st.floats(allow_nan=False, width=32), min_size=1)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def places(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All index tuples of a shape; for the empty one, the one empty tuple."""
    return product(*(range(size) for size in shape))


def best_first(scores: list[float], k: int) -> list[int]:
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]


def gradients(best: TopK | SoftTopK, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Of a loss in which every finite output has another slope."""
    loss = best.scores[best.scores.isfinite()].sin().sum() + sum(payload.sin().sum() for payload in best.payloads)
    found = torch.autograd.grad(loss, inputs, allow_unused=True)
    return tuple(torch.zeros_like(i) if g is None else g for i, g in zip(inputs, found, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("scores", "order"),
    [
        pytest.param([1.0, 2.0, 2.0, 1.0, 2.0, 1.0], [1, 2, 4, 0, 3, 5], id="ties"),
        pytest.param([0.0] * 1000, list(range(1000)), id="many-ties"),
        pytest.param([-0.0, 0.0, -0.0, 0.0], [0, 1, 2, 3], id="both-zeros"),
        pytest.param([-INF, 1.0, -INF, -60000.0, INF], [4, 1, 3, 0, 2], id="infinities"),
    ],
)
def test_equal_scores_are_taken_by_index(scores: list[float], order: list[int], dtype: torch.dtype) -> None:
    for k in {1, 2, len(scores) - 1, len(scores)}:
        assert plain_topk(torch.tensor(scores, dtype=dtype), k).indices.tolist() == order[:k]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@given(data=st.data())
def test_plain_takes_the_largest_in_falling_order(data: st.DataObject, dtype: torch.dtype) -> None:
    scores = data.draw(SCORES)
    k = data.draw(st.integers(1, len(scores)))
    best = plain_topk(torch.tensor(scores, dtype=dtype), k)
    assert best.indices.tolist() == best_first(scores, k)
    assert best.scores.tolist() == sorted(scores, reverse=True)[:k]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("value", [1.0, -1.0, 0.0, 1e-40, -1e-40, 3e38, -3e38])
def test_neighbouring_numbers_are_told_apart(value: float, dtype: torch.dtype) -> None:
    middle, infinity = torch.tensor(value, dtype=dtype), torch.tensor(INF, dtype=dtype)
    rising = torch.stack((middle.nextafter(-infinity), middle, middle.nextafter(infinity)))
    assert plain_topk(rising, 3).indices.tolist() == [2, 1, 0]
    assert plain_topk(rising.flip(0), 3).indices.tolist() == [0, 1, 2]


@pytest.mark.parametrize("operator", [plain_topk, stochastic_topk])
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("inner", INNERS, ids=str)
def test_payloads_follow_their_scores(operator: Callable[..., TopK], batch: tuple[int, ...], inner: tuple) -> None:
    """Any trailing shape and any type, several at a time; gradients reach what was taken, and nothing else."""
    scores = normal(*batch, 5).requires_grad_()
    payload = normal(*batch, 5, *inner, seed=1).requires_grad_()
    number = torch.arange(scores.numel()).view_as(scores)
    best = operator(scores, 3, payload, number)
    assert best.payloads[0].shape == (*batch, 3, *inner)
    assert best.payloads[1].dtype == torch.int64
    taken = torch.zeros_like(scores)
    for place in places((*batch, 3)):
        source = (*place[:-1], int(best.indices[place]))
        assert best.scores[place] == scores[source]
        assert best.payloads[0][place].equal(payload[source])
        assert best.payloads[1][place] == number[source]
        taken[source] = 1
    d_scores, d_payload = gradients(best, scores, payload)
    assert_close(d_scores, taken * scores.cos())
    assert_close(d_payload, taken.view(*taken.shape, *(1 for _ in inner)) * payload.cos())


@pytest.fixture(scope="module")
def draws() -> Tensor:
    """Many draws of two entries from five, the last of which is not there."""
    scores = torch.tensor([0.0, 1.0, 2.0, -1.0, -INF]).expand(40_000, 5)
    return stochastic_topk(scores, 2, generator=torch.Generator().manual_seed(0)).indices


def chi_square(counts: Tensor, probabilities: Tensor) -> float:
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def test_the_first_draw_follows_the_softmax(draws: Tensor) -> None:
    p = torch.tensor([0.0, 1.0, 2.0, -1.0]).softmax(0)
    assert chi_square(draws[:, 0].bincount(minlength=5)[:4], p) < 16.3  # of 1000 honest samples one exceeds it


def test_the_second_draw_follows_the_softmax_of_the_rest(draws: Tensor) -> None:
    p = torch.tensor([0.0, 1.0, 2.0, -1.0]).softmax(0)
    pairs = list(permutations(range(4), 2))
    counts = torch.tensor([int((draws == torch.tensor(pair)).all(1).sum()) for pair in pairs])
    assert counts.sum() == len(draws)  # no entry twice, and none that is not there
    assert chi_square(counts, torch.stack([p[i] * p[j] / (1 - p[i]) for i, j in pairs])) < 31.3  # one of 1000


@pytest.mark.parametrize("scores", [[0.0] * 6, [50.0, 0.0, -50.0, -INF, -INF, 3.0]], ids=["flat", "steep"])
def test_a_draw_of_all_entries_is_a_permutation(scores: list[float]) -> None:
    best = stochastic_topk(torch.tensor(scores).expand(200, 6), 6, generator=torch.Generator().manual_seed(0))
    assert best.indices.sort(1).values.equal(torch.arange(6).expand(200, 6))


def test_a_generator_repeats_the_draw_and_leaves_the_global_one_alone() -> None:
    scores, state = torch.zeros(100), torch.get_rng_state()
    first, again, other = (
        stochastic_topk(scores, 50, generator=torch.Generator().manual_seed(seed)).indices for seed in (0, 0, 1)
    )
    assert first.equal(again)
    assert not first.equal(other)
    assert torch.get_rng_state().equal(state)


def test_without_a_generator_the_global_seed_repeats_the_draw() -> None:
    torch.manual_seed(0)
    first, second = (stochastic_topk(torch.zeros(100), 50).indices for _ in range(2))
    torch.manual_seed(0)
    assert stochastic_topk(torch.zeros(100), 50).indices.equal(first)
    assert not first.equal(second)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_noise_is_finite_even_for_a_draw_of_exactly_0(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda shape, generator, **kind: torch.zeros(shape, **kind))
    noise = gumbel((2, 3), torch.ones((), dtype=dtype))
    assert noise.shape == (2, 3)
    assert noise.dtype == dtype
    assert noise.isfinite().all()


def onesoft_by_hand(scores: Tensor, k: int, payload: Tensor) -> SoftTopK:
    """The paper's equations for scores (m,) and payload (m, r), one entry after the other."""
    m = len(scores)
    order = best_first(scores.tolist(), k)
    idx = order[:-1]
    bottom = [i for i in range(m) if i not in idx and scores[i] > -INF]
    Z = sum(scores[i].exp() for i in bottom)
    weight = [scores[i].exp() / Z if i in bottom else torch.zeros_like(scores[i]) for i in range(m)]
    SP = sum(weight[i] * payload[i] for i in range(m))
    s = sum(weight[i] * scores[i] for i in bottom) if bottom else torch.full_like(scores[0], -INF)
    return SoftTopK(
        torch.stack([*(scores[i] for i in idx), s]),
        torch.tensor(order),
        (torch.stack([*(payload[i] for i in idx), SP]),),
        torch.stack(weight),
    )


@pytest.mark.parametrize(
    "scores",
    [
        [0.3, -1.2, 2.0, 0.9, -0.4],
        [1.0, 1.0, 1.0, 0.0, 1.0],
        [-300.0, -305.0, -302.0, -301.0, -309.0],
        [-INF, 0.5, -INF, 1.5, -0.5],
        [-INF, -INF, 0.5, -INF, -INF],
        [-INF] * 5,
    ],
    ids=["spread", "ties", "far-down", "two-absent", "one-present", "none-present"],
)
@pytest.mark.parametrize("k", range(1, 6))
def test_onesoft_is_the_papers_equation(scores: list[float], k: int) -> None:
    """Outputs and gradients. Absent entries have no part, however large their payloads; where nothing is left to
    mix, the score is −inf and all weights are 0."""
    s = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
    payload = torch.where(s.detach().isneginf().unsqueeze(1), 1e300, normal(5, 3)).requires_grad_()
    best, expected = onesoft_topk(s, k, payload), onesoft_by_hand(s, k, payload)
    assert_close(best, expected, atol=1e-12, rtol=1e-12)
    found = gradients(best, s, payload)
    assert_close(found, gradients(expected, s, payload), atol=1e-12, rtol=1e-12)
    assert all(gradient.isfinite().all() for gradient in found)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("inner", INNERS, ids=str)
def test_onesoft_treats_every_row_alone(batch: tuple[int, ...], inner: tuple[int, ...]) -> None:
    scores, payloads = normal(*batch, 5), (normal(*batch, 5, *inner, seed=1), normal(*batch, 5, seed=2))
    best = onesoft_topk(scores, 3, *payloads)
    for place in places(batch):
        for number, payload in enumerate(payloads):
            row = onesoft_by_hand(scores[place], 3, payload[place])
            assert_close(best.payloads[number][place], row.payloads[0])
            assert_close((best.scores[place], best.indices[place], best.weights[place]), (row[0], row[1], row[3]))


def test_onesoft_with_one_place_is_the_softmax_average() -> None:
    scores, payload = normal(4, 6), normal(4, 6, 3, seed=1)
    best = onesoft_topk(scores, 1, payload)
    p = scores.softmax(1)
    assert_close(best.scores, (p * scores).sum(1, keepdim=True))
    assert_close(best.payloads[0], (p.unsqueeze(2) * payload).sum(1, keepdim=True))
    assert_close(best.weights, p)


def test_the_mixture_does_not_depend_on_how_low_all_scores_are() -> None:
    """A score sums the log-probabilities of a long history: its exponential is 0 in any precision."""
    scores, payload = normal(4, 6), normal(4, 6, 3, seed=1)
    best, far_down = onesoft_topk(scores, 3, payload), onesoft_topk(scores - 2.0**13, 3, payload)
    assert_close(far_down.payloads, best.payloads, atol=1e-9, rtol=0)
    assert_close(far_down.scores + 2.0**13, best.scores, atol=1e-9, rtol=0)


@pytest.mark.parametrize(("k", "hard"), [(6, False), (6, True), (3, True), (1, True)])
def test_onesoft_is_plain_when_hard_or_when_all_have_a_place(k: int, hard: bool) -> None:
    scores, payload = normal(4, 6).requires_grad_(), normal(4, 6, 3, seed=1).requires_grad_()
    best, expected = onesoft_topk(scores, k, payload, hard=hard), plain_topk(scores, k, payload)
    assert_close(tuple(best[:3]), tuple(expected), atol=0, rtol=0)
    assert_close(gradients(best, scores, payload), gradients(expected, scores, payload))
    if hard:
        assert not best.weights.any()


@pytest.mark.parametrize("k", [1, 3, 5])
def test_gradients_of_onesoft_agree_with_finite_differences(k: int) -> None:
    scores, payload = normal(2, 5).requires_grad_(), normal(2, 5, 3, seed=1).requires_grad_()

    def outputs(scores: Tensor, payload: Tensor) -> tuple[Tensor, ...]:
        best = onesoft_topk(scores, k, payload)
        return best.scores, *best.payloads, best.weights

    assert torch.autograd.gradcheck(outputs, (scores, payload))


@pytest.mark.parametrize("k", range(1, 5))
def test_onesoft_gives_every_entry_a_gradient(k: int) -> None:
    scores, payload = normal(3, 5).requires_grad_(), normal(3, 5, 2, seed=1).requires_grad_()
    assert all(gradient.all() for gradient in gradients(onesoft_topk(scores, k, payload), scores, payload))


@pytest.mark.parametrize("hard", [False, True])
def test_onesoft_cannot_average_integers(hard: bool) -> None:
    with pytest.raises(ValueError, match=r"payload 1 is torch\.int64: OneSoft averages payloads, pass floats"):
        onesoft_topk(torch.zeros(5), 2, torch.zeros(5), torch.zeros(5, dtype=torch.int64), hard=hard)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("k", [-1, 0, 6])
def test_k_must_be_between_1_and_the_number_of_scores(operator: Callable[..., TopK], k: int) -> None:
    with pytest.raises(ValueError, match=f"k = {k} with 5 scores: k must be an integer between 1 and their number"):
        operator(torch.zeros(2, 5), k)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("shape", [(), (5,), (2, 4), (5, 2), (1, 5, 3)], ids=str)
def test_a_payload_must_begin_with_the_shape_of_the_scores(operator: Callable[..., TopK], shape: tuple) -> None:
    with pytest.raises(ValueError, match=r"payload 1 has shape .* must begin with that of the scores") as error:
        operator(torch.zeros(2, 5), 2, torch.zeros(2, 5, 1), torch.zeros(shape))
    assert f"has shape {shape}:" in str(error.value)
    assert str(error.value).endswith("(2, 5)")


@pytest.mark.usefixtures("shape_checks_off")
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("scores", [torch.tensor(1.0), torch.tensor([1, 2])], ids=["one number", "integers"])
def test_scores_must_be_rows_of_floats(operator: Callable[..., TopK], scores: Tensor) -> None:
    with pytest.raises(ValueError, match=r"they must be floats of shape \(…, m\)"):
        operator(scores, 1)
