"""The README's examples run as printed."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from beamtree.cli import app
from doc_pages import ROOT, blocks

README = ROOT / "README.md"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path))


def test_python_examples_run(capsys):
    """One block after another; and where a comment shows an expression's shape or value, it is true."""
    names, shown = {}, 0
    for block in blocks(README, "python"):
        exec(block, names)
        for expression, comment in re.findall(r"^([a-z_.]+(?:\(.*\))?) +# (\(.*?\)|\[.*\])", block, re.MULTILINE):
            value = eval(expression, names)
            assert str(tuple(value.shape) if hasattr(value, "shape") else value) == comment
            shown += 1
    assert shown >= 5
    assert names["scores"].grad.all()
    assert "mat" in capsys.readouterr().out


@pytest.mark.usefixtures("shape_checks_off")
def test_commands_run():
    commands = [line for block in blocks(README, "bash") for line in block.splitlines() if line.startswith("beamtree ")]
    assert commands
    for command in commands:
        quick = ["--repeats", "1"] if "bench" in command else []
        run = CliRunner().invoke(app, [*shlex.split(command)[1:], *quick], prog_name="beamtree")
        assert run.exit_code == 0, (command, run.output)
        assert ("reference" if quick else "listops") in run.stdout


@pytest.mark.usefixtures("shape_checks_off")
def test_the_example_of_ones_own_data_runs(tmp_path, monkeypatch):
    """Its three lines, as printed, on a small file."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{'not ' * (n % 3)}{word}\t{label}" for n in range(10) for word, label in (("good", "yes"), ("bad", "no"))]
    Path("reviews.tsv").write_text("\n".join(("text\tlabel", *rows)) + "\n")
    (block,) = [block for block in blocks(README, "sh") if "reviews.tsv" in block]
    commands = [shlex.split(line)[1:] for line in block.splitlines()]
    assert len(commands) == 3
    for command in commands:
        quick = ["--max-epochs", "1", "--device", "cpu"] if command[0] == "train" else []
        run = CliRunner().invoke(app, [*command, *quick], prog_name="beamtree")
        assert run.exit_code == 0, (command, run.output)


def test_commands_that_take_long_are_at_least_understood():
    program = typer.main.get_command(app)
    text = "".join(blocks(README, "sh")).replace("\\\n", " ")
    lines = [line.split(" #")[0] for line in text.splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("beamtree ")]
    assert len(commands) >= 4
    for name, *arguments in commands:
        program.get_command(None, name).make_context(name, arguments)  # raises if it does not know an option
