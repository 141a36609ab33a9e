"""Programs that train in several processes, for the tests beside this file; `main` runs one of them:

kill FOLDER            # runs that are killed at random moments
starts FOLDER          # many short runs of two processes
together FOLDER        # the same run in one process and in two
"""

import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only

import forked
from beamtree.runs import checkpoints
from beamtree.training import train, watch
from training.toy_runs import PLAIN, toy_settings, write_data

KILLS = 20
STARTS = 20
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
    train(settings, folder, device="cpu", devices=devices, loggers=(), progress=False, checkpoint_steps=2)


def kill_at_random(start: Callable[[], list[int]], folder: Path, kills: int, took: float) -> int:
    """Start the processes of a run repeatedly, and kill them after a fraction of the time that the whole run takes.

    A run that finished before is started again from scratch, and killed sooner. Returns how often
    processes were killed."""
    draw, hits = random.Random(), 0
    for _ in range(kills):
        children = start()
        time.sleep(draw.uniform(0.05, 0.6) * took)
        running = [child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)]
        hits += bool(running)
        if not running:
            shutil.rmtree(folder)
            took *= 0.8
        draw.shuffle(running)
        for child in running:
            os.kill(child, signal.SIGKILL)
        for child in running:
            os.waitpid(child, 0)
    return hits


def kill(data: Path, folder: Path) -> None:
    """An uninterrupted run and one that is killed, in one process and in two."""
    began = time.monotonic()
    wait(fork(lambda: begin(data, folder / "whole")))
    took = time.monotonic() - began
    hits = kill_at_random(lambda: [fork(lambda: begin(data, folder / "killed"))], folder / "killed", KILLS, took)
    wait(fork(lambda: begin(data, folder / "killed")))

    began = time.monotonic()
    wait(*on_two(lambda: begin(data, folder / "whole-2", devices=2)))
    took = time.monotonic() - began

    def killed() -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a process may report that the other one exited
        begin(data, folder / "killed-2", devices=2)

    hits_2 = kill_at_random(lambda: on_two(killed), folder / "killed-2", KILLS, took)
    wait(*on_two(lambda: begin(data, folder / "killed-2", devices=2)))
    print(hits, hits_2)


def together(data: Path, folder: Path) -> None:
    """The same run in one process and in two; with random numbers, in two processes with and without a stop."""
    wait(fork(lambda: begin(data, folder / "one", **PLAIN)))
    wait(*on_two(lambda: begin(data, folder / "two", devices=2, **PLAIN)))
    wait(*on_two(lambda: begin(data, folder / "whole", devices=2)))

    def stopped() -> None:
        save, count = checkpoints.save, 0

        def saving(path: Path, state: dict[str, Any]) -> None:
            nonlocal count
            save(path, state)
            count += 1
            if count == 4:
                os._exit(0)

        checkpoints.save = saving
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the other process reports that this one exited
        begin(data, folder / "stopped", devices=2)

    first, second = on_two(stopped)
    wait(first)
    _, status = os.waitpid(second, 0)  # it must not wait for the first process for ever
    assert os.waitstatus_to_exitcode(status) == 1
    wait(*on_two(lambda: begin(data, folder / "stopped", devices=2)))


def starts(data: Path, folder: Path) -> None:
    """Many short runs in two processes, all of which must succeed."""
    for number in range(STARTS):
        settings = toy_settings(data, training__max_epochs=1)

        def work(number: int = number, settings: Any = settings) -> None:
            train(settings, folder / str(number), device="cpu", devices=2, loggers=(), progress=False)

        wait(*on_two(work))
    print(f"{STARTS} starts")


def slow_to_notice() -> None:
    """`beamtree`, in a process that learns from its connections half a second late that another one has exited.

    By then a collective operation has failed."""
    receive = watch._receive

    def receive_late(connection: socket.socket) -> dict[str, Any] | None:
        message = receive(connection)
        time.sleep(0.5)
        return message

    watch._receive = receive_late
    forked.beamtree()


def on_two(work: Callable[[], Any]) -> list[int]:
    """Start two processes as torchrun does."""

    def ranked(rank: int) -> Callable[[], Any]:
        def start() -> None:
            os.environ |= {
                **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "test"},
                **{"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"},
                **{"RANK": str(rank), "LOCAL_RANK": str(rank)},
            }
            rank_zero_only.rank = rank  # Lightning has read it from the environment at import
            work()

        return start

    port = free_port()
    return [fork(ranked(rank)) for rank in range(2)]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def main() -> None:
    what, place = sys.argv[1], Path(sys.argv[2])
    if what == "kill":
        kill(write_data(place / "data"), place)
    elif what == "starts":
        starts(write_data(place / "data", {"train": 8, "dev": 4}), place)
    else:
        # Many texts have one token, and nothing is composed; in the last step one process has no sample of its own.
        together(write_data(place / "short", longest=2), place)
