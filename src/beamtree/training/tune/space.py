"""The search space of a study: which settings are searched, and over which values.

    params = parse_params(["optimizer.lr=log:1e-4:1e-2", "encoder.options.beam_size=int:2:5"])
    check_params(settings, params)

Each parameter is a `Range` of numbers or a set of `Choices`, under the key of the setting.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from beamtree.nn.encoders import encoder as make_encoder
from beamtree.runs import recipes
from beamtree.runs.settings import Settings

_FORMS = "low:high, log:low:high, int:low:high, or choices a,b,c"
_MAX_COMBINATIONS = 1000  # combinations of other parameters that a value is validated with
_FIXED = {
    "recipe": "it is the name of the recipe",
    "seed": "it is the seed of the study",
    "encoder.name": "create a study for each encoder",
}


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`.

    Attributes:
        low: the lowest value.
        high: the highest value.
        log: whether to sample the logarithm uniformly.
        integer: whether to sample integers only.

    Examples:
        >>> from beamtree.training.tune import Range
        >>> str(Range(1e-4, 1e-2, log=True))
        'log:0.0001:0.01'
    """

    low: float
    high: float
    log: bool = False
    integer: bool = False

    @property
    def extremes(self) -> tuple[Any, ...]:
        return (int(self.low), int(self.high)) if self.integer else (self.low, self.high)

    def suggest(self, trial: Any, key: str) -> Any:
        """Sample the value for a trial of Optuna."""
        if self.integer:
            return trial.suggest_int(key, *self.extremes)
        return trial.suggest_float(key, *self.extremes, log=self.log)

    def __str__(self) -> str:
        low, high = self.extremes
        return f"{'int:' if self.integer else 'log:' if self.log else ''}{low}:{high}"


@dataclass(frozen=True)
class Choices:
    """A set of values to choose from.

    Attributes:
        values: the values.

    Examples:
        >>> from beamtree.training.tune import Choices
        >>> str(Choices(("ranger", "adamw")))
        'ranger,adamw'
    """

    values: tuple[Any, ...]

    @property
    def extremes(self) -> tuple[Any, ...]:
        return self.values

    def suggest(self, trial: Any, key: str) -> Any:
        """Sample the value for a trial of Optuna."""
        return trial.suggest_categorical(key, self.values)

    def __str__(self) -> str:
        return ",".join(map(str, self.values))


Params = Mapping[str, Range | Choices]


def parse_params(texts: Sequence[str]) -> dict[str, Range | Choices]:
    """Parse parameters in the form of the command line.

    Args:
        texts: strings `KEY=FORM`, where the form is low:high, log:low:high or int:low:high for a range, or a,b,c for
            choices, whose values are YAML.

    Returns:
        Ranges and choices by key.

    Raises:
        ValueError: if a text has a different form, or a key is given twice.

    Examples:
        >>> from beamtree.training.tune import parse_params
        >>> parse_params(["optimizer.lr=log:1e-4:1e-2"])
        {'optimizer.lr': Range(low=0.0001, high=0.01, log=True, integer=False)}
    """
    params: dict[str, Range | Choices] = {}
    for text in texts:
        key, equals, form = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise ValueError(f"--param {text}: it must be KEY=FORM, as in optimizer.lr=log:1e-4:1e-2")
        if key in params:
            raise ValueError(f"--param {text}: {key} is given twice")
        params[key] = _parse_choices(text, key, form) if "," in form else _parse_range(text, form)
    return params


def _parse_range(text: str, form: str) -> Range:
    kind, _, rest = form.partition(":") if form.startswith(("log:", "int:")) else ("", "", form)
    limits = rest.split(":")
    if len(limits) != 2:
        raise ValueError(f"--param {text}: it must have one of the forms {_FORMS}")
    try:
        low, high = (float(int(limit) if kind == "int" else float(limit)) for limit in limits)
    except (ValueError, OverflowError):
        numbers = "integers" if kind == "int" else "numbers"
        raise ValueError(f"--param {text}: {rest} is not low:high with two {numbers}; the forms are {_FORMS}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"--param {text}: {limits[0]} must be less than {limits[1]}, and both must be finite")
    if kind == "log" and low <= 0:
        raise ValueError(f"--param {text}: {limits[0]} must be greater than 0 in a logarithmic range")
    return Range(low, high, log=kind == "log", integer=kind == "int")


def _parse_choices(text: str, key: str, form: str) -> Choices:
    parts = [part.strip() for part in form.split(",")]
    if not all(parts) or len(set(parts)) < len(parts):
        raise ValueError(f"--param {text}: the choices a,b,c must be distinct and not empty")
    try:
        values = tuple(recipes.parse_changes([f"{key}={part}"])[key] for part in parts)
    except ValueError:
        raise ValueError(f"--param {text}: the choices a,b,c must be valid YAML") from None
    if not all(value is None or isinstance(value, bool | int | float | str) for value in values):
        raise ValueError(f"--param {text}: each of the choices a,b,c must be a single value")
    return Choices(values)


def check_params(settings: Settings, params: Params) -> None:
    """Raise a `ValueError` for an unknown key, or a value that is invalid for all values of the other parameters."""
    if not params:
        raise ValueError("there is nothing to tune: add a parameter, as in --param optimizer.lr=log:1e-4:1e-2")
    for key in params:
        if key in _FIXED:
            raise ValueError(f"{key} cannot be tuned: {_FIXED[key]}")
    for key, param in params.items():
        others = [other for other in params if other != key]
        combinations = itertools.product(*(params[other].extremes for other in others))
        rest = [dict(zip(others, values, strict=True)) for values in itertools.islice(combinations, _MAX_COMBINATIONS)]
        for value in param.extremes:
            error = _error(settings, {key: value})
            if error is not None and all(_error(settings, {key: value, **each}) for each in rest):
                if isinstance(value, float) and value.is_integer() and not _error(settings, {key: int(value)}):
                    error = f"{key} is an integer: write --param {key}=int:LOW:HIGH"
                raise ValueError(error)


def apply(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """The settings with the values of a trial. Raises a `ValueError` if the combination is invalid."""
    changed = settings.change(values)
    with torch.device("meta"):  # allocates no memory and samples no random numbers
        make_encoder(changed.encoder.name, dim=changed.model.dim, **changed.encoder.options)
    return changed


def _error(settings: Settings, values: Mapping[str, Any]) -> str | None:
    try:
        apply(settings, values)
    except ValueError as error:
        return str(error)
    return None
