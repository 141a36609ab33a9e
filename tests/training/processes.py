"""A program, `python processes.py FOLDER`, that trains in processes of its own, which it kills or lets train together.

They are forks, since to start each anew would take seconds.
"""

import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_only

from beamtree.training import train
from beamtree.training.checkpoints import CheckpointFiles
from training.toy_runs import PLAIN, toy_settings, write_data

KILLS = 5
EPOCHS = 3


def fork(work: Callable[[], Any]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr)
    finally:
        os._exit(1)


def wait(*children: int) -> None:
    for child in children:
        _, status = os.waitpid(child, 0)
        assert status == 0, f"a process ended with status {status}"


def begin(data: Path, folder: Path, devices: int = 1, **changes: Any) -> None:
    settings = toy_settings(data, training__max_epochs=EPOCHS, training__patience=9, **changes)
    train(settings, folder, device="cpu", devices=devices, progress=False, checkpoint_steps=2)


def kill(data: Path, folder: Path) -> None:
    """One run is left alone; the other is killed again and again, after a part of the time the first one took."""
    began = time.monotonic()
    wait(fork(lambda: begin(data, folder / "whole")))
    took, draw, hits = time.monotonic() - began, random.Random(), 0
    for _ in range(KILLS):
        child = fork(lambda: begin(data, folder / "killed"))
        time.sleep(draw.uniform(0.1, 0.5) * took)
        if os.waitpid(child, os.WNOHANG) == (0, 0):  # it has not come to its end before
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            hits += 1
    wait(fork(lambda: begin(data, folder / "killed")))
    print(hits)


def together(data: Path, folder: Path) -> None:
    """The same run on one device and on two; and, with random numbers, on two without a stop and with one."""
    wait(fork(lambda: begin(data, folder / "one", **PLAIN)))
    wait(*on_two(lambda: begin(data, folder / "two", devices=2, **PLAIN)))
    wait(*on_two(lambda: begin(data, folder / "whole", devices=2)))

    def stopped() -> None:
        save, count = CheckpointFiles.save_checkpoint, 0

        def saving(self: Any, *arguments: Any, **options: Any) -> None:
            nonlocal count
            save(self, *arguments, **options)
            count += 1
            if count == 4:
                os._exit(0)

        CheckpointFiles.save_checkpoint = saving
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # one of the two may see the other end, and complain, or not
        begin(data, folder / "stopped", devices=2)

    first, second = on_two(stopped)
    wait(first)
    os.kill(second, signal.SIGKILL)
    os.waitpid(second, 0)
    wait(*on_two(lambda: begin(data, folder / "stopped", devices=2)))


def on_two(work: Callable[[], Any]) -> list[int]:
    """As a launcher such as torchrun starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def ranked(rank: int) -> Callable[[], Any]:
        def start() -> None:
            os.environ |= {
                **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "test"},
                **{"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"},
                **{"RANK": str(rank), "LOCAL_RANK": str(rank)},
            }
            rank_zero_only.rank = rank  # which Lightning has looked up already
            work()

        return start

    return [fork(ranked(rank)) for rank in range(2)]


if __name__ == "__main__":
    place = Path(sys.argv[1])
    kill(write_data(place / "data"), place)
    # Many texts are of one token, which nothing is composed of; in the last step one process has no sample of its own.
    together(write_data(place / "short", longest=2), place / "together")
