"""Evaluation: the results of a loop over single samples, for any batches and any amount of memory."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import beamtree
from beamtree.data import Batches, Ragged, Sample, Split, Vocabulary
from beamtree.data.tasks import listops
from beamtree.evaluation import (
    Evaluation,
    Outcomes,
    Proportion,
    evaluate,
    evaluate_model,
    records,
    results,
    scoring,
    views,
)
from beamtree.models.build import build
from beamtree.models.config import make_config
from beamtree.models.heads import PairClassifier, TextClassifier
from beamtree.models.pretrained import Pretrained
from beamtree.runs import recipes

WORDS = 12


def make_model(kind=TextClassifier, classes=4, **settings):
    torch.manual_seed(0)
    encoder = beamtree.encoder("bt-grc", dim=8, beam_size=2, dropout=0.3)
    return kind(encoder, WORDS, classes, dropout=0.3, **settings).double()


def make_data(count=24, classes=4, pair=False, longest=12, seed=0):
    draw = np.random.default_rng(seed)

    def side():
        return Ragged.from_sequences([draw.integers(3, WORDS, n).tolist() for n in draw.integers(1, longest, count)])

    return Batches(side(), draw.integers(0, classes, count), side() if pair else None)


def one_by_one(model, data):
    """Whether the model is right on each sample, and its loss."""
    model = copy.deepcopy(model).eval()
    hit, losses = [], []
    for index in range(len(data)):
        batch = data[[index]]
        sides = (batch.tokens, batch.lengths, batch.second_tokens, batch.second_lengths)
        with torch.no_grad():
            logits = model(*(side for side in sides if side is not None)).logits[0]
        label = int(batch.labels)
        if len(logits) == 1:
            logits = torch.cat((torch.zeros(1), logits))  # the first of two classes has the logit zero
        hit.append(int(logits.argmax()) == label)
        losses.append(float(F.cross_entropy(logits, torch.tensor(label))))
    return np.array(hit), np.array(losses)


class SmallMemory(TextClassifier):
    """A model that runs out of memory above `room` tokens, including padding, and records the shapes of its inputs."""

    room = 25

    def forward(self, tokens, lengths):
        self.asked = [*getattr(self, "asked", []), tuple(tokens.shape)]
        if tokens.numel() > self.room:
            raise torch.OutOfMemoryError(f"cannot hold {tokens.numel()} tokens")
        return super().forward(tokens, lengths)


@pytest.mark.parametrize(("kind", "classes"), [(TextClassifier, 4), (TextClassifier, 2), (PairClassifier, 3)])
def test_it_finds_what_a_loop_over_single_samples_finds_however_batched(kind, classes):
    model, data = make_model(kind, classes), make_data(classes=classes, pair=kind is PairClassifier)
    hit, losses = one_by_one(model, data)
    assert 0 < hit.sum() < len(hit)  # otherwise a constant would pass
    for limits in ({}, {"budget": 1}, {"budget": 500}, {"budget": 10**9}, {"max_samples": 3}):
        found = evaluate_model(model, data, device="cpu", **limits)
        assert np.array_equal(found.hit, hit)
        np.testing.assert_allclose(found.losses, losses, atol=1e-6)


def test_batches_keep_to_the_budget_and_the_longest_come_first():
    model, data = make_model(SmallMemory), make_data()
    model.room = 10**9
    evaluate_model(model, data, device="cpu", budget=400, max_samples=7)
    assert sum(size for size, _ in model.asked) == len(data)
    assert all(size <= 7 and (size == 1 or size * width**2 <= 400) for size, width in model.asked)
    assert any(size > 1 for size, _ in model.asked)
    widths = [width for _, width in model.asked]
    assert widths == sorted(widths, reverse=True)


@pytest.mark.parametrize("budget", [None, 10**9])
def test_what_does_not_fit_goes_in_smaller_batches_with_one_warning(budget):
    model, data = make_model(SmallMemory), make_data()
    hit, losses = one_by_one(model, data)
    with pytest.warns(RuntimeWarning, match=r"24 inputs of 11 tokens do not fit into the memory of cpu") as given:
        found = evaluate_model(model, data, device="cpu", budget=budget)
    assert len(given) == 1
    assert np.array_equal(found.hit, hit)
    np.testing.assert_allclose(found.losses, losses, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*continuing with smaller batches")
def test_an_input_that_does_not_fit_by_itself_is_an_error():
    model = make_model(SmallMemory)
    model.room = 9
    with pytest.raises(ValueError, match="an input of 11 tokens does not fit into"):
        evaluate_model(model, make_data(), device="cpu")


def test_other_errors_of_the_model_come_through(monkeypatch):
    def forward(*batch):
        raise RuntimeError("broken")

    model = make_model()
    monkeypatch.setattr(model, "forward", forward)
    with pytest.raises(RuntimeError, match="broken"):
        evaluate_model(model, make_data(), device="cpu")
    assert all(module.training for module in model.modules())


def test_the_model_is_left_as_it_was():
    model = make_model()
    model.encoder.eval()
    before = [module.training for module in model.modules()]
    assert len(set(before)) == 2
    evaluate_model(model, make_data(), device="cpu")
    assert [module.training for module in model.modules()] == before
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.filterwarnings("ignore:.*continuing with smaller batches")
@pytest.mark.parametrize("room", [25, 10**9])
def test_progress_ends_with_all_samples_and_never_goes_back(room):
    model, told = make_model(SmallMemory), []
    model.room = room
    evaluate_model(model, make_data(), device="cpu", budget=1000, progress=lambda *numbers: told.append(numbers))
    assert told[0] == (0, 24)
    assert told[-1] == (24, 24)
    assert told == sorted(set(told))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": 5}, "the label 4, but the model has 4 classes"),
        ({"pair": True}, "the model takes single texts, but the data has pairs"),
    ],
)
def test_data_that_is_not_the_models_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        evaluate_model(make_model(), make_data(**settings), device="cpu")


def test_a_negative_label_is_named():
    data = make_data()
    data.labels[5] = -1
    with pytest.raises(ValueError, match="the data has the label -1, but the model has 4 classes: labels start at 0"):
        evaluate_model(make_model(), data, device="cpu")


def test_data_without_labels_is_refused():
    data = Batches(make_data().tokens)
    with pytest.raises(ValueError, match="no labels"):
        evaluate_model(make_model(), data, device="cpu")


@pytest.mark.parametrize("limits", [{"budget": 0}, {"max_samples": 0}])
def test_limits_are_at_least_one(limits):
    with pytest.raises(ValueError, match="at least 1"):
        evaluate_model(make_model(), make_data(), device="cpu", **limits)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [TextClassifier, PairClassifier])
def test_a_gpu_finds_the_same(kind):
    model, data = make_model(kind).float(), make_data(200, pair=kind is PairClassifier, longest=300)
    expected = evaluate_model(model, data, device="cpu")
    found = evaluate_model(model.cuda(), data, device="cuda")
    assert np.mean(found.hit == expected.hit) > 0.99  # the order of sums differs
    np.testing.assert_allclose(found.losses, expected.losses, atol=1e-2)


@pytest.mark.gpu
def test_a_gpu_with_little_memory_left_finds_the_same():
    model, data = make_model().float().cuda(), make_data(200, longest=300)
    expected = evaluate_model(model, data, device="cuda", budget=10**5)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    try:
        torch.cuda.set_per_process_memory_fraction((total - free + 100 * 2**20) / total)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            found = evaluate_model(model, data, device="cuda", budget=10**12)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert np.mean(found.hit == expected.hit) > 0.99


@pytest.mark.parametrize(
    ("correct", "count", "interval"),
    # As in tables of Wilson's interval: 0 of 10, 5 of 10, 9 of 10, and of many.
    [(0, 10, (0, 0.2775)), (5, 10, (0.2366, 0.7634)), (10, 10, (0.7225, 1)), (1734, 2000, (0.8514, 0.8812))],
)
def test_the_interval_is_wilsons(correct, count, interval):
    share = Proportion(correct, count)
    assert share.interval == pytest.approx(interval, abs=1e-4)
    low, high = share.interval
    assert 0 <= low <= share.accuracy <= high <= 1


def evaluation(lengths, depths=None, seed=0):
    draw = np.random.default_rng(seed)
    count = len(lengths)
    depths = None if depths is None else np.array(depths)
    return Evaluation(
        outcomes(draw.integers(0, 2, count), draw.integers(0, 2, count)), ("a", "b"), np.array(lengths), depths
    )


def outcomes(predictions, labels, probabilities=None, classes=2):
    """Outcomes whose predictions all have the same probability, unless probabilities are given."""
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    if probabilities is None:
        probabilities = np.where(np.arange(classes) == predictions[:, None], 0.8, 0.2 / (classes - 1))
    return Outcomes(predictions, labels, np.asarray(probabilities, dtype=np.float32), np.ones(len(labels)))


def test_macro_f1_is_the_mean_over_labels_that_occur():
    found = Evaluation(outcomes([0, 0, 1, 1], [0, 1, 1, 1], classes=4), tuple("abcd"), np.ones(4, int), None)
    first, second = 2 * 1 / (2 + 1), 2 * 2 / (2 + 3)  # 2 · correct / (predicted + labelled)
    assert found.macro_f1 == pytest.approx((first + second) / 2)


def test_confusions_have_a_row_for_each_label():
    found = Evaluation(outcomes([0, 0, 1, 2], [0, 1, 1, 1], classes=3), tuple("abc"), np.ones(4, int), None)
    assert found.confusion.tolist() == [[1, 0, 0], [1, 1, 1], [0, 0, 0]]
    record = records({"test": found})["splits"]["test"]
    assert record["confusion"] == {"labels": ["a", "b", "c"], "counts": found.confusion.tolist()}
    assert record["macro_f1"] == found.macro_f1


def test_calibration_compares_probability_with_accuracy():
    sure = outcomes([0] * 10, [0] * 8 + [1] * 2)
    assert Evaluation(sure, ("a", "b"), np.ones(10, int), None).calibration_error == pytest.approx(0, abs=1e-6)
    wrong = outcomes([0] * 10, [0] * 3 + [1] * 7)
    assert Evaluation(wrong, ("a", "b"), np.ones(10, int), None).calibration_error == pytest.approx(0.5, abs=1e-6)


def test_every_sample_is_in_one_bin():
    lengths = np.random.default_rng(0).integers(1, 940, 500)
    found = evaluation(lengths)
    bins = views({"test": found})["length"]["test"]
    assert len(bins) == 10
    assert [(each.first, each.last) for each in bins[:2]] == [(1, 100), (101, 200)]
    assert sum(each.count for each in bins) == found.count
    for each in bins:
        inside = (lengths >= each.first) & (lengths <= each.last)
        assert (each.correct, each.count) == (found.hit[inside].sum(), inside.sum())


def test_splits_share_their_bins_and_depth_is_shown_where_it_is_known():
    found = {"a": evaluation([1, 5, 12], [0, 1, 3]), "b": evaluation([2, 11])}
    shown = views(found)
    assert [each.first for each in shown["length"]["a"]] == [1, 5, 12]
    assert [each.first for each in shown["length"]["b"]] == [2, 11]
    assert list(shown["depth"]) == ["a"]
    assert [(each.first, each.last) for each in shown["depth"]["a"]] == [(0, 0), (1, 1), (3, 3)]
    deep = views({"a": evaluation([9] * 20, range(20))})["depth"]["a"]
    assert [(each.first, each.last) for each in deep[:3]] == [(0, 0), (1, 2), (3, 4)]
    assert list(records({"b": found["b"]})) == ["splits", "by_length"]


def listops_split(texts, labels=tuple("0123456789")):
    samples = [Sample(tuple(text.split()), str(listops.evaluate(text.split()))) for text in texts]
    return Split.from_samples(samples, labels)


EXPRESSIONS = ["4", "[MAX 2 9 ]", "[MAX 2 [MIN 4 7 ] 0 ]", "[SM [SM [SM 1 2 ] 3 ] [MED 1 ] ]", "[MAX 1 ]", "7"]


def test_depth_is_that_of_the_expressions():
    texts = [*EXPRESSIONS, "[MAX 1 [MIN 2", "[SM 3 ]", "] ] 4", "[MAX [MAX 1 ] ]"]  # some of them are malformed
    split = Split.from_samples([Sample(tuple(text.split()), "0") for text in texts], ("0", "1"))
    assert results.nesting(split).tolist() == [listops.depth(text.split()) for text in texts]
    words = Split.from_samples([Sample(("a", "film"), "good")], ("good", "bad"))
    assert results.nesting(words) is None


def pretrained():
    settings = recipes.load("listops", changes={"model.dim": 8})
    vocabulary = Vocabulary(listops.TOKENS, closed=True)
    config = make_config(settings.to_dict(), tuple("0123456789"), pair=False, closed_vocabulary=True)
    torch.manual_seed(0)
    return Pretrained(config, vocabulary, build(config, len(vocabulary))).eval()


def test_a_pretrained_model_is_evaluated_on_a_split():
    model, split = pretrained(), listops_split(EXPRESSIONS)
    found = evaluate(model, split)
    predicted = [prediction.label for prediction in model.predict(EXPRESSIONS)]
    assert found.outcomes.probabilities == pytest.approx(model.predict_proba(EXPRESSIONS), abs=1e-6)
    assert found.hit.tolist() == [label == sample.label for label, sample in zip(predicted, split, strict=True)]
    assert found.lengths.tolist() == [len(text.split()) for text in EXPRESSIONS]
    assert found.to_dict() == {
        "correct": found.hit.sum(),
        "count": 6,
        "accuracy": found.hit.mean(),
        "loss": pytest.approx(found.losses.mean()),
    }


def test_labels_count_by_their_names_not_their_numbers():
    model = pretrained()
    expected = evaluate(model, listops_split(EXPRESSIONS))
    assert expected.correct < expected.count
    own = listops_split(EXPRESSIONS, labels=tuple("9743210586"))
    assert evaluate(model, own).losses == pytest.approx(expected.losses)


def test_a_label_that_the_model_does_not_know_is_named():
    own = Split.from_samples([Sample(("4",), "four")], ("four", "five"))
    with pytest.raises(ValueError, match=r"the data does not fit the model: unknown label 'four'.*known: 0, 1"):
        evaluate(pretrained(), own)


def test_a_token_that_the_model_does_not_know_is_named():
    own = Split.from_samples([Sample(("[MAXX", "4", "]"), "4")], ("4", "5"))
    with pytest.raises(ValueError, match=r"unknown token '\[MAXX'"):
        evaluate(pretrained(), own)


@pytest.fixture
def imaginary_gpu(monkeypatch):
    """A GPU on which a batch may use 1 MB, and each token needs 100 bytes. Returns the measured lengths."""
    measured = []

    def peak_bytes(work, device):
        work()
        return 100 * measured[-1]

    monkeypatch.setattr(scoring, "peak_bytes", peak_bytes)
    monkeypatch.setattr(scoring, "available_bytes", lambda device: scoring.SHARE * 10**6)
    monkeypatch.setattr(scoring._Scoring, "score", lambda self, rows: measured.append(int(self.lengths[rows].max())))
    monkeypatch.setattr(torch.cuda, "device", lambda device: warnings.catch_warnings())
    return measured


def test_on_a_gpu_batches_fill_their_share_of_the_memory_and_no_more(imaginary_gpu):
    for longest in (100, 1000, 5000):
        data = make_data(400, longest=longest + 1)
        one = scoring._Scoring(make_model(), data, torch.device("cpu"), 256)
        plan = one.plan(np.arange(len(data)), one.measured_budget())
        taken = [100 * len(rows) * int(data.lengths[rows].max()) for rows in plan]
        assert max(taken) <= 10**6
        assert all(each > 0.5 * 10**6 for each in taken[1:-1])  # the batches at both ends may be smaller


def test_on_a_gpu_memory_is_measured_again_for_longer_inputs_alone(imaginary_gpu):
    model = make_model()
    for longest in (20, 10, 20, 40):
        data = Batches(Ragged.from_sequences([[3] * longest, [3]]), [0, 1])
        scoring._Scoring(model, data, torch.device("cpu"), 256).measured_budget()
    assert imaginary_gpu == [20, 40]
