"""`beamtree report`, on folders of finished and unfinished runs."""

import importlib.util
import json

import pytest
from typer.testing import CliRunner

from beamtree import cli
from beamtree.models import storage
from beamtree.models.config import make_config
from beamtree.runs import recipes
from beamtree.utils import files


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Two finished runs and one that is not, in `runs`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for seed in range(3):
        place = tmp_path / "runs" / f"bt-grc-seed{seed}"
        place.mkdir(parents=True)
        config = make_config(recipes.load("sst5", seed=seed).to_dict(), ("a", "b"), pair=False, closed_vocabulary=False)
        storage.write_config(place, config)
        if seed < 2:
            score = {"correct": 1, "count": 2, "accuracy": 0.5 + seed / 50, "loss": 1.0}
            files.write_json(place / storage.RESULTS, {"splits": {"iid": score}})
    return tmp_path


def invoke(*arguments):
    return CliRunner().invoke(cli.app, ("report", *arguments), prog_name="beamtree")


def test_it_prints_markdown_and_names_what_is_left_out():
    result = invoke("runs")
    assert result.exit_code == 0
    assert "51.00 ± 1.00" in result.stdout
    assert "52.32 ± 0.47" in result.stdout
    assert result.stderr.startswith("left out: runs/bt-grc-seed2 ")
    assert "not finished" in result.stderr


def test_it_writes_latex_into_a_file(folder):
    result = invoke("runs", "--latex", "--out", "table.tex")
    assert result.exit_code == 0
    assert result.stdout == "table.tex: 1 table of 2 runs\n"
    assert r"BT-GRC & 2 & $51.00_{10}$ \\" in (folder / "table.tex").read_text()


def test_json_is_all_that_is_printed():
    report = json.loads(invoke("runs", "--json").stdout)
    assert report["tables"][0]["task"] == "sst5"
    assert list(report["left_out"]) == ["runs/bt-grc-seed2"]


def test_runs_can_be_named_one_by_one():
    report = json.loads(invoke("runs/bt-grc-seed1", "runs/bt-grc-seed0", "--json").stdout)
    assert report["tables"][0]["rows"][0]["seeds"] == [1, 0]
    assert report["left_out"] == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument 'RUN'"),
        (["nowhere"], "nowhere: there is no such folder"),
        (["empty"], "empty: there are no runs in it"),
        (["runs/bt-grc-seed2"], "no finished run"),
        (["runs", "--out", "no/table.md"], "the folder no does not exist"),
        (["runs", "--out", "empty"], "empty: it cannot be written"),
        (["runs", "--latex", "--json"], "are mutually exclusive"),
    ],
)
def test_a_mistake_is_answered_in_one_line(arguments, message):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pydantic" else found(name))
    result = invoke("runs")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: beamtree report needs pydantic, which is not installed: "
        "pip install 'beamtree[train]', or '.[train]' in a clone\n"
    )


def test_help_has_examples():
    shown = invoke("--help").stdout
    assert "Usage: beamtree report" in " ".join(shown.split())
    assert "beamtree report runs" in shown
