"""The figures of `docs/results.md` and `docs/arguments.md` are those of the files in `results/`."""

import json
import re
from pathlib import Path

import pytest

from beamtree.evaluation.report import paper
from beamtree.trees.drawing.scene import Dot
from result_scripts import script

ROOT = Path(__file__).parents[1]
write_tables = script("write_tables")
draw_plots = script("draw_plots")

FIGURE = re.compile(r"(?<![\d.])\d+\.\d\d(?![\d.])")
OLD = {"Runs of version 0.1", "Where the figures are lower"}


@pytest.mark.parametrize("path", [write_tables.PAGE, write_tables.ARGUMENTS], ids=lambda path: path.name)
def test_the_tables_are_those_of_the_files(path):
    page = path.read_text(encoding="utf-8")
    assert write_tables.BLOCK.search(page)
    assert write_tables.with_tables(page) == page, "run `make results`"


def test_figures_in_the_text_are_in_the_files():
    """With two decimals, outside of the sections on runs of version 0.1, which left no files but their table.

    The page of the study also mentions the paper's figures for ListOps.
    """
    page = write_tables.PAGE.read_text(encoding="utf-8")
    stored = [json.loads(path.read_text()) for path in (ROOT / "results").glob("*/*/*.json")]
    accuracies = [
        result["accuracy"]
        for each in stored
        for result in (*each.get("splits", {}).values(), each.get("dev", each))
        if "accuracy" in result
    ]
    known = {f"{100 * accuracy:.2f}" for accuracy in accuracies}
    known |= {figure for block in write_tables.BLOCK.finditer(page) for figure in FIGURE.findall(block[3])}
    _, *sections = re.split(r"(?m)^#{2,3} (?=[A-Z])", write_tables.BLOCK.sub("", page))
    text = {title: body for title, _, body in (section.partition("\n") for section in sections)}
    known |= set(FIGURE.findall(text["Runs of version 0.1"]))
    for title in text.keys() - OLD:
        assert [figure for figure in FIGURE.findall(text[title]) if figure not in known] == [], title
    known |= {figure.printed for row in paper.rows("listops") for figure in row.figures.values() if figure}
    page = write_tables.ARGUMENTS.read_text(encoding="utf-8")
    known |= {figure for block in write_tables.BLOCK.finditer(page) for figure in FIGURE.findall(block[3])}
    study = write_tables.BLOCK.sub("", page)
    assert [figure for figure in FIGURE.findall(study) if figure not in known] == []


def test_the_plots_are_those_of_the_files(tmp_path, monkeypatch):
    stored = draw_plots.IMAGES
    monkeypatch.setattr(draw_plots, "IMAGES", tmp_path / "drawn")
    monkeypatch.setattr(draw_plots, "ROOT", tmp_path)
    draw_plots.main()
    drawn = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "drawn").iterdir()}
    assert {path.name: path.read_text(encoding="utf-8") for path in stored.iterdir()} == drawn, "run `make results`"
    page = write_tables.PAGE.read_text(encoding="utf-8") + (ROOT / "docs/engine.md").read_text(encoding="utf-8")
    assert [name for name in drawn if f"(images/results/{name})" not in page] == []


def test_a_line_for_every_encoder_of_the_benchmark():
    measured = json.loads(draw_plots.BENCHMARK.read_text())["results"]
    drawn = draw_plots.speed(measured).painting_order()
    titles = [shape.title for shape in drawn if isinstance(shape, Dot) and shape.title]
    assert len(titles) == 2 * len(measured)
    assert "bt-grc: 2.23" in titles  # seconds for 100 samples of 950 tokens
    assert "bt-grc: 44.00" in titles  # MiB


@pytest.mark.parametrize("folder", sorted((ROOT / "results").glob("*/*/")), ids=lambda path: path.name)
def test_every_run_says_how_it_was_made(folder):
    assert {path.name for path in folder.iterdir()} - {write_tables.ORIGINAL} == {
        "config.yaml", "environment.json", "metrics.jsonl", "results.json"
    }  # fmt: skip
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["commit"]
    assert environment["versions"]["beamtree"]
