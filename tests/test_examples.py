"""The notebooks run from top to bottom, and what they show is what they say."""

import atexit
import os
import re
import shutil
import tempfile
import time
from functools import cache
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
SECONDS = 90


FIRST_STEPS = "first_steps.ipynb"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
TOLERANCE = 0.1  # of losses and accuracies: processors round differently, and training amplifies it
# Lines whose numbers are times.
TIMED = re.compile(r"samples/s|\bbest epoch\b|an epoch takes")


@cache
def execute(name):
    """The notebook, run in an empty folder; how long that took; and the folder."""
    folder = Path(tempfile.mkdtemp(prefix="beamtree-notebook-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    own = {"BEAMTREE_CACHE": "cache", "IPYTHONDIR": "ipython", "JUPYTER_RUNTIME_DIR": "runtime"}
    environment = os.environ | {name: str(folder / place) for name, place in own.items()}
    environment |= {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}  # tests run side by side
    notebook = nbformat.read(ROOT / "examples" / name, as_version=4)
    client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}})
    begin = time.perf_counter()
    client.execute(env=environment)  # an error in a cell is an error here
    return notebook, time.perf_counter() - begin, folder


@pytest.fixture(params=[path.name for path in NOTEBOOKS])
def rerun(request):
    """A notebook as it is kept, and as it runs now."""
    return nbformat.read(ROOT / "examples" / request.param, as_version=4), execute(request.param)


@pytest.fixture
def executed():
    return execute(FIRST_STEPS)


def outputs(notebook, beginning):
    """What the cell that begins with these words gave."""
    (cell,) = (each for each in notebook.cells if each.source.startswith(beginning))
    return cell.outputs


def printed(notebook, beginning):
    return "".join(each.text for each in outputs(notebook, beginning) if each.output_type == "stream")


def shown(cell):
    """What a cell printed and returned as text, and the kinds of all that it showed."""
    text = "".join(each.text for each in cell.outputs if each.output_type == "stream" and each.name == "stdout")
    data = [each.data for each in cell.outputs if "data" in each]
    plain = "".join(each.get("text/plain", "") for each in data if "text/html" not in each)
    return text + plain, [sorted(each) for each in data]


def test_a_notebook_shows_what_it_gives_when_it_is_run(rerun):
    kept, (now, *_) = rerun
    nbformat.validate(kept)
    for old, new in zip(kept.cells, now.cells, strict=True):
        if old.cell_type != "code":
            continue
        assert old.execution_count is not None, f"run the notebook before it is committed: {old.source[:60]}"
        (old_text, old_kinds), (new_text, new_kinds) = shown(old), shown(new)
        assert old_kinds == new_kinds
        for old_line, new_line in zip(old_text.splitlines(), new_text.splitlines(), strict=True):
            assert NUMBER.sub("#", old_line) == NUMBER.sub("#", new_line)
            if not TIMED.search(old_line):
                numbers = [[float(each) for each in NUMBER.findall(line)] for line in (old_line, new_line)]
                assert numbers[0] == pytest.approx(numbers[1], rel=TOLERANCE, abs=TOLERANCE), (old_line, new_line)


def test_a_notebook_runs_in_the_time_it_promises(rerun):
    assert rerun[1][1] < SECONDS


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


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_kept_without_warnings_and_paths_of_a_machine(path):
    notebook = nbformat.read(path, as_version=4)
    printed = [each for cell in notebook.cells if cell.cell_type == "code" for each in cell.outputs]
    assert not [each for each in printed if each.output_type == "stream" and each.name == "stderr"]
    assert "site-packages" not in path.read_text()
