"""The config.yaml of a run, or of any other model, as a recipe: all settings except the seed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from beamtree.models.pretrained import folder_of
from beamtree.models.storage import PARSER, is_run, same_model
from beamtree.runs.settings import Settings, shortened


def is_config(document: Any) -> bool:
    """Whether a document is the config.yaml of a run, which names a recipe and a seed, and not a recipe."""
    return isinstance(document, Mapping) and {"recipe", "seed"} <= document.keys()


def as_recipe(document: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The recipe for the encoder of a run, with its settings. It keeps the name of the run's recipe.

    Args:
        document: the content of the file.
        path: the file. If the folder contains a copy of the parser, and the original has changed or is gone, the recipe
            names this copy.
    """
    settings = Settings.from_dict({key: document[key] for key in Settings.model_fields if key in document}, str(path))
    sections = settings.to_dict()
    encoder, recipe = sections.pop("encoder"), sections.pop("recipe")
    del sections["seed"]
    if recipe != Path(recipe).name or recipe == "..":  # the default folder of its runs has this name
        raise ValueError(f"{path}: recipe is {shortened(recipe)}: it must be a name without a folder")
    copy, parser = path.parent / PARSER, settings.data.parser
    if parser is not None and is_run(copy) and not same_model(copy, folder_of(parser)):
        sections["data"]["parser"] = str(copy)
    return {
        "about": f"the settings of {path.parent}",
        "recipe": recipe,
        "encoder": encoder["name"],
        **sections,
        "encoders": {encoder["name"]: {"options": encoder["options"]}},
    }
