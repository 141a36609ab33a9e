"""Ensembles: the accuracy of averaged probabilities, and what is written of it."""

import json

import numpy as np
import pytest

import beamtree
from result_scripts import script

ensembles = script("measure_ensembles")

EXPRESSIONS = ["[MAX 2 9 ]", "[MIN 4 7 ]", "[SM 8 9 ]"]


@pytest.fixture
def data(monkeypatch):
    """Three expressions, of which the last one has a wrong label."""
    found = beamtree.data.Data.from_samples([text.split() for text in EXPRESSIONS], ["9", "4", "3"], dev=0, test=0)
    monkeypatch.setattr(beamtree.data, "load", lambda task, **options: found)
    return found


def test_an_ensemble_predicts_what_is_most_probable_on_average():
    labels = np.array([0, 0, 1])
    sure, unsure = [[0.9, 0.1], [0.1, 0.9], [0.2, 0.8]], [[0.4, 0.6], [0.6, 0.4], [0.4, 0.6]]
    found = ensembles.accuracies([np.array(sure), np.array(unsure), np.array(sure)], labels)
    assert found == {"1": [66.67, 66.67, 66.67], "2": [66.67, 66.67, 66.67], "3": [66.67]}
    other = np.array([[0.5, 0.5], [0.95, 0.05], [0.1, 0.9]])
    assert ensembles.accuracies([np.array(sure), other], labels)["2"] == [100.0]


def test_models_are_evaluated_on_the_splits(data):
    models = ["listops-bt-grc", "listops-bt-grc-onesoft"]
    assert ensembles.measure(models, ["train"], None) == {"train": {"1": [66.67, 66.67], "2": [66.67]}}


def test_an_unknown_split_is_refused_before_any_measurement(data, monkeypatch):
    monkeypatch.setattr(ensembles, "evaluate", lambda *given: pytest.fail("measured"))
    with pytest.raises(ValueError, match="unknown split 'tset'"):
        ensembles.measure(["listops-bt-grc"], ["train", "tset"], None)


def test_models_with_other_labels_are_refused(data):
    with pytest.raises(ValueError, match=r"\Asst5-bt-grc has other labels than listops-bt-grc: "):
        ensembles.measure(["listops-bt-grc", "sst5-bt-grc"], ["train"], None)


def test_the_table_has_the_mean_and_the_range_of_each_size(tmp_path, monkeypatch):
    monkeypatch.setattr(ensembles, "MEASURED", tmp_path)
    for name, splits in {
        "five": {"args-dev": {"1": [80.0, 84.0], "2": [85.5]}},
        "more": {"args-dev": {"1": [70.0]}, "lra": {"1": [60.25]}},
    }.items():
        models = [f"{name}-seed{seed}" for seed in range(len(splits["args-dev"]))]
        (tmp_path / f"{name}.json").write_text(json.dumps({"name": name, "models": models, "splits": splits}))
    assert ensembles.table().splitlines() == [
        "| models | averaged | args-dev | LRA |",
        "|---|---:|---:|---:|",
        "| `five` | 1 | 82.00 (80.00 to 84.00) | – |",
        "| `five` | 2 | 85.50 | – |",
        "| `more` | 1 | 70.00 | 60.25 |",
    ]
