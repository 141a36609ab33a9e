"""`beamtree tune` on tiny data with a recipe for it."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import beamtree
from beamtree import cli
from beamtree.models import storage
from beamtree.training import tune as tuning
from beamtree.training.tune.space import check_params
from training.toy_runs import write_data

pytest.importorskip("optuna")

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
TOY = ("toy.yaml", "--device", "cpu", "-p", "optimizer.lr=log:1e-4:1e-1", "-p", "optimizer.name=ranger,adamw")


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
    """The arguments with which `tune` is called, instead of searching."""
    calls: list[dict[str, Any]] = []

    def tune(settings: Any, params: Any, folder: Path, **options: Any) -> tuning.StudySummary:
        check_params(settings, params)
        calls.append({"settings": settings, "params": params, "folder": folder, **options})
        return summary(folder, ("complete", 0.5, None))

    monkeypatch.setattr(tuning, "tune", tune)
    return calls


def summary(folder: Path, *trials: tuple[str, float | None, str | None]) -> tuning.StudySummary:
    made = [
        tuning.TrialSummary(number, state, value, {"optimizer.lr": 1e-3}, 1, folder / f"trial-{number:03d}", error)
        for number, (state, value, error) in enumerate(trials)
    ]
    return tuning.StudySummary(folder, "accuracy", tuple(made))


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ("tune", *arguments), prog_name="beamtree")


def test_a_recipe_becomes_a_table_of_trials_and_a_model(folder):
    result = invoke(*TOY, "--trials", "2")
    assert result.exit_code == 0, result.stderr
    head, _, best, worst = result.stdout.splitlines()[:4]
    assert head.split() == ["trial", "dev", "loss", "epochs", "optimizer.lr", "optimizer.name", "state"]
    row = r"trial-00\d +(\d\.\d{4}) +1 +[\d.e-]+ +(?:ranger|adamw) +complete *"
    first, second = (re.fullmatch(row, line) for line in (best, worst))
    assert float(first[1]) <= float(second[1])
    name = best.split()[0]
    assert result.stdout.endswith(f"\nthe best model is in runs/tune/toy-bt-grc/{name}\n")
    assert storage.is_finished(folder / "runs/tune/toy-bt-grc" / name)
    assert beamtree.load(folder / "runs/tune/toy-bt-grc" / name).predict(["a b"])
    lines = result.stderr.splitlines()
    assert len(lines) == 4
    assert re.fullmatch(r"trial-000: started with optimizer.lr=[\d.e-]+, optimizer.name=(ranger|adamw)", lines[0])
    assert re.fullmatch(r"trial-000: dev loss \d\.\d{4} after 1 epochs \(1 of 2 trials\)", lines[1])
    again = invoke(*TOY, "--trials", "2")
    assert (again.stdout, again.stderr) == (result.stdout, "")


def test_json_is_all_that_is_printed(folder):
    result = invoke(*TOY, "--trials", "1", "--json", "--out", "here")
    assert (result.exit_code, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert report["folder"] == "here"
    assert report["metric"] == "dev_loss"
    assert report["best"] == report["trials"][0]
    assert report["best"]["folder"] == "here/trial-000"
    assert report["best"]["value"] == storage.read_results("here/trial-000")["dev"]["loss"]


def test_options_are_passed_on(asked):
    result = invoke(
        *("toy.yaml", "-p", "model.dropout=0.1:0.5", "-e", "bt-lstm", "--seed", "4", "--set", "optimizer.lr=5e-4"),
        *("--trials", "7", "--metric", "accuracy", "--pruner", "none", "--storage", "sqlite:///x.db", "-q"),
        *("--data-dir", "a", "--data-dir", "b", "--device", "cuda"),
    )
    assert result.exit_code == 0, result.stderr
    (call,) = asked
    settings = call.pop("settings")
    assert (settings.encoder.name, settings.seed, settings.optimizer.lr) == ("bt-lstm", 4, 5e-4)
    assert call == {
        **{"params": {"model.dropout": tuning.Range(0.1, 0.5)}, "folder": Path("runs/tune/toy-bt-lstm")},
        **{"trials": 7, "metric": "accuracy", "pruner": "none", "storage": "sqlite:///x.db", "device": "cuda"},
        **{"roots": [Path("a"), Path("b")], "progress": False},
    }


def test_trials_that_failed_or_run_elsewhere_are_named(monkeypatch):
    trials = [("pruned", 0.25, None), ("failed", None, "it has diverged"), ("running", None, None)]
    monkeypatch.setattr(tuning, "tune", lambda settings, params, folder, **options: summary(folder, *trials))
    result = invoke(*TOY)
    assert result.exit_code == 0
    assert re.search(r"trial-000 +25\.00 +1 +0\.001 +pruned", result.stdout)
    assert re.search(r"trial-001 +– +1 +0\.001 +failed", result.stdout)
    assert "\ntrial-001 failed: it has diverged\n" in result.stdout
    assert "\n1 trial is not finished: run by other processes\n" in result.stdout
    trials[:] = trials[1:2]
    assert invoke(*TOY).exit_code == 1  # all have failed


def test_ctrl_c_says_how_to_go_on(monkeypatch):
    def tune(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "tune", tune)
    result = invoke(*TOY)
    assert (result.exit_code, result.stderr) == (130, "interrupted; rerun the same command to resume\n")


def test_the_help_shows_examples_that_are_valid(asked):
    shown = " ".join(invoke("--help").stdout.split())
    for example in (
        "beamtree tune listops-tiny --param optimizer.lr=log:1e-4:1e-2 --param encoder.options.beam_size=int:2:5",
        "beamtree tune sst5 --param model.dropout=0.1:0.5 --param optimizer.name=ranger,adamw --trials 50",
    ):
        assert example in shown
        result = invoke(*example.split()[2:])
        assert result.exit_code == 0, result.stderr
    assert "beamtree evaluate runs/tune/listops-tiny-bt-grc/trial-007" in shown
    assert asked[0]["folder"] == Path("runs/tune/listops-tiny-bt-grc")


def test_the_help_does_not_load_pytorch():
    program = (
        "import sys\nfrom beamtree.cli import main\nsys.argv = ['beamtree', 'tune', '--help']\n"
        "try:\n    main()\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "--param" in done.stdout
    assert not {"torch", "numpy", "lightning", "optuna"} & set(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument"),
        (["toy.yaml"], "there is nothing to tune: add a parameter, as in --param optimizer.lr=log:1e-4:1e-2"),
        (["listop", "-p", "a=1:2"], "did you mean 'listops'?"),
        ([*TOY, "-p", "optimizer.lr=1:2"], "optimizer.lr is given twice"),
        (["toy.yaml", "-p", "optimizer.lr"], "it must be KEY=FORM"),
        (["toy.yaml", "-p", "optimizer.lr=5"], "one of the forms low:high"),
        (["toy.yaml", "-p", "optimizer.lrr=1:2"], "did you mean 'optimizer.lr'?"),
        (["toy.yaml", "-p", "encoder.name=bt-grc,bt-lstm"], "encoder.name cannot be tuned"),
        ([*TOY, "--trials", "0"], "--trials is 0"),
        ([*TOY, "--metric", "f1"], "unknown --metric 'f1'"),
        ([*TOY, "--pruner", "halving"], "unknown --pruner 'halving'"),
        ([*TOY, "--device", "gpu"], "unknown device 'gpu'"),
        ([*TOY, "--out", "data"], "data is not empty, but not a study"),
        ([*TOY, "--storage", "nonsense"], "the storage cannot be used"),
        ([*TOY, "--trial", "3"], "see 'beamtree tune --help'"),
    ],
)
def test_a_mistake_is_answered_in_one_line(shape_checks_off, arguments, message):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_your_own_data_is_an_option(monkeypatch, tmp_path):
    asked = []
    monkeypatch.chdir(tmp_path)
    Path("reviews.tsv").write_text("text\tlabel\n" + "good\tyes\nbad\tno\n" * 5)
    monkeypatch.setattr(tuning, "tune", lambda settings, *arguments, **options: asked.append(settings))
    invoke("text", "--data", "reviews.tsv", "--param", "optimizer.lr=log:1e-4:1e-2")
    assert asked[0].data.task == str(tmp_path / "reviews.tsv")
