"""The number of processes, from the options and from launchers."""

import pytest
import torch

from beamtree.training.launch import find_processes


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_NNODES", "SLURM_JOB_NAME"):
        monkeypatch.delenv(name, raising=False)


def test_by_default_one_process_trains():
    assert find_processes("cpu") == ("cpu", 1, 1)
    assert find_processes("cpu", devices=3, nodes=2) == ("cpu", 3, 2)


def test_torchrun_decides(monkeypatch):
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    assert find_processes("cpu") == find_processes("cpu", devices=3, nodes=2) == ("cpu", 3, 2)
    with pytest.raises(ValueError, match="nodes is 1, but the launcher has started processes for 2: leave out --nodes"):
        find_processes("cpu", nodes=1)


def test_srun_decides_unless_it_is_a_shell(monkeypatch):
    for name, value in {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}.items():
        monkeypatch.setenv(name, value)
    assert find_processes("cpu") == ("cpu", 2, 2)
    monkeypatch.setenv("SLURM_JOB_NAME", "interactive")
    assert find_processes("cpu") == ("cpu", 1, 1)
    monkeypatch.setenv("SLURM_JOB_NAME", "train")
    monkeypatch.setenv("SLURM_NTASKS", "1")
    assert find_processes("cpu") == ("cpu", 1, 1)


def test_devices_are_those_that_there_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_processes() == ("cuda", 1, 1)
    assert find_processes(devices=2) == ("cuda", 2, 1)
    with pytest.raises(ValueError, match="devices is 3, but 2 CUDA devices are visible: use fewer, or device 'cpu'"):
        find_processes(devices=3)
