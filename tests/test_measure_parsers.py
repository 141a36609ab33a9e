"""What the errors of a parser cost: measured with gold trees beside, and written as a table."""

import json

import pytest

import beamtree
from result_scripts import script

parsers = script("measure_parsers")


class Measured:
    """The run of a model, as it is loaded."""

    def __init__(self):
        self.config = beamtree.load("listops-bt-grc").config
        self.parser = object()
        self.results = {"splits": {"args-dev": {"accuracy": 0.5}}}


def test_the_accuracy_with_gold_trees_is_measured(monkeypatch):
    model = Measured()

    def evaluate(given, split):
        assert (given, given.parser, split) == (model, None, "the split")
        return type("Found", (), {"accuracy": 0.75})

    monkeypatch.setattr(parsers.beamtree, "load", lambda name, device: model)
    monkeypatch.setattr(parsers.beamtree.data, "load", lambda task, **options: {"args-dev": "the split"})
    monkeypatch.setattr(parsers, "evaluate", evaluate)
    assert parsers.measure("run", None) == {"args-dev": {"parsed": 50.0, "gold": 75.0}}


def test_a_model_without_a_parser_is_refused():
    with pytest.raises(ValueError, match="listops-bt-grc is not a finished run along the trees of a parser"):
        parsers.measure("listops-bt-grc", None)


def test_the_table_has_both_kinds_of_trees(tmp_path, monkeypatch):
    monkeypatch.setattr(parsers, "MEASURED", tmp_path)
    (tmp_path / "one.json").write_text(
        json.dumps({"model": "one", "splits": {"near-iid": {"parsed": 99.0, "gold": 99.5}}})
    )
    assert parsers.table().splitlines() == [
        "| model | trees | near-IID |",
        "|---|---|---:|",
        "| `one` | its parser's | 99.00 |",
        "| `one` | gold | 99.50 |",
    ]
