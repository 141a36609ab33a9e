"""Recipes: settings for a data set, one YAML file each, with overrides per encoder.

    settings = recipes.load("listops", encoder="bt-grc-onesoft", seed=1, changes={"optimizer.lr": 5e-4})
    recipes.load("text", task="reviews.tsv")     # your own data
    recipes.load("mine.yaml")                    # your own recipe, which may begin with "like: listops"
    recipes.load("runs/mine/config.yaml")        # the settings of a run

A file has `about`, the default `encoder`, the sections `data`, `model`, `optimizer` and `training` (see `settings`),
and `encoders`: for each encoder its options and the settings that differ for it. With `like: NAME` a file contains only
the differences from another recipe. If `data.task` is null, the recipe has no data, and the caller must specify it.

If the task is replaced, whether by `task`, by the change `data.task` or by a file that is `like` another one, settings
of the first task are not inherited: `data.options` and `data.tests` are emptied, and of the `data` overrides of
encoders only `parser` is kept. Options are kept if both are your own data. `data.vectors` is only inherited by the
English tasks of beamtree; formal languages and your own data learn their word vectors. Settings that are given together
with the new task are kept. The `data` section of a recipe without a task applies to any data of your own.

Your own data is stored as an absolute path, so that a run can be resumed from any folder, and with all its options: a
single file is divided into splits (see `beamtree.data.files`). In a recipe file, a relative path refers to the current
folder if it exists there, otherwise to the folder of the file.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import yaml

from beamtree.data.loading import TASKS, training_options
from beamtree.models.storage import is_run
from beamtree.nn.encoders import encoder as make_encoder
from beamtree.nn.encoders import encoders as existing
from beamtree.runs.recipes.configs import as_recipe, is_config
from beamtree.runs.settings import Settings, cut, replace, shortened
from beamtree.utils.checks import unknown

__all__ = ["Settings", "default_encoder", "describe", "encoders", "load", "names", "parse_changes"]

_FOLDER = Path(__file__).parent
_SECTIONS = ("data", "model", "optimizer", "training")
_KEYS = ("like", "about", "encoder", *_SECTIONS, "encoders")
_DEPTH = 5  # maximum number of parts of a key in a file: encoders.bt-grc.data.options.seed
_OWN_ARGUMENT = {"recipe": "name the recipe itself", "seed": "use --seed", "encoder.name": "use --encoder"}


def names() -> list[str]:
    """List the shipped recipes.

    Returns:
        Their names.

    Examples:
        >>> from beamtree.runs import recipes
        >>> "listops" in recipes.names()
        True
    """
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def describe(recipe: str) -> str:
    """Describe a recipe.

    Args:
        recipe: a name, or the path of a .yaml file.

    Returns:
        One line.

    Examples:
        >>> from beamtree.runs import recipes
        >>> recipes.describe("listops")
        'ListOps, trained on at most 100 tokens and tested on up to 2000 (Table 1)'
    """
    return _read(recipe)["about"]


def encoders(recipe: str) -> list[str]:
    """List the encoders that a recipe has settings for.

    Args:
        recipe: a name, or the path of a .yaml file.

    Returns:
        Names of encoders, without those that do not exist in this version.

    Examples:
        >>> from beamtree.runs import recipes
        >>> "bt-grc" in recipes.encoders("listops")
        True
    """
    return [name for name in _read(recipe)["encoders"] if name in existing()]


def default_encoder(recipe: str) -> str:
    """Look up the encoder that a recipe trains by default.

    Args:
        recipe: a name, or the path of a .yaml file.

    Returns:
        The name of the encoder.

    Examples:
        >>> from beamtree.runs import recipes
        >>> recipes.default_encoder("listops")
        'bt-grc'
    """
    return _read(recipe)["encoder"]


def load(
    recipe: str,
    encoder: str | None = None,
    seed: int = 0,
    changes: Mapping[str, Any] | None = None,
    task: str | os.PathLike[str] | None = None,
) -> Settings:
    """Load the settings of a recipe for one of its encoders.

    Args:
        recipe: a name, or the path of a .yaml file.
        encoder: name of the encoder; by default the recipe's.
        seed: seed of the run.
        changes: new values for some of the settings, by keys such as "optimizer.lr" and "encoder.options.beam_size".
        task: data that replaces the recipe's: the name of a task, or the path of your own data.

    Returns:
        All settings of a run.

    Raises:
        ValueError: if there is no such recipe, encoder, setting or data, or if a value is invalid.

    Examples:
        >>> from beamtree.runs import recipes
        >>> settings = recipes.load("listops", encoder="bt-grc-onesoft", seed=1, changes={"optimizer.lr": 5e-4})
        >>> settings.seed, settings.optimizer.lr, settings.encoder.name
        (1, 0.0005, 'bt-grc-onesoft')
    """
    changes = dict(changes or {})
    for key in changes:
        if key in _OWN_ARGUMENT:
            raise ValueError(f"{key} cannot be changed in this way: {_OWN_ARGUMENT[key]}")
    if task is not None:
        if "data.task" in changes:
            both = f"{shortened(os.fspath(task))} and {shortened(changes['data.task'])}"
            raise ValueError(f"data.task is given twice, as {both}")
        changes["data.task"] = os.fspath(task)
    document = _read(recipe)
    if "data.task" in changes:
        document = _with_task(document, _located(changes.pop("data.task")))
    name = document["encoder"] if encoder is None else encoder
    overrides = _overrides(recipe, document, name)
    options = overrides.pop("options", {})
    sections = _overridden({section: document[section] for section in _SECTIONS}, overrides)
    if sections["data"].get("task", "") is None:
        raise ValueError(f"the recipe {recipe} has no data: give a file, as in 'beamtree train reviews.tsv', or --data")
    merged = {
        "recipe": document.get("recipe") or (Path(recipe).stem if _is_path(recipe) else recipe),
        "seed": seed,
        **sections,
        "encoder": {"name": name, "options": options},
    }
    return _completed(Settings.from_dict(merged, where=recipe).change(changes))


def parse_changes(texts: Iterable[str]) -> dict[str, Any]:
    """Parse changes as on the command line.

    Args:
        texts: each `KEY=VALUE`, with a value as in YAML.

    Returns:
        Values by key, for `load`.

    Raises:
        ValueError: if a text does not have this form, or a key is given twice.

    Examples:
        >>> from beamtree.runs import recipes
        >>> recipes.parse_changes(["optimizer.lr=5e-4"])
        {'optimizer.lr': 0.0005}
    """
    changes: dict[str, Any] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        where = f"--set {cut(text)}"
        if not equals or not key:
            raise ValueError(f"{where}: it must be key=value, as in optimizer.lr=5e-4")
        if key in changes:
            raise ValueError(f"{where}: {key} is set twice")
        changes[key] = _parsed(value, where)
    return changes


def _completed(settings: Settings) -> Settings:
    """Add the defaults of the task's options. Raises if an option is unknown to the task or the encoder."""
    data, encoder = settings.data, settings.encoder
    tests = data.tests
    if data.task in TASKS:
        tests = tuple(TASKS[data.task].part(split)[1].name for split in tests)
    elif os.path.isabs(data.task) and not os.path.exists(data.task):
        raise ValueError(f"data.task: {data.task} does not exist: give the data with --data")
    elif not os.path.exists(data.task):
        raise ValueError(f"data.task: {unknown('task', cut(data.task), TASKS)}, or the path of your own data")
    options = training_options(data.task, data.options)
    settings = replace(settings, data=replace(data, options=options, tests=tests, parser=_located_run(data.parser)))
    if "dim" in encoder.options:
        raise ValueError("encoder.options has no dim: the width of words and states is model.dim")
    with torch.device("meta"):  # allocates no memory and samples no random numbers
        make_encoder(encoder.name, dim=settings.model.dim, **encoder.options)
    return settings


def _overrides(recipe: str, document: Mapping[str, Any], encoder: str) -> dict[str, Any]:
    """The overrides of a recipe for an encoder."""
    known = document["encoders"]
    if encoder in known and encoder not in existing():
        raise ValueError(
            f"{recipe}: {encoder} is not in this version of beamtree; known: {', '.join(encoders(recipe))}"
        )
    if encoder not in known:
        raise ValueError(f"{recipe}: {unknown('encoder', cut(encoder), encoders(recipe))}")
    overrides = dict(known[encoder] or {})
    for key in overrides:
        if key not in ("options", *_SECTIONS):
            raise ValueError(f"{recipe}: {_unknown_key(f'key of encoders.{encoder}', key, ('options', *_SECTIONS))}")
    return overrides


def _is_path(recipe: str) -> bool:
    return recipe.endswith((".yaml", ".yml"))


def _read(recipe: str, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read a recipe, on top of the one that it is `like`; `above` are the recipes that extend this one."""
    if not _is_path(recipe):
        if recipe not in names():
            raise ValueError(f"{unknown('recipe', cut(recipe), names())}, or the path of a .yaml file")
        path = _FOLDER / f"{recipe}.yaml"
    else:
        path = Path(recipe)
    if recipe in above:
        raise ValueError(f"{recipe} extends itself: {' → '.join((*above, recipe))}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{recipe}: it is not UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise ValueError(f"{recipe}: it cannot be read ({error.strerror})") from None
    document = _parsed(text, recipe)
    if is_config(document):
        return as_recipe(document, path)
    _check_document(document, recipe)
    for data in _data_sections(document):
        if "task" in data:
            data["task"] = _located(data["task"], path.parent)
        if "parser" in data:
            data["parser"] = _located_run(data["parser"], path.parent)
    if "like" in document:
        like = document.pop("like")
        if _is_path(like):
            like = str(path.parent / like)
        base = _read(like, (*above, recipe))
        base.pop("recipe", None)
        document = _overridden(base, document)
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
            raise ValueError(f"{recipe}: {_unknown_key('key', key, _KEYS)}")
    for key in ("like", "about", "encoder"):
        if not isinstance(document.get(key, ""), str):
            raise ValueError(f"{recipe}: {key} is {shortened(document[key])}: it must be text")
    for key, group in _groups(document):
        if not isinstance(group, dict):
            raise ValueError(f"{recipe}: {key} is {shortened(group)}: it must be a mapping of settings")


def _groups(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The sections of a file with their keys, including those of each encoder."""
    yield from ((key, document[key]) for key in (*_SECTIONS, "encoders") if key in document)
    overridden = document.get("encoders")
    for name, overrides in overridden.items() if isinstance(overridden, dict) else ():
        if overrides is None:  # an encoder with the defaults
            continue
        yield f"encoders.{name}", overrides
        if isinstance(overrides, dict):
            yield from ((f"encoders.{name}.{key}", overrides[key]) for key in _SECTIONS if key in overrides)


def _data_sections(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [group for key, group in _groups(document) if key.rpartition(".")[2] == "data"]


def _unknown_key(kind: str, key: object, known: Iterable[str]) -> str:
    return unknown(kind, cut(key) if isinstance(key, str) else shortened(key), known)


def _located(task: Any, folder: Path | None = None) -> Any:
    """The absolute path of your own data. The name of a task, or a path that does not exist, is returned unchanged."""
    if not isinstance(task, str) or not task or task in TASKS:
        return task
    path = os.path.expanduser(task)
    for place in (path, path if folder is None else os.path.join(folder, path)):
        if os.path.exists(place):
            return os.path.abspath(place)
    return task


def _located_run(name: Any, folder: Path | None = None) -> Any:
    """The absolute path of a run's folder. Any other name, as of a shipped model, is returned unchanged."""
    if not isinstance(name, str) or not name:
        return name
    path = os.path.expanduser(name)
    for place in (path, path if folder is None else os.path.join(folder, path)):
        if is_run(place):
            return os.path.abspath(place)
    return name


def _with_task(document: Mapping[str, Any], task: Any) -> dict[str, Any]:
    """Replace the task of a recipe or of its sections, without the data settings of the first task."""
    data, known = document["data"], TASKS.get(task) if isinstance(task, str) else None
    before = data.get("task")
    if task == before or (before is None and known is None):
        return {**document, "data": {**data, "task": task}}
    learned = {} if known is not None and known.words is None else {"vectors": None}
    both_own = known is None and before is not None and before not in TASKS
    options = data.get("options", {}) if both_own else {}
    changed = {**document, "data": {**data, "task": task, "options": options, "tests": [], **learned}}
    if "encoders" in document:
        changed["encoders"] = {
            name: {key: _only_parser(value) if key == "data" else value for key, value in (overrides or {}).items()}
            for name, overrides in document["encoders"].items()
        }
    return changed


def _only_parser(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key == "parser"}


def _overridden(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Apply the overrides of a recipe or of sections; a new task does not inherit the data settings of the old one."""
    if "task" in over.get("data", {}) and "task" in base.get("data", {}):
        base = _with_task(base, over["data"]["task"])
    return _merged(base, over, _DEPTH)


def _merged(base: Mapping[Any, Any], over: Mapping[Any, Any], depth: int) -> dict[Any, Any]:
    """Merge mappings key by key down to a depth; other values are replaced."""
    merged = dict(base)
    for key, value in over.items():
        both = depth > 1 and isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value, depth - 1) if both else value
    return merged


class _RecipeLoader(yaml.SafeLoader):
    """YAML in which 5e-4 is a number, as in YAML 1.2, and a duplicate key is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key}", node.start_mark)
        return super().construct_mapping(node, deep)


_RecipeLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _parsed(text: str, where: str) -> Any:
    return deepcopy(_parse(text, where))  # callers modify it


@lru_cache(maxsize=64)  # parsing takes 15 ms, and `beamtree models` reads each recipe several times
def _parse(text: str, where: str) -> Any:
    try:
        return yaml.load(text, _RecipeLoader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ValueError(f"{where}{line}: {error.problem or error}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{where}: it is not YAML ({' '.join(str(error).split())})") from None
    except ValueError as error:  # an integer of thousands of digits, a date that does not exist
        raise ValueError(f"{where}: it cannot be read ({error})") from None
    except RecursionError:
        raise ValueError(f"{where}: it is nested too deeply") from None
