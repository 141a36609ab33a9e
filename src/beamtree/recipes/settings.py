"""The settings of a run: all that decides its result, apart from the data itself and the program's version.

    settings = recipes.load("listops", encoder="bt-grc", seed=1)
    settings.training.clip                                # 1.0
    settings.change({"optimizer.lr": 5e-4})               # a new object
    Settings.from_dict(settings.to_dict()) == settings    # as it stands in a run's config.yaml

A value is checked when an object is made, however that comes about: what is wrong is named by its key, "training.clip".
A whole number may stand for a fraction, not the other way round.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args, get_type_hints

from beamtree.utils.checks import unknown

Check = Callable[[Any], Any]  # gives the value in its own type; else a ValueError that says what it must be


def _integer(at_least: int, at_most: int | None = None) -> Check:
    limit = f"from {at_least} to {at_most}" if at_most else f"of at least {at_least}"

    def check(value: Any) -> int:
        if type(value) is not int or value < at_least or (at_most and value > at_most):
            raise ValueError(f"an integer {limit}")
        return value

    return check


def _number(inside: Callable[[float], bool], limit: str) -> Check:
    def check(value: Any) -> float:
        if type(value) not in (int, float):
            raise ValueError("a number")
        try:
            number = float(value)
        except OverflowError:  # an integer of hundreds of digits
            number = math.inf
        if not math.isfinite(number) or not inside(number):
            raise ValueError(f"a number {limit}")
        return number

    return check


def _optional(check: Check) -> Check:
    def check_or_none(value: Any) -> Any:
        try:
            return None if value is None else check(value)
        except ValueError as error:
            raise ValueError(f"{error}, or null") from None

    return check_or_none


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a word")
    return value


def _names(value: Any) -> tuple[str, ...]:
    """A list, or one name alone; YAML takes the split 8 for a number."""
    given = value if isinstance(value, list | tuple) else [value]
    if not all(type(name) in (int, str) and name != "" for name in given):
        raise ValueError("a list of names")
    return tuple(map(str, given))


def _options(*types: type) -> Check:
    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise ValueError("options by their names")
        for name, option in value.items():
            if not isinstance(option, types):
                raise ValueError(f"options with plain values, which {name} is not")
        return dict(value)

    return check


def _choice(kind: Any) -> Check:
    known: tuple[str, ...] = get_args(kind)

    def check(value: Any) -> str:
        if type(value) in (int, str) and str(value) in known:  # YAML takes the precision 32 for a number
            return str(value)
        raise ValueError(f"one of {', '.join(known)}")

    return check


Count = Annotated[int, _integer(at_least=1)]
Rate = Annotated[float, _number(lambda value: 0 <= value < 1, "from 0 up to but not including 1")]
Positive = Annotated[float, _number(lambda value: value > 0, "above 0")]
Optimizer = Literal["ranger", "adamw"]
Metric = Literal["loss", "accuracy"]
Precision = Literal["32", "tf32", "bf16"]
DataOption = bool | int | str
Plain = bool | int | float | str | None


class Section:
    """Settings that belong together. `prefix` begins their keys."""

    prefix: ClassVar[str]

    def __post_init__(self) -> None:
        for name, value in _checked(type(self), vars(self)).items():
            object.__setattr__(self, name, value)


def _checked(section: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values in their own types."""
    checked = {}
    for name, kind in get_type_hints(section, include_extras=True).items():
        if name not in values:  # "prefix", which is no setting
            continue
        try:
            checked[name] = kind.__metadata__[0](values[name])
        except ValueError as error:
            raise ValueError(f"{section.prefix}{name} is {values[name]!r}: it must be {error}") from None
    return checked


@dataclass(frozen=True)
class DataSettings(Section):
    prefix = "data."

    task: Annotated[str, _text]  # for beamtree.data.load: a task, or the path of one's own data
    options: Annotated[dict[str, DataOption], _options(*get_args(DataOption))]  # of the task
    vectors: Annotated[str | None, _optional(_text)]  # of words, for beamtree.data.vectors.load; None: learned
    tests: Annotated[tuple[str, ...], _names]  # splits for the end; none: all that the task has but train and dev


@dataclass(frozen=True)
class ModelSettings(Section):
    prefix = "model."

    dim: Count  # of word vectors and states
    hidden: Annotated[int | None, _optional(_integer(at_least=1))]  # of the classifier; None: dim
    dropout: Rate  # on the encoding and in the classifier
    dropout_in: Rate  # on the word vectors


@dataclass(frozen=True)
class EncoderSettings(Section):
    prefix = "encoder."

    name: Annotated[str, _text]
    options: Annotated[dict[str, Any], _options(*get_args(Plain))]  # for beamtree.encoder, with dim from the model


@dataclass(frozen=True)
class OptimizerSettings(Section):
    prefix = "optimizer."

    name: Annotated[Optimizer, _choice(Optimizer)]
    lr: Positive
    weight_decay: Annotated[float, _number(lambda value: value >= 0, "of at least 0")]


@dataclass(frozen=True)
class TrainingSettings(Section):
    prefix = "training."

    batch_size: Count  # samples of an optimiser's step
    micro_batch: Count  # samples that are encoded at once
    dev_batch: Count
    bucket_factor: Count  # so many micro-batches are sorted by length together
    clip: Positive  # of the gradient's norm
    max_epochs: Count
    patience: Count  # after so many epochs without gain it stops
    select: Annotated[Metric, _choice(Metric)]  # on dev: by it the best epoch is chosen
    plateau_factor: Annotated[
        float | None, _optional(_number(lambda value: 0 < value < 1, "between 0 and 1"))
    ]  # of the learning rate; None: it stays
    plateau_patience: Annotated[int, _integer(at_least=0)]
    precision: Annotated[Precision, _choice(Precision)]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size % self.micro_batch:
            raise ValueError(
                f"training.micro_batch is {self.micro_batch}: it must divide training.batch_size, {self.batch_size}"
            )


def _section(kind: type) -> Check:
    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise ValueError(f"a {kind.__name__}")
        return value

    return check


@dataclass(frozen=True)
class Settings(Section):
    prefix = ""

    recipe: Annotated[str, _text]
    seed: Annotated[int, _integer(at_least=0, at_most=2**32 - 1)]  # numpy's limit
    data: Annotated[DataSettings, _section(DataSettings)]
    model: Annotated[ModelSettings, _section(ModelSettings)]
    encoder: Annotated[EncoderSettings, _section(EncoderSettings)]
    optimizer: Annotated[OptimizerSettings, _section(OptimizerSettings)]
    training: Annotated[TrainingSettings, _section(TrainingSettings)]

    def to_dict(self) -> dict[str, Any]:
        """Of plain types and always in the same order, as for YAML."""
        return _plain(self)

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any], where: str = "config.yaml") -> "Settings":
        """What `to_dict` gave; `where` stands in messages."""
        try:
            _check_keys(mapping, cls)
            parts = {name: _made(kind, mapping[name]) for name, kind in _SECTIONS.items()}
            return cls(**_checked(cls, {**mapping, **parts}))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None

    def change(self, changes: Mapping[str, Any]) -> "Settings":
        """With other values for some keys, as "optimizer.lr" and "encoder.options.beam_size"."""
        values = self.to_dict()
        for key, value in changes.items():
            first, *rest = key.split(".")
            if key in _SECTIONS:
                raise ValueError(f"{key} is a group of settings: change one of {', '.join(keys(_SECTIONS[key]))}")
            if len(rest) >= 2 and f"{first}.{rest[0]}" in OPTIONS:
                values[first][rest[0]][".".join(rest[1:])] = value
            elif key in keys(Settings):
                (values[first] if rest else values)[key.rpartition(".")[2]] = value
            else:
                raise ValueError(unknown_key(key))
        parts = {name: _made(kind, values[name]) for name, kind in _SECTIONS.items()}
        return Settings(**_checked(Settings, {**values, **parts}))


_SECTIONS: dict[str, type] = {
    "data": DataSettings,
    "model": ModelSettings,
    "encoder": EncoderSettings,
    "optimizer": OptimizerSettings,
    "training": TrainingSettings,
}
OPTIONS = ("data.options", "encoder.options")  # keys under which everyone has other options


def keys(section: type) -> list[str]:
    """The keys of all settings, or of a group of them."""
    names = [f"{section.prefix}{field.name}" for field in fields(section)]  # type: ignore[attr-defined]
    return [key for name in names for key in (keys(_SECTIONS[name]) if name in _SECTIONS else [name])]


def unknown_key(key: str) -> str:
    """The message about a key that there is not: it names the nearest, also of one without its group."""
    section = _SECTIONS.get(key.partition(".")[0], Settings)
    full = [known for known in keys(Settings) if known.endswith(f".{key}")]
    if len(full) == 1:
        return f"unknown setting {key!r} (did you mean {full[0]!r}?)"
    return unknown("setting", key, keys(section))


def _check_keys(mapping: Any, section: Any) -> None:
    if not isinstance(mapping, Mapping):
        name = section.prefix.rstrip(".") or "the whole"
        raise ValueError(f"{name} is {mapping!r}: it must be settings by their names")
    names = [field.name for field in fields(section)]
    for name in mapping:
        if name not in names:
            known = [f"{section.prefix}{name}" for name in names]
            raise ValueError(unknown("setting", f"{section.prefix}{name}", known))
    for name in names:
        if name not in mapping:
            raise ValueError(f"{section.prefix}{name} is missing")


def _made(section: Any, mapping: Any) -> Any:
    _check_keys(mapping, section)
    return section(**_checked(section, mapping))


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value
