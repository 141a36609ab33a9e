"""`beamtree models`, and the list of recipes that it shares with `beamtree train --list`."""

import json

import pytest
import torch
from typer.testing import CliRunner

import beamtree
from beamtree import cli, pretrained, recipes
from beamtree.cli.models import list_recipes
from beamtree.data import TASKS, Vocabulary
from beamtree.runs import Config


def printed(*arguments):
    result = CliRunner().invoke(cli.app, ("models", *arguments), prog_name="beamtree")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A model of the package that has learned nothing."""
    torch.manual_seed(0)
    settings = recipes.load("listops", "bt-lstm", changes={"model.dim": 8})
    config = Config(settings, TASKS["listops"].labels, pair=False, closed_vocabulary=True)
    vocabulary = Vocabulary(TASKS["listops"].words, closed=True)
    model = pretrained.Pretrained(config, vocabulary, pretrained.build(config, len(vocabulary)))
    model.save_pretrained(tmp_path / "listops-shipped")
    monkeypatch.setattr(pretrained, "_SHIPPED", tmp_path)


def test_models_lists_all_there_is_to_load_and_to_train(shipped):
    lines = [line.split() for line in printed().splitlines()]
    assert ["listops-shipped", "bt-lstm", "listops"] in lines
    for name in beamtree.encoders():
        assert any(line[:2] == [name, "dim,"] for line in lines)
    for name in recipes.names():
        [line] = [line for line in lines if line[:2] == [name, "bt-grc"]]
        assert line[2] == str(len(recipes.encoders(name)))
        assert " ".join(line[3:]) == recipes.describe(name)


def test_models_without_a_shipped_one_has_no_table_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "_SHIPPED", tmp_path)
    assert printed().startswith("encoder ")
    assert json.loads(printed("--json"))["models"] == []


def test_json_holds_the_same(shipped):
    report = json.loads(printed("--json"))
    assert report["models"] == [{"name": "listops-shipped", "encoder": "bt-lstm", "recipe": "listops"}]
    assert list(report["encoders"]) == beamtree.encoders()
    assert "beam_size" in report["encoders"]["bt-grc"]
    rows = {row["name"]: row for row in report["recipes"]}
    assert sorted(rows) == recipes.names()
    for name, row in rows.items():
        assert (row["encoder"], row["about"]) == (recipes.default_encoder(name), recipes.describe(name))
        assert row["encoders"] == recipes.encoders(name)


def test_the_list_of_recipes_says_how_to_train_one(capsys):
    list_recipes()
    shown = capsys.readouterr().out
    assert all(name in shown for name in recipes.names())
    assert "'beamtree train RECIPE'" in shown


def test_models_has_help_with_an_example():
    shown = printed("--help")
    assert "Usage: beamtree models" in " ".join(shown.split())
    assert "beamtree models --json" in shown
