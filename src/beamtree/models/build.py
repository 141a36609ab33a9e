"""Build models from their configuration."""

import torch
from jaxtyping import Float
from torch import Tensor

from beamtree.models.config import Config
from beamtree.models.heads import Model, PairClassifier, TextClassifier
from beamtree.nn.encoders import encoder


def build(config: Config, vocabulary_size: int, pretrained: Float[Tensor, "V D"] | None = None) -> Model:
    """Build a model with initial weights. `pretrained` are the word vectors, if the configuration names any."""
    if (config.vectors is None) != (pretrained is None):
        given = "no vectors are given" if pretrained is None else "vectors are given"
        raise ValueError(f"data.vectors is {config.vectors!r} and {given}: give both or neither")
    if "dim" in config.encoder_options:
        raise ValueError("encoder.options.dim is not a setting: the width of the encoder is model.dim")
    return (PairClassifier if config.pair else TextClassifier)(
        encoder(config.encoder, dim=config.dim, **config.encoder_options),
        vocabulary_size,
        classes=len(config.labels),
        dropout=config.dropout,
        dropout_in=config.dropout_in,
        hidden=config.hidden,
        pretrained=pretrained,
    )


def build_empty(config: Config, vocabulary_size: int, where: object) -> Model:
    """Build a model whose weights will be loaded. `where` names its file in error messages."""
    frozen = None if config.vectors is None else torch.zeros(vocabulary_size, config.dim)
    try:
        return build(config, vocabulary_size, frozen)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
