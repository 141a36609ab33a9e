"""A file of the user, from `train` to `report`, with each command in another folder."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from beamtree import cli

ROWS = [
    f"{'very ' * (number % 3)}{word} {thing}\t{label}"
    for number in range(6)
    for word, label in (("good", "yes"), ("bad", "no"))
    for thing in ("film", "play")
]


def run(*arguments):
    result = CliRunner().invoke(cli.app, arguments, prog_name="beamtree")
    assert result.exit_code == 0, (result.stderr, result.exception)
    return result


@pytest.mark.usefixtures("shape_checks_off")
def test_from_train_to_report_in_four_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path / "cache"))
    for name in "abcd":
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "reviews.tsv").write_text("\n".join(("text\tlabel", *ROWS)) + "\n")

    monkeypatch.chdir(tmp_path / "a")
    trained = run("train", "reviews.tsv", "--max-epochs", "1", "--device", "cpu")
    assert trained.stderr.startswith("reviews.tsv: 24 samples divided by label with seed 0: train")
    folder = str(tmp_path / "a" / "runs" / "reviews" / "bt-grc-seed0")

    monkeypatch.chdir(tmp_path / "b")
    evaluated = json.loads(run("evaluate", folder, "--json").stdout)
    stored = json.loads((tmp_path / "a/runs/reviews/bt-grc-seed0/results.json").read_text())
    assert evaluated["splits"]["test"]["correct"] == stored["splits"]["test"]["correct"]

    monkeypatch.chdir(tmp_path / "c")
    assert json.loads(run("parse", folder, "a very bad film", "--json").stdout)["label"] in ("yes", "no")
    continued = run("train", "--resume", folder, "--max-epochs", "2", "--device", "cpu")
    assert "epoch 2/2" in continued.stderr

    monkeypatch.chdir(tmp_path / "d")
    assert "BT-GRC" in run("report", str(tmp_path / "a" / "runs")).stdout

    # A model without its data can still predict; only commands that need the data report that it is missing.
    shutil.move(tmp_path / "a" / "reviews.tsv", tmp_path / "d" / "moved.tsv")
    assert run("parse", folder, "good play").exit_code == 0
    result = CliRunner().invoke(cli.app, ["evaluate", folder], prog_name="beamtree")
    assert result.exit_code == 2
    assert "reviews.tsv" in result.stderr
    assert run("evaluate", folder, "--data", "moved.tsv", "--split", "moved").exit_code == 0
