"""Sweeps with submitit: jobs are run, requeued and refused by its local executor."""

import importlib.util
import os
import re
import shlex
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from beamtree.models import storage
from beamtree.models.config import make_config
from beamtree.training import cluster
from beamtree.training.cluster import parse_parameters, submit
from beamtree.training.sweep import Job
from beamtree.utils import files
from training.toy_runs import toy_settings

pytest.importorskip("submitit")

TIMEOUT = 120  # seconds


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """The folder of a finished run, which jobs copy instead of training."""
    folder = tmp_path / "finished"
    folder.mkdir()
    storage.write_config(
        folder, make_config(toy_settings(tmp_path).to_dict(), ("a", "b"), pair=False, closed_vocabulary=False)
    )
    files.write_json(folder / storage.RESULTS, {"splits": {}})
    return folder


def job(tmp_path: Path, name: str, *steps: str) -> Job:
    """A job whose command is a shell script of these lines."""
    return Job(toy_settings(tmp_path), tmp_path / name, ["sh", "-c", "\n".join(steps)])


def wait(handle: Any) -> None:
    """Wait until the process of a local job has exited."""
    handle._process.wait(TIMEOUT)


def test_unfinished_runs_are_run_and_requeued_when_they_are_preempted(finished, tmp_path, monkeypatch):
    """The first run is preempted: it stops by itself, and its job starts the same command again."""
    monkeypatch.chdir(tmp_path)
    copy = f"cp -r {shlex.quote(str(finished))}"
    preempted = job(
        tmp_path,
        "preempted",
        f"if [ -e begun ]; then {copy} preempted; exit 0; fi",
        "trap 'echo checkpoint; exit 143' TERM",
        "kill -USR2 $$",  # meant for submitit, not for the run
        "echo $PPID > pid.new; mv pid.new pid; touch begun; while :; do sleep 0.05; done",
    )
    plain = job(tmp_path, "plain", f"echo $0 runs; {copy} plain")
    done = Job(toy_settings(tmp_path), finished, ["false"])
    first, second = submit([preempted, done, plain], "logs", "local", timeout_min=5)
    assert [first.job, second.job] == [preempted, plain]
    deadline = time.monotonic() + TIMEOUT
    while not (tmp_path / "pid").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGUSR2)  # as Slurm does
    for each in (first, second):
        wait(each.handle)
        assert storage.is_finished(each.job.folder)
        assert each.handle.result() is None
        assert each.log.parent == tmp_path / "logs"
        assert str(each) == each.id == each.handle.job_id
    assert "sh runs\n" in second.log.read_text()
    log = first.log.read_text()
    assert "checkpoint\n" in log
    assert "Requeued job" in log


def test_a_command_that_fails_is_a_job_that_fails(tmp_path):
    with pytest.raises(RuntimeError, match="ended with status 3"):
        cluster.RunCommand(["sh", "-c", "exit 3"], str(tmp_path))()


def test_a_run_that_was_preempted_waits_for_the_signal_that_requeues_it(tmp_path, monkeypatch):
    waited: list[float] = []
    monkeypatch.setattr(cluster.time, "sleep", waited.append)
    with pytest.raises(RuntimeError, match="ended with status 143"):
        cluster.RunCommand(["sh", "-c", "exit 143"], str(tmp_path))()
    assert cluster._SIGNAL_SECONDS in waited


def test_an_error_leaves_no_process_behind(tmp_path, monkeypatch):
    """Neither a process that stops on SIGTERM nor one that ignores it."""
    monkeypatch.setattr(cluster, "_CHECKPOINT_SECONDS", 0.2)

    def interrupt(seconds: float) -> None:
        if (tmp_path / "pid").exists():
            monkeypatch.undo()
            monkeypatch.setattr(cluster, "_CHECKPOINT_SECONDS", 0.2)
            raise KeyboardInterrupt

    for trap in ("exit 0", ""):
        (tmp_path / "pid").unlink(missing_ok=True)
        monkeypatch.setattr(cluster.time, "sleep", interrupt)
        command = f"trap '{trap}' TERM; echo $$ > pid.new; mv pid.new pid; while :; do sleep 0.05; done"
        with pytest.raises(KeyboardInterrupt):
            cluster.RunCommand(["sh", "-c", command], str(tmp_path))()
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)


def test_parameters_are_parsed():
    texts = ["timeout_min=60", "slurm_partition=gpu", "mem_gb=1.5", "slurm_account=007", "slurm_exclusive=true"]
    assert parse_parameters([*texts, "slurm_setup=[module load cuda]", "slurm_comment=a=b"]) == {
        **{"timeout_min": 60, "slurm_partition": "gpu", "mem_gb": 1.5, "slurm_account": "007"},
        **{"slurm_exclusive": True, "slurm_setup": ["module load cuda"], "slurm_comment": "a=b"},
    }


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["timeout_min"], "'timeout_min' is not a parameter of submitit: write key=value, as in timeout_min=60"),
        (["=1"], "is not a parameter of submitit"),
        (["a=1", "a=2"], "'a=2': a is given twice"),
        (["slurm_setup=[a"], "the value is not valid YAML"),
    ],
)
def test_a_parameter_that_cannot_be_parsed_is_refused(texts, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_parameters(texts)


@pytest.mark.parametrize(
    ("executor", "options", "message"),
    [
        ("slrm", {}, "unknown executor 'slrm' (did you mean 'slurm'?); known: slurm, local"),
        ("local", {"slurm_partitio": "gpu"}, "Unknown argument 'partitio' for executor 'slurm'"),
        ("local", {"timeout_min": "long"}, 'Parameter "timeout_min" expected type'),
    ],
)
def test_what_submitit_refuses_is_one_line(tmp_path, executor, options, message):
    with pytest.raises(ValueError, match=f"^.*{re.escape(message)}.*$"):
        submit([job(tmp_path, "a", "true")], tmp_path / "logs", executor, **options)


def test_without_slurm_or_submitit_the_error_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="Slurm is not available on this machine: the command srun was not found"):
        submit([job(tmp_path, "a", "true")], tmp_path / "logs")
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    with pytest.raises(
        ValueError, match=r"the executor slurm needs submitit, which is not installed: pip install 'beamtree\[slurm\]'"
    ):
        submit([job(tmp_path, "a", "true")], tmp_path / "logs")


def test_slurm_gets_the_parameters(tmp_path, monkeypatch):
    """A fake `sbatch` stores the script: each job has the name of its run, its resources, and submitit's signal."""
    commands = tmp_path / "commands"
    commands.mkdir()
    for name, text in (("srun", "exit 1"), ("sbatch", f"cp $1 {tmp_path}/script; echo Submitted batch job 12")):
        (commands / name).write_text(f"#!/bin/sh\n{text}\n")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    options = parse_parameters(["partition=gpu", "gpus_per_node=1", "timeout_min=60"])
    (submission,) = submit([job(tmp_path, "bt-grc-seed0", "true")], tmp_path / "logs", **options)
    assert (submission.id, submission.log) == ("12", tmp_path / "logs" / "12_0_log.out")
    script = (tmp_path / "script").read_text().splitlines()
    for line in ("job-name=bt-grc-seed0", "partition=gpu", "gpus-per-node=1", "time=60", "signal=USR2@90"):
        assert f"#SBATCH --{line}" in script
