"""The config.yaml of a run is a recipe with its settings."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from beamtree.models import pretrained
from beamtree.models.config import make_config
from beamtree.models.storage import CONFIG, PARSER, write_config
from beamtree.runs import recipes
from beamtree.runs.folder import read_settings
from beamtree.runs.settings import Settings


def write_run(folder: Path, settings: Settings) -> str:
    folder.mkdir(parents=True)
    write_config(folder, make_config(settings.to_dict(), ("no", "yes"), pair=False, closed_vocabulary=True))
    return str(folder / CONFIG)


@pytest.mark.parametrize("model", pretrained.shipped())
def test_the_command_of_a_model_card_has_the_settings_of_the_model(model: str) -> None:
    folder = pretrained.shipped_folder(model)
    expected = read_settings(folder)
    assert recipes.load(str(folder / CONFIG), seed=expected.seed) == expected


def test_it_has_the_encoder_and_the_changes_of_the_run(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"optimizer.lr": 0.5, "encoder.options.beam_size": 3, "data.options.seed": 7}
    settings = recipes.load("listops", "bt-lstm", seed=4, changes=changes)
    config = write_run(tmp_path / "run", settings)
    assert recipes.default_encoder(config) == "bt-lstm"
    assert recipes.encoders(config) == ["bt-lstm"]
    assert recipes.describe(config) == f"the settings of {tmp_path / 'run'}"
    found = recipes.load(config, seed=5, changes={"optimizer.lr": 0.25})
    assert found == settings.change({"optimizer.lr": 0.25, "seed": 5})
    with pytest.raises(ValueError, match="unknown encoder 'bt-grc'; known: bt-lstm"):
        recipes.load(config, "bt-grc")


def test_it_can_be_extended(tmp_path: Path) -> None:
    settings = recipes.load("listops", "gold-tree-grc", changes={"optimizer.lr": 0.5})
    write_run(tmp_path / "run", settings)
    (tmp_path / "mine.yaml").write_text("like: run/config.yaml\nmodel: {dim: 16}\n")
    found = recipes.load(str(tmp_path / "mine.yaml"))
    assert found == settings.change({"recipe": "mine", "model.dim": 16})


def test_the_parser_is_the_copy_in_the_folder(tmp_path: Path) -> None:
    changes = {"data.parser": "listops-bt-grc"}
    config = write_run(tmp_path / "run", recipes.load("listops", "gold-tree-grc", changes=changes))
    assert recipes.load(config).data.parser == "listops-bt-grc"
    write_run(tmp_path / "run" / PARSER, recipes.load("listops"))
    assert recipes.load(config).data.parser == str(tmp_path / "run" / PARSER)


def test_the_parser_keeps_its_name_if_the_copy_is_the_same(tmp_path: Path) -> None:
    config = write_run(tmp_path / "run", recipes.load("listops", "gold-tree-grc", 0, {"data.parser": "listops-bt-grc"}))
    shutil.copytree(pretrained.shipped_folder("listops-bt-grc"), tmp_path / "run" / PARSER)
    assert recipes.load(config).data.parser == "listops-bt-grc"


@pytest.mark.parametrize("name", ["/tmp/elsewhere", "a/../../b", ".."])
def test_the_recipe_of_a_config_is_no_path(tmp_path: Path, name: str) -> None:
    """Its name is that of the default folder."""
    config = Path(write_run(tmp_path / "run", recipes.load("listops")))
    config.write_text(config.read_text().replace("recipe: listops\n", f"recipe: {name}\n"))
    with pytest.raises(ValueError, match=r"config\.yaml: recipe is .*: it must be a name without a folder"):
        recipes.load(str(config))


def test_other_data_keeps_parser_and_options(tmp_path: Path) -> None:
    for name in ("one.tsv", "other.tsv"):
        (tmp_path / name).write_text("good\tyes\nbad\tno\n")
    changes = {"data.options.tokenizer": "spaces", "data.parser": "listops-bt-grc"}
    settings = recipes.load("text", "gold-tree-grc", changes=changes, task=str(tmp_path / "one.tsv"))
    config = write_run(tmp_path / "run", settings)
    found = recipes.load(config, task=str(tmp_path / "other.tsv")).data
    assert found == settings.change({"data.task": str(tmp_path / "other.tsv")}).data
    (tmp_path / "one.tsv").unlink()
    with pytest.raises(ValueError, match=r"data\.task: .*one\.tsv does not exist: give the data with --data"):
        recipes.load(config)


def test_a_damaged_config_is_named(tmp_path: Path) -> None:
    config = write_run(tmp_path / "run", recipes.load("listops"))
    document = yaml.safe_load(Path(config).read_text())
    del document["model"]
    Path(config).write_text(yaml.safe_dump(document))
    with pytest.raises(ValueError, match=r"\A[^\n]*/run/config\.yaml: model is missing[^\n]*\Z"):
        recipes.load(config)
