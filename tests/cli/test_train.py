"""`beamtree train` on tiny data with a recipe for it."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from beamtree import cli, training
from beamtree.models import storage
from beamtree.models.config import make_config
from beamtree.models.pretrained import shipped_folder
from beamtree.runs import folder as runs_folder
from beamtree.runs import recipes
from beamtree.runs.folder import read_settings
from beamtree.training import sweep
from training.toy_runs import write_data

RECIPE = """
about: a toy
encoder: bt-grc
data: {task: data, options: {tokenizer: spaces}, vectors: null, tests: []}
model: {dim: 6, hidden: null, dropout: 0.1, dropout_in: 0.1}
optimizer: {name: ranger, lr: 1e-2, weight_decay: 1e-2}
training:
  {batch_size: 8, micro_batch: 4, dev_batch: 8, bucket_factor: 2, clip: 1, max_epochs: 1, patience: 3,
   select: loss, plateau_factor: 0.5, plateau_patience: 2, precision: "32"}
encoders:
  bt-grc: {options: {beam_size: 2}}
  bt-lstm: {options: {beam_size: 2}}
"""
TOY = ("toy.yaml", "--device", "cpu")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the program, with data and a recipe."""
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path / "data")
    (tmp_path / "toy.yaml").write_text(RECIPE)
    return tmp_path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments with which `train` is called, instead of training."""
    calls: list[dict[str, Any]] = []

    def train(settings: Any, folder: Any, **options: Any) -> dict[str, Any]:
        calls.append({"settings": settings, "folder": folder, **options})
        return {}

    monkeypatch.setattr(training, "train", train)
    return calls


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ("train", *arguments), prog_name="beamtree")


def test_a_recipe_becomes_a_model_and_is_not_trained_twice(folder):
    result = invoke(*TOY)
    assert result.exit_code == 0, result.stderr
    assert re.search(r"test +9 +\d+\.\d\d +\d\.\d{4}\n", result.stdout)
    assert "best epoch 1 of 1" in result.stdout
    assert "the model is in runs/toy/bt-grc-seed0\n" in result.stdout
    assert result.stderr.startswith("epoch 1/1  train loss")
    assert storage.is_finished(folder / "runs/toy/bt-grc-seed0")
    again = invoke(*TOY)
    assert again.stdout == result.stdout
    assert re.fullmatch(r"runs/toy/bt-grc-seed0 was finished on .*; these are its results\n", again.stderr)


def test_json_is_all_that_is_printed(folder):
    result = invoke(*TOY, "--json", "--out", "here")
    assert (result.exit_code, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert report == {"folder": "here", **storage.read_results("here")}


def test_resume_needs_the_folder_alone(folder):
    (folder / "data" / "test.tsv").rename(folder / "away.tsv")
    settings = recipes.load("toy.yaml", seed=3)
    labels = ("a", "b", "c")
    Path("begun").mkdir()
    storage.write_config("begun", make_config(settings.to_dict(), labels, pair=False, closed_vocabulary=False))
    result = invoke("--resume", "begun", "--device", "cpu", "--quiet")
    assert (result.exit_code, result.stderr) == (0, "")
    assert storage.read_results("begun")["splits"] == {}


def test_options_are_passed_on(asked):
    result = invoke(
        *("toy.yaml", "-e", "bt-lstm", "--seed", "4", "--set", "optimizer.lr=5e-4", "--precision", "bf16"),
        *(
            "--out",
            "x",
            "--devices",
            "2",
            "--nodes",
            "3",
            "--data-dir",
            "a",
            "--data-dir",
            "b",
            "--checkpoint-minutes",
            "1.5",
            "--logger",
            "csv",
        ),
    )
    assert result.exit_code == 0, result.stderr
    (call,) = asked
    settings = call.pop("settings")
    assert (settings.encoder.name, settings.seed, settings.optimizer.lr) == ("bt-lstm", 4, 5e-4)
    assert settings.training.precision == "bf16"
    assert call == {
        **{"folder": Path("x"), "devices": 2, "nodes": 3, "device": "auto", "checkpoint_minutes": 1.5},
        **{"progress": True, "roots": [Path("a"), Path("b")], "loggers": ["csv"]},
    }


def test_several_runs_are_a_sweep(folder, monkeypatch):
    swept: list[Any] = []

    def run_all(jobs: list[sweep.Job], at_once: int, console: Any) -> list[sweep.Job]:
        swept.append(at_once)
        for job in jobs[1:]:
            result = CliRunner().invoke(cli.app, job.command[3:], prog_name="beamtree")
            assert result.exit_code == 0, result.stderr
        return jobs[:1]

    monkeypatch.setattr(sweep, "run_all", run_all)
    many = ("-e", "bt-grc", "-e", "bt-lstm", "--seeds", "2", "--seed", "7", "--at-once", "3")
    result = invoke(*TOY, *many, "--set", "optimizer.lr=5e-4", "--quiet")
    assert swept == [3]
    assert result.exit_code == 1
    assert result.stderr == "failed: bt-grc-seed7, see runs/toy/bt-grc-seed7.log\n"
    for name in ("bt-grc-seed8", "bt-lstm-seed7", "bt-lstm-seed8"):
        settings = read_settings(folder / "runs/toy" / name)
        assert f"{settings.encoder.name}-seed{settings.seed}" == name
        assert settings.optimizer.lr == 5e-4
        assert re.search(rf"{name} +\d", result.stdout)
    assert "the models are in runs/toy\n" in result.stdout


def test_ctrl_c_says_how_to_go_on(folder, monkeypatch):
    def train(settings: Any, where: Path, **options: Any) -> None:
        where.mkdir()
        storage.write_config(where, make_config(settings.to_dict(), ("a", "b"), pair=False, closed_vocabulary=False))
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "train", train)
    result = invoke(*TOY, "--out", "my run")
    assert result.exit_code == 130
    assert result.stderr == "interrupted; to resume: beamtree train --resume 'my run'\n"


def test_list_shows_the_recipes():
    result = invoke("--list")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in recipes.names())


def test_the_help_shows_examples_that_are_valid(asked, monkeypatch):
    shown = " ".join(invoke("--help").stdout.split())
    monkeypatch.setattr(sweep, "run_all", lambda jobs, at_once, console: list(jobs))
    monkeypatch.setattr(training, "resume", lambda folder, **options: {})
    monkeypatch.setattr(runs_folder, "read_settings", lambda folder: recipes.load("listops"))
    Path("reviews.tsv").write_text("text\tlabel\ngood\tyes\nbad\tno\n")
    for example, status in (
        ("beamtree train listops-tiny", 0),
        ("beamtree train reviews.tsv", 0),
        ("beamtree train listops --encoder bt-grc-onesoft --seed 1 --set optimizer.lr=5e-4 --out runs/slow", 0),
        ("beamtree train listops -e bt-grc -e bt-grc-onesoft --seeds 3 --at-once 3", 1),  # as all of them "fail"
        ("beamtree train --resume runs/slow", 0),
    ):
        assert example in shown
        assert invoke(*example.split()[2:]).exit_code == status


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "a recipe is missing"),
        (["listop"], "did you mean 'listops'?"),
        (["listops", "-e", "bt-gcr"], "did you mean 'bt-grc'?"),
        (["listops", "--set", "optimizer.lrr=1"], "did you mean 'optimizer.lr'?"),
        (["listops", "--set", "training.clip=x"], "training.clip is 'x': it must be a number"),
        (["listops", "--set", "training.clip"], "key=value"),
        (["listops", "--set", "training.micro_batch=100"], "must divide training.batch_size"),
        (["listops", "--precision", "16"], "unknown --precision '16'"),
        (["listops", "--seeds", "0"], "--seeds is 0"),
        (["listops", "--at-once", "0"], "--at-once is 0"),
        (["listops", "--devices", "0"], "devices is 0"),
        (["listops", "--seeds", "2", "--devices", "0"], "devices is 0"),
        (["listops", "--logger", "wandbb"], "unknown logger 'wandbb' (did you mean 'wandb'?)"),
        (["listops", "--executor", "slrum"], "unknown --executor 'slrum' (did you mean 'slurm'?)"),
        (["nowhere.tsv"], "nowhere.tsv: the file does not exist"),
        (["listops", "--recipe", "text"], "--recipe cannot be combined with the recipe listops"),
        (["data", "--data", "x"], "--data cannot be combined with data, which is data"),
        (["listops", "--device", "gpu"], "unknown device 'gpu' (did you mean 'cuda'?); known: auto, cpu, cuda"),
        (["listops", "--checkpoint-minutes", "-1"], "checkpoint_minutes is -1.0"),
        (["listops", "--out", "data"], "data is not empty, but not a run"),
        (["shipped"], "shipped is a run: give --resume shipped, or shipped/config.yaml for a run like it"),
        (["--resume", "nowhere"], "there is no such folder"),
        (["--resume", "data"], "is not a run"),
        (["listops", "--resume", "data"], "RECIPE cannot be combined with --resume"),
        (["--resume", "data", "--seeds", "3"], "--seeds cannot be combined with --resume"),
        (["--resume", "data", "--executor", "slurm"], "--executor cannot be combined with --resume"),
        (["--resume", "data", "--print-commands"], "--print-commands cannot be combined with --resume"),
        (["--sed", "1"], "see 'beamtree train --help'"),
    ],
)
def test_a_mistake_is_answered_in_one_line(shape_checks_off, arguments, message):
    shutil.copytree(shipped_folder("listops-bt-grc"), "shipped")
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_data_of_ones_own_needs_no_recipe(asked):
    Path("reviews.tsv").write_text("text\tlabel\ngood film\tyes\nbad film\tno\n")
    assert invoke("reviews.tsv").exit_code == 0
    assert invoke("--recipe", "listops-tiny", "--data", "reviews.tsv").exit_code == 0
    first, second = asked
    assert (first["settings"].recipe, second["settings"].recipe) == ("text", "listops-tiny")
    assert first["settings"].data.task == second["settings"].data.task == str(Path("reviews.tsv").absolute())
    assert first["folder"] == Path("runs/reviews/bt-grc-seed0")
    document = {**first["settings"].to_dict(), "labels": ["no", "yes"], "pair": False, "closed_vocabulary": False}
    Path("config.yaml").write_text(yaml.safe_dump(document))
    assert invoke("config.yaml").exit_code == 0
    assert asked[-1]["folder"] == Path("runs/reviews/bt-grc-seed0")


def test_more_epochs_continue_a_finished_run(folder):
    invoke(*TOY, "--out", "run")
    result = invoke(*TOY, "--out", "run", "--max-epochs", "2")
    assert "best epoch" in result.stdout
    assert result.stderr.startswith("epoch 2/2")
    assert invoke("--resume", "run", "--max-epochs", "3", "--device", "cpu").stderr.startswith("epoch 3/3")


def test_commands_can_be_printed_for_any_scheduler(folder):
    result = invoke(*TOY, "--seeds", "2", "--set", "optimizer.lr=5e-4", "--print-commands")
    assert result.exit_code == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert " -m beamtree train " in first
    assert f"--out={folder / 'runs/toy/bt-grc-seed1'}" in second
    assert not Path("runs").exists()


def test_the_schema_is_json(folder):
    schema = json.loads(invoke("--schema").stdout)
    assert schema["$schema"].startswith("https://json-schema.org/")
