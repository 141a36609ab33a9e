"""A reader who follows the pages of docs/start/ sees what they show."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from beamtree.data.tasks.listops import tiny
from doc_pages import DOCS, ROOT, blocks
from doc_runs import run_page

START = DOCS / "start"
pytestmark = pytest.mark.usefixtures("shape_checks_off")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder as the reader's, without data in the cache."""
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "own").mkdir()
    monkeypatch.chdir(tmp_path / "own")


def briefly(arguments):
    """The command as on the page, with one epoch if it trains."""
    return [*arguments, "--max-epochs", "1", "--device", "cpu"] if arguments[0] == "train" else arguments


def test_install():
    run_page(START / "install.md")


def test_install_names_all_extras():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r"`pip install '\.\[(\w+)\]'`", (START / "install.md").read_text())
    assert sorted(named) == sorted(extras.keys() - {"dev", "docs"})


def test_first_model():
    names = run_page(START / "first-model.md")
    assert names["constituents"]
    assert "<svg" in Path("tree.svg").read_text()


def test_first_training(monkeypatch):
    parts = {"train": (100, 300), "dev": (50, 100), "test": (0, 50)}
    small = {name: replace(tiny.SPECS[name], pool=300, pool_part=part, count=50) for name, part in parts.items()}
    monkeypatch.setattr(tiny, "SPECS", {**small, "longer": replace(tiny.SPECS["longer"], count=20)})
    run_page(START / "first-training.md", briefly, exact=False)


def test_own_data():
    names = run_page(START / "own-data.md", briefly, exact=False)
    assert names["model"].labels == ("negative", "positive")
    (shown,) = [block for block in blocks(START / "own-data.md", "text") if block.startswith("text\t")]
    assert set(shown.splitlines()) <= set(names["lines"])


@pytest.mark.parametrize("page", ["install", "first-model", "first-training", "own-data"])
def test_every_page_but_the_last_names_the_next(page):
    order = ["install", "first-model", "first-training", "own-data"]
    text = (START / f"{page}.md").read_text()
    following = order[order.index(page) + 1 :][:1]
    assert all("Next: [" in text and f"]({name}.md)" in text for name in following)
