"""Costs of missing runs: which rows are measured, and what is written of them."""

import json

import pytest

from result_scripts import script
from training.toy_runs import toy_settings, write_data

queue = script("run_queue")
costs = script("measure_costs")


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A queue of three rows of the paper and one of the study, and an empty folder of results."""
    runs = [
        *(queue.Run("toy", "bt-grc", seed) for seed in range(3)),
        queue.Run("toy", "recurrent-grc", 0),
        queue.Run("other", "bt-grc", 0, ("training.micro_batch=4",), "small"),
        queue.Run("toy", "bt-grc", 0, (), "noise50"),
    ]
    monkeypatch.setattr(costs, "RUNS", runs)
    monkeypatch.setattr(costs, "RESULTS", tmp_path)
    return tmp_path


def finish(results, name, epochs):
    (results / name).mkdir(parents=True)
    (results / name / "results.json").write_text(json.dumps({"epochs": epochs}))


def test_rows_of_the_paper_that_lack_runs(results):
    finish(results, "toy/bt-grc-seed0", 4)
    finish(results, "toy/recurrent-grc-seed0", 4)
    found = {row.name: (row.run.seed, row.missing) for row in costs.rows()}
    assert found == {"toy/bt-grc": (1, 2), "other/bt-grc-small": (0, 1)}
    assert [row.name for row in costs.rows(["other/*"])] == ["other/bt-grc-small"]


def test_an_epoch_takes_its_steps(results, tmp_path, monkeypatch):
    data = write_data(tmp_path / "data", {"train": 20, "dev": 4})
    settings = toy_settings(data, training__max_epochs=1000, training__patience=1000)
    monkeypatch.setattr(costs.recipes, "load", lambda *arguments: settings)
    found = costs.measure(costs.RUNS[0], 0.3, "cpu")
    steps_per_epoch = -(-20 // settings.training.batch_size)
    assert found["steps"] >= costs.MIN_STEPS
    assert found["epoch_seconds"] == pytest.approx(found["step_ms"] * steps_per_epoch / 1000, abs=0.06)
    short = toy_settings(data, training__max_epochs=1)
    monkeypatch.setattr(costs.recipes, "load", lambda *arguments: short)
    assert costs.measure(costs.RUNS[0], 60, "cpu")["error"] == "the training ended within 60 seconds"


def test_the_table_has_the_hours_of_a_run_with_the_usual_epochs(results, monkeypatch):
    monkeypatch.setattr(costs, "RUNS", [*costs.RUNS, queue.Run("toy", "crvnn", 0)])
    finish(results, "toy/bt-grc-seed0", 20)
    finish(results, "toy/bt-grc-seed1", 40)
    for name, found in {
        "toy/bt-grc": {"step_ms": 120.4, "epoch_seconds": 60.0, "peak_mib": 1234},
        "toy/recurrent-grc": {"error": "out of memory"},
        "other/bt-grc-small": {"step_ms": 2.0, "epoch_seconds": 3.0},
    }.items():
        path = results / "costs" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
    assert costs.table().splitlines() == [
        "| row | runs missing | epochs | step | epoch | peak | hours for one run |",
        "|---|---:|---:|---:|---:|---:|---:|",
        "| `toy/bt-grc` | 1 | 30 | 120 ms | 60 s | 1,234 MiB | 0.5 |",
        "| `toy/recurrent-grc` | 1 | 30 | out of memory | – | – | – |",
        "| `other/bt-grc-small` | 1 | – | 2 ms | 3 s | – | – |",
        "| `toy/crvnn` | 1 | 30 | – | – | – | – |",
    ]


def test_columns_without_values_are_left_out(results):
    finish(results, "toy/bt-grc-seed0", 20)
    assert costs.table().splitlines() == [
        "| row | runs missing | epochs |",
        "|---|---:|---:|",
        "| `toy/bt-grc` | 2 | 20 |",
        "| `toy/recurrent-grc` | 1 | 20 |",
        "| `other/bt-grc-small` | 1 | – |",
    ]
