"""The help of the program: it names every command and the values of options, and loads nothing heavy."""

import itertools
import re
import subprocess
import sys
from typing import get_args

import pytest
from typer.testing import CliRunner

from beamtree import cli, evaluation
from beamtree.bench import measure, tables
from beamtree.data.raw import SOURCES
from beamtree.data.tasks import listops
from beamtree.models import pretrained
from beamtree.nn.engine import ENGINES

HEAVY = ("torch", "numpy", "lightning", "matplotlib")
DATA = (["list"], ["show"], ["get"], ["make"], ["make", "listops"], ["cache"])
HELPS = ([], *([name] for name in cli.COMMANDS), *(["data", *command] for command in DATA))


def loaded_by(*arguments):
    """The modules that the program has imported when it exits."""
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


def test_no_help_of_a_command_loads_anything_heavy():
    program = (
        "import sys\nfrom beamtree.cli import app\n"
        f"for command in {HELPS!r}:\n    assert app([*command, '--help'], standalone_mode=False) == 0\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not set(done.stderr.split()) & set(HEAVY)
    assert done.stdout.count("Usage: ") == len(HELPS)


def shown_help(command):
    return CliRunner().invoke(cli.app, [*command, "--help"], prog_name="beamtree", env={"COLUMNS": "80"}).stdout


@pytest.mark.parametrize("command", HELPS, ids=" ".join)
def test_help_has_no_types_of_flags_and_fits_80_columns(command):
    shown = shown_help(command)
    assert f"Usage: {' '.join(['beamtree', *command])} " in shown
    assert "<bool>" not in shown
    assert "<list" not in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("command", HELPS, ids=" ".join)
def test_paragraphs_of_help_are_wrapped_at_the_width_of_the_terminal(command):
    """Lines are filled, and do not break where the lines of the source do."""
    for paragraph in re.split(r"\n\s*\n", shown_help(command).partition("╭")[0]):
        lines = [line.strip() for line in paragraph.strip().split("\n")]
        for line, after in itertools.pairwise(lines):
            assert len(line) + 1 + len(after.split(" ")[0]) > 78


def options(*command):
    """The parameters of a command by their names."""
    found = cli.load_command(command[0])
    for name in command[1:]:
        found = found.commands[name]
    return {param.name: param for param in found.params}


def choices(param):
    return param.metavar.replace("\n", "").split("|")


def test_defaults_and_values_in_the_help_are_the_real_ones():
    """The help repeats them, since it does not import the modules that define them."""
    bench = options("bench")
    assert choices(bench["dtype"]) == list(measure.DTYPES)
    assert choices(bench["engines"]) == [measure.AUTO, *ENGINES]
    assert choices(bench["table"]) == list(tables.TABLES)
    assert bench["repeats"].default == measure.REPEATS
    assert float(bench["limit"].show_default) == tables.LIMIT
    assert f"fewer beyond {measure.BUDGET:g} s" in bench["repeats"].help
    case = measure.Case()
    assert [bench[name].show_default for name in ("lengths", "batch_sizes", "beam_size")] == ["200", "4", "5"]
    assert (case.length, case.batch_size, case.beam_size, case.dropout) == (200, 4, 5, bench["dropout"].default)
    assert bench["dim"].show_default == f"{case.dim}; {tables.DIM} in a table"
    lengths = tables.TABLES["scaling"].lengths
    assert f"lengths from {lengths[0]} to {lengths[-1]:,}" in bench["table"].help
    assert f"{tables.TABLES['batched'].batch_size} samples at once" in bench["table"].help
    assert options("evaluate")["batch_size"].show_default == str(evaluation.MAX_SAMPLES)
    assert options("analyse")["batch_size"].show_default == str(pretrained.MAX_SAMPLES)
    assert options("data", "get")["name"].help.endswith(f"or a source: {', '.join(SOURCES)}.")
    assert choices(options("data", "make", "listops")["layout"]) == list(get_args(listops.FileFormat))


def test_defaults_of_the_server_are_the_real_ones():
    pytest.importorskip("fastapi")
    from beamtree.web.worker import Limits

    serve, limits = options("serve"), Limits()
    for name in ("tokens", "characters", "waiting", "seconds"):
        assert serve[f"max_{name}"].default == getattr(limits, name)


def test_the_same_option_has_the_same_values_in_every_command():
    for command in cli.COMMANDS:
        if command == "data":
            continue
        found = options(command)
        if "device" in found:
            assert choices(found["device"]) == ["auto", "cpu", "cuda"]
        for param in found.values():
            if "--set" in param.opts:
                assert param.metavar == "KEY=VALUE"
            if "--data-dir" in param.opts:
                assert param.help == "Folder with original files of data sets; repeatable."


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
