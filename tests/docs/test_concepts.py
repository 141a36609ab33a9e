"""The pages in docs/concepts/ and the glossary: their code, pictures, tables and figures."""

import contextlib
import importlib
import io
import json
import math
import re
import statistics
import sys

import pytest
import torch

import beamtree
from beamtree.data.tasks.listops.expressions import gold_tree
from beamtree.evaluation.report import paper
from beamtree.nn.encoders import classes, encoders
from doc_pages import DOCS, ROOT, blocks

FOLDER = DOCS / "concepts"
PAGES = sorted(FOLDER.glob("*.md"))
IMAGES = DOCS / "images/concepts"
SPLITS = ("900-1000", "args-15")
NUMBER = re.compile(r"[-−]?\d+(?:\.\d+)?")
SHOWN = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def figures():
    sys.path.insert(0, str(DOCS / "images"))
    try:
        yield importlib.import_module("figures")
    finally:
        sys.path.remove(str(DOCS / "images"))


def assert_same(text, expected, tolerance):
    """Equal but for numbers, which may differ by the tolerance, and colours, which follow from them."""
    texts = [re.sub(r"#[0-9a-f]{6}", "#", each) for each in (text, expected)]
    assert NUMBER.sub("#", texts[0]) == NUMBER.sub("#", texts[1])
    for one, other in zip(*(NUMBER.findall(each) for each in texts), strict=True):
        values = (float(each.replace("−", "-")) for each in (one, other))
        assert math.isclose(*values, rel_tol=0, abs_tol=tolerance), (one, other)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_run_and_print_what_the_page_shows(page):
    names = {}
    for code, output in SHOWN.findall(page.read_text()):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        assert_same(printed.getvalue(), output, tolerance=0.0101)


def test_the_numbers_in_comments_are_shapes():
    names = {}
    (code,) = blocks(FOLDER / "index.md", "python")
    exec(code, names)
    shown = re.findall(r"^(out\.[a-z.]+?(?:\[0, 0\])?)(?:\.shape)? +# (\([\d, ]+\))", code, re.MULTILINE)
    assert len(shown) == 3
    for expression, shape in shown:
        assert str(tuple(eval(expression, names).shape)) == shape


@pytest.mark.usefixtures("shape_checks_off")  # which do not take an int for a float
def test_the_pictures_are_those_that_figures_draws(figures):
    drawn = figures.svgs()
    assert {path.name for path in IMAGES.iterdir()} == set(drawn)
    for name, content in drawn.items():
        stored, drawn_now = (re.split(r"(>[^<>]+</)", svg) for svg in ((IMAGES / name).read_text(), content))
        assert_same("".join(stored[1::2]), "".join(drawn_now[1::2]), tolerance=0.0101)  # texts
        assert_same("".join(stored[::2]), "".join(drawn_now[::2]), tolerance=1.01)  # pixels, percent of colours
    shown = {name for page in PAGES for name in re.findall(r"\]\(\.\./images/concepts/(\S+?)\)", page.read_text())}
    assert shown == set(drawn)


def test_the_tables_of_the_worked_example_are_those_of_the_model(figures):
    page = (FOLDER / "beam-tree-cell.md").read_text()
    assert page.count("<!-- table: ") == 9
    assert_same(page, figures.with_tables(page), tolerance=0.0101)


def test_the_worked_example_is_the_search_of_the_encoder(figures):
    """Trees, scores, encoding; and the probabilities are those of `merge_scores`."""
    found, tokens = figures.search(), figures.EXAMPLE.split()
    model = figures.shipped(figures.MODEL, figures.BEAM_SIZE)
    encoder = model.model.encoder
    with torch.no_grad():
        out = encoder(model.model.embedding(torch.tensor([model.vocabulary.ids(tokens)])))
        merges = encoder.merge_scores(out.beams)
    assert [beam.elements[0].tree for beam in found.beams] == out.beams.trees([tokens])[0]
    scores = torch.tensor([beam.score for beam in found.beams])
    torch.testing.assert_close(scores, merges.log_probs[0].sum(1), atol=1e-4, rtol=0)
    torch.testing.assert_close(scores.log_softmax(0), out.beams.log_probs[0], atol=1e-4, rtol=0)
    roots = torch.stack([beam.elements[0].state for beam in found.beams])
    torch.testing.assert_close(scores.softmax(0) @ roots, out.state[0], atol=1e-4, rtol=0)


def test_the_memory_in_the_picture_ends_with_the_gold_tree(figures):
    assert figures.candidate_memory()[-1][-1] == gold_tree(figures.NESTED.split())


def rows_of(text):
    """The cells of the rows of all tables that begin with the name of an encoder."""
    lines = [
        [cell.strip() for cell in line.strip("| \n").split(" | ")] for line in text.splitlines() if line[:1] == "|"
    ]
    return [cells for cells in lines if cells[0].startswith("`")]


def test_every_encoder_is_described_and_compared():
    headings = re.findall(r"^### .*\n\n(`.*?`)\.", (FOLDER / "encoders.md").read_text(), re.MULTILINE)
    assert sorted(re.findall(r"`([a-z-]+)`", " ".join(headings))) == sorted(encoders())
    tables = rows_of((FOLDER / "choosing.md").read_text())
    for width, left_out in ((7, {"lstm", "transformer"}), (4, set())):
        compared = {name for cells in tables if len(cells) == width for name in re.findall(r"`([a-z-]+)`", cells[0])}
        assert compared == set(encoders()) - left_out


def test_the_papers_are_those_of_the_encoders():
    rows = [cells for cells in rows_of((FOLDER / "choosing.md").read_text()) if len(cells) == 4]
    for name, _, _, cited in rows:
        for encoder in re.findall(r"`([a-z-]+)`", name):
            made = beamtree.encoder(encoder, dim=16)
            assert type(made) in classes()
            assert made.paper == cited, encoder


def test_the_accuracies_are_those_of_the_runs():
    page = (FOLDER / "choosing.md").read_text()
    results = (DOCS / "results.md").read_text()
    for name, *own, runs, published, _, _ in (row for row in rows_of(page) if len(row) == 7):
        encoder = name.split("`")[1]
        folder = "bt-grc-beam2" if "2 beams" in name else encoder
        files = sorted((ROOT / "results/listops").glob(f"{folder}-seed*/results.json"))
        if files:
            splits = [json.loads(file.read_text())["splits"] for file in files]
            medians = [statistics.median(100 * each[split]["accuracy"] for each in splits) for split in SPLITS]
            assert [f"{median:.2f}" for median in medians] == own, name
            assert runs == str(len(files)), name
        elif own != ["–", "–"]:  # runs that are in the page of results only
            assert encoder in ("bt-grc", "bt-grc-onesoft")
            assert any(all(value in line for value in own) for line in results.splitlines() if line[:1] == "|"), name
        options = {"beam_size": 2} if "2 beams" in name else {}
        rows = [row for row in paper.rows("listops") if row.statistic == "median" and row.fits(encoder, options)]
        found = [rows[0].figures.get(split) for split in SPLITS] if rows else []
        printed = [figure.printed if figure else "–" for figure in found]
        assert published == (" / ".join(printed) or "–"), name


def test_other_accuracies_are_those_of_the_page_of_results():
    results = (DOCS / "results.md").read_text()
    rows = [line for line in results.splitlines() if line[:1] == "|"]
    (table,) = re.findall(r"\| accuracy in %.*?\n\n", (FOLDER / "onesoft.md").read_text(), re.DOTALL)
    pairs = re.findall(r" ([\d.]+) \| ([\d.]+) \|$", table, re.MULTILINE)
    assert len(pairs) == 5
    for pair in pairs:
        assert any(all(f" {value} " in re.sub(r"\*", "", line) for value in pair) for line in rows), pair
    for page in PAGES:
        for value in re.findall(r"(\d+\.\d+)(?=\s%| ±)", page.read_text()):
            assert value in results, (page.name, value)


def test_time_and_memory_are_those_of_the_page_on_the_engine():
    engine = [line for line in (DOCS / "engine.md").read_text().splitlines() if line[:1] == "|"]
    rows = [cells for cells in rows_of((FOLDER / "choosing.md").read_text()) if len(cells) == 7 and cells[-1] != "–"]
    assert len(rows) == 17
    for name, *_, time, peak in rows:
        assert any(line.startswith(f"| {name}") and time in line and f" {peak}" in line for line in engine), name
    (costs,) = re.findall(r"\| one training step.*?\n\n", (FOLDER / "onesoft.md").read_text(), re.DOTALL)
    for time, peak in re.findall(r"(12\.1|83\.0) ms, (\d+ MiB)", costs):
        assert any(f"{time} ms" in line and peak in line for line in engine)


def test_the_glossary_is_alphabetical():
    text = (DOCS / "glossary.md").read_text()
    terms = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")][1:]
    assert terms == sorted(terms, key=str.lower)
    assert len(terms) == len(set(terms)) > 40
