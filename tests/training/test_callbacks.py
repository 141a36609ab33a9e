"""Callbacks: when they are called, with what, and how they end a run."""

from pathlib import Path
from typing import Any

import pytest

from beamtree.models import storage
from beamtree.training import Callback, Run, train
from training.toy_runs import metrics, outcome, toy_settings, write_data


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path / "cache"))
    return write_data(tmp_path / "data", {"train": 16, "dev": 4})


def run(data: Path, folder: Path, *callbacks: Callback, **changes: Any) -> dict[str, Any]:
    settings = toy_settings(data, **{"training__max_epochs": 3, "training__patience": 9, **changes})
    return train(settings, folder, device="cpu", callbacks=callbacks, loggers=(), progress=False)


class Recorder(Callback):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_train_start(self, run: Run) -> None:
        self.calls.append(("start", run.epoch, run.step))

    def on_step_end(self, run: Run, loss: Any) -> None:
        assert loss.shape == ()
        self.calls.append(("step", run.step))

    def on_epoch_end(self, run: Run, metrics: dict[str, Any]) -> None:
        assert run.is_first
        assert metrics == run.metrics[-1]
        assert storage.is_run(run.folder)
        self.calls.append(("epoch", run.epoch))

    def on_train_end(self, run: Run, results: dict[str, Any]) -> None:
        self.calls.append(("end", results["epochs"]))


def test_they_are_called_in_order(data, tmp_path):
    recorder = Recorder()
    run(data, tmp_path / "run", recorder, training__max_epochs=2)
    steps = [
        ("start", 0, 0),
        ("step", 1),
        ("step", 2),
        ("epoch", 1),
        ("step", 3),
        ("step", 4),
        ("epoch", 2),
        ("end", 2),
    ]
    assert recorder.calls == steps
    run(data, tmp_path / "run", recorder, training__max_epochs=3)
    assert recorder.calls[len(steps) :] == [("start", 2, 4), ("step", 5), ("step", 6), ("epoch", 3), ("end", 3)]


def test_one_can_end_the_run(data, tmp_path):
    class Enough(Callback):
        def on_epoch_end(self, run: Run, metrics: dict[str, Any]) -> None:
            run.should_stop = metrics["epoch"] == 2

    assert run(data, tmp_path / "run", Enough())["epochs"] == 2
    assert len(metrics(tmp_path / "run")) == 2


def test_an_error_of_one_costs_nothing(data, tmp_path):
    class Broken(Callback):
        def on_epoch_end(self, run: Run, metrics: dict[str, Any]) -> None:
            raise RuntimeError("no luck")

    with pytest.raises(RuntimeError, match="no luck"):
        run(data, tmp_path / "run", Broken())
    run(data, tmp_path / "run")
    run(data, tmp_path / "whole")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
