"""How `torch.compile` and `torch.export` handle an encoder. Imported only while one of them runs: it loads Dynamo.

When no gradient is required, and in exported programs, an encoder is a single operator of the graph (see
`beamtree.nn.operator`). In training it runs eagerly between two graphs: the operator would encode twice, in the forward
and in the backward pass, while a graph break costs microseconds.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from beamtree.nn.beams import Encoding
from beamtree.nn.description import describe, named_weights
from beamtree.nn.encoders.base import Encoder
from beamtree.nn.operator import Fields, to_encoding


def call(encoder: Encoder, method: Callable[..., Encoding], x: Tensor, lengths: Tensor, *given: Any) -> Encoding:
    """Call `method` of the encoder with x, lengths and the further arguments `given`, where None is a default."""
    needs_objects = any(argument is not None for argument in given)
    if torch.compiler.is_exporting():
        try:
            if needs_objects or encoder.needs_trees:
                raise ValueError("trees and generators are Python objects")
            return operate(encoder, describe(encoder), x, lengths)
        except ValueError as error:
            raise RuntimeError(
                f"torch.export cannot export {type(encoder).__name__}: {error}. Export the rest of the model, and call "
                "the encoder from Python"
            ) from None
    if not needs_objects and not encoder.needs_trees and not torch.is_grad_enabled():
        _watch(encoder)
        description = encoder._description()
        if description:
            return operate(encoder, description, x, lengths)
    return run_eagerly(encoder, method, x, lengths, *given)


def operate(encoder: Encoder, description: str, x: Tensor, lengths: Tensor) -> Encoding:
    device = x.device.type
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    seed = torch.randint(2**62, (), device="cpu")
    weights = [tensor for _, tensor in named_weights(encoder)]
    found = torch.ops.beamtree.encode(x, lengths, seed, weights, description, encoder.training, autocast)
    return to_encoding(Fields(*found), lengths, encoder.dim)


@torch.compiler.disable(reason="an encoder in training runs between two graphs")
def run_eagerly(encoder: Encoder, method: Callable[..., Encoding], x: Tensor, lengths: Tensor, *given: Any) -> Encoding:
    """Encode without compiling anything."""
    return encoder._run(method, x, lengths, *given)


def _watch(encoder: Encoder) -> None:
    """Compare all options with their values at compile time: this installs guards that recompile on a change."""
    for name, value in zip(encoder.OPTIONS, encoder._options(), strict=True):
        if value is not None and getattr(encoder, name, None) != value:
            raise AssertionError(name)


torch.compiler.assume_constant_result(Encoder._description)
torch.compiler.assume_constant_result(Encoder._options)
