"""The queue of runs: names, and what is packed first."""

import dataclasses
import subprocess
import sys
import tarfile

import pytest

from beamtree import encoder, encoders
from beamtree.runs import recipes
from result_scripts import script

queue = script("run_queue")


def test_runs_have_different_folders():
    folders = [run.folder(queue.Path("out")) for run in queue.RUNS]
    assert len(set(folders)) == len(folders) > 100


def test_runs_have_valid_settings():
    for run in {dataclasses.replace(run, seed=0) for run in queue.RUNS}:
        settings = recipes.load(run.recipe, run.encoder, run.seed, recipes.parse_changes(run.all_changes))
        encoder(run.encoder, dim=settings.model.dim, **settings.encoder.options)
        if run.recipe == "listops":
            assert settings.data.tests == (*recipes.load("listops").data.tests, "args-dev")


@pytest.fixture
def runs(tmp_path):
    """One that is finished and one that is not, each with small files of 1 kB and a large one of 100 kB."""
    made = [queue.Run("listops", "bt-grc", 0), queue.Run("listops", "bt-grc", 1)]
    for run, large in zip(made, ("model.safetensors", "checkpoints/step-2.ckpt"), strict=True):
        folder = run.folder(tmp_path / "out")
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "checkpoints/step-1.ckpt").write_bytes(bytes(100_000))
        (folder / large).write_bytes(bytes(100_000))
        (folder / "config.yaml").write_bytes(bytes(1000))
    (made[0].folder(tmp_path / "out") / "results.json").write_bytes(bytes(1000))
    return made


@pytest.mark.parametrize(
    ("limit", "large"),
    [
        (float("inf"), ["bt-grc-seed0/model.safetensors", "bt-grc-seed1/checkpoints/step-2.ckpt"]),
        (150_000, ["bt-grc-seed0/model.safetensors"]),
        (90_000, []),
    ],
)
def test_small_files_and_weights_are_packed_first(runs, tmp_path, limit, large, capsys):
    queue.pack(runs, tmp_path / "out", tmp_path / "packed", limit)
    archive = tmp_path / "runs.tar"
    archive.write_bytes(b"".join(path.read_bytes() for path in sorted((tmp_path / "packed").iterdir())))
    assert archive.stat().st_size <= limit
    small = ["bt-grc-seed0/config.yaml", "bt-grc-seed0/results.json", "bt-grc-seed1/config.yaml"]
    with tarfile.open(archive) as tar:
        assert tar.getnames() == [f"listops/{name}" for name in (*small, *large)]
    assert capsys.readouterr().out.count("left out") == 2 - len(large)


def test_runs_start_in_the_order_of_the_patterns():
    chosen = queue.chosen(["sst5/bt-grc-glove-6b-seed*", "*/gold-*-seed1", "sst5/bt-*-seed0"], None)
    names = [str(run.folder(queue.Path())) for run in chosen]
    assert names[:4] == [*(f"sst5/bt-grc-glove-6b-seed{seed}" for seed in range(3)), "listops/gold-tree-grc-seed1"]
    assert len(set(names)) == len(names) > 4


def test_collected_runs_are_not_repeated(runs, tmp_path):
    for run in runs:
        for name in queue.SMALL_FILES:
            (run.folder(tmp_path / "out") / name).touch()
    queue.collect(runs[:1], tmp_path / "out", tmp_path / "results")
    patterns = ["listops/bt-grc-seed[01]"]
    assert queue.chosen(patterns, tmp_path / "results") == runs[1:]
    assert queue.chosen(patterns, None) == runs


def test_heavy_runs_are_not_mixed_with_others():
    light, heavy = queue.Run("listops", "bt-grc", 0), queue.Run("listops", "crvnn", 0)
    assert queue.may_start(light, [light] * 3, slots=4, heavy_slots=1)
    assert not queue.may_start(light, [light] * 4, slots=4, heavy_slots=9)
    assert not queue.may_start(light, [heavy], slots=4, heavy_slots=9)
    assert not queue.may_start(heavy, [light], slots=9, heavy_slots=2)
    assert queue.may_start(heavy, [heavy], slots=1, heavy_slots=2)
    assert not queue.may_start(heavy, [heavy] * 2, slots=9, heavy_slots=2)
    assert set(queue.HEAVY) <= set(encoders())


def test_heavy_runs_wait_until_all_others_have_ended(tmp_path, monkeypatch):
    """Each run is a process that only writes its results."""
    begun = []

    def start(run, out):
        begun.append(run.encoder)
        run.folder(out).mkdir(parents=True)
        (run.folder(out) / "results.json").write_text("{}")
        return subprocess.Popen(["true"])

    monkeypatch.setattr(queue.Run, "start", start)
    monkeypatch.setattr(queue, "POLL", 0.01)
    names = ["crvnn", "bt-grc", "bt-grc-onesoft", "gold-tree-grc"]
    runs = [queue.Run("listops", name, 0) for name in names]
    assert queue.train(runs, tmp_path, slots=4, heavy_slots=1, deadline=100.0, reserve=60.0, commit="")
    assert begun == ["bt-grc", "gold-tree-grc", "crvnn", "bt-grc-onesoft"]
    assert queue.train(runs, tmp_path, slots=4, heavy_slots=1, deadline=100.0, reserve=60.0, commit="")
    assert len(begun) == 4
    more = [queue.Run("listops", "bt-grc", 1)]
    assert queue.train(more, tmp_path, slots=4, heavy_slots=1, deadline=100.0, reserve=200.0, commit="")
    assert len(begun) == 4, "none is started with less time left than is reserved"


def test_a_run_along_the_trees_of_another_waits_for_it(tmp_path, monkeypatch):
    """Each run is a process that only writes its results, except those of bsrp-grc, which fail."""
    begun = []

    def start(run, out):
        begun.append((run.encoder, run.seed))
        run.folder(out).mkdir(parents=True)
        if run.encoder != "bsrp-grc":
            (run.folder(out) / "results.json").write_text("{}")
        return subprocess.Popen(["true"])

    monkeypatch.setattr(queue.Run, "start", start)
    monkeypatch.setattr(queue, "POLL", 0.01)
    parsers = [queue.Run("listops", "ebt-grc", seed) for seed in range(2)]
    runs = [queue.Run("listops", "gold-tree-grc", parser.seed, (), "parsed", parser) for parser in parsers]
    settings = {"slots": 1, "heavy_slots": 1, "deadline": 100.0, "reserve": 60.0, "commit": ""}
    assert queue.train([*runs, queue.Run("listops", "bt-grc", 0)], tmp_path, **settings)
    names = [("ebt-grc", 0), ("gold-tree-grc", 0), ("ebt-grc", 1), ("gold-tree-grc", 1), ("bt-grc", 0)]
    assert begun == names
    failing = queue.Run("listops", "gold-tree-grc", 2, (), "parsed", queue.Run("listops", "bsrp-grc", 2))
    assert not queue.train([failing], tmp_path, **settings)
    assert begun == [*names, ("bsrp-grc", 2)]


def test_the_parser_of_a_run_is_named_without_the_folder_of_the_runs(tmp_path):
    parser = queue.Run("listops", "ebt-grc", 3)
    run = queue.Run("listops", "gold-tree-grc", 3, (), "parsed", parser)
    run.folder(tmp_path).mkdir(parents=True)
    for name in queue.SMALL_FILES:
        (run.folder(tmp_path) / name).write_text(f"data:\n  parser: {parser.folder(tmp_path)}\n")
    queue.collect([run], tmp_path, tmp_path / "results")
    found = (run.folder(tmp_path / "results") / "config.yaml").read_text()
    assert found == "data:\n  parser: listops/ebt-grc-seed3\n"


def test_a_pattern_that_no_run_matches_is_a_mistake(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run_queue.py", "--only", "logic-c/*", "listop/*"])
    with pytest.raises(SystemExit):
        queue.main()
    assert "no run matches 'listop/*'; a run is named as 'listops/recurrent-grc-seed0'" in capsys.readouterr().err


def test_another_recipe_is_also_that_of_the_parser():
    run = next(run for run in queue.RUNS if run.parser is not None).with_recipe("listops-tiny")
    assert (run.recipe, run.parser.recipe) == ("listops-tiny", "listops-tiny")
    assert queue.RUNS[0].with_recipe("listops-tiny").parser is None
