"""The help of the program: it names every command, and loads nothing heavy."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from beamtree import cli

HEAVY = ("torch", "numpy", "lightning", "matplotlib")


def loaded_by(*arguments):
    """The modules that the program has loaded when it ends."""
    program = (
        "import sys\nfrom beamtree.cli import main\n"
        f"sys.argv = ['beamtree', *{arguments!r}]\n"
        "try:\n    main()\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout, set(done.stderr.split())


@pytest.mark.parametrize("arguments", [("--help",), (), ("--version",)], ids=str)
def test_help_and_version_load_nothing_heavy(arguments):
    printed, modules = loaded_by(*arguments)
    assert not modules & set(HEAVY)
    if arguments != ("--version",):
        assert all(name in printed for name in cli.COMMANDS)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_list_of_commands_has_the_first_line_of_each_ones_help(name):
    help_text = cli.load_command(name).help
    assert " ".join(help_text.split("\n\n")[0].split()) == cli.COMMANDS[name]
    shown = CliRunner().invoke(cli.app, [name, "--help"], prog_name="beamtree").stdout
    assert f"Usage: beamtree {name} " in shown


def test_an_unknown_command_is_one_line():
    result = CliRunner().invoke(cli.app, ["trian"], prog_name="beamtree")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "error: No such command 'trian'. Did you mean 'train'? (see 'beamtree --help')"
    ]
    assert "--install-completion" in CliRunner().invoke(cli.app, ["--help"], prog_name="beamtree").stdout
