"""`beamtree models`: what there is to load and to train, models, encoders and recipes. Also `beamtree train --list`."""

import inspect
import json
import textwrap
from typing import Annotated, Any

import torch
import typer

from beamtree import recipes
from beamtree.cli.terminal import make_table, print_table
from beamtree.nn.encoders import defaults, encoder, encoders

EXAMPLE = (
    "Examples: everything; one encoder with its options\n\n"
    "  beamtree models\n\n"
    "  beamtree models bt-grc\n\n"
    "  beamtree models --json"
)
DIM = 128  # at which parameters are counted: the paper's for ListOps
COUNTED = ("listops", "listops-dg")  # recipes whose options they are counted with; the first has no setting for NDR
LETTERS = "N words, width D, K beams or samples (1 in gumbel-tree); other names are options"


def models_command(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One encoder, with its options.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """List the models that come with beamtree, its encoders and its recipes.

    Parameters are counted at dim 128 with the options of the recipe for ListOps. The cost is that of one input while
    training: calls of the cell, steps that wait for one another, and, but for a constant factor, numbers kept for
    backward.
    """
    if name is not None:
        row = _encoder(name, _recipes())
        if as_json:
            typer.echo(json.dumps(row, indent=2, ensure_ascii=False))
        else:
            _print_encoder(row)
        return
    shipped, trained = _shipped(), _recipes()
    known = {each: _encoder(each, trained) for each in encoders()}
    if as_json:
        report = {"models": shipped, "encoders": known, "recipes": trained}
        typer.echo(json.dumps(report, indent=2, ensure_ascii=False))
        return
    if shipped:
        table = make_table("model", "encoder", "recipe", left=("model", "encoder", "recipe"))
        for model in shipped:
            table.add_row(model["name"], model["encoder"], model["recipe"])
        print_table(table)
        typer.echo()
    costs = ("cells", "steps", "memory")
    table = make_table("encoder", "parameters", *costs, "paper", left=("encoder", *costs, "paper"))
    for row in known.values():
        table.add_row(row["name"], f"{row['parameters']:,}", *row["cost"].values(), row["paper"])
    print_table(table)
    typer.echo(f"\n{LETTERS}.\n'beamtree models NAME' tells more of an encoder.\n")
    list_recipes()


def list_recipes() -> None:
    """Print the recipes, their default encoders, and how many they have settings for."""
    table = make_table("recipe", "encoder", "of", "about", left=("recipe", "encoder", "about"))
    for row in _recipes():
        table.add_row(row["name"], row["encoder"], str(len(row["encoders"])), row["about"])
    print_table(table)
    typer.echo("\n'beamtree train RECIPE' trains one; --encoder takes another encoder ('beamtree models' lists them).")


def _encoder(name: str, trained: list[dict[str, Any]]) -> dict[str, Any]:
    """All there is to know of an encoder; `trained` are the recipes."""
    options = defaults(name)  # objects to an unknown name
    known = [recipe["name"] for recipe in trained if name in recipe["encoders"]]
    counted = next((recipe for recipe in COUNTED if recipe in known), None)
    given = {} if counted is None else recipes.load(counted, name).encoder.options
    with torch.device("meta"):  # takes no memory
        made: Any = encoder(name, dim=DIM, **given)
    return {
        "name": name,
        "about": (inspect.getdoc(type(made)) or "").partition("\n")[0],
        "paper": made.paper,
        "parameters": sum(weight.numel() for weight in made.parameters()),
        "counted": {"dim": DIM, "recipe": counted, "options": given},
        "cost": made.cost._asdict(),
        "options": options,
        "recipes": known,
    }


def _print_encoder(row: dict[str, Any]) -> None:
    recipe = row["counted"]["recipe"]
    how = "its defaults" if recipe is None else f"the options of the recipe {recipe}"
    lines = {
        "paper": row["paper"],
        "parameters": f"{row['parameters']:,} at dim {DIM}, with {how}",
        **row["cost"],
        "recipes": ", ".join(row["recipes"]) or "none",
    }
    typer.echo(f"{row['name']}: {row['about']}\n")
    for key, text in lines.items():
        typer.echo(textwrap.fill(f"{key:12}{text}", 100, subsequent_indent=12 * " ", break_on_hyphens=False))
    typer.echo(f"\n{LETTERS}.\n")
    table = make_table("option", "default", left=("option", "default"))
    table.add_row("dim", "the width of words and states, which must be given")
    for option, value in row["options"].items():
        table.add_row(option, str(value))
    print_table(table)


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
