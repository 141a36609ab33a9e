"""The notebooks run from top to bottom, and what they show is what they say."""

import os
import re
import time
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
SECONDS = 90


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The first steps, run in an empty folder; how long that took; and the folder."""
    folder = tmp_path_factory.mktemp("notebook")
    own = {"BEAMTREE_CACHE": "cache", "IPYTHONDIR": "ipython", "JUPYTER_RUNTIME_DIR": "runtime"}
    environment = os.environ | {name: str(folder / place) for name, place in own.items()}
    environment["PYTHONPATH"] = str(ROOT / "src")
    notebook = nbformat.read(ROOT / "examples" / "first_steps.ipynb", as_version=4)
    client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}})
    begin = time.perf_counter()
    client.execute(env=environment)  # an error in a cell is an error here
    return notebook, time.perf_counter() - begin, folder


def outputs(notebook, beginning):
    """What the cell that begins with these words gave."""
    (cell,) = (each for each in notebook.cells if each.source.startswith(beginning))
    return cell.outputs


def printed(notebook, beginning):
    return "".join(each.text for each in outputs(notebook, beginning) if each.output_type == "stream")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_kept_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


def test_it_runs_in_the_time_it_promises(executed):
    assert executed[1] < SECONDS


def test_the_encoder_learns_in_a_model_of_ones_own(executed):
    shown = printed(executed[0], "model = PhraseTransformer()")
    accuracy, always_no = map(float, re.findall(r"(?:sequences|no): (\d\.\d+)", shown))
    assert accuracy > 0.95 > always_no


def test_a_model_is_trained_on_ones_own_texts(executed):
    found = re.search(r"test: (\d+\.\d) % of 300 are right", printed(executed[0], "from beamtree.runs import recipes"))
    assert float(found[1]) > 90


def test_no_review_is_in_two_of_the_files(executed):
    """Or the accuracy would be that of a good memory."""
    lines = [
        (executed[2] / "reviews" / f"{split}.tsv").read_text().splitlines()[1:] for split in ("train", "dev", "test")
    ]
    assert len({line for part in lines for line in part}) == sum(map(len, lines)) == 3200


def test_the_trees_are_drawn(executed):
    (parses,) = outputs(executed[0], "parses = ")
    assert "<svg" in parses.data["text/html"]
    chart = [
        each for each in outputs(executed[0], "from beamtree.trees.drawing") if each.output_type == "execute_result"
    ]
    assert "<svg" in chart[0].data["image/svg+xml"]
    assert len(printed(executed[0], "print(text_tree").splitlines()) == 6
    assert re.search(r"depth \d+\.\d+, entropy \d", printed(executed[0], "from beamtree.evaluation.trees"))
