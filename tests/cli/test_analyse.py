"""`beamtree analyse` with untrained models on small data."""

import importlib.util
import json

import pytest
import torch
from typer.testing import CliRunner

from beamtree import cli
from beamtree.data import TASKS, Vocabulary
from beamtree.evaluation import trees as analysis
from beamtree.models.build import build
from beamtree.models.config import make_config
from beamtree.models.pretrained import Pretrained
from beamtree.runs import recipes
from toy_originals import maximum, write

ORIGINALS = {
    "listops/train_d20s.tsv": ["3\t3"],
    "listops/test_d20s.tsv": ["3\t3", maximum("9", 5), "2\t( ( ( [MIN 4 ) 2 ) ] )"],
    "listops-lra/basic_test.tsv": ["Source\tTarget", "( ( [MAX 4 ) ] )\t4", "5\t5"],
    "trees/train.txt": ["(3 (2 It) (4 (2 really) (3 works)))"],
    "trees/dev.txt": ["(2 (2 A) (2 film))"],
    "trees/test.txt": ["(3 (2 It) (4 (2 really) (3 works)))", "(1 (1 (2 No) (1 fun)) (2 here))"],
}
BASELINES = ["left", "right", "balanced", "random, uniform", "random, easy-first"]


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    write(tmp_path / "originals", ORIGINALS)
    monkeypatch.setenv("BEAMTREE_DATA", str(tmp_path / "originals"))
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for seed in range(2):
        save_model(f"seed{seed}", "listops-original", seed)
    return tmp_path


def save_model(folder, recipe, seed=0, encoder="bt-grc", tests=()):
    task = TASKS[recipe]
    settings = recipes.load(recipe, encoder, changes={"model.dim": 8})
    settings = settings.change({"data.vectors": None, "data.tests": tests})
    config = make_config(settings.to_dict(), task.labels, task.pair, closed_vocabulary=task.words is not None)
    vocabulary = Vocabulary(task.words or ["good", "film"], closed=config.closed_vocabulary)
    torch.manual_seed(seed)
    Pretrained(config, vocabulary, build(config, len(vocabulary))).save_pretrained(folder)


def invoke(*arguments):
    return CliRunner().invoke(cli.app, ("analyse", *arguments), prog_name="beamtree")


def printed(*arguments):
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def cells(shown, name):
    """The cells of a row, in all tables that contain it."""
    return [line[len(name) :].split() for line in shown.splitlines() if line.startswith(f"{name}  ")]


def test_every_test_that_can_be_made_is_analysed_and_the_others_are_named():
    report = json.loads(printed("seed0", "--json"))
    assert list(report["splits"]) == ["near-iid", "lra"]
    assert report["splits"]["near-iid"]["sentences"] == 3
    assert report["missing"]
    assert "missing: 200-300" in printed("seed0")


def test_the_accuracy_of_the_labels_of_lists_is_shown_by_height_and_by_length():
    report = json.loads(printed("seed0", "--split", "near-iid", "--json"))
    found = report["splits"]["near-iid"]["rows"]["seed0"]["constituents"]
    assert found["expected"] == 2
    assert [each["height"] for each in found["by_height"]] == [1]
    shown = printed("seed0", "--split", "near-iid")
    assert "accuracy by constituent" in shown
    assert cells(shown, "seed0")[2][0] == "2"
    for kind in ("height", "length"):
        assert f"accuracy by {kind} of the constituent" in shown
    assert any(line.split()[:2] == ["4–7", "2"] for line in shown.splitlines())


def test_the_table_has_models_baselines_gold_and_oracle():
    report = json.loads(printed("seed0", "--split", "near-iid", "--json"))
    rows = report["splits"]["near-iid"]["rows"]
    assert list(rows) == ["seed0", *BASELINES, "oracle", "gold"]
    shown = printed("seed0", "--split", "near-iid")
    for name in ("seed0", *BASELINES):
        against_trees, against_lists, *labelled = cells(shown, name)
        assert bool(labelled) == (name == "seed0")  # baselines have no labels
        for found, row in ((against_trees, rows[name]["against_trees"]), (against_lists, rows[name]["against_lists"])):
            expected = [row["merged"]["f1"], row["merged"]["sentence_f1"]]
            expected += [row["nontrivial"]["f1"], row["nontrivial"]["sentence_f1"], row["exact_match"]]
            assert found[:5] == [f"{100 * value:.2f}" for value in expected]
    ((*gold, depth),) = cells(shown, "gold")
    assert gold == ["100.00"] * 5
    assert float(depth) == pytest.approx(rows["gold"]["depth"], abs=0.01)
    assert float(cells(shown, "seed0")[0][-1]) == pytest.approx(rows["seed0"]["entropy"], abs=0.001)
    # Three sentences: 3 alone, and lists of 5 and 4 tokens, of which left-branching trees are gold.
    assert rows["left"]["against_trees"]["exact_match"] == 1
    assert rows["oracle"]["against_lists"]["merged"]["f1"] == pytest.approx(2 * 2 / (2 + 4 + 3))
    assert "oracle: the best possible binary tree" in shown


def test_several_models_are_compared():
    report = json.loads(printed("seed0", "seed1", "--split", "near-iid", "--json"))
    found = report["splits"]["near-iid"]
    assert [pair["models"] for pair in found["pairs"]] == [["seed0", "seed1"]]
    assert found["agreement"]["f1"] == found["pairs"][0]["f1"]
    shown = printed("seed0", "seed1", "--split", "near-iid")
    assert cells(shown, "seed0 – seed1")[0][0] == f"{100 * found['agreement']['f1']:.2f}"
    save_model("seed2", "listops-original", 2)
    assert "mean of all pairs" in printed("seed0", "seed1", "seed2", "--split", "near-iid")
    assert "agreement" not in printed("seed0", "seed0", "--split", "near-iid")


def test_trees_of_sst_are_gold():
    save_model("english", "sst5")
    report = json.loads(printed("english", "--data", "sst5", "--json"))
    rows = report["splits"]["iid"]["rows"]
    assert rows["left"]["against_trees"]["exact_match"] == rows["right"]["against_trees"]["exact_match"] == 1 / 2
    assert "oracle" not in rows
    assert "lists" not in printed("english", "--data", "sst5")


def test_ones_own_file_has_no_gold_columns(folders):
    (folders / "own.tsv").write_text("text\tlabel\n[MAX 2 9 ]\t9\n7\t7\n")
    report = json.loads(printed("seed0", "seed1", "--data", "own.tsv", "--json"))
    (found,) = report["splits"].values()
    assert list(found["rows"]) == ["seed0", "seed1", *BASELINES]
    assert found["rows"]["left"]["depth"] == 3 / 2
    shown = printed("seed0", "seed1", "--data", "own.tsv")
    assert "F1" not in shown.partition("agreement")[0]
    assert cells(shown, "left") == [["1.50"]]
    assert len(cells(shown, "seed0")[0]) == 2


def test_limit_seed_and_batch_size_are_heeded():
    limited = json.loads(printed("seed0", "--split", "near-iid", "--limit", "2", "--json"))
    assert limited["splits"]["near-iid"]["sentences"] == limited["limit"] == 2
    assert limited["splits"]["near-iid"]["total"] == 3
    shown = printed("seed0", "--split", "near-iid", "--limit", "2")
    assert "near-iid, 2 sentences, the first 2 of 3 samples\n" in shown
    assert "near-iid, 3 sentences\n" in printed("seed0", "--split", "near-iid", "--limit", "3")
    one, other = (printed("seed0", "--split", "near-iid", "--batch-size", size) for size in ("1", "9"))
    assert one == other
    save_model("random", "listops-original", encoder="random-tree-grc")
    first, same = (printed("random", "--split", "near-iid", "--seed", "4") for _ in range(2))
    assert first == same


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_ctrl_c_shows_what_was_found_so_far(form, monkeypatch):
    parse = analysis.parse_sentences

    def interrupted(model, chunk, *rest):
        if len(chunk) == 2:
            raise KeyboardInterrupt
        return parse(model, chunk, *rest)

    monkeypatch.setattr(analysis, "parse_sentences", interrupted)
    result = invoke("seed0", *form)
    assert result.exit_code == 130
    assert "near-iid" in result.stdout
    assert result.stderr == "interrupted: 3 sentences of near-iid, 0 sentences of lra analysed\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["modle"], "modle"),
        (["originals"], "is not a run"),
        (["seed0", "--split", "200-30"], "did you mean '200-300'?"),
        (["seed0", "--split", "200-300"], "200-300: listops-lengths is not in"),
        (["seed0", "--data", "nothing.tsv"], "nothing.tsv"),
        (["seed0", "--data", "sst5"], "unknown token"),
        (["recurrent", "--split", "near-iid"], "recurrent-grc builds no trees"),
        (["seed0", "--set", "data.options.seed=1"], "unknown option 'seed'"),
        (["seed0", "--set", "seed=1"], "--set seed: only options of the data can be changed here"),
        (["seed0", "--limit", "0"], "limit is 0"),
        (["seed0", "--seed", "-1"], "seed is -1"),
        (["seed0", "--batch-size", "0"], "at least 1"),
        (["seed0", "--device", "gpu"], "unknown device 'gpu'"),
        ([], "Missing argument 'MODEL'"),
    ],
)
def test_a_mistake_is_answered_in_one_line(arguments, message):
    save_model("recurrent", "listops-original", encoder="recurrent-grc")
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_long_work_prints_lines_of_progress(clock):
    clock.step = 20
    result = invoke("seed0", "--split", "near-iid", "--json")
    assert result.exit_code == 0
    assert result.stderr == "near-iid: 0 of 3\n"
    assert json.loads(result.stdout)["splits"]["near-iid"]["sentences"] == 3


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pydantic" else found(name))
    result = invoke("nothing")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: beamtree analyse needs pydantic, which is not installed: "
        "pip install 'beamtree[train]', or '.[train]' in a clone\n"
    )


def test_the_help_has_examples():
    shown = " ".join(printed("--help").split())
    assert "Usage: beamtree analyse" in shown
    assert "beamtree analyse listops-bt-grc --split near-iid" in shown
