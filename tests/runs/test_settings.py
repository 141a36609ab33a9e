"""Settings: valid and invalid values, error messages, and lossless storage in a file."""

import json
import pickle
import re
from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import strategies as st
from pydantic import ValidationError

from beamtree.runs import recipes
from beamtree.runs.settings import (
    OPTIONS,
    DataSettings,
    OptimizerSettings,
    Settings,
    keys,
    replace,
    schema,
    shortened,
)

jsonschema = pytest.importorskip("jsonschema")

KEYS = [key for key in keys(Settings) if key not in OPTIONS]


@pytest.fixture(scope="module")
def settings() -> Settings:
    return recipes.load("listops", seed=3)


def value(settings: Settings, key: str) -> Any:
    found: Any = settings
    for name in key.split("."):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    return found


def counts(at_least: int = 1) -> st.SearchStrategy[int]:
    return st.integers(at_least, 2**40)


def numbers(low: float, high: float | None = None, **limits: bool) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False, allow_infinity=False, **limits)


TEXT = st.text(min_size=1)
PLAIN = st.booleans() | st.integers() | numbers(-1e300, 1e300) | st.text()
BATCHES = st.tuples(counts(), counts()).map(lambda pair: {"batch_size": pair[0] * pair[1], "micro_batch": pair[1]})
DOCUMENTS = st.fixed_dictionaries(
    {
        "recipe": TEXT,
        "seed": st.integers(0, 2**32 - 1),
        "data": st.fixed_dictionaries(
            {
                "task": TEXT,
                "options": st.dictionaries(st.text(), PLAIN),
                "vectors": st.none() | TEXT,
                "parser": st.none() | TEXT,
                "tests": st.lists(TEXT),
            }
        ),
        "model": st.fixed_dictionaries(
            {
                "dim": counts(),
                "hidden": st.none() | counts(),
                "dropout": numbers(0, 1, exclude_max=True),
                "dropout_in": numbers(0, 1, exclude_max=True),
            }
        ),
        "encoder": st.fixed_dictionaries({"name": TEXT, "options": st.dictionaries(st.text(), PLAIN | st.none())}),
        "optimizer": st.fixed_dictionaries(
            {
                "name": st.sampled_from(["ranger", "adamw"]),
                "lr": numbers(0, exclude_min=True),
                "weight_decay": numbers(0),
            }
        ),
        "training": BATCHES.flatmap(
            lambda batches: st.fixed_dictionaries(
                {
                    **{key: st.just(size) for key, size in batches.items()},
                    "dev_batch": counts(),
                    "bucket_factor": counts(),
                    "clip": numbers(0, exclude_min=True),
                    "max_epochs": counts(),
                    "patience": counts(),
                    "select": st.sampled_from(["loss", "accuracy"]),
                    "plateau_factor": st.none() | numbers(0, 1, exclude_min=True, exclude_max=True),
                    "plateau_patience": counts(0),
                    "precision": st.sampled_from(["32", "tf32", "bf16"]),
                    "noise_epochs": st.just(0),  # others need noise
                }
            )
        ),
    }
)


@hypothesis.given(DOCUMENTS)
def test_nothing_is_lost_in_a_dict_or_in_yaml(document: dict[str, Any]) -> None:
    settings = Settings.from_dict(document)
    plain = settings.to_dict()
    assert json.dumps(plain, sort_keys=True) == json.dumps(document, sort_keys=True)  # types too: 1 == 1.0 == True
    assert Settings.from_dict(plain) == settings
    assert Settings.from_dict(yaml.safe_load(yaml.safe_dump(plain))) == settings
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_settings_that_differ_are_not_equal(settings: Settings) -> None:
    assert settings == recipes.load("listops", seed=3)
    assert settings != settings.change({"encoder.options.beam_size": 4})


def test_a_dict_is_plain_and_always_in_the_same_order(settings: Settings) -> None:
    def plain(value: Any) -> bool:
        if isinstance(value, dict):
            return all(type(key) is str and plain(each) for key, each in value.items())
        return all(map(plain, value)) if isinstance(value, list) else type(value) in (bool, int, float, str, type(None))

    found = settings.to_dict()
    assert plain(found)
    shuffled = {key: dict(reversed(part.items())) if isinstance(part, dict) else part for key, part in found.items()}
    again = Settings.from_dict(dict(reversed(shuffled.items()))).to_dict()
    assert list(again) == list(found) == ["recipe", "seed", "data", "model", "encoder", "optimizer", "training"]
    assert list(again["training"]) == list(found["training"])


def test_a_dict_is_a_copy(settings: Settings) -> None:
    found = settings.to_dict()
    found["encoder"]["options"]["beam_size"] = 99
    found["training"]["clip"] = 99
    assert settings.encoder.options["beam_size"] == 5
    assert settings.training.clip == 1


def test_what_settings_are_made_of_is_copied_too(settings: Settings) -> None:
    options = {"beam_size": 3}
    changed = settings.change({"encoder.options": options, "encoder.options.dropout": 0.5})
    assert options == {"beam_size": 3}
    options["beam_size"] = 4
    assert changed.encoder.options == {"beam_size": 3, "dropout": 0.5}


def test_settings_do_not_change(settings: Settings) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        settings.training.clip = 2  # type: ignore[misc]
    before = settings.to_dict()
    settings.change({"training.clip": 2, "encoder.options.beam_size": 2, "data.options.seed": 8})
    assert settings.to_dict() == before


@pytest.mark.parametrize(
    ("key", "given", "held"),
    [
        ("optimizer.lr", 5e-4, 5e-4),
        ("optimizer.lr", 1, 1.0),
        ("optimizer.lr", "1e-2", 0.01),  # as YAML 1.1 reads it
        ("training.plateau_factor", ".5", 0.5),
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
        ("encoder.options.dropout", 1.0, 1.0),
        ("encoder.options.stochastic", True, True),
        ("encoder.options", {"beam_size": 3}, {"beam_size": 3}),
        ("data.options.seed", 1, 1),
        ("data.options.dev", 0.2, 0.2),
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
        ("training.clip", "x", "a number above 0"),
        ("training.clip", "-1e-2", "a number above 0"),
        ("training.clip", "1_0", "a number above 0"),
        ("training.clip", "nan", "a number above 0"),
        ("training.clip", True, "a number above 0"),
        ("training.clip", None, "a number above 0"),
        ("training.clip", [1], "a number above 0"),
        ("training.clip", 0, "a number above 0"),
        ("optimizer.lr", float("nan"), "a number above 0"),
        ("optimizer.lr", float("inf"), "a number above 0"),
        ("optimizer.lr", "1e999", "a number above 0"),
        ("optimizer.weight_decay", -0.1, "a number of at least 0"),
        ("model.dropout", 1, "a number from 0 up to but not including 1"),
        ("model.dim", 8.0, "an integer of at least 1"),
        ("model.dim", "8", "an integer of at least 1"),
        ("model.dim", True, "an integer of at least 1"),
        ("model.hidden", 0, "an integer of at least 1, or null"),
        ("training.plateau_factor", 1, "a number between 0 and 1, or null"),
        ("training.plateau_patience", -1, "an integer of at least 0"),
        ("training.noise_epochs", -1, "an integer of at least 0"),
        ("training.noise_epochs", 3, "0 without state_noise"),
        ("training.max_epochs", 1e3, "an integer of at least 1"),
        ("training.patience", 0, "an integer of at least 1"),
        ("training.select", "los", "one of loss, accuracy"),
        ("training.precision", 16, "one of 32, tf32, bf16"),
        ("optimizer.name", "sgd", "one of ranger, adamw"),
        ("data.task", 3, "a non-empty string"),
        ("data.task", "", "a non-empty string"),
        ("data.vectors", False, "a non-empty string, or null"),
        ("data.tests", [1.5], "a list of names"),
        ("data.tests", ["a", ""], "a list of names"),
        ("data.tests", [True], "a list of names"),
        ("data.tests", {}, "a list of names"),
        ("data.options", 3, "a mapping of options"),
        ("encoder.options", {1: 2}, "a mapping of options"),
        ("seed", -1, "an integer from 0 to 4294967295"),
        ("seed", 2**32, "an integer from 0 to 4294967295"),
        ("seed", True, "an integer from 0 to 4294967295"),
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


@pytest.mark.parametrize(
    ("key", "given", "must"),
    [
        ("encoder.options.beam_size", [5], "true or false, an integer, a number, a string, or null"),
        ("encoder.options.dropout", float("nan"), "true or false, an integer, a number, a string, or null"),
        ("data.options.dev", float("inf"), "true or false, an integer, a number, or a string"),
        ("data.options.seed", None, "true or false, an integer, a number, or a string"),
        ("data.options.tokenizer", b"words", "true or false, an integer, a number, or a string"),  # YAML supports bytes
    ],
)
def test_an_option_is_a_plain_value(settings: Settings, key: str, given: Any, must: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'{key} is {given!r}: it must be {must}')}$"):
        settings.change({key: given})


def test_noise_reaches_its_deviation_before_the_end(settings: Settings) -> None:
    changes = {"encoder.options.state_noise": 0.5, "training.noise_epochs": 99}
    assert settings.change(changes).training.noise_epochs == 99
    message = "training.noise_epochs is 99: it must be less than training.max_epochs, 99"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        settings.change({**changes, "training.max_epochs": 99})


def test_options_that_are_none_are_refused_whatever_is_added(settings: Settings) -> None:
    with pytest.raises(ValueError, match=r"^encoder.options is 3: it must be a mapping of options$"):
        settings.change({"encoder.options": 3, "encoder.options.beam_size": 2})


def bomb(levels: int = 9) -> Any:
    """A value of 9 lists whose `repr` has billions of characters, as in a small YAML file with aliases."""
    found: Any = "x"
    for _ in range(levels):
        found = [found] * 9
    return found


TEXTS = ("recipe", "data.task", "data.vectors", "data.tests", "encoder.name")
COUNTS = (
    *("model.dim", "model.hidden", "training.dev_batch", "training.bucket_factor", "training.max_epochs"),
    *("training.patience", "training.plateau_patience", "training.batch_size"),
)
RECURSIVE: list[Any] = []
RECURSIVE.append(RECURSIVE)


@pytest.mark.parametrize(
    "given",
    [bomb(), {"a": bomb()}, RECURSIVE, "x" * 10**6, b"x" * 10**6, 10**400, -(10**9999), 16**9999, [10**9999] * 9],
    ids=["lists", "dict", "recursive", "text", "bytes", "integer", "negative", "hexadecimal", "integers"],
)
def test_a_message_is_short_whatever_the_value_is(settings: Settings, given: Any) -> None:
    assert len(shortened(given)) <= 60
    assert "\n" not in shortened(given)
    document = settings.to_dict()
    for key in (*keys(Settings), "encoder.options.x", "data.options.x", "model"):
        if key in TEXTS if isinstance(given, str) else key in COUNTS and isinstance(given, int) and given > 0:
            continue  # these accept a value of any size
        with pytest.raises(ValueError, match=r"^config.yaml: .") as error:
            Settings.from_dict(_with(document, key, given if "options.x" not in key else [given]))
        assert len(str(error.value)) < 200
        assert "\n" not in str(error.value)
    if isinstance(given, str):
        for section in ({**document, given: 1}, _with(document, f"model.{given}", 1)):
            with pytest.raises(ValueError, match=r"^config.yaml: unknown setting ") as error:
                Settings.from_dict(section)
            assert len(str(error.value)) < 200
        with pytest.raises(ValueError, match=r"^unknown setting ") as error:
            settings.change({given: 1})
        assert len(str(error.value)) < 1000  # it lists all settings


def _with(document: dict[str, Any], key: str, given: Any) -> dict[str, Any]:
    first, _, rest = key.partition(".")
    return {**document, first: _with(document[first], rest, given) if rest else given}


def test_short_values_are_shown_as_they_are() -> None:
    for given in ("x", 5, 1.5, None, True, [1, "a"], {"a": [1]}, ("a",), 2**100):
        assert shortened(given) == repr(given)


def test_a_micro_batch_is_a_part_of_the_batch(settings: Settings) -> None:
    with pytest.raises(ValueError, match=r"^training.micro_batch is 48: it must divide training.batch_size, 128$"):
        settings.change({"training.micro_batch": 48})
    assert settings.change({"training.micro_batch": 48, "training.batch_size": 96}).training.micro_batch == 48


def test_values_are_checked_however_an_object_is_made(settings: Settings) -> None:
    with pytest.raises(ValueError, match=r"^optimizer.lr is -1: it must be a number above 0$"):
        OptimizerSettings(name="adamw", lr=-1, weight_decay=0)
    with pytest.raises(ValueError, match=r"^optimizer.lr is missing$"):
        OptimizerSettings(name="adamw", weight_decay=0)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"^training.clip is -1: it must be a number above 0$"):
        replace(settings.training, clip=-1)
    with pytest.raises(ValueError, match=r"^unknown setting 'training.clpi' \(did you mean 'training.clip'\?\)"):
        replace(settings.training, clpi=1)
    with pytest.raises(ValueError, match=r"^model is DataSettings\(.*: it must be a mapping of settings$"):
        replace(settings, model=settings.data)


def test_a_replaced_value_is_in_its_own_type_and_the_others_stay(settings: Settings) -> None:
    changed = replace(settings, training=replace(settings.training, clip=2))
    assert type(changed.training.clip) is float
    assert changed == settings.change({"training.clip": 2})
    data = DataSettings(task="mnli", options={}, vectors=None, tests=["m"])  # type: ignore[arg-type]
    assert replace(settings, data=data).data is data
    assert data.tests == ("m",)


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


LATER = {
    "training.noise_epochs": 0,
    "data.parser": None,
}  # settings that older files do not have, and their values there


@pytest.mark.parametrize("key", [key for key in keys(Settings) if key not in LATER])
def test_a_key_that_is_missing_from_a_file_is_named(settings: Settings, key: str) -> None:
    document = settings.to_dict()
    section, _, name = key.rpartition(".")
    del (document[section] if section else document)[name]
    with pytest.raises(ValueError, match=f"^config.yaml: {re.escape(key)} is missing$"):
        Settings.from_dict(document)


def test_older_files_are_read(settings: Settings) -> None:
    document = settings.to_dict()
    for key, value in LATER.items():
        section, _, name = key.rpartition(".")
        assert document[section].pop(name) == value
    assert Settings.from_dict(document) == settings


def test_a_key_of_a_file_that_is_not_known_is_named(settings: Settings) -> None:
    document = settings.to_dict()
    with pytest.raises(ValueError, match=r"^config.yaml: unknown setting 'trainings' \(did you mean 'training'\?\)"):
        Settings.from_dict({**document, "trainings": {}})
    document["training"]["clpi"] = document["training"].pop(
        "clip"
    )  # a key is missing too, but that message would be less helpful
    with pytest.raises(ValueError, match=r"'training.clpi' \(did you mean 'training.clip'\?\)"):
        Settings.from_dict(document)


@pytest.mark.parametrize("key", [1, None, (1, 2), 16**9999], ids=["integer", "null", "tuple", "large"])
def test_a_key_that_is_no_text_is_unknown(settings: Settings, key: Any) -> None:
    document = settings.to_dict()
    with pytest.raises(ValueError, match=f"^config.yaml: unknown setting {re.escape(repr(shortened(key)))}; known: "):
        Settings.from_dict({**document, key: 1})
    with pytest.raises(ValueError, match=f"^config.yaml: unknown setting {re.escape(repr(f'model.{shortened(key)}'))}"):
        Settings.from_dict({**document, "model": {**document["model"], key: 1}})


@pytest.mark.parametrize("part", [None, 3, [], "x"])
def test_a_group_that_is_none_is_refused(settings: Settings, part: Any) -> None:
    message = f"config.yaml: model is {part!r}: it must be a mapping of settings"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Settings.from_dict({**settings.to_dict(), "model": part})


@pytest.mark.usefixtures("shape_checks_off")
def test_a_file_without_groups_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^config.yaml: it is \[\]: it must be a mapping of settings$"):
        Settings.from_dict([])  # type: ignore[arg-type]


def test_every_setting_is_described(settings: Settings) -> None:
    for name in ("", "data", "model", "encoder", "optimizer", "training"):
        section = type(getattr(settings, name) if name else settings)
        assert section.model_fields
        for key, field in section.model_fields.items():
            assert field.description
            assert field.description.endswith(".")
            assert field.is_required() == (f"{name}.{key}" not in LATER)


def test_the_schema_of_settings_takes_what_settings_take(settings: Settings) -> None:
    validator = jsonschema.Draft202012Validator(Settings.model_json_schema())
    validator.check_schema(validator.schema)
    validator.validate(settings.to_dict())
    for key in KEYS:
        document = settings.to_dict()
        section, _, name = key.rpartition(".")
        (document[section] if section else document)[name] = []
        assert validator.is_valid(document) == (key == "data.tests")


def test_the_schema_of_recipes_has_every_setting() -> None:
    found = schema()
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert found["title"] == "beamtree recipe"
    jsonschema.Draft202012Validator.check_schema(found)
    assert tuple(found["properties"]) == recipes._KEYS
    for key in keys(Settings):
        section, _, name = key.partition(".")
        if name and section != "encoder":
            definition = found["properties"][section]["$ref"].rpartition("/")[2]
            assert found["$defs"][definition]["properties"][name]["description"]


@pytest.mark.parametrize(
    "document",
    [
        {"modle": {}},
        {"model": {"dmi": 8}},
        {"model": {"dim": 0}},
        {"model": 8},
        {"about": 3},
        {"encoder": None},
        {"encoders": ["bt-grc"]},
        {"encoders": {"bt-grc": 5}},
        {"encoders": {"bt-grc": {"option": {}}}},
        {"encoders": {"bt-grc": {"options": {"beam_size": [5]}}}},
        {"encoders": {"bt-grc": {"training": {"clip": 0}}}},
        {"data": {"task": ""}},
        {"data": {"tests": [[]]}},
        [],
    ],
)
def test_the_schema_of_recipes_refuses_what_recipes_refuse(document: Any) -> None:
    validator = jsonschema.Draft202012Validator(schema())
    assert not validator.is_valid(document)
    assert validator.is_valid({"like": "text", "data": {"task": None}, "encoders": {"bt-grc": None, "mine": {}}})
