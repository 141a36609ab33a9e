"""The program `beamtree`: its commands, and how they speak to the terminal."""

import sys
from typing import Annotated, Any

import typer

from beamtree import __version__
from beamtree.cli import analyse, bench, data, evaluate, models, parse, report, serve, train
from beamtree.cli.terminal import INTERRUPTED, Group


class Program(Group):
    """The commands, with one line for a user's mistake. Anything else that goes wrong shows its traceback."""

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


def mistake(error: Exception) -> str | None:
    """What to tell the user; None if it is not the user's mistake."""
    if hasattr(error, "format_message"):  # of the command line itself; typer's versions name the class differently
        context = getattr(error, "ctx", None)
        return f"{error.format_message()} (see '{context.command_path if context else 'beamtree'} --help')"
    return str(error) if isinstance(error, ValueError) else None


app = typer.Typer(
    name="beamtree", cls=Program, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich"
)


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


app.command("train", epilog=train.EXAMPLE)(train.train_command)
app.command("evaluate", epilog=evaluate.EXAMPLE)(evaluate.evaluate_command)
app.command("parse", epilog=parse.EXAMPLE)(parse.parse_command)
app.command("analyse", epilog=analyse.EXAMPLE)(analyse.analyse_command)
app.command("serve", epilog=serve.EXAMPLE)(serve.serve_command)
app.command("report", epilog=report.EXAMPLE)(report.report_command)
app.command("models", epilog=models.EXAMPLE)(models.models_command)
app.add_typer(data.app, name="data")
app.command("bench", epilog=bench.EXAMPLE)(bench.bench_command)
