"""`beamtree models`: what there is to load and to train, models, encoders and recipes. Also `beamtree train --list`."""

import json
from typing import Annotated, Any

import typer

from beamtree import recipes
from beamtree.cli.terminal import make_table, print_table
from beamtree.encoders import encoders, options

EXAMPLE = "Examples:\n\n  beamtree models\n\n  beamtree models --json"


def models_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """List the models that come with beamtree, its encoders with their options, and its recipes."""
    shipped, known = _shipped(), {name: options(name) for name in encoders()}
    if as_json:
        report = {"models": shipped, "encoders": known, "recipes": _recipes()}
        typer.echo(json.dumps(report, indent=2, ensure_ascii=False))
        return
    if shipped:
        table = make_table("model", "encoder", "recipe", left=("model", "encoder", "recipe"))
        for row in shipped:
            table.add_row(row["name"], row["encoder"], row["recipe"])
        print_table(table)
        typer.echo()
    table = make_table("encoder", "options", left=("encoder", "options"))
    for name, accepted in known.items():
        table.add_row(name, ", ".join(accepted))
    print_table(table)
    typer.echo()
    list_recipes()


def list_recipes() -> None:
    """Print the recipes, their default encoders, and how many they have settings for."""
    table = make_table("recipe", "encoder", "of", "about", left=("recipe", "encoder", "about"))
    for row in _recipes():
        table.add_row(row["name"], row["encoder"], str(len(row["encoders"])), row["about"])
    print_table(table)
    typer.echo("\n'beamtree train RECIPE' trains one; --encoder takes another encoder ('beamtree models' lists them).")


def _recipes() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "encoder": recipes.default_encoder(name),
            "encoders": recipes.encoders(name),
            "about": recipes.describe(name),
        }
        for name in recipes.names()
    ]


def _shipped() -> list[dict[str, str]]:
    from beamtree import pretrained  # with all that a hub needs, which the other commands do without

    configs = {name: pretrained.load(name).config for name in pretrained.shipped()}
    return [
        {"name": name, "encoder": config.settings.encoder.name, "recipe": config.settings.recipe}
        for name, config in configs.items()
    ]
