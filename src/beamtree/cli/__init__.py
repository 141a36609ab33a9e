"""The program `beamtree`: its commands, and how errors are reported."""

import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from beamtree import __version__
from beamtree.utils.terminal import INTERRUPTED, Command, Group

# The commands in the order of the help, with the first line of the help of each. A command is the function NAME_command
# or the typer application `app` of the module beamtree.cli.NAME, which is imported only when the command is used.
COMMANDS = {
    "train": "Train a model with a recipe, and evaluate it on the test splits.",
    "tune": "Tune the settings of a recipe with Optuna.",
    "evaluate": "Measure the accuracy of a model: overall, by length, and for ListOps by depth.",
    "parse": "Print the label and the trees that a model predicts for a text.",
    "analyse": "Compare the trees of models with gold trees, baselines and each other; check labels of constituents.",
    "serve": "Serve a web page that shows the labels and trees of a text, and how the trees were built.",
    "report": "Write tables of the accuracies of runs in the paper's layout, next to the paper's figures.",
    "models": "List the shipped models, the encoders and the recipes.",
    "data": "Download, generate and inspect the data of the tasks.",
    "bench": "Measure time and memory of the engines, and compare them with the reference.",
}


class Program(Group):
    """The group of all commands. Errors of the user are reported in one line, other exceptions with their traceback."""

    is_listing = False  # whether the list of all commands is being printed

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name, help=text) for name, text in COMMANDS.items()}  # placeholders

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if self.is_listing or cmd_name not in COMMANDS:
            return self.commands.get(cmd_name)
        return load_command(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.is_listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self.is_listing = False

    def main(self, *args: Any, **settings: Any) -> Any:
        standalone = settings.pop("standalone_mode", True)
        settings["standalone_mode"] = False  # so that errors propagate to here
        try:
            code = super().main(*args, **settings)
        except (KeyboardInterrupt, typer.Abort):
            code = INTERRUPTED
        except Exception as error:
            message = user_error(error)
            if message is None:
                raise
            typer.echo(f"error: {' '.join(message.split())}", err=True)
            code = 2
        return sys.exit(code) if standalone else code


def load_command(name: str) -> Any:
    """Import a command from the module that defines it."""
    module: Any = import_module(f"beamtree.cli.{name}")
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False, rich_markup_mode="rich")
        app.command(name, cls=Command, epilog=module.EXAMPLE)(getattr(module, f"{name}_command"))
    command = typer.main.get_command(app)
    command.name = name
    return command


def user_error(error: Exception) -> str | None:
    """The message for an error of the user; None for other exceptions."""
    if hasattr(error, "format_message"):  # an error of the command line; its class depends on the version of typer
        context = getattr(error, "ctx", None)
        return f"{error.format_message()} (see '{context.command_path if context else 'beamtree'} --help')"
    return str(error) if isinstance(error, ValueError) else None


app = typer.Typer(name="beamtree", cls=Program, pretty_exceptions_enable=False, rich_markup_mode="rich")


def main() -> None:
    app(prog_name="beamtree")


def show_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"beamtree {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Latent-tree recursive networks. `beamtree COMMAND --help` describes a command."""
