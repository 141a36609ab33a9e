"""Loggers: each one against its offline mode, continued when a run is resumed."""

import csv
import importlib.util
import json
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
from lightning.fabric.loggers.logger import Logger

from beamtree.training import loggers, train
from forked import Command
from training.toy_runs import metrics, toy_settings, write_data


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path / "cache"))
    return write_data(tmp_path / "data", {"train": 16, "dev": 4})


def run(data: Path, folder: Path, epochs: int, **options: Any) -> None:
    settings = toy_settings(data, training__max_epochs=epochs, training__patience=9)
    train(settings, folder, device="cpu", progress=False, **options)


def program() -> None:
    data, folder, name = sys.argv[1:]
    for epochs in (2, 3):
        run(Path(data), Path(folder), epochs, loggers=[name])


def in_process(name: str, data: Path, folder: Path, **variables: str) -> None:
    """Run in a separate process: the packages of the services raise warnings, which are errors in tests."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    environment = {**os.environ, **variables}
    command = Command([str(data), str(folder), name], data, environment, data / "program", program)
    status, _, errors = command.ended(120)
    assert status == 0, errors


def test_the_table_has_all_epochs_after_a_resume(data, tmp_path):
    run(data, tmp_path / "run", 2)
    run(data, tmp_path / "run", 3)
    with open(tmp_path / "run" / "logs" / "csv" / "metrics.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in table] == [1, 2, 3]
    assert [float(row["dev_loss"]) for row in table] == [line["dev_loss"] for line in metrics(tmp_path / "run")]


def test_tensorboard_keeps_what_was_there(data, tmp_path):
    folder = tmp_path / "run" / "logs" / "tensorboard"
    run(data, tmp_path / "run", 2)
    before = set(folder.glob("events.*"))
    assert before
    run(data, tmp_path / "run", 3)
    assert before < set(folder.glob("events.*"))


def test_wandb_continues_its_run(data, tmp_path):
    in_process("wandb", data, tmp_path / "run", WANDB_MODE="offline", WANDB_SILENT="true")
    identifier = json.loads((tmp_path / "run" / "logs" / "ids.json").read_text())["wandb"]
    runs = list((tmp_path / "run" / "logs" / "wandb").glob("offline-run-*"))
    assert len(runs) == 2
    assert all((folder / f"run-{identifier}.wandb").exists() for folder in runs)


def test_mlflow_continues_its_run(data, tmp_path):
    in_process("mlflow", data, tmp_path / "run")
    with sqlite3.connect(tmp_path / "run" / "logs" / "mlflow.db") as database:
        (runs,) = database.execute("select count(*) from runs").fetchone()
        losses = database.execute("select step, value from metrics where key = 'dev_loss' order by step").fetchall()
    assert runs == 1
    lines = metrics(tmp_path / "run")
    assert [step for step, _ in losses] == [line["step"] for line in lines]
    assert [loss for _, loss in losses] == pytest.approx([line["dev_loss"] for line in lines])


class Recorder(Logger):
    """A custom logger."""

    def __init__(self) -> None:
        self.logged: list[tuple[int | None, dict[str, float]]] = []
        self.parameters: dict[str, Any] = {}

    @property
    def name(self) -> str:
        return "recorder"

    @property
    def version(self) -> str:
        return "0"

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        self.parameters = dict(params)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.logged.append((step, metrics))


def test_a_logger_of_ones_own(data, tmp_path):
    recorder = Recorder()
    run(data, tmp_path / "run", 2, loggers=[recorder])
    assert [step for step, _ in recorder.logged] == [2, 4]
    assert recorder.logged[0][1].keys() >= {"epoch", "train_loss", "dev_accuracy", "lr"}
    assert recorder.parameters["optimizer.lr"] == 1e-2
    assert not (tmp_path / "run" / "logs" / "csv").exists(), "those by default are not added"


def test_mistakes_are_told_before_the_run_begins(data, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"unknown logger 'wandbb' .did you mean 'wandb'.*"):
        run(data, tmp_path / "run", 1, loggers=["wandbb"])
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="the logger mlflow needs mlflow, which is not installed: pip install mlflow"):
        run(data, tmp_path / "run", 1, loggers=["mlflow"])
    assert not (tmp_path / "run").exists()
