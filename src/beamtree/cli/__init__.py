"""The program `beamtree`: its commands, and how they speak to the terminal."""

import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from beamtree import __version__
from beamtree.utils.terminal import INTERRUPTED, Command, Group

# The commands in the order of the help, with the first line of each one's. Each is the function NAME_command, or the
# typer application `app`, of the module beamtree.cli.NAME, which is imported when it is needed.
COMMANDS = {
    "train": "Train a model with a recipe, and evaluate it on the test splits.",
    "tune": "Search the settings of a recipe for the best model, with Optuna.",
    "evaluate": "Measure the accuracy of a model: overall, by length, and for ListOps by depth.",
    "parse": "Show the label that a model gives a text, and the trees it reads in it.",
    "analyse": "Compare the trees of models with gold trees, baselines and each other, and labels of constituents.",
    "serve": "Serve a page that shows what models read in a text: label, trees, and how they were built.",
    "report": "Write tables of the runs' accuracies in the paper's layout, the paper's figures beside them.",
    "models": "List the models that come with beamtree, its encoders and its recipes.",
    "data": "Get, make and look at the data of the tasks.",
    "bench": "Measure time and memory of the engines, each beside the reference.",
}


class Program(Group):
    """The commands, with one line for a user's mistake. Anything else that goes wrong shows its traceback."""

    is_listing = False  # whether the help of all commands is printed

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name, help=text) for name, text in COMMANDS.items()}  # in their places

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
        alone = settings.pop("standalone_mode", True)
        settings["standalone_mode"] = False  # errors come up to here
        try:
            code = super().main(*args, **settings)
        except (KeyboardInterrupt, typer.Abort):
            code = INTERRUPTED
        except Exception as error:
            message = mistake(error)
            if message is None:
                raise
            typer.echo(f"error: {' '.join(message.split())}", err=True)
            code = 2
        return sys.exit(code) if alone else code


def load_command(name: str) -> Any:
    """A command, from the module that defines it."""
    module: Any = import_module(f"beamtree.cli.{name}")
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False, rich_markup_mode="rich")
        app.command(name, cls=Command, epilog=module.EXAMPLE)(getattr(module, f"{name}_command"))
    command = typer.main.get_command(app)
    command.name = name
    return command


def mistake(error: Exception) -> str | None:
    """What to tell the user; None if it is not the user's mistake."""
    if hasattr(error, "format_message"):  # of the command line itself; typer's versions name the class differently
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
    """Latent-tree recursive networks. `beamtree COMMAND --help` tells more of a command."""
