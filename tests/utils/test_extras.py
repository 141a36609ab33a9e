"""Optional packages: what works without them, and the errors if one is missing."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from beamtree.utils.extras import EXTRAS, require

ROOT = Path(__file__).parents[2]
# Blocks the import of packages, as if they were not installed.
BLOCK = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.partition(".")[0] in BLOCKED else find(name, *rest)
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Block())
"""


def names(requirements):
    return {re.match("[A-Za-z0-9_-]+", requirement)[0] for requirement in requirements}


def test_the_extras_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for extra, packages in EXTRAS.items():
        assert names(extras[extra]) == set(packages)
    optional = {package for packages in EXTRAS.values() for package in packages}
    assert not names(project["dependencies"]) & optional
    assert f"beamtree[{','.join(EXTRAS)}]" in extras["all"]


def test_a_missing_package_is_named_with_what_to_do(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("optuna", "uvicorn") else name)
    with pytest.raises(ValueError, match="beamtree serve needs uvicorn, which is not installed"):
        require("web", "beamtree serve")
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        require("tune", "tuning")
    # The extra is installed by the package's name, and in a clone by the folder's.
    assert str(raised.value) == (
        "tuning needs optuna, which is not installed: pip install 'beamtree[tune]', or '.[tune]' in a clone"
    )
    require("plot", "a plot")


def run(blocked, program):
    """Run a program in an environment without these modules."""
    code = f"BLOCKED = {sorted(blocked)!r}\n{BLOCK}\n{program}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout.splitlines(), done.stderr


OPTIONAL = {module for packages in EXTRAS.values() for module in packages.values()}


def test_encoders_and_models_need_no_optional_package():
    program = (
        "import beamtree\n"
        "model = beamtree.load('listops-bt-grc')\n"
        "text = '[MAX 2 9 [MIN 4 7 ] 0 ]'\n"
        "print(model.predict([text])[0].label, model.parse(text)[0].tree, model.encode([text]).shape)\n"
        "beamtree.encoder('bt-grc', dim=8)\n"
    )
    lines, _ = run(OPTIONAL, program)
    assert lines[0].startswith("9 ((((([MAX 2) 9)")


def test_commands_say_what_they_need():
    program = (
        "from beamtree.cli import main\n"
        "for arguments in (['parse', 'listops-bt-grc', '[MAX 2 9 ]'], ['models'], ['train', 'listops-tiny'],\n"
        "                  ['bench', '-n', '5', '-b', '1', '--dim', '8'], ['evaluate', 'listops-bt-grc']):\n"
        "    sys.argv = ['beamtree', *arguments]\n"
        "    try:\n        main()\n"
        "    except SystemExit as ended:\n        print(arguments[0], ended.code or 0)\n"
    )
    lines, errors = run(OPTIONAL - {"pydantic"}, program)  # which some versions of typer need
    for command, code in (("parse", 0), ("models", 0), ("bench", 0), ("train", 2), ("evaluate", 2)):
        assert f"{command} {code}" in lines, errors
    assert "error: beamtree train needs lightning and torchmetrics and tensorboard, which are not installed" in errors
