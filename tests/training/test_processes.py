"""Runs that are killed at any moment, and runs of two processes, have the same end as those that are not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import beamtree
from training import processes
from training.toy_runs import outcome


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the program leaves, and in "hits" how often it killed a run."""
    folder = tmp_path_factory.mktemp("processes")
    places = (Path(beamtree.__file__).parents[1], Path(__file__).parents[1])
    environment = {
        **os.environ,
        **{"PYTHONPATH": os.pathsep.join(map(str, places)), "OMP_NUM_THREADS": "1"},
        **{"BEAMTREE_CACHE": str(folder / "cache")},
    }
    command = [sys.executable, processes.__file__, str(folder)]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert (process.returncode, process.stderr) == (0, "")
    (folder / "hits").write_text(process.stdout)
    return folder


def test_killed_at_any_moment_it_comes_to_the_same_weights_and_metrics(folder):
    assert int((folder / "hits").read_text()) >= 2
    assert outcome(folder / "killed") == outcome(folder / "whole")


def test_two_processes_have_the_metrics_of_one(folder):
    (_, one, alone), (_, two, shared) = (outcome(folder / "together" / name) for name in ("one", "two"))
    assert len(one) == len(two) == processes.EPOCHS
    for first, second in zip(one, two, strict=True):
        assert first == pytest.approx(second, abs=1e-5)
    assert alone["splits"]["test"] == pytest.approx(shared["splits"]["test"], abs=1e-5)


def test_two_processes_can_be_stopped_too(folder):
    assert outcome(folder / "together" / "stopped") == outcome(folder / "together" / "whole")
