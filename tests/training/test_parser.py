"""Training along the trees of another model: its folder can be used, moved and resumed without that model."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from beamtree.data import load
from beamtree.evaluation import evaluate
from beamtree.models import pretrained, storage
from beamtree.runs import checkpoints, recipes
from beamtree.runs.settings import EncoderSettings
from beamtree.training import train
from beamtree.training.folder import Status, status
from beamtree.training.loading import prepare
from training.toy_runs import outcome, toy_settings, write_data

GOLD_TREE = EncoderSettings(name="gold-tree-grc", options={"dropout": 0.1})


class Stop(BaseException):
    pass


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path / "cache"))


def begin(tmp_path: Path, name: str, **changes: Any) -> Path:
    settings = toy_settings(tmp_path / "data", **changes)
    train(settings, tmp_path / name, device="cpu", progress=False, checkpoint_steps=1, loggers=())
    return tmp_path / name


def rename(folder: Path, words: dict[str, str]) -> None:
    for path in folder.iterdir():
        text = path.read_text()
        for word, other in words.items():
            text = re.sub(rf"\b{word}\b", other, text)
        path.write_text(text)


@pytest.mark.parametrize("pairs", [False, True])
def test_a_run_along_the_trees_of_another(tmp_path: Path, pairs: bool) -> None:
    write_data(tmp_path / "data", pairs=pairs)
    parser = begin(tmp_path, "parser")
    along = {"encoder": GOLD_TREE, "data__parser": str(parser)}  # in this order: others need no parser
    whole = begin(tmp_path, "whole", **along)

    save, count = checkpoints.save, 0

    def stopping(path: Path, state: dict[str, Any]) -> None:
        nonlocal count
        save(path, state)
        count += 1
        if count == 6:
            raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "save", stopping)
        with pytest.raises(Stop):
            begin(tmp_path, "stopped", **along)
    expected = pretrained.load(parser)
    shutil.rmtree(parser)
    shutil.rmtree(tmp_path / "cache")  # with the trees
    assert outcome(begin(tmp_path, "stopped", **along)) == outcome(whole)

    model = pretrained.load(shutil.move(tmp_path / "stopped", tmp_path / "moved"))
    texts = ["a b c a", "c"]
    assert [each[0].tree for each in model.parse_all(texts)] == [each[0].tree for each in expected.parse_all(texts)]
    found = evaluate(model, load(tmp_path / "data", tokenizer="spaces")["test"])
    assert found.accuracy == storage.read_results(whole)["splits"]["test"]["accuracy"]


def test_a_parser_that_does_not_know_the_words(tmp_path: Path) -> None:
    write_data(tmp_path / "data")
    along = {"encoder": GOLD_TREE, "data__parser": str(begin(tmp_path, "parser"))}
    settings, notes = toy_settings(tmp_path / "data", **along), list[str]()
    data, reported = prepare(settings, notify=notes.append), []
    assert notes == []
    data.batches("test", lambda *given: reported.append(given))
    assert reported[-1] == ("trees", len(data.data["test"]), len(data.data["test"]))

    rename(tmp_path / "data", {"a": "x"})
    prepare(settings, notify=notes.append)
    (note,) = notes
    assert note.endswith(" % of the words in the training data")

    rename(tmp_path / "data", {"b": "y", "c": "z"})
    with pytest.raises(ValueError, match=r"does not know 100\.0 % of .*: use a model that was trained on"):
        prepare(settings)


def test_a_run_goes_on_with_the_same_parser_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(tmp_path / "data")
    parser = begin(tmp_path, "parser")
    monkeypatch.chdir(tmp_path)
    run = begin(tmp_path, "run", encoder=GOLD_TREE, data__parser=str(parser))
    found = toy_settings(tmp_path / "data", encoder=GOLD_TREE, data__parser="elsewhere")
    assert recipes.load(str(run / storage.CONFIG)).data.parser == str(parser)
    shutil.copytree(parser, tmp_path / "elsewhere")
    assert status(run, found) is Status.FINISHED
    shutil.rmtree(parser)
    assert status(run, found.change({"data.parser": "parser"})) is Status.FINISHED
    assert recipes.load(str(run / storage.CONFIG)).data.parser == str(run / storage.PARSER)
    shutil.rmtree(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"holds a run with data\.parser .*, not 'elsewhere'"):
        status(run, found)
    begin(tmp_path, "elsewhere", seed=1)
    with pytest.raises(ValueError, match=r"holds a run with data\.parser .*, not 'elsewhere'"):
        status(run, found)
