"""`beamtree models`: list models, encoders and recipes. Also implements `beamtree train --list`."""

# PyTorch is imported inside functions, so that help is fast.
import inspect
import json
import re
import textwrap
from typing import Annotated, Any

import typer

from beamtree.utils.checks import unknown
from beamtree.utils.extras import require
from beamtree.utils.terminal import make_table, print_table

EXAMPLE = (
    "Examples: all models, encoders and recipes; one encoder with its options; the list as JSON\n\n"
    "  beamtree models\n\n"
    "  beamtree models bt-grc\n\n"
    "  beamtree models --json"
)
DIM = 128  # at which parameters are counted; the paper uses it for ListOps
COUNTED = ("listops", "listops-dg")  # recipes with whose options they are counted; the first one lacks NDR
LETTERS = "N tokens, width D, K beams or samples (1 in gumbel-tree); other names are options"


def models_command(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="An encoder or a shipped model to describe.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """List the shipped models, the encoders and the recipes.

    Parameters are counted at dim 128 with the options of the recipe for ListOps. The cost is that of one input during
    training: calls of the cell, sequential steps, and, up to a constant factor, values saved for the backward pass.
    """
    from beamtree.models import pretrained
    from beamtree.nn.encoders import encoders

    recipes, note = _recipes_or_note()
    if name is not None:
        is_model = name in pretrained.shipped()
        if not is_model and name not in encoders():
            raise ValueError(unknown("encoder or model", name, (*encoders(), *pretrained.shipped())))
        row = {**_model(name), "card": _card(name)} if is_model else _encoder(name, recipes)
        if as_json:
            typer.echo(json.dumps(row, indent=2, ensure_ascii=False))
        elif is_model:
            _print_model(row)
        else:
            _print_encoder(row)
        return
    shipped = [_model(each) for each in pretrained.shipped()]
    known = {each: _encoder(each, recipes) for each in encoders()}
    if as_json:
        report = {"models": shipped, "encoders": known, "recipes": recipes}
        typer.echo(json.dumps(report, indent=2, ensure_ascii=False))
        return
    if shipped:
        table = make_table("model", "encoder", "recipe", "accuracy", left=("model", "encoder", "recipe", "accuracy"))
        for model in shipped:
            tested = [f"{100 * accuracy:.2f} % on {split}" for split, accuracy in model["accuracies"].items()]
            table.add_row(model["name"], model["encoder"], model["recipe"], tested[0] if tested else "not known")
        print_table(table)
        typer.echo()
    costs = ("cells", "steps", "memory")
    table = make_table("encoder", "parameters", *costs, "paper", left=("encoder", *costs, "paper"))
    for row in known.values():
        table.add_row(row["name"], f"{row['parameters']:,}", *row["cost"].values(), row["paper"])
    print_table(table)
    typer.echo(f"\n{LETTERS}.\n'beamtree models NAME' describes a model or an encoder.\n")
    if note:
        typer.echo(note)
    else:
        list_recipes()


def list_recipes() -> None:
    """Print the recipes with their default encoders and the number of encoders that they have settings for."""
    table = make_table("recipe", "encoder", "of", "about", left=("recipe", "encoder", "about"))
    for row in _recipes():
        table.add_row(row["name"], row["encoder"], str(len(row["encoders"])), row["about"])
    print_table(table)
    typer.echo(
        "\n'beamtree train RECIPE' trains a model; --encoder selects another encoder ('beamtree models' lists them)."
    )


def _encoder(name: str, recipe_rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The description of an encoder. `recipe_rows` are those of `_recipes`."""
    import torch

    from beamtree.nn.encoders import defaults, encoder

    options = defaults(name)  # raises for an unknown name
    known = [recipe["name"] for recipe in recipe_rows if name in recipe["encoders"]]
    counted = next((recipe for recipe in COUNTED if recipe in known), None)
    recipes = None if counted is None else import_recipes("the list of recipes")
    given = {} if recipes is None else recipes.load(counted, name).encoder.options
    with torch.device("meta"):  # allocates no memory
        made: Any = encoder(name, dim=DIM, **given)
    return {
        "name": name,
        "about": (inspect.getdoc(type(made)) or "").partition("\n")[0],
        "paper": made.paper,
        "parameters": sum(weight.numel() for weight in made.parameters()),
        "counted": {"dim": DIM, "recipe": counted, "options": given},
        "cost": made.cost._asdict(),
        "options": options,
        "explained": {option: text for option, text in explanations(type(made)).items() if option in options},
        "recipes": known,
    }


def explanations(kind: type) -> dict[str, str]:
    """The description of each argument of a class, from the section "Args:" of the docstring of its constructor."""
    text = inspect.getdoc(kind.__init__) or ""  # type: ignore[misc]
    section = re.search(r"^Args:\n((?: .*\n?|\n)*)", text, re.MULTILINE)
    if section is None:
        return {}
    entries = (entry.partition(": ") for entry in re.split(r"\n(?=\S)", textwrap.dedent(section[1])))
    return {name: " ".join(about.split()) for name, _, about in entries}


def _print_encoder(row: dict[str, Any]) -> None:
    recipe = row["counted"]["recipe"]
    options = "its default options" if recipe is None else f"the options of the recipe {recipe}"
    lines = {
        "paper": row["paper"],
        "parameters": f"{row['parameters']:,} at dim {DIM}, with {options}",
        **row["cost"],
        "recipes": ", ".join(row["recipes"]) or "none",
    }
    typer.echo(f"{row['name']}: {row['about']}\n")
    for key, text in lines.items():
        typer.echo(textwrap.fill(f"{key:12}{text}", 100, subsequent_indent=12 * " ", break_on_hyphens=False))
    typer.echo(f"\n{LETTERS}.\n")
    rows = {"dim": ("required", "width D of inputs and encodings")}
    rows |= {option: (str(value), row["explained"].get(option, "")) for option, value in row["options"].items()}
    for option, (default, about) in rows.items():
        indent = 28 * " "
        typer.echo(textwrap.fill(about, 100, initial_indent=f"{option:16}{default:12}", subsequent_indent=indent))


def _print_model(row: dict[str, Any]) -> None:
    typer.echo(f"{row['card']}\nIts trees: beamtree parse {row['name']} TEXT")


def import_recipes(purpose: str) -> Any:
    """Import the module of the recipes. If a package is missing, the error message says what to install."""
    try:
        from beamtree.runs import recipes
    except ModuleNotFoundError:
        require("train", purpose)
        raise
    return recipes


def _recipes_or_note() -> tuple[list[dict[str, Any]], str]:
    """The recipes and an empty note; or, if a package is missing, no recipes and a note about it."""
    try:
        import_recipes("the list of recipes")
    except ValueError as error:
        return [], f"{error}. Without it, parameters are counted with the default options of each encoder."
    return _recipes(), ""


def _recipes() -> list[dict[str, Any]]:
    recipes = import_recipes("the list of recipes")
    return [
        {
            "name": name,
            "encoder": recipes.default_encoder(name),
            "encoders": recipes.encoders(name),
            "about": recipes.describe(name),
        }
        for name in recipes.names()
    ]


def _model(name: str) -> dict[str, Any]:
    """The description of a shipped model, read without loading its weights."""
    from beamtree.models import pretrained, storage

    folder = pretrained.shipped_folder(name)
    config = storage.read_config(folder)
    splits = storage.read_results(folder)["splits"] if storage.is_finished(folder) else {}
    accuracies = {split: scores["accuracy"] for split, scores in splits.items()}
    return {"name": name, "encoder": config.encoder, "recipe": config.document.get("recipe"), "accuracies": accuracies}


def _card(name: str) -> str:
    """The model card of a shipped model."""
    from beamtree.models import pretrained, storage

    return (pretrained.shipped_folder(name) / storage.CARD).read_text(encoding="utf-8")
