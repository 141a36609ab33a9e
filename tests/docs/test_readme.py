"""The README's examples run as printed, and its figures are those of the files."""

import json
import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from beamtree.cli import app
from beamtree.models import pretrained
from doc_pages import DOCS, ROOT, blocks
from doc_runs import commands, run_page

README = ROOT / "README.md"
LINES = README.read_text().splitlines()


def rows(name: str) -> dict[str, list[str]]:
    """The rows of the table whose first column has this name, by their first cell."""
    first = next(number for number, line in enumerate(LINES) if line.startswith(f"| {name} |"))
    found = {}
    for line in LINES[first + 2 :]:
        if not line.startswith("|"):
            break
        key, *cells = (cell.strip(" `") for cell in line.strip("|").split("|"))
        found[key] = cells
    return found


@pytest.mark.usefixtures("shape_checks_off")
def test_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_page(README)
    assert names["encoder"].leaf[0].weight.grad.any()
    assert Path("tree.svg").read_text().startswith("<svg")


@pytest.mark.usefixtures("shape_checks_off")
def test_training_on_ones_own_file_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path))
    lines = [
        f"{'not ' * (n % 3)}{word}\t{label}" for n in range(10) for word, label in (("good", "yes"), ("bad", "no"))
    ]
    Path("reviews.tsv").write_text("\n".join(("text\tlabel", *lines)) + "\n")
    (command,) = [line for block in blocks(README, "sh") for line in commands(block) if "reviews.tsv" in line]
    run = CliRunner().invoke(app, [*shlex.split(command)[1:], "--max-epochs", "1", "--device", "cpu"])
    assert run.exit_code == 0, run.output


def test_commands_that_take_long_exist():
    program = typer.main.get_command(app)
    found = [shlex.split(line) for block in blocks(README, "sh") for line in commands(block)]
    for _, name, *arguments in (words for words in found if words[0] == "beamtree"):
        program.get_command(None, name).make_context(name, arguments)  # raises if it does not know an option
    targets = {words[1] for words in found if words[0] == "make"}
    assert targets >= {"demo", "test"}
    assert targets <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_files_that_it_links_to_exist():
    linked = re.findall(r"\]\(([^)#]+)", README.read_text())
    assert len(linked) > 10
    assert [path for path in linked if not (ROOT / path).exists()] == []


# The splits whose accuracies are shown, by model or task.
SHOWN = {
    "listops": ("near-iid", "900-1000"),
    "listops-args": ("args-10", "args-15"),
    "logic": ("8", "12"),
    "sst5": ("iid",),
    "imdb": ("iid", "con-ood"),
}


def test_the_accuracies_of_shipped_models_are_those_of_their_results():
    shown = rows("model")
    assert sorted(shown) == pretrained.shipped()
    for name, (_, accuracies) in shown.items():
        splits = json.loads((pretrained.shipped_folder(name) / "results.json").read_text())["splits"]
        wanted = SHOWN.get(name) or SHOWN[name.split("-")[0]]
        figures = re.findall(r"\d+\.\d+", accuracies)
        assert figures == [f"{100 * splits[split]['accuracy']:.2f}" for split in wanted]


def test_figures_in_the_text_are_those_of_the_study():
    (results,) = re.findall(r"^## Results\n(.*?)^## ", README.read_text(), re.MULTILINE | re.DOTALL)
    text = "\n".join(line for line in results.splitlines() if not line.startswith("|"))
    figures = re.findall(r"\d+\.\d\d", text)
    assert len(figures) == 4
    study = (DOCS / "arguments.md").read_text()
    assert [figure for figure in figures if figure not in study] == []


def last_number(text: str) -> float:
    return float(re.findall(r"[\d.]+", text)[-1])


def test_the_results_are_those_of_the_pages():
    """Accuracies of docs/results.md; times and peaks of docs/engine.md, where a time is that of 100 samples."""
    results, engine = ((DOCS / name).read_text() for name in ("results.md", "engine.md"))
    shown = rows("encoder")
    assert len(shown) == 5
    for name, (accuracies, times, peaks) in shown.items():
        assert all(figure in results for figure in re.findall(r"\d+\.\d+", accuracies))
        (cells,) = re.findall(rf"^\| `{name}` \| ([^|]* s) \|([^|]*)\| ([^|]*iB) \|([^|]*)\|", engine, re.MULTILINE)
        seconds, minutes_of_paper, peak, peak_of_paper = cells
        assert float(times.split()[0]) == round(10 * last_number(seconds))  # ms of one sample
        assert float(peaks.split()[0]) == last_number(peak)
        if "(" in times:
            assert last_number(times) == pytest.approx(0.6 * last_number(minutes_of_paper), abs=0.051)  # seconds
            assert last_number(peaks) == pytest.approx(last_number(peak_of_paper), rel=0.06)
