"""Sweeps: one GPU per run, a limited number of runs at a time, each run once, and no failure stops the others."""

import os
import shlex
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from beamtree.models import storage
from beamtree.models.config import make_config
from beamtree.runs.folder import METRICS
from beamtree.training import sweep
from beamtree.training.console import TrainingConsole
from beamtree.training.sweep import Job, command_lines, run_all
from beamtree.utils import files
from training.toy_runs import toy_settings

QUIET = TrainingConsole(quiet=True)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_INTERVAL", 0.02)


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPUs are visible, unless the test adds some."""
    with_gpus(monkeypatch, 0)
    monkeypatch.delenv(sweep.GPUS, raising=False)


def with_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(sweep.torch.cuda, "device_count", lambda: count)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """The folder of a finished run, which jobs copy instead of training."""
    folder = tmp_path / "finished"
    folder.mkdir()
    storage.write_config(
        folder, make_config(toy_settings(tmp_path).to_dict(), ("a", "b"), pair=False, closed_vocabulary=False)
    )
    line = {"epoch": 3, "dev_loss": 0.1, "dev_accuracy": 0.9, "samples_per_second": 1.0}
    files.append_json_line(folder / METRICS, line)
    files.write_json(folder / storage.RESULTS, {"splits": {}})
    return folder


def job(tmp_path: Path, name: str, *steps: str, **options: object) -> Job:
    """A job whose command is a shell script of these lines."""
    folder = tmp_path / "sweep" / name
    return Job(toy_settings(tmp_path), folder, ["sh", "-c", "\n".join(steps)], **options)


def copy(finished: Path, folder: Path) -> str:
    return f"cp -r {shlex.quote(str(finished))} {shlex.quote(str(folder))}"


def noting(tmp_path: Path, finished: Path, name: str, **options: object) -> Job:
    """A job that records its GPUs when it starts and when it ends."""
    note = shlex.quote(str(tmp_path / "notes"))
    gpus = f"${{{sweep.GPUS}-none}}"
    steps = (
        f'echo "+ {gpus}" >> {note}; sleep 0.2; {copy(finished, tmp_path / "sweep" / name)}; echo "- {gpus}" >> {note}'
    )
    return job(tmp_path, name, steps, **options)


def most_at_once(tmp_path: Path) -> dict[str, int]:
    """For each GPU, the maximum number of jobs that used it at a time."""
    running: dict[str, int] = {}
    most: dict[str, int] = {}
    for line in (tmp_path / "notes").read_text().splitlines():
        mark, gpus = line.split(" ", 1)
        for gpu in gpus.split(","):
            running[gpu] = running.get(gpu, 0) + (1 if mark == "+" else -1)
            most[gpu] = max(most.get(gpu, 0), running[gpu])
    return most


def test_on_a_cpu_all_jobs_are_run_so_many_at_once(finished, tmp_path):
    jobs = [noting(tmp_path, finished, name) for name in "abcde"]
    assert run_all(jobs, 2, QUIET) == []
    assert all(storage.is_finished(each.folder) for each in jobs)
    assert most_at_once(tmp_path) == {"none": 2}


@pytest.mark.parametrize("named", [None, "3,GPU-5e1f"])
@pytest.mark.parametrize("at_once", [1, 2])
def test_each_run_has_its_own_gpu_and_each_gpu_so_many_runs(finished, tmp_path, monkeypatch, named, at_once, capsys):
    with_gpus(monkeypatch, 2)
    if named is not None:
        monkeypatch.setenv(sweep.GPUS, named)
    jobs = [noting(tmp_path, finished, name) for name in "abcdef"]
    assert run_all(jobs, at_once, TrainingConsole()) == []
    first, second = (named or "0,1").split(",")
    assert most_at_once(tmp_path) == {first: at_once, second: at_once}
    started = [line for line in capsys.readouterr().err.splitlines() if "started" in line]
    assert started[:2] == [f"a: started on GPU {first}", f"b: started on GPU {second}"]  # the least loaded first


def test_only_the_visible_gpus_are_used(monkeypatch):
    with_gpus(monkeypatch, 1)
    monkeypatch.setenv(sweep.GPUS, "2, -1, 3")  # CUDA ignores what follows the invalid id
    assert sweep.visible_gpus() == ["2"]
    with_gpus(monkeypatch, 0)
    monkeypatch.setenv(sweep.GPUS, "")
    assert sweep.visible_gpus() == []


def test_a_run_with_several_devices_counts_on_each_of_its_gpus(finished, tmp_path, monkeypatch):
    with_gpus(monkeypatch, 3)
    jobs = [noting(tmp_path, finished, name, devices=2) for name in "abc"]
    assert run_all([*jobs, noting(tmp_path, finished, "d")], 1, QUIET) == []
    assert most_at_once(tmp_path) == {"0": 1, "1": 1, "2": 1}
    too_many = noting(tmp_path, finished, "e", devices=4)
    with pytest.raises(ValueError, match="e: devices is 4, but only 3 GPUs are visible"):
        run_all([too_many], 1, QUIET)
    assert not too_many.log.exists()


def test_a_run_on_the_cpu_uses_no_gpu(finished, tmp_path, monkeypatch):
    with_gpus(monkeypatch, 2)
    assert run_all([noting(tmp_path, finished, name, device="cpu", devices=4) for name in "abc"], 1, QUIET) == []
    assert most_at_once(tmp_path) == {"none": 1}


def test_a_finished_run_is_not_run_again_and_a_failure_does_not_stop_the_others(finished, tmp_path, capsys):
    done = job(tmp_path, "done", "echo must not run >&2; exit 1")
    done.folder.parent.mkdir()
    os.system(copy(finished, done.folder))
    broken = job(tmp_path, "broken", "echo no such luck >&2; exit 3")
    empty = job(tmp_path, "empty", "true")  # exits with status 0, but leaves no results
    good = job(tmp_path, "good", copy(finished, tmp_path / "sweep" / "good"))
    assert run_all([done, broken, empty, good], 1, TrainingConsole()) == [broken, empty]
    assert storage.is_finished(good.folder)
    assert broken.log.read_text() == "no such luck\n"
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        *("done: already finished", "broken: started", "broken: failed", "empty: started", "empty: failed"),
        *("good: started", "good: finished after 3 epochs"),
    ]


def test_a_finished_run_with_other_settings_is_refused_before_any_job_starts(finished, tmp_path):
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_a_start_reaches_the_run_that_is_started(number, tmp_path, monkeypatch):
    start = sweep._start

    def interrupted(job, environment):
        process = start(job, environment)
        while not (job.log.exists() and "ready" in job.log.read_text()):
            time.sleep(0.02)
        os.kill(os.getpid(), number)
        return process

    monkeypatch.setattr(sweep, "_start", interrupted)
    only = job(tmp_path, "a", "trap 'echo stopped; exit 0' INT", "echo ready; while :; do sleep 0.05; done")
    with pytest.raises(KeyboardInterrupt):
        run_all([only], 1, QUIET)
    assert only.log.read_text() == "ready\nstopped\n"


def test_on_a_cpu_each_of_several_runs_has_one_thread(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert sweep._environment(["cpu"], 2)["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in sweep._environment(["cpu"], 1)
    assert "OMP_NUM_THREADS" not in sweep._environment(["0"], 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert sweep._environment(["cpu"], 2)["OMP_NUM_THREADS"] == "4"


def test_command_lines_work_from_anywhere(tmp_path, monkeypatch):
    """`--out` is absolute; a line whose other paths are relative changes to their folder first."""
    here, elsewhere = tmp_path / "a b", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    (here / "my recipe.yaml").touch()
    settings, folder = toy_settings(tmp_path / "data"), Path("runs/it's")
    show = ["printf", "%s\\n", "train"]
    plain = Job(settings, folder, [*show, "listops", f"--out={folder}"])
    with_recipe = Job(settings, folder, [*show, "my recipe.yaml", "--out", str(folder)])
    with_data = Job(toy_settings(Path("my recipe.yaml")), folder, [*show, "--set=a=b c", f"--out={folder}"])
    first, second, third = command_lines([plain, with_recipe, with_data])
    assert first.startswith("printf ")
    assert second.startswith(f"cd '{here}' && printf ")
    assert third.startswith(f"cd '{here}' && printf ")
    printed = [
        subprocess.run(
            ["sh", "-c", line], cwd=elsewhere, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        for line in (first, second, third)
    ]
    assert printed == [
        ["train", "listops", f"--out={here}/runs/it's"],
        ["train", "my recipe.yaml", "--out", f"{here}/runs/it's"],
        ["train", "--set=a=b c", f"--out={here}/runs/it's"],
    ]
