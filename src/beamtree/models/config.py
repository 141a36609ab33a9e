"""The configuration of a model: everything in `config.yaml` that is needed to build it and to tokenise texts for it.

A model needs the encoder, its sizes, the labels, and how its texts were tokenised. The rest of the file, the settings
of the run that trained it, is read by `beamtree.runs.settings`; here it is kept unchanged in `Config.document`, so
saving a loaded model loses nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from beamtree import __version__
from beamtree.utils.checks import check_integer, check_rate

# Keys that a model adds to the settings of its run, with their types.
OWN_KEYS: dict[str, type] = {"labels": list, "pair": bool, "closed_vocabulary": bool, "beamtree": str}
_LONGEST_MESSAGE = 600  # characters
_LONGEST_VERSION = 20


@dataclass(frozen=True)
class Config:
    """The configuration of a model, from `config.yaml`.

    Attributes:
        encoder: name of the encoder.
        encoder_options: its options.
        task: name of the task in `beamtree.data.TASKS`, or the path of your own data.
        data_options: options of the task.
        tests: splits that the model is evaluated on by default; empty: all except train and dev.
        vectors: name of pretrained word vectors, which stay frozen; None: learned.
        parser: the model whose trees the encoder composes along, as it was named in training; None: gold trees, or
            those that the encoder finds.
        dim: width of word vectors and states.
        hidden: width of the classifier; None: dim.
        dropout: dropout on the encoding and in the classifier.
        dropout_in: dropout on the word vectors.
        labels: names of the labels.
        pair: whether the model takes pairs of texts.
        closed_vocabulary: whether the texts are of a formal language, which has no unknown words.
        document: the contents of `config.yaml`.

    Examples:
        >>> config = beamtree.load("listops-bt-grc").config
        >>> config.encoder, config.dim, config.pair
        ('bt-grc', 128, False)
    """

    encoder: str
    encoder_options: dict[str, Any]
    task: str
    data_options: dict[str, Any]
    tests: tuple[str, ...]
    vectors: str | None
    parser: str | None
    dim: int
    hidden: int | None
    dropout: float
    dropout_in: float
    labels: tuple[str, ...]
    pair: bool
    closed_vocabulary: bool
    document: dict[str, Any] = field(repr=False)

    @classmethod
    def from_document(cls, document: Any, where: object = "config.yaml") -> "Config":
        """Read the contents of `config.yaml`.

        Args:
            document: the contents, parsed.
            where: the file, for error messages.

        Returns:
            The configuration.

        Raises:
            ValueError: if a key is missing or has an invalid value.
        """
        try:
            return cls._read(document)
        except ValueError as error:
            raise config_error(f"{where}: {error}", document) from None

    @classmethod
    def _read(cls, document: Any) -> "Config":
        if not isinstance(document, Mapping):
            raise ValueError(f"it contains {type(document).__name__}, not the settings of a run")
        for key, kind in OWN_KEYS.items():
            if key not in document:
                raise ValueError(f"the key {key} is missing")
            if not isinstance(document[key], kind):
                raise ValueError(f"{key} is {document[key]!r}: it must be of type {kind.__name__}")
        labels = document["labels"]
        if len(labels) < 2 or not all(isinstance(label, str) for label in labels) or len(set(labels)) < len(labels):
            raise ValueError(f"labels is {labels!r}: it must be a list of two or more different strings")
        vectors, hidden = _find(document, "data.vectors"), _find(document, "model.hidden")
        return cls(
            encoder=_text(document, "encoder.name"),
            encoder_options=_options(document, "encoder.options", (bool, int, float, str, type(None))),
            task=_text(document, "data.task"),
            data_options=_options(document, "data.options", (bool, int, float, str)),
            tests=_names(document, "data.tests"),
            vectors=None if vectors is None else _text(document, "data.vectors"),
            parser=None if document["data"].get("parser") is None else _text(document, "data.parser"),
            dim=_integer(document, "model.dim"),
            hidden=None if hidden is None else _integer(document, "model.hidden"),
            dropout=_rate(document, "model.dropout"),
            dropout_in=_rate(document, "model.dropout_in"),
            labels=tuple(labels),
            pair=document["pair"],
            closed_vocabulary=document["closed_vocabulary"],
            document=dict(document),
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The part of the document that holds the settings of the run."""
        return {key: value for key, value in self.document.items() if key not in OWN_KEYS}


def make_config(settings: Mapping[str, Any], labels: tuple[str, ...], pair: bool, closed_vocabulary: bool) -> Config:
    """Create the configuration of a model that is trained with these settings, given as a nested dictionary."""
    own = {"labels": list(labels), "pair": pair, "closed_vocabulary": closed_vocabulary, "beamtree": __version__}
    return Config.from_document({**settings, **own})


def config_error(message: str, document: Any) -> ValueError:
    """The error for a `config.yaml` that cannot be used. If another version wrote the file, the message says so."""
    half = _LONGEST_MESSAGE // 2
    if len(message) > _LONGEST_MESSAGE:  # it may quote the file, which can be of any size
        message = f"{message[:half]} … {message[-half:]}"
    written_by = document.get("beamtree") if isinstance(document, Mapping) else None
    if isinstance(written_by, str) and written_by != __version__:
        version = " ".join(written_by.split())[:_LONGEST_VERSION]
        message += f" (it was written by beamtree {version}, and this is {__version__})"
    return ValueError(message)


def _find(document: Mapping[str, Any], key: str) -> Any:
    section, name = key.split(".")
    if section not in document:
        raise ValueError(f"{section} is missing")
    group = document[section]
    if not isinstance(group, Mapping):
        raise ValueError(f"{section} is {group!r}: it must be a mapping of settings")
    if name not in group:
        raise ValueError(f"{key} is missing")
    return group[name]


def _text(document: Mapping[str, Any], key: str) -> str:
    value = _find(document, key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key} is {value!r}: it must be a non-empty string")
    return value


def _integer(document: Mapping[str, Any], key: str) -> int:
    value = _find(document, key)
    check_integer(key, value, at_least=1)
    return int(value)


def _rate(document: Mapping[str, Any], key: str) -> float:
    value = _find(document, key)
    check_rate(key, value)
    return float(value)


def _options(document: Mapping[str, Any], key: str, allowed: tuple[type, ...]) -> dict[str, Any]:
    value = _find(document, key)
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{key} is {value!r}: it must be a mapping of options")
    for name, option in value.items():
        if not isinstance(option, allowed):
            raise ValueError(f"{key}.{name} is {option!r}: it must be a boolean, a number or a string")
    return dict(value)


def _names(document: Mapping[str, Any], key: str) -> tuple[str, ...]:
    section, name = key.split(".")
    value = document[section].get(name, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{key} is {value!r}: it must be a list of names")
    return tuple(value)
