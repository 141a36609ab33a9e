"""Small untrained models, and the program that serves them."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import torch

from beamtree.data import TASKS, Vocabulary
from beamtree.models.build import build
from beamtree.models.config import make_config
from beamtree.models.pretrained import Pretrained
from beamtree.runs import recipes
from beamtree.runs.settings import Settings

EXPRESSION = "[MAX 2 9 [MIN 4 7 ] 0 ]"
SOURCE = Path(__file__).parents[2] / "src"


def save(folder, task="listops", words=None, pair=False, seed=0):
    """Save a Beam Tree model of the task; with `words`, its vocabulary is open."""
    torch.manual_seed(seed)
    changes = {"model.dim": 8, "encoder.options.beam_size": 5, "data.task": task}
    settings = Settings.change(recipes.load("listops"), changes)
    vocabulary = Vocabulary(words or TASKS[task].words, closed=words is None)
    config = make_config(settings.to_dict(), TASKS[task].labels, pair, closed_vocabulary=words is None)
    Pretrained(config, vocabulary, build(config, len(vocabulary))).save_pretrained(folder)


def save_all(folder):
    save(folder / "one")
    save(folder / "two", seed=1)
    save(folder / "english", "sst5", ["a", "good", "film"])
    save(folder / "pairs", "logic", pair=True)


def start(folder, *arguments):
    """Start `beamtree serve` as a process in the folder, on a free port."""
    paths = filter(None, [os.environ.get("PYTHONPATH"), str(SOURCE)])
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "beamtree", "serve", *arguments, "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=settings, **pipes)


def address(process):
    """The address of a server that was just started."""
    line = process.stdout.readline()
    assert " at http://" in line, process.communicate(timeout=10)
    return line.split(" at ")[1].split()[0]


@contextlib.contextmanager
def serving(folder, *arguments):
    """The address of a server that runs during the block."""
    process = start(folder, *arguments)
    try:
        yield address(process)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
