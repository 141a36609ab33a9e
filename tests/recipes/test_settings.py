"""Settings: what they accept, what they refuse and how they say so, and that nothing is lost on the way to a file."""

import re
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest
import yaml

from beamtree import recipes
from beamtree.recipes.settings import OPTIONS, Settings, keys

KEYS = [key for key in keys(Settings) if key not in OPTIONS]


@pytest.fixture(scope="module")
def settings() -> Settings:
    return recipes.load("listops", seed=3)


def value(settings: Settings, key: str) -> Any:
    found: Any = settings
    for name in key.split("."):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    return found


def test_nothing_is_lost_in_a_dict_or_in_yaml(settings: Settings) -> None:
    changed = settings.change({"data.tests": ["lra"], "model.hidden": 7, "training.plateau_factor": None})
    for each in (settings, changed):
        plain = each.to_dict()
        assert Settings.from_dict(plain) == each
        assert Settings.from_dict(yaml.safe_load(yaml.safe_dump(plain))) == each
    assert settings != changed


def test_a_dict_is_plain_and_always_in_the_same_order(settings: Settings) -> None:
    def plain(value: Any) -> bool:
        if isinstance(value, dict):
            return all(type(key) is str and plain(each) for key, each in value.items())
        return all(map(plain, value)) if isinstance(value, list) else type(value) in (bool, int, float, str, type(None))

    found = settings.to_dict()
    assert plain(found)
    shuffled = {key: dict(reversed(part.items())) if isinstance(part, dict) else part for key, part in found.items()}
    again = Settings.from_dict(dict(reversed(shuffled.items()))).to_dict()
    assert list(again) == list(found) == [field.name for field in fields(Settings)]
    assert list(again["training"]) == list(found["training"])


def test_a_dict_is_a_copy(settings: Settings) -> None:
    found = settings.to_dict()
    found["encoder"]["options"]["beam_size"] = 99
    found["training"]["clip"] = 99
    assert settings.encoder.options["beam_size"] == 5
    assert settings.training.clip == 1


def test_settings_do_not_change(settings: Settings) -> None:
    with pytest.raises(FrozenInstanceError):
        settings.training.clip = 2  # type: ignore[misc]
    before = settings.to_dict()
    settings.change({"training.clip": 2, "encoder.options.beam_size": 2, "data.options.seed": 8})
    assert settings.to_dict() == before


@pytest.mark.parametrize(
    ("key", "given", "held"),
    [
        ("optimizer.lr", 5e-4, 5e-4),
        ("optimizer.lr", 1, 1.0),
        ("optimizer.weight_decay", 0, 0.0),
        ("optimizer.name", "adamw", "adamw"),
        ("model.hidden", 64, 64),
        ("model.hidden", None, None),
        ("training.plateau_factor", None, None),
        ("training.precision", 32, "32"),  # as YAML reads it
        ("data.tests", ["200-300", 8], ("200-300", "8")),
        ("data.tests", "lra", ("lra",)),
        ("data.tests", [], ()),
        ("data.vectors", "glove-840b", "glove-840b"),
        ("encoder.options.beam_size", 2, 2),
        ("encoder.options.engine", "torch", "torch"),
        ("encoder.options", {"beam_size": 3}, {"beam_size": 3}),
        ("data.options.seed", 1, 1),
        ("seed", 2**32 - 1, 2**32 - 1),
    ],
)
def test_a_change_is_one_value_in_its_own_type(settings: Settings, key: str, given: Any, held: Any) -> None:
    changed = settings.change({key: given})
    assert value(changed, key) == held
    assert type(value(changed, key)) is type(held)
    others = [other for other in KEYS if other != key]
    assert [value(changed, other) for other in others] == [value(settings, other) for other in others]


@pytest.mark.parametrize(
    ("key", "given", "must"),
    [
        ("training.clip", "x", "a number"),
        ("training.clip", True, "a number"),
        ("training.clip", None, "a number"),
        ("training.clip", 0, "a number above 0"),
        ("optimizer.lr", float("nan"), "a number above 0"),
        ("optimizer.lr", float("inf"), "a number above 0"),
        ("optimizer.lr", 10**400, "a number above 0"),
        ("optimizer.weight_decay", -0.1, "a number of at least 0"),
        ("model.dropout", 1, "a number from 0 up to but not including 1"),
        ("model.dim", 8.0, "an integer of at least 1"),
        ("model.dim", True, "an integer of at least 1"),
        ("model.hidden", 0, "an integer of at least 1, or null"),
        ("training.plateau_factor", 1, "a number between 0 and 1, or null"),
        ("training.plateau_patience", -1, "an integer of at least 0"),
        ("training.max_epochs", 1e3, "an integer of at least 1"),
        ("training.patience", 0, "an integer of at least 1"),
        ("training.select", "los", "one of loss, accuracy"),
        ("training.precision", 16, "one of 32, tf32, bf16"),
        ("optimizer.name", "sgd", "one of ranger, adamw"),
        ("data.task", 3, "a word"),
        ("data.task", "", "a word"),
        ("data.vectors", False, "a word, or null"),
        ("data.tests", [1.5], "a list of names"),
        ("data.tests", {}, "a list of names"),
        ("data.options", 3, "options by their names"),
        ("encoder.options", {1: 2}, "options by their names"),
        ("seed", -1, "an integer from 0 to 4294967295"),
        ("seed", 2**32, "an integer from 0 to 4294967295"),
    ],
)
def test_a_wrong_value_is_named_with_what_would_be_right(settings: Settings, key: str, given: Any, must: str) -> None:
    message = f"{key} is {given!r}: it must be {must}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        settings.change({key: given})
    document = settings.to_dict()
    section, _, name = key.rpartition(".")
    (document[section] if section else document)[name] = given
    with pytest.raises(ValueError, match=f"^run/config.yaml: {re.escape(message)}$"):
        Settings.from_dict(document, where="run/config.yaml")


def test_an_option_is_a_plain_value(settings: Settings) -> None:
    with pytest.raises(ValueError, match=r"^encoder.options is .*options with plain values, which beam_size is not$"):
        settings.change({"encoder.options.beam_size": [5]})


def test_a_micro_batch_is_a_part_of_the_batch(settings: Settings) -> None:
    with pytest.raises(ValueError, match=r"^training.micro_batch is 48: it must divide training.batch_size, 128$"):
        settings.change({"training.micro_batch": 48})
    assert settings.change({"training.micro_batch": 48, "training.batch_size": 96}).training.micro_batch == 48


@pytest.mark.usefixtures("shape_checks_off")
def test_values_are_checked_however_an_object_is_made(settings: Settings) -> None:
    with pytest.raises(ValueError, match=r"^training.clip is -1: it must be a number above 0$"):
        replace(settings.training, clip=-1)
    assert type(replace(settings.training, clip=2).clip) is float
    with pytest.raises(ValueError, match=r"^model is .*: it must be a ModelSettings$"):
        replace(settings, model=settings.data)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("optimizer.lrr", "unknown setting 'optimizer.lrr' (did you mean 'optimizer.lr'?); known: optimizer.name, "),
        ("optimiser.lr", "unknown setting 'optimiser.lr' (did you mean 'optimizer.lr'?); known: recipe, seed, "),
        ("lr", "unknown setting 'lr' (did you mean 'optimizer.lr'?)"),
        ("training.batchsize", "unknown setting 'training.batchsize' (did you mean 'training.batch_size'?)"),
        ("optimizer", "optimizer is a group of settings: change one of optimizer.name, optimizer.lr, "),
        ("optimizer.lr.x", "unknown setting 'optimizer.lr.x' (did you mean 'optimizer.lr'?)"),
        ("name", "unknown setting 'name'; known: recipe, seed, "),  # two have it
        ("", "unknown setting ''"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(settings: Settings, key: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        settings.change({key: 1})


@pytest.mark.parametrize("key", keys(Settings))
def test_a_key_that_is_missing_from_a_file_is_named(settings: Settings, key: str) -> None:
    document = settings.to_dict()
    section, _, name = key.rpartition(".")
    del (document[section] if section else document)[name]
    with pytest.raises(ValueError, match=f"^config.yaml: {re.escape(key)} is missing$"):
        Settings.from_dict(document)


def test_a_key_of_a_file_that_is_not_known_is_named(settings: Settings) -> None:
    document = settings.to_dict()
    with pytest.raises(ValueError, match=r"^config.yaml: unknown setting 'trainings' \(did you mean 'training'\?\)"):
        Settings.from_dict({**document, "trainings": {}})
    document["training"]["clpi"] = 1
    with pytest.raises(ValueError, match=r"'training.clpi' \(did you mean 'training.clip'\?\)"):
        Settings.from_dict(document)


@pytest.mark.parametrize("part", [None, 3, [], "x"])
def test_a_group_that_is_none_is_refused(settings: Settings, part: Any) -> None:
    message = f"config.yaml: model is {part!r}: it must be settings by their names"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Settings.from_dict({**settings.to_dict(), "model": part})
