"""The settings of a run: everything that determines its result, except the data itself and the version of beamtree.

    settings = recipes.load("listops", encoder="bt-grc", seed=1)
    settings.training.clip                                # 1.0
    settings.change({"optimizer.lr": 5e-4})               # a new object
    Settings.from_dict(settings.to_dict()) == settings    # as in the config.yaml of a run

Settings are validated whenever an object is created. An error is one line with the key, such as "training.clip", its
value and the allowed values, which are taken from the JSON Schema of the field. An integer is accepted for a float, but
not vice versa.
"""

import re
import reprlib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)

from beamtree.nn.encoders import encoders, needs_trees
from beamtree.utils.checks import unknown

OPTIONS = ("data.options", "encoder.options")  # mappings whose keys depend on the task and on the encoder
LONGEST_VALUE = 60  # characters of a value in an error message

Optimizer = Literal["ranger", "adamw"]
Metric = Literal["loss", "accuracy"]
Precision = Literal["32", "tf32", "bf16"]

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def _number_from_text(value: Any) -> Any:
    """YAML 1.1 reads 1e-2 as text."""
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def _text_from_integer(value: Any) -> Any:
    """YAML reads the precision 32 and the split 8 as integers."""
    return str(value) if type(value) is int and value.bit_length() < 64 else value


def _tuple_of_names(value: Any) -> Any:
    """A single name is the same as a list of one."""
    names = value if isinstance(value, list | tuple) else (value,)
    return tuple(map(_text_from_integer, names))


NonEmptyStr = Annotated[StrictStr, Field(min_length=1)]
Count = Annotated[StrictInt, Field(ge=1)]
Rate = Annotated[StrictFloat, Field(ge=0, lt=1), BeforeValidator(_number_from_text)]
Positive = Annotated[StrictFloat, Field(gt=0), BeforeValidator(_number_from_text)]
NotNegative = Annotated[StrictFloat, Field(ge=0), BeforeValidator(_number_from_text)]
Fraction = Annotated[StrictFloat, Field(gt=0, lt=1), BeforeValidator(_number_from_text)]
Names = Annotated[tuple[NonEmptyStr, ...], BeforeValidator(_tuple_of_names)]
DataOptionValue = StrictBool | StrictInt | StrictFloat | StrictStr
EncoderOptionValue = DataOptionValue | None


class Section(BaseModel):
    """A group of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    prefix: ClassVar[str]  # of the keys of its settings

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ValueError(_message(type(self), values, error)) from None


class DataSettings(Section):
    """The data of a run."""

    prefix = "data."

    task: NonEmptyStr = Field(
        description="Name of a task of beamtree, or path of your own data: a file or a folder of files."
    )
    options: dict[StrictStr, DataOptionValue] = Field(
        description="Options of the task: seed of a generator, ...; of your own data: tokenizer, dev, test, seed."
    )
    vectors: NonEmptyStr | None = Field(
        description="Pretrained word vectors, which are frozen: a name such as glove-840b. null: vectors are learned."
    )
    parser: NonEmptyStr | None = Field(
        default=None,  # older files do not have it
        description="A trained model whose trees replace the gold trees, for an encoder that needs trees: the folder "
        "of a run, a shipped model, or a hub id. null: gold trees.",
    )
    tests: Names = Field(
        description="Splits that the trained model is tested on. Empty: all available ones except train and dev."
    )


class ModelSettings(Section):
    """The sizes of the model, and its dropout outside the encoder."""

    prefix = "model."

    dim: Count = Field(description="Width of word vectors and states.")
    hidden: Count | None = Field(description="Width of the classifier's hidden layer. null: the same as dim.")
    dropout: Rate = Field(description="Dropout on the encoding and in the classifier.")
    dropout_in: Rate = Field(description="Dropout on the word vectors.")


class EncoderSettings(Section):
    """The encoder of the model."""

    prefix = "encoder."

    name: NonEmptyStr = Field(description="Name of the encoder, as in beamtree.encoders().")
    options: dict[StrictStr, EncoderOptionValue] = Field(
        description="Options of the encoder, as for beamtree.encoder(); its dim is model.dim."
    )


class OptimizerSettings(Section):
    """The optimizer."""

    prefix = "optimizer."

    name: Optimizer = Field(description="Algorithm: ranger (RAdam with Lookahead) or adamw.")
    lr: Positive = Field(description="Learning rate.")
    weight_decay: NotNegative = Field(description="Decoupled weight decay, of all parameters.")


class TrainingSettings(Section):
    """The training loop."""

    prefix = "training."

    batch_size: Count = Field(description="Samples per optimizer step.")
    micro_batch: Count = Field(
        description="Samples per forward and backward pass; gradients are accumulated over batch_size of them."
    )
    dev_batch: Count = Field(description="Samples per forward pass on the dev and test splits.")
    bucket_factor: Count = Field(description="Number of micro-batches that are sorted by length together.")
    clip: Positive = Field(description="Maximum norm of the gradient.")
    max_epochs: Count = Field(description="Maximum number of epochs.")
    patience: Count = Field(description="Stop after this many epochs without improvement on dev.")
    select: Metric = Field(description="Metric on dev that selects the best epoch.")
    plateau_factor: Fraction | None = Field(
        description="Factor that reduces the learning rate on plateau. null: the learning rate is constant."
    )
    plateau_patience: Annotated[StrictInt, Field(ge=0)] = Field(
        description="Epochs without improvement that are tolerated before the learning rate is reduced."
    )
    precision: Annotated[Precision, BeforeValidator(_text_from_integer)] = Field(
        description="Precision of training: 32, tf32 (matrix products on NVIDIA GPUs) or bf16 (autocast)."
    )
    noise_epochs: Annotated[StrictInt, Field(ge=0)] = Field(
        default=0,  # older files do not have it
        description="Epochs in which encoder.options.state_noise rises from 0 to its value, from epoch to epoch. None "
        "of them is selected as the best, and the learning rate is not reduced in them.",
    )

    @model_validator(mode="after")
    def _micro_batch_divides_batch(self) -> "TrainingSettings":
        if self.batch_size % self.micro_batch:
            sizes = f"{shortened(self.micro_batch)}: it must divide training.batch_size, {shortened(self.batch_size)}"
            raise ValueError(f"training.micro_batch is {sizes}")
        return self


class Settings(Section):
    """All settings of a run."""

    prefix = ""

    recipe: NonEmptyStr = Field(description="Name of the recipe that the settings come from.")
    seed: Annotated[StrictInt, Field(ge=0, le=2**32 - 1)] = Field(  # the limit of NumPy's seeds
        description="Seed of the initial weights, of the order of the samples, and of all noise."
    )
    data: DataSettings = Field(description=DataSettings.__doc__)
    model: ModelSettings = Field(description=ModelSettings.__doc__)
    encoder: EncoderSettings = Field(description=EncoderSettings.__doc__)
    optimizer: OptimizerSettings = Field(description=OptimizerSettings.__doc__)
    training: TrainingSettings = Field(description=TrainingSettings.__doc__)

    @model_validator(mode="after")
    def _noise_can_rise(self) -> "Settings":
        epochs, most = self.training.noise_epochs, self.training.max_epochs
        if epochs and not self.encoder.options.get("state_noise"):
            raise ValueError(f"training.noise_epochs is {shortened(epochs)}: it must be 0 without state_noise")
        if epochs >= most:
            limit = f"it must be less than training.max_epochs, {shortened(most)}"
            raise ValueError(f"training.noise_epochs is {shortened(epochs)}: {limit}")
        return self

    @model_validator(mode="after")
    def _parser_is_used(self) -> "Settings":
        parser, encoder = self.data.parser, self.encoder.name
        if parser is not None and encoder in encoders() and not needs_trees(encoder):
            raise ValueError(f"data.parser is {shortened(parser)}: it must be null, because {encoder} needs no trees")
        return self

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain types in a fixed order, as for YAML.

        Returns:
            Nested dicts.
        """
        return self.model_dump(mode="json")

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any], where: str = "config.yaml") -> "Settings":
        """Create settings from what `to_dict` returns.

        Args:
            mapping: nested dicts.
            where: the source, for error messages.

        Returns:
            The settings.

        Raises:
            ValueError: if a key is missing or unknown, or if a value is invalid.
        """
        if not isinstance(mapping, Mapping):
            raise ValueError(f"{where}: it is {shortened(mapping)}: it must be a mapping of settings")
        groups = {key: _with_text_keys(group) for key, group in _with_text_keys(mapping).items()}
        try:
            return cls(**groups)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None

    def change(self, changes: Mapping[str, Any]) -> "Settings":
        """Copy the settings with new values for some keys.

        Args:
            changes: values by keys such as "optimizer.lr" and "encoder.options.beam_size".

        Returns:
            A new object.

        Raises:
            ValueError: if a key is unknown, or if a value is invalid.
        """
        values = self.to_dict()
        for key, value in changes.items():
            first, *rest = key.split(".")
            if key in _SECTIONS:
                raise ValueError(f"{key} is a group of settings: change one of {', '.join(keys(_SECTIONS[key]))}")
            if len(rest) >= 2 and f"{first}.{rest[0]}" in OPTIONS:
                options = values[first][rest[0]]
                if isinstance(options, Mapping):  # otherwise validation fails below
                    values[first][rest[0]] = {**options, ".".join(rest[1:]): value}
            elif key in keys(Settings):
                (values[first] if rest else values)[key.rpartition(".")[2]] = value
            else:
                raise ValueError(unknown_key(key))
        return Settings(**values)


_SECTIONS: dict[str, type[Section]] = {
    name: field.annotation
    for name, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}
_S = TypeVar("_S", bound=Section)


def replace(section: _S, **changes: Any) -> _S:
    """A validated copy with new values for some fields, like `dataclasses.replace`."""
    return type(section)(**{**dict(section), **changes})


def keys(section: type[Section]) -> list[str]:
    """The keys of all settings (`keys(Settings)`), or of one group."""
    names = [f"{section.prefix}{name}" for name in section.model_fields]
    return [key for name in names for key in (keys(_SECTIONS[name]) if name in _SECTIONS else [name])]


def unknown_key(key: str) -> str:
    """The error message for an unknown key. It suggests the closest one, also if only the group is missing."""
    section = _SECTIONS.get(key.partition(".")[0], Settings)
    full = [known for known in keys(Settings) if known.endswith(f".{key}")]
    if len(full) == 1:
        return f"unknown setting {key!r} (did you mean {full[0]!r}?)"
    return unknown("setting", cut(key), keys(section))


def schema() -> dict[str, Any]:
    """Create the JSON Schema of a recipe file, for editors.

    All keys are optional, as `like` may supply them. The schema of the settings in a `config.yaml`, where all are
    required, is `Settings.model_json_schema()`.

    Returns:
        The schema.

    Examples:
        >>> from beamtree.runs.settings import schema
        >>> sorted(schema()["properties"])[:3]
        ['about', 'data', 'encoder']
    """
    settings = Settings.model_json_schema()
    definitions = settings["$defs"]
    options = definitions.pop("EncoderSettings")["properties"]["options"]
    for definition in definitions.values():
        del definition["required"]
    task = definitions["DataSettings"]["properties"]["task"]
    task["type"] = [task["type"], "null"]
    task["description"] += " null: the command must give it."
    sections = {name: settings["properties"][name] for name in _SECTIONS if name != "encoder"}
    definitions["EncoderName"] = {"anyOf": [{"enum": encoders()}, {"type": "string"}]}  # for completion
    definitions["EncoderOverrides"] = {
        "description": "Options of this encoder, and the settings that differ for it.",
        "type": ["object", "null"],
        "properties": {"options": options, **sections},
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "beamtree recipe",
        "description": "Settings for training on a data set, with overrides per encoder.",
        "type": "object",
        "properties": {
            "like": {"description": "The recipe that this one extends: a name or a path.", "type": "string"},
            "about": {"description": "What the recipe trains, in one line.", "type": "string"},
            "encoder": {"description": "The default encoder.", "$ref": "#/$defs/EncoderName"},
            **sections,
            "encoders": {
                "description": "The encoders that can be trained with this recipe, with overrides for each.",
                "type": "object",
                "propertyNames": {"$ref": "#/$defs/EncoderName"},
                "additionalProperties": {"$ref": "#/$defs/EncoderOverrides"},
            },
        },
        "additionalProperties": False,
        "$defs": definitions,
    }


def cut(text: str) -> str:
    """Truncate text to the maximum length of a value in an error message."""
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


class _ShortRepr(reprlib.Repr):
    """A `repr` of limited size: a small YAML file with aliases can expand to billions of items."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 3, LONGEST_VALUE, LONGEST_VALUE

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() < 1000 else f"an integer of {x.bit_length()} bits"


def shortened(value: object) -> str:
    """The `repr` of a value for an error message."""
    return cut(_ShortRepr().repr(value))


def _with_text_keys(value: Any) -> Any:
    """Convert the keys of a mapping to strings; any other value is returned unchanged."""
    if not isinstance(value, Mapping):
        return value
    return {key if isinstance(key, str) else shortened(key): each for key, each in value.items()}


def _message(section: type[Section], values: Mapping[str, Any], error: ValidationError) -> str:
    """The first error in one line. Unknown keys have priority, since the correct key is then missing, too."""
    first = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
    kind, location = first["type"], first["loc"]
    if kind == "value_error":  # from a section or a validator, which has a message
        return str(first["ctx"]["error"])
    name = str(location[0])
    key = f"{section.prefix}{name}"
    if kind == "extra_forbidden":
        known = [f"{section.prefix}{name}" for name in section.model_fields]
        return unknown("setting", cut(key), known)
    if kind == "missing":
        return f"{key} is missing"
    value = values[name]
    if key in _SECTIONS:
        return f"{key} is {shortened(value)}: it must be a mapping of settings"
    allowed = section.model_json_schema()["properties"][name]
    if key in OPTIONS and len(location) > 1 and location[-1] != "[key]":
        key, value, allowed = f"{key}.{cut(str(location[1]))}", first["input"], allowed["additionalProperties"]
    return f"{key} is {shortened(value)}: it must be {_in_words(allowed)}"


def _in_words(allowed: Mapping[str, Any]) -> str:
    """A schema in words: {"type": "integer", "minimum": 1} → 'an integer of at least 1'."""
    if "anyOf" in allowed:
        *others, last = map(_in_words, allowed["anyOf"])
        return f"{', '.join(others)}, or {last}"
    if "enum" in allowed:
        return f"one of {', '.join(allowed['enum'])}"
    if allowed["type"] in ("integer", "number"):
        return f"{'an integer' if allowed['type'] == 'integer' else 'a number'}{_limits(allowed)}"
    return {
        "string": "a non-empty string" if "minLength" in allowed else "a string",
        "boolean": "true or false",
        "null": "null",
        "array": "a list of names",
        "object": "a mapping of options",
    }[allowed["type"]]


def _limits(allowed: Mapping[str, Any]) -> str:
    match allowed:
        case {"minimum": low, "maximum": high}:
            return f" from {low} to {high}"
        case {"minimum": low, "exclusiveMaximum": high}:
            return f" from {low} up to but not including {high}"
        case {"exclusiveMinimum": low, "exclusiveMaximum": high}:
            return f" between {low} and {high}"
        case {"minimum": low}:
            return f" of at least {low}"
        case {"exclusiveMinimum": low}:
            return f" above {low}"
    return ""
