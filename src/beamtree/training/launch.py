"""The processes of distributed training.

`beamtree train --devices 2` starts the second process itself. With torchrun or Slurm's srun, the launcher has started
all processes and determines their number. See docs/guides/distributed.md.
"""

import atexit
import contextlib
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy

from beamtree.utils.checks import check_choice, check_integer

T = TypeVar("T")

DEVICES = ("auto", "cpu", "cuda")
# Seconds before the exit of a process. After a collective operation, a thread of Gloo releases the tensors, for which
# it needs the interpreter; if the interpreter is shutting down by then, the process aborts.
_SETTLE = 0.25


class Processes(NamedTuple):
    """The processes of a run, one per device."""

    device: str  # "cpu" or "cuda"
    devices: int  # per node
    nodes: int


def find_processes(device: str = "auto", devices: int | None = None, nodes: int | None = None) -> Processes:
    """Validate the options of `train`. `devices` and `nodes` default to those of the launcher, or to 1."""
    check_choice("device", device, DEVICES)
    for name, value in (("devices", devices), ("nodes", nodes)):
        if value is not None:
            check_integer(name, value, at_least=1)
    available = torch.cuda.device_count()
    if device == "auto":
        device = "cuda" if available else "cpu"
    launched = _launched()
    if launched is not None:
        for name, asked, found in (("devices", devices, launched[0]), ("nodes", nodes, launched[1])):
            if asked is not None and asked != found:
                raise ValueError(
                    f"{name} is {asked}, but the launcher has started processes for {found}: "
                    f"leave out --{name}, or make them equal"
                )
        devices, nodes = launched
    devices, nodes = devices or 1, nodes or 1
    if device == "cuda" and devices > available:
        raise ValueError(f"devices is {devices}, but {available} CUDA devices are visible: use fewer, or device 'cpu'")
    return Processes(device, devices, nodes)


def _launched() -> tuple[int, int] | None:
    """The number of processes per node and of nodes, if torchrun or srun started this process; otherwise None."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        on_node = int(os.environ["LOCAL_WORLD_SIZE"])
        return on_node, int(os.environ["WORLD_SIZE"]) // on_node
    tasks = int(os.environ.get("SLURM_NTASKS", "1"))
    if tasks > 1 and "SLURM_PROCID" in os.environ and os.environ.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        nodes = int(os.environ.get("SLURM_NNODES", "1"))
        return tasks // nodes, nodes
    return None


def launch(processes: Processes, precision: str, callbacks: Sequence[Any] = ()) -> Fabric:
    """Start the other processes, unless a launcher has started them, and set up communication between them."""
    strategy: Any = "auto"
    if processes.devices * processes.nodes > 1:
        # If all inputs of a batch have one token, nothing is composed, and the cell gets no gradient.
        strategy = DDPStrategy(find_unused_parameters=True)
    with quiet_lightning():
        fabric = Fabric(
            accelerator=processes.device,
            devices=processes.devices,
            num_nodes=processes.nodes,
            strategy=strategy,
            precision="bf16-mixed" if precision == "bf16" else "32-true",
            callbacks=list(callbacks),
        )
        fabric.launch()
    if fabric.world_size > 1:
        atexit.register(time.sleep, _SETTLE)
    return fabric


def on_first(fabric: Fabric, work: Callable[[], T]) -> T:
    """Run `work` in the first process and return its result in all processes. If it raises, all processes exit."""
    if fabric.world_size == 1:
        return work()
    outcome: tuple[Any, Exception | None] = (None, None)
    if fabric.is_global_zero:
        try:
            outcome = (work(), None)
        except Exception as error:
            outcome = (None, error)
    result, failure = fabric.broadcast(outcome)
    if failure is not None:
        if fabric.is_global_zero:
            raise failure
        raise SystemExit(2)  # the first process reports the error
    return result


@contextlib.contextmanager
def quiet_lightning() -> Iterator[None]:
    """Silence Lightning's messages about devices and its own setup."""
    loggers = [logging.getLogger(name) for name in ("lightning.fabric", "lightning.pytorch")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
