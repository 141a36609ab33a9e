"""The pages of docs/: their examples run, and their commands and settings exist."""

import re
import shlex
import subprocess

import pytest
import typer

from beamtree.cli import app
from beamtree.runs import settings
from doc_pages import DOCS, ROOT, blocks
from doc_runs import commands, run_page

PAGES = sorted(DOCS.rglob("*.md"))
# These are followed from a first page to the last, and have tests of their own.
ELSEWHERE = ("start/*.md", "concepts/*.md", "guides/extending.md")
RUN = [page for page in PAGES if blocks(page, "python") and not any(page.match(f"docs/{each}") for each in ELSEWHERE)]
UNNAMED = ("training.dev_batch", "training.bucket_factor")  # settings that the page on training can do without


def name(page):
    return str(page.relative_to(DOCS))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "own").mkdir()
    monkeypatch.chdir(tmp_path / "own")


@pytest.mark.usefixtures("folder", "shape_checks_off")
@pytest.mark.parametrize("page", RUN, ids=name)
def test_examples_run(page):
    """As the page shows them, one after another."""
    defined = run_page(page)
    for losses in defined.get("losses", {}).values() if isinstance(defined.get("losses"), dict) else []:
        assert losses[-1] < losses[0]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "sh")], ids=name)
def test_commands_that_take_long_are_at_least_understood(page):
    program = typer.main.get_command(app)
    for line in (line for block in blocks(page, "sh") for line in commands(block)):
        words = [word for word in shlex.split(line) if word != "&"]
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):  # the environment of a command
            del words[0]
        subprocess.run(["bash", "-n", "-c", line], check=True)
        if words[:1] == ["beamtree"]:
            command = program
            for depth, word in enumerate(words[1:3], start=1):  # `beamtree data get` is a command of a command
                if not hasattr(command, "get_command") or command.get_command(None, word) is None:
                    break
                command, arguments = command.get_command(None, word), words[depth + 1 :]
            assert command is not program, line
            command.make_context(words[1], arguments)  # raises if it does not know an option


def test_files_that_the_pages_name_exist():
    """Paths of the repository, written as code."""
    named = {
        path for page in PAGES for path in re.findall(r"`((?:src|tests|results|examples)/[\w/.-]+)`", page.read_text())
    }
    assert len(named) > 10
    assert not [path for path in named if not re.search("[A-Z]{3}", path) and not (ROOT / path).exists()]


def test_the_settings_that_the_page_on_training_names_exist():
    text = (DOCS / "guides/training.md").read_text()
    named = set(re.findall(r"`((?:data|model|encoder|optimizer|training)\.\w+)`", text)) - {"model.safetensors"}
    assert named == set(settings.keys(settings.Settings)) - {"recipe", "seed", *UNNAMED}
