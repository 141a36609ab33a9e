"""Sweeps: so many at once, none twice, none left behind, and the others go on where one fails."""

import os
import shlex
import signal
import threading
import time
from pathlib import Path

import pytest

from beamtree import runs
from beamtree.training import sweep
from beamtree.training.screen import Screen
from beamtree.training.sweep import Job, run_all
from training.toy_runs import toy_settings

QUIET = Screen(quiet=True)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_PAUSE", 0.02)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """The folder of a run that is done, for others to be copies of."""
    folder = tmp_path / "finished"
    folder.mkdir()
    runs.write_config(folder, runs.Config(toy_settings(tmp_path), ("a", "b"), pair=False, closed_vocabulary=False))
    line = {"epoch": 3, "dev_loss": 0.1, "dev_accuracy": 0.9, "samples_per_second": 1.0}
    runs.append_json_line(folder / runs.METRICS, line)
    runs.write_json(folder / runs.RESULTS, {"splits": {}})
    return folder


def job(tmp_path: Path, name: str, *steps: str) -> Job:
    """One whose command is these lines of the shell."""
    folder = tmp_path / "sweep" / name
    return Job(toy_settings(tmp_path), folder, ["sh", "-c", "\n".join(steps)])


def copy(finished: Path, folder: Path) -> str:
    return f"cp -r {shlex.quote(str(finished))} {shlex.quote(str(folder))}"


def test_all_are_run_so_many_at_once(finished, tmp_path):
    note = shlex.quote(str(tmp_path / "notes"))
    jobs = []
    for name in "abcde":
        folder = tmp_path / "sweep" / name
        jobs.append(job(tmp_path, name, f"echo + >> {note}; sleep 0.2; {copy(finished, folder)}; echo - >> {note}"))
    assert run_all(jobs, 2, QUIET) == []
    assert all(runs.is_finished(each.folder) for each in jobs)
    running = most = 0
    for mark in (tmp_path / "notes").read_text().split():
        running += 1 if mark == "+" else -1
        most = max(most, running)
    assert most == 2


def test_what_is_finished_is_not_run_again_and_what_fails_stops_no_other(finished, tmp_path, capsys):
    copied = [job(tmp_path, name, "echo must not run >&2; exit 1") for name in ("done", "other")]
    copied[0].folder.parent.mkdir()
    os.system(copy(finished, copied[0].folder))
    broken = job(tmp_path, "broken", "echo no such luck >&2; exit 3")
    empty = job(tmp_path, "empty", "true")  # ends well, and leaves no results
    good = job(tmp_path, "good", copy(finished, tmp_path / "sweep" / "good"))
    assert run_all([copied[0], broken, empty, good], 1, Screen()) == [broken, empty]
    assert runs.is_finished(good.folder)
    assert broken.log.read_text() == "no such luck\n"
    told = capsys.readouterr().err.splitlines()
    assert told == [
        *("done: finished before", "broken: begun", "broken: failed", "empty: begun", "empty: failed"),
        *("good: begun", "good: finished after 3 epochs"),
    ]


def test_a_finished_run_of_other_settings_is_refused_before_any_begins(finished, tmp_path):
    other = Job(toy_settings(tmp_path, seed=1), finished, ["false"])
    fresh = job(tmp_path, "fresh", "true")
    with pytest.raises(ValueError, match="finished holds a run with seed 0, not 1"):
        run_all([fresh, other], 1, QUIET)
    assert not fresh.log.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_is_passed_on_once_and_waits(number, tmp_path):
    stop = "trap 'sleep 0.2; echo stopped; exit 0' INT"
    jobs = [job(tmp_path, name, stop, "echo ready; while :; do sleep 0.05; done") for name in "ab"]

    def interrupt() -> None:
        while not all(each.log.exists() and "ready" in each.log.read_text() for each in jobs):
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_all(jobs, 2, QUIET)
    thread.join()
    assert [each.log.read_text() for each in jobs] == ["ready\nstopped\n"] * 2


def test_on_a_cpu_each_of_several_has_one_thread(monkeypatch):
    monkeypatch.setattr(sweep.torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert sweep._environment(2)["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in sweep._environment(1)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert sweep._environment(2)["OMP_NUM_THREADS"] == "4"
