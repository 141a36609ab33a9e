"""Recipes: the paper's settings for a data set, one YAML file each, with what differs from encoder to encoder.

    settings = recipes.load("listops", encoder="bt-grc-onesoft", seed=1, changes={"optimizer.lr": 5e-4})
    recipes.load("mine.yaml")                # one's own, which may begin with "like: listops"

A file has `about`, the default `encoder`, the settings `data`, `model`, `optimizer` and `training` (see `settings`),
and `encoders`: for each one its options, and those of the settings that it has otherwise. With `like: NAME` it holds
only what differs from another recipe.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml

from beamtree.data.loading import TASKS
from beamtree.nn.encoders import encoder as make_encoder
from beamtree.nn.encoders import encoders as existing
from beamtree.recipes.settings import Settings
from beamtree.utils.checks import unknown

__all__ = ["Settings", "default_encoder", "describe", "encoders", "load", "names", "parse_changes"]

_FOLDER = Path(__file__).parent
_SECTIONS = ("data", "model", "optimizer", "training")
_KEYS = ("like", "about", "encoder", *_SECTIONS, "encoders")
_OWN_ARGUMENT = {"recipe": "name the recipe itself", "seed": "use --seed", "encoder.name": "use --encoder"}


def names() -> list[str]:
    """The recipes that come with beamtree."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def describe(recipe: str) -> str:
    """What a recipe trains, in one line."""
    return _read(recipe)["about"]


def encoders(recipe: str) -> list[str]:
    """The encoders that a recipe has settings for; those that are not in this version are left out."""
    return [name for name in _read(recipe)["encoders"] if name in existing()]


def default_encoder(recipe: str) -> str:
    return _read(recipe)["encoder"]


def load(recipe: str, encoder: str | None = None, seed: int = 0, changes: Mapping[str, Any] | None = None) -> Settings:
    """The settings of a recipe, which is a name or the path of a .yaml file, for one of its encoders.

    `changes` are other values for some of the settings, by keys such as "optimizer.lr" and "encoder.options.beam_size".
    """
    document = _read(recipe)
    name = document["encoder"] if encoder is None else encoder
    own = _own_settings(recipe, document, name)
    options = own.pop("options", {})
    merged = {
        "recipe": Path(recipe).stem if _is_path(recipe) else recipe,
        "seed": seed,
        **_merged({section: document[section] for section in _SECTIONS}, own),
        "encoder": {"name": name, "options": options},
    }
    settings = _completed(Settings.from_dict(merged, where=recipe))
    if not changes:
        return settings
    for key in changes:
        if key in _OWN_ARGUMENT:
            raise ValueError(f"{key} is not changed like other settings: {_OWN_ARGUMENT[key]}")
    return _completed(settings.change(changes))


def parse_changes(texts: Iterable[str]) -> dict[str, Any]:
    """['optimizer.lr=5e-4'] → {'optimizer.lr': 0.0005}; values are written as in YAML."""
    changes: dict[str, Any] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise ValueError(f"--set {text}: it must be key=value, as in optimizer.lr=5e-4")
        if key in changes:
            raise ValueError(f"--set {text}: {key} is set twice")
        changes[key] = _parsed(value, f"--set {text}")
    return changes


def _completed(settings: Settings) -> Settings:
    """With the defaults of the task's options written out; what neither task nor encoder knows is refused here."""
    data, encoder = settings.data, settings.encoder
    if data.task in TASKS:
        task = TASKS[data.task]
        tests = tuple(task.part(split)[1].name for split in data.tests)
        settings = replace(settings, data=replace(data, options=task.settings(data.options), tests=tests))
    elif not os.path.exists(data.task):
        raise ValueError(f"data.task: {unknown('task', data.task, TASKS)}, or the path of one's own data")
    if "dim" in encoder.options:
        raise ValueError("encoder.options has no dim: the width of words and states is model.dim")
    with torch.device("meta"):  # takes no memory and draws no random numbers
        make_encoder(encoder.name, dim=settings.model.dim, **encoder.options)
    return settings


def _own_settings(recipe: str, document: Mapping[str, Any], encoder: str) -> dict[str, Any]:
    """What the recipe has for this encoder alone."""
    known = document["encoders"]
    if encoder in known and encoder not in existing():
        raise ValueError(
            f"{recipe}: {encoder} is not in this version of beamtree; known: {', '.join(encoders(recipe))}"
        )
    if encoder not in known:
        raise ValueError(f"{recipe}: {unknown('encoder', encoder, encoders(recipe))}")
    own = dict(known[encoder] or {})
    for key in own:
        if key not in ("options", *_SECTIONS):
            raise ValueError(f"{recipe}: {unknown(f'key of encoders.{encoder}', key, ('options', *_SECTIONS))}")
    return own


def _is_path(recipe: str) -> bool:
    return recipe.endswith((".yaml", ".yml"))


def _read(recipe: str, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """A recipe's file, over the one that it is like; `above` are the recipes that are like this one."""
    if not _is_path(recipe):
        if recipe not in names():
            raise ValueError(f"{unknown('recipe', recipe, names())}, or the path of a .yaml file")
        path = _FOLDER / f"{recipe}.yaml"
    else:
        path = Path(recipe)
    if recipe in above:
        raise ValueError(f"{recipe} is like itself: {' → '.join((*above, recipe))}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{recipe}: it is not UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise ValueError(f"{recipe}: it cannot be read ({error.strerror})") from None
    document = _parsed(text, recipe)
    _check_document(document, recipe)
    if "like" in document:
        like = document.pop("like")
        if _is_path(like):
            like = str(path.parent / like)
        document = _merged(_read(like, (*above, recipe)), document)
    if not above:
        for key in _KEYS[1:]:
            if key not in document:
                raise ValueError(f"{recipe}: {key} is missing")
    return document


def _check_document(document: Any, recipe: str) -> None:
    if not isinstance(document, dict):
        raise ValueError(f"{recipe}: it must have the keys {', '.join(_KEYS)}")
    for key in document:
        if key not in _KEYS:
            raise ValueError(f"{recipe}: {unknown('key', key, _KEYS)}")
    for key in ("like", "about", "encoder"):
        if not isinstance(document.get(key, ""), str):
            raise ValueError(f"{recipe}: {key} is {document[key]!r}: it must be text")
    groups = {key: document[key] for key in (*_SECTIONS, "encoders") if key in document}
    own = groups.get("encoders")
    if isinstance(own, dict):
        groups |= {f"encoders.{name}": settings for name, settings in own.items() if settings is not None}
    for key, value in groups.items():
        if not isinstance(value, dict):
            raise ValueError(f"{recipe}: {key} is {value!r}: it must be settings by their names")


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings are merged key by key; anything else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


class _Loader(yaml.SafeLoader):
    """YAML in which 5e-4 is a number, as in YAML 1.2, and a key that stands twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{key} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _parsed(text: str, where: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ValueError(f"{where}{line}: {error.problem or error}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{where}: it is no YAML ({' '.join(str(error).split())})") from None
    except RecursionError:
        raise ValueError(f"{where}: it is nested too deeply") from None
