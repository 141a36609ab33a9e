"""`beamtree data` on tiny original files, with an empty cache."""

import importlib.util
import json
import sys

import pytest
from typer.testing import CliRunner

from beamtree import cli, runs
from beamtree.data.raw import download
from beamtree.data.tasks import listops
from beamtree.data.tasks.listops import splits

TREES = {
    "train": "(3 (2 It) (4 (2 is) (3 good)))\n(1 (2 So) (1 bad))\n",
    "dev": "(2 (2 A) (2 film))\n",
    "test": "(4 (4 Great) (2 !))\n",
}


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """A folder of original files with a small SST, and an empty cache."""
    trees = tmp_path / "originals" / "trees"
    trees.mkdir(parents=True)
    for part, text in TREES.items():
        (trees / f"{part}.txt").write_text(text)
    monkeypatch.setenv("BEAMTREE_DATA", str(tmp_path / "originals"))
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*arguments):
    return CliRunner().invoke(cli.app, ("data", *arguments), prog_name="beamtree")


def printed(*arguments):
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def test_list_tells_which_originals_are_at_hand():
    standing = {task["name"]: task for task in json.loads(printed("list", "--json"))}
    assert standing["listops"]["data"] == "generated"
    assert standing["sst5"]["data"] == "here"
    assert standing["imdb"]["data"] == "missing"
    assert standing["imdb"]["missing"]
    table = printed("list")
    assert all(name in table for name in standing)


def test_show_counts_samples_lengths_and_labels():
    report = json.loads(printed("show", "sst5", "--json"))
    train = report["splits"]["train"]
    assert train["samples"] == 8
    assert train["lengths"] == {"min": 1, "median": 1, "mean": 1.5, "max": 3}
    assert train["labels"] == {"very negative": 0, "negative": 2, "neutral": 3, "positive": 2, "very positive": 1}
    assert train["examples"] == [{"text": "it is good", "label": "positive", "tree": "(it (is good))"}]
    assert report["splits"]["iid"]["title"] == "IID"


def test_show_prints_an_example_with_its_gold_tree():
    shown = printed("show", "sst5", "--split", "dev")
    assert "tree: (a film)" in shown
    assert "1,101" in shown  # what was published, beside what is here
    assert "train" not in shown


def test_show_says_what_is_missing_and_where_to_get_it():
    shown = printed("show", "snli")
    assert "missing" in shown
    assert "beamtree data get snli" in shown


def test_show_takes_originals_from_a_folder(folders, monkeypatch):
    monkeypatch.delenv("BEAMTREE_DATA")
    assert "missing:" in printed("show", "sst5")
    assert "missing:" not in printed("show", "sst5", "--data-dir", str(folders / "originals"))


def test_show_passes_the_tasks_options_on():
    report = json.loads(printed("show", "listops-dg", "--split", "dev", "--set", "data.options.seed=3", "--json"))
    assert report["options"] == {"seed": 3, "official": False}
    assert report["splits"]["dev"]["samples"] == 2000


def test_show_with_options_needs_pydantic_alone(monkeypatch):
    hidden, found = {"lightning"}, importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in hidden else found(name))
    given = ("show", "sst5", "--set", "data.options.seed=1")
    assert "unknown option 'seed'" in invoke(*given).stderr
    hidden.add("pydantic")
    monkeypatch.delattr(runs, "recipes", raising=False)
    monkeypatch.setitem(sys.modules, "beamtree.runs.recipes", None)
    assert invoke(*given).stderr.startswith("error: --set needs lightning and pydantic, which are not installed")
    printed("show", "sst5")


def test_show_reads_ones_own_file(folders):
    (folders / "mine.csv").write_text("text,label\nIt works!,yes\nNot at all.,no\n")
    report = json.loads(printed("show", "mine.csv", "--json"))
    assert report["labels"] == ["no", "yes"]
    assert report["splits"]["mine"]["examples"][0]["text"] == "it works !"


def test_get_takes_originals_from_a_folder_so_that_they_are_found_again(folders, monkeypatch):
    monkeypatch.delenv("BEAMTREE_DATA")
    printed("get", "sst5", "--data-dir", str(folders / "originals"))
    assert json.loads(printed("show", "sst5", "--json"))["splits"]["train"]["samples"] == 8


def test_get_downloads_every_source_of_a_task(folders, monkeypatch):
    fetched = []

    def fetch(url, target, *, checksum, progress):
        progress(5, 10)
        progress(10, 10)
        fetched.append(target.name)

    monkeypatch.setattr(download, "fetch", fetch)
    printed("get", "imdb")
    assert {"aclImdb_v1.tar.gz", "test_contrast.tsv"} <= set(fetched)


def test_make_writes_a_file_that_reads_back(folders):
    printed("make", "listops", "dg-test", "--count", "5", "--seed", "1", "--out", "made.tsv.xz")
    made = listops.read(folders / "made.tsv.xz")
    assert len(made) == 5
    assert all(8 <= listops.depth(example.tokens) <= 10 for example in made)


def test_make_lists_the_presets():
    assert printed("make", "listops", "--list").splitlines() == list(listops.PRESETS)


def test_long_work_prints_lines_of_progress(clock, folders, monkeypatch):
    monkeypatch.setattr(splits, "_PROGRESS_EVERY", 10)
    clock.step = 10
    result = invoke("make", "listops", "dg-train", "--count", "100", "--out", "made.tsv")
    assert result.stdout == "made.tsv: 100 expressions\n"
    assert result.stderr.splitlines() == [f"expressions: {count} of 100" for count in (10, 40, 70, 100)]


def test_a_long_download_prints_lines_of_progress(clock, folders, monkeypatch):
    def fetch(url, target, *, checksum, progress):
        clock.now += 60
        progress(3 * 2**20, 12 * 2**20 if target.name == "aclImdb_v1.tar.gz" else None)

    monkeypatch.setattr(download, "fetch", fetch)
    lines = invoke("get", "imdb").stderr.splitlines()
    assert lines[0] == "aclImdb_v1.tar.gz: 3.00 MiB of 12.0 MiB"
    assert all(line.endswith(": 3.00 MiB") for line in lines[1:])


def test_make_leaves_out_what_is_excluded(folders):
    digits = ("--max-length", "1", "--min-length", "1", "--max-nesting", "0")
    printed("make", "listops", "d20s-train", *digits, "--count", "4", "--out", "a.tsv")
    printed("make", "listops", "d20s-train", *digits, "--count", "6", "--exclude", "a.tsv", "--out", "b.tsv")
    both = [*listops.read(folders / "a.tsv"), *listops.read(folders / "b.tsv")]
    assert len(set(both)) == 10


def test_cache_lists_and_clears(folders):
    printed("show", "sst5", "--split", "train")
    assert "sst5" in printed("cache")
    assert "1 removed" in printed("cache", "--clear")
    assert "sst5" not in printed("cache")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "ssst5"], "did you mean 'sst5'?"),
        (["show", "sst5", "--split", "trian"], "did you mean 'train'?"),
        (["show", "sst5", "--set", "data.options.seed=1"], "unknown option 'seed'"),
        (["show", "listops", "--set", "data.options.seed=x"], "must be an integer"),
        (["show", "listops", "--set", "seed"], "key=value"),
        (["show", "listops", "--set", "seed=1"], "--set seed: only options of the data can be changed here"),
        (["show", "sst5", "--data-dir", "nowhere"], "nowhere is not a folder"),
        (["show", "sst5", "--examples", "-1"], "at least 0"),
        (["get", "listops-dg"], "is generated"),
        (["get", "nothing"], "unknown task or source"),
        (["get", "imdb", "--data-dir", "originals"], "imdb is not in originals"),
        (["make", "listops", "d20", "--out", "x.tsv"], "d20s-train"),
        (["make", "listops", "lra", "--out", "no/x.tsv"], "the folder no does not exist"),
        (["make", "listops", "lra", "--out", "x.tsv", "--count", "-1"], "count must not be negative"),
        (["make", "listops", "lra", "--out", "x.tsv", "--layout", "csv"], "original, lra"),
        (["make", "listops", "lra", "--out", "x.tsv", "--exclude", "y.tsv"], "y.tsv: the file does not exist"),
    ],
)
def test_a_mistake_is_answered_in_one_line(arguments, message):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_a_bad_line_is_named_and_leaves_nothing_behind(folders):
    (folders / "originals" / "trees" / "dev.txt").write_text("(2 (2 A) (2 film))\n(2 (2 A) (2 film)\n")
    result = invoke("show", "sst5", "--split", "dev")
    assert result.exit_code == 2
    assert "dev.txt, line 2: unbalanced brackets" in result.stderr
    assert not [path for path in (folders / "cache").rglob("*") if path.is_file()]


@pytest.mark.parametrize("command", [[], ["list"], ["show"], ["get"], ["make"], ["make", "listops"], ["cache"]])
def test_every_command_has_help(command):
    shown = printed(*command, "--help")
    assert "Usage: beamtree data" in " ".join(shown.split())
    assert not command or "Example" in shown or command == ["make"]
