"""After each epoch: what counts as an improvement, reducing the learning rate, early stopping, the best weights."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

from beamtree.models import storage
from beamtree.training import Callback, Run, train
from beamtree.training.progress import Best, Means
from training.toy_runs import metrics, toy_settings, write_data


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path / "cache"))
    return write_data(tmp_path / "data", {"train": 16, "dev": 4, "test": 4})


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replaces the scores on dev by scripted ones, and stores the weights of each epoch."""

    def follow(losses: list[float], hits: list[int]) -> list[dict[str, torch.Tensor]]:
        seen: list[dict[str, torch.Tensor]] = []

        def evaluate(self):
            epoch = len(seen)
            seen.append({name: tensor.clone() for name, tensor in self.model.state_dict().items()})
            return Means(losses[epoch], hits[epoch] / 20_000, 20_000)

        monkeypatch.setattr(Run, "_evaluate_dev", evaluate)
        return seen

    return follow


def run(folder: Path, data: Path, **changes: Any) -> dict[str, Any]:
    settings = toy_settings(data, **{"training__max_epochs": 20, **changes})
    return train(settings, folder, device="cpu", progress=False)


def test_a_gain_is_more_than_a_ten_thousandth():
    best = Best()
    assert best.offer(-1.0, 1)
    assert not best.offer(-0.99995, 2)
    assert best.offer(-0.9998, 3)
    assert not best.offer(float("nan"), 4)
    assert (best.epoch, best.waited) == (3, 1)


def test_selection_by_loss(script, data, tmp_path):
    losses = [1.0, 0.9, 0.95, 0.89995, 0.8, 0.9, 0.9, 0.9]
    seen = script(losses, hits=[9999, 1, 1, 1, 1, 1, 1, 1])
    results = run(tmp_path / "run", data, training__select="loss", training__plateau_factor=None)
    assert (results["best_epoch"], results["epochs"]) == (5, 8)
    assert [line["dev_loss"] for line in metrics(tmp_path / "run")] == pytest.approx(losses)
    assert {line["lr"] for line in metrics(tmp_path / "run")} == {1e-2}
    kept = storage.read_weights(tmp_path / "run")
    assert all(torch.equal(kept[name], tensor) for name, tensor in seen[4].items())


def test_selection_by_accuracy_in_percent(script, data, tmp_path):
    hits = [5000, 5001, 5000, 5001, 5001]  # one more sample is 0.005 %
    script([1.0, 2.0, 0.5, 0.4, 0.3], hits)
    results = run(tmp_path / "run", data, training__select="accuracy", training__plateau_factor=None)
    assert (results["best_epoch"], results["epochs"]) == (2, 5)


@pytest.mark.parametrize("select", ["loss", "accuracy"])
def test_the_learning_rate_falls_where_dev_stays(select, script, data, tmp_path):
    values = [1, 2, 2, 2, 2, 2, 3, 3, 3]
    losses, hits = [2 - value / 10 for value in values], [value * 1000 for value in values]
    if select == "loss":
        hits.reverse()
    else:
        losses.reverse()
    script(losses, hits)
    changes = {"training__select": select, "training__plateau_patience": 1, "training__patience": 9}
    with pytest.raises(IndexError):  # the script has ended
        run(tmp_path / "run", data, **changes)
    rates = [line["lr"] for line in metrics(tmp_path / "run")]
    # Two epochs without improvement exceed the patience of 1; the next epoch has the lower rate.
    assert rates == pytest.approx([1e-2] * 4 + [5e-3] * 2 + [2.5e-3] * 3)


def test_noise_rises_before_an_epoch_is_selected(script, data, tmp_path, monkeypatch):
    deviations = []
    begin = Run.begin_epoch

    def record(self):
        begin(self)
        deviations.append(self.model.encoder.cell.state_noise)

    monkeypatch.setattr(Run, "begin_epoch", record)
    script([0.1, 0.2, 0.3, 0.9, 0.8, 0.8, 0.8, 0.8], hits=[1] * 8)  # best without noise
    noise = {"encoder__options": {"state_noise": 0.6}, "training__noise_epochs": 3}
    results = run(tmp_path / "run", data, training__select="loss", training__plateau_patience=0, **noise)
    assert deviations == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.6, 0.6, 0.6, 0.6])
    assert (results["best_epoch"], results["epochs"]) == (5, 8)
    assert [line["lr"] for line in metrics(tmp_path / "run")] == pytest.approx([1e-2] * 6 + [5e-3, 2.5e-3])


def test_training_that_is_stopped_while_the_noise_rises_has_not_diverged(data, tmp_path):
    class StopAtOnce(Callback):
        def on_epoch_end(self, run, metrics):
            run.should_stop = True

    noise = {"encoder__options": {"state_noise": 0.6}, "training__noise_epochs": 2}
    with pytest.raises(ValueError, match=r"\Atraining was stopped in epoch 1, .* rises until epoch 2 \(.*\)\Z"):
        train(toy_settings(data, **noise), tmp_path / "run", device="cpu", progress=False, callbacks=[StopAtOnce()])


def test_training_that_diverges_keeps_what_was_good(script, data, tmp_path, capsys):
    script([1.0, 0.9, float("nan")], hits=[1, 1, 1])
    results = run(tmp_path / "run", data, training__select="loss")
    assert (results["best_epoch"], results["epochs"]) == (2, 3)
    assert "training diverged in epoch 3" in capsys.readouterr().err


def test_training_that_diverges_at_once_says_what_to_do(script, data, tmp_path):
    script([float("nan")], hits=[1])
    with pytest.raises(
        ValueError, match=r"^training diverged: the loss of epoch 1 is not finite; .* smaller optimizer\.lr than 0\.01$"
    ):
        run(tmp_path / "run", data, training__select="loss")


def test_every_epoch_is_a_line_in_metrics_table_and_tensorboard(data, tmp_path):
    results = run(tmp_path / "run", data, training__max_epochs=3)
    lines = metrics(tmp_path / "run")
    assert [line["epoch"] for line in lines] == list(range(1, results["epochs"] + 1))
    assert [line["step"] for line in lines] == [2 * line["epoch"] for line in lines]
    assert all(line["train_loss"] > 0 and 0 <= line["train_accuracy"] <= 1 for line in lines)
    assert all(line["samples_per_second"] > 0 for line in lines)
    best = lines[results["best_epoch"] - 1]
    assert (best["dev_loss"], best["dev_accuracy"]) == (results["dev"]["loss"], results["dev"]["accuracy"])
    with open(tmp_path / "run" / "logs" / "csv" / "metrics.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [float(row["dev_loss"]) for row in table] == [line["dev_loss"] for line in lines]
    assert list((tmp_path / "run" / "logs" / "tensorboard").glob("events.*"))
