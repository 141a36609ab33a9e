"""The README's examples run as printed."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import real_files
from beamtree.cli import app
from beamtree.runs import settings
from doc_pages import DOCS, ROOT, blocks

README = ROOT / "README.md"
PAGES = [README, *(DOCS / name for name in ("guides/training.md", "guides/distributed.md", "results.md", "trees.md"))]
UNNAMED = ("training.dev_batch", "training.bucket_factor")  # settings that the page can do without


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_take_long_are_at_least_understood(page):
    program = typer.main.get_command(app)
    text = "".join(blocks(page, "sh")).replace("\\\n", " ")
    lines = [line.split(" #")[0] for line in text.splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("beamtree ")]
    assert len(commands) >= 4
    for name, *arguments in commands:
        program.get_command(None, name).make_context(name, arguments)  # raises if it does not know an option


def test_the_settings_that_the_page_on_training_names_exist():
    text = (DOCS / "guides/training.md").read_text()
    named = set(re.findall(r"`((?:data|model|encoder|optimizer|training)\.\w+)`", text)) - {"model.safetensors"}
    assert named == set(settings.keys(settings.Settings)) - {"recipe", "seed", *UNNAMED}


@pytest.mark.usefixtures("shape_checks_off")  # which make reading several times slower
def test_the_examples_of_the_page_on_data_run(monkeypatch):
    monkeypatch.setenv("BEAMTREE_DATA", str(real_files.find("sst/trees.tar.xz").parents[1]))
    names = {}
    for block in blocks(DOCS / "guides/data.md", "python")[:3]:  # the last one needs vectors of gigabytes
        exec(block, names)
    assert "divided" in names["data"].notes[0]
    batch = next(iter(names["loader"]))
    assert len(batch) <= 64
    assert batch.tokens.max() < len(names["vocabulary"])
