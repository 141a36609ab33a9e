"""Runs that are killed at any moment, and runs of several processes, have the same result as other runs."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import beamtree
import forked
from beamtree.models import storage
from beamtree.runs import checkpoints
from beamtree.runs.folder import CHECKPOINTS
from forked import Command
from training import processes
from training.toy_runs import outcome, write_data

RECIPE = """
about: a toy
encoder: bt-grc
data: {{task: "{data}", options: {{tokenizer: spaces}}, vectors: null, tests: []}}
model: {{dim: 6, hidden: null, dropout: 0.1, dropout_in: 0.1}}
optimizer: {{name: ranger, lr: 1e-2, weight_decay: 1e-2}}
training:
  {{batch_size: 8, micro_batch: 4, dev_batch: 8, bucket_factor: 2, clip: 1, max_epochs: {epochs}, patience: 500,
   select: loss, plateau_factor: 0.5, plateau_patience: 2, precision: "32"}}
encoders:
  bt-grc: {{options: {{beam_size: 2}}}}
"""


def environment(folder: Path, **own: str) -> dict[str, str]:
    """Environment of a process that can import the package and these tests, without the variables of a launcher."""
    places = (Path(beamtree.__file__).parents[1], Path(__file__).parents[1])
    launcher = re.compile("SLURM_|TORCHELASTIC_|MASTER_|(LOCAL_|GROUP_|NODE_|)RANK$|(LOCAL_|)WORLD_SIZE$")
    return {
        **{name: value for name, value in os.environ.items() if not launcher.match(name)},
        **{"PYTHONPATH": os.pathsep.join(map(str, places)), "OMP_NUM_THREADS": "1"},
        # PyTorch warns if the first process is not ready yet, which depends on timing.
        **{"BEAMTREE_CACHE": str(folder / "cache"), "TORCH_CPP_LOG_LEVEL": "ERROR", **own},
    }


def program(what: str, folder: Path) -> str:
    command = Command([what, str(folder)], folder, environment(folder), folder / "program", processes.main)
    status, output, errors = command.ended(400)
    assert (status, errors) == (0, "")
    return output


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("together")
    program("together", folder)
    return folder


def test_killed_at_any_moment_a_run_comes_to_the_same_weights_and_metrics(tmp_path):
    hits, hits_of_two = map(int, program("kill", tmp_path).split())
    assert hits >= 5
    assert hits_of_two >= 2
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")
    assert outcome(tmp_path / "killed-2") == outcome(tmp_path / "whole-2")


def test_two_processes_have_the_metrics_of_one(together):
    (_, one, alone), (_, two, shared) = (outcome(together / name) for name in ("one", "two"))
    assert len(one) == len(two) == processes.EPOCHS
    for first, second in zip(one, two, strict=True):
        assert first == pytest.approx(second, abs=1e-5)
    assert alone["splits"]["test"] == pytest.approx(shared["splits"]["test"], abs=1e-5)


def test_two_processes_can_be_stopped_too(together):
    assert outcome(together / "stopped") == outcome(together / "whole")


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A folder with a recipe, toy.yaml."""
    data = write_data(tmp_path / "data", {"train": 40, "dev": 8, "test": 4})
    (tmp_path / "toy.yaml").write_text(RECIPE.format(data=data, epochs=2))
    (tmp_path / "long.yaml").write_text(RECIPE.format(data=data, epochs=400))
    return tmp_path


OPTIONS = ["--device", "cpu", "--logger", "none"]


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start `beamtree train` in a new session, so that a signal can be sent to all its processes, as Ctrl-C is."""
    return subprocess.Popen(
        [sys.executable, "-m", "beamtree", "train", *arguments, *OPTIONS],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: "subprocess.Popen[str]", seconds: float = 90) -> tuple[int, str, str]:
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, output, errors


def start_nodes(
    convention: str, folders: list[Path], recipe: str, out: Path, program: Callable[[], None] = forked.beamtree
) -> list[Command]:
    """`beamtree train` as one process on each of several nodes, in their folders."""
    port, nodes = processes.free_port(), []
    for rank, folder in enumerate(folders):
        variables, options = launched(convention, rank, port)
        command = ["train", recipe, "--out", str(out), *options, *OPTIONS]
        own = environment(folder, **variables)
        nodes.append(Command(command, folder, own, out.with_name(f"node-{rank}"), program))
    return nodes


def launched(convention: str, rank: int, port: int) -> tuple[dict[str, str], list[str]]:
    """The variables and options of one of two nodes with one process each."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if convention == "torchrun":
        own = {"TORCHELASTIC_RUN_ID": "x", "RANK": str(rank), "LOCAL_RANK": "0", "GROUP_RANK": str(rank)}
        return {**common, **own, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}, []
    if convention == "srun":
        own = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": "0", "SLURM_NODEID": str(rank)}
        job = {"SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "toy", "SLURM_NTASKS": "2", "SLURM_NNODES": "2"}
        return {**common, **own, **job, "SLURM_NTASKS_PER_NODE": "1", "SLURM_NODELIST": "127.0.0.1"}, []
    return {**common, "NODE_RANK": str(rank)}, ["--nodes", "2", "--devices", "1"]


@pytest.mark.parametrize("convention", ["torchrun", "srun", "NODE_RANK"])
def test_two_nodes_train_one_run(convention, toy):
    nodes = start_nodes(convention, [toy, toy], "toy.yaml", toy / "run")
    (first, table, progress), (second, *printed) = (node.ended() for node in nodes)
    assert (first, second) == (0, 0), progress
    assert printed == ["", ""], "only the first process prints"
    assert progress.startswith("epoch 1/2")
    assert f"the model is in {toy / 'run'}" in table.replace("\n", "")
    assert storage.is_finished(toy / "run")


def test_a_launcher_decides_the_number_of_processes(toy):
    variables, _ = launched("torchrun", 0, processes.free_port())
    command = ["train", "toy.yaml", "--devices", "4", *OPTIONS]
    status, _, errors = Command(command, toy, environment(toy, **variables), toy / "node").ended()
    assert status == 2
    assert errors == (
        "error: devices is 4, but the launcher has started processes for 1: leave out --devices, or make them equal\n"
    )


def test_starts_of_two_processes_do_not_race(toy):
    """The first process is held between its two checks of the folder, while the second one is ready."""
    hold = (
        "import sys, time\nfrom beamtree.training import loop\nfrom beamtree.cli import main\n"
        "look, looks = loop.status, []\n"
        "def slowly(*arguments):\n"
        "    looks.append(1)\n"
        "    time.sleep(1.0 if len(looks) == 2 else 0.0)\n"
        "    return look(*arguments)\n"
        "loop.status = slowly\nmain()"
    )
    (toy / "held.py").write_text(hold)
    command = [sys.executable, "held.py", "train", "toy.yaml", "--out", "run", "--device", "cpu", "--devices", "2"]
    done = subprocess.run(
        [*command, "--logger", "none"], cwd=toy, env=environment(toy), capture_output=True, text=True, timeout=90
    )
    assert (done.returncode, done.stdout.count("the model is in run")) == (0, 1), done.stderr


def test_twenty_starts_of_two_processes_all_succeed(tmp_path):
    assert program("starts", tmp_path) == "20 starts\n"


def test_ctrl_c_stops_two_processes_with_a_checkpoint(toy):
    process = start(toy, "long.yaml", "--out", "run", "--devices", "2", "--checkpoint-minutes", "60")
    wait_for(lambda: (toy / "run" / "metrics.jsonl").exists() and (toy / "run" / "metrics.jsonl").stat().st_size)
    os.killpg(process.pid, signal.SIGINT)
    status, _, errors = ended(process)
    assert status == 130, errors
    assert errors.endswith("interrupted; to resume: beamtree train --resume run\n")
    assert errors.count("interrupted") == 1
    assert "Traceback" not in errors
    assert checkpoints.all_of(toy / "run" / CHECKPOINTS)
    assert not storage.is_finished(toy / "run")


@pytest.mark.parametrize("victim", ["first", "second"])
def test_if_one_process_is_killed_the_other_ends_within_seconds(victim, toy):
    nodes = start_nodes("NODE_RANK", [toy, toy], "long.yaml", toy / "run", processes.slow_to_notice)
    wait_for(lambda: (toy / "run" / "metrics.jsonl").exists() and (toy / "run" / "metrics.jsonl").stat().st_size)
    dead, other = nodes if victim == "first" else nodes[::-1]
    dead.kill()
    began = time.monotonic()
    status, _, errors = other.ended()
    assert status != 0
    assert time.monotonic() - began < 5
    rank = 0 if victim == "first" else 1
    assert errors.endswith(f"error: process {rank} exited without a message; see its log for the reason\n")
    assert "Traceback" not in errors
    assert dead.ended()[0] == -signal.SIGKILL


def test_the_error_of_one_process_ends_the_other_with_its_message(toy):
    folders = [toy / f"node{rank}" for rank in range(2)]
    for rank, folder in enumerate(folders):
        data = write_data(folder / "data", {"train": 40 + rank, "dev": 8})
        (folder / "toy.yaml").write_text(RECIPE.format(data=data, epochs=2))
    nodes = start_nodes("NODE_RANK", folders, "toy.yaml", toy / "run")
    (first, _, errors), (second, _, errors_of_second) = (node.ended() for node in nodes)
    assert first != 0
    assert second != 0
    reason = "the data differs from that of the first process: copy the same files to all nodes"
    assert f"error: process 1 failed: {reason}" in errors
    assert reason in errors_of_second


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)
