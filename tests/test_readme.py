"""The README's examples run as printed."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


def test_python_examples_run(capsys):
    """One block after another; and where a comment shows an expression's shape or value, it is true."""
    names, shown = {}, 0
    for block in blocks("python"):
        exec(block, names)
        for expression, comment in re.findall(r"^([a-z_.]+(?:\(.*\))?) +# (\(.*?\)|\[.*\])", block, re.MULTILINE):
            value = eval(expression, names)
            assert str(tuple(value.shape) if hasattr(value, "shape") else value) == comment
            shown += 1
    assert shown >= 5
    assert names["scores"].grad.all()
    assert "mat" in capsys.readouterr().out


def test_commands_run():
    commands = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("beamtree ")]
    assert commands
    for command in commands:
        run = subprocess.run(
            [sys.executable, "-m", *shlex.split(command), "--repeats", "1"],
            env={**os.environ, "PYTHONPATH": str(README.parent / "src")},
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stderr
        assert "torch" in run.stdout
        assert "reference" in run.stdout
