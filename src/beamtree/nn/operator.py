"""Encoders as a single PyTorch operator, `torch.ops.beamtree.encode`.

`torch.compile` uses it at inference, and `torch.export` puts it into exported programs.

The operator is a function of tensors: the inputs, a seed and the weights. A string describes everything else about the
encoder (see `beamtree.nn.description`). An exported program therefore holds no Python objects, and runs wherever
beamtree can be imported.

The backward pass encodes again: it gets the inputs and the seed, but not the state that an engine keeps of the forward
pass, such as a workspace on the GPU. Therefore `torch.compile` uses the operator only when no gradient is required.

Letters: B batch, N length, D width of inputs and encodings, K beams, M = N−1 merges, S width of a node's state.
"""

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from beamtree.nn.beams import Beams, Encoding
from beamtree.nn.description import beam_shape, build, in_thread, named_weights
from beamtree.nn.engine.chart import Chart

_calling = threading.RLock()  # `functional_call` modifies the module during a call


class Fields(NamedTuple):
    """An `Encoding` as tensors that share no memory with each other. K is 0 if there are no beams."""

    state: Tensor  # (B, D)
    log_probs: Tensor  # (B, K)
    scores: Tensor  # (B, K)
    store: Tensor  # (B·N + B·K·M, S): all leaves, then the nodes of each beam, in the same order for all engines
    actions: Tensor  # (B, K, M)
    nodes: Tensor  # (B, K, M)
    spans: Tensor  # (B, K, M, 2)


FLOATS = 4  # number of fields with a gradient; they come first
OperatorOutput = tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor
]  # an operator cannot return a named tuple


@torch.library.custom_op("beamtree::encode", mutates_args=())
def encode(
    x: Tensor,
    lengths: Tensor,
    seed: Tensor,
    weights: Sequence[Tensor],
    description: str,
    training: bool,
    autocast: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Encode a batch with an encoder that is given by its description and its weights.

    Args:
        x: input vectors (B, N, D).
        lengths: lengths of the samples (B,).
        seed: seed of noise and dropout, a scalar tensor on the CPU.
        weights: tensors of the encoder's `named_weights`.
        description: the encoder's description, from `describe`.
        training: whether the encoder is in training mode.
        autocast: dtype of autocast; None if it is disabled.
    """
    with torch.no_grad():
        found = _encode(x, lengths, seed, weights, description, training, autocast)
    state, log_probs, scores, store, actions, nodes, spans = (field.clone().contiguous() for field in found)
    return state, log_probs, scores, store, actions, nodes, spans


@encode.register_fake
def _(
    x: Tensor,
    lengths: Tensor,
    seed: Tensor,
    weights: Sequence[Tensor],
    description: str,
    training: bool,
    autocast: torch.dtype | None,
) -> OperatorOutput:
    (B, N, D), (K, S), dtype = x.shape, beam_shape(description), weights[0].dtype
    floats = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    log_probs, scores = (x.new_empty(B, K, dtype=floats) for _ in range(2))
    store = x.new_empty(B * N + B * K * (N - 1) if K else 0, S, dtype=floats)
    actions, nodes = (lengths.new_empty(B, K, N - 1, dtype=torch.long) for _ in range(2))
    spans = lengths.new_empty(B, K, N - 1, 2, dtype=torch.long)
    return x.new_empty(B, D, dtype=dtype), log_probs, scores, store, actions, nodes, spans


@torch.library.custom_op("beamtree::encode_backward", mutates_args=())
def encode_backward(
    gradients: Sequence[Tensor],
    x: Tensor,
    lengths: Tensor,
    seed: Tensor,
    weights: Sequence[Tensor],
    description: str,
    training: bool,
    autocast: torch.dtype | None,
) -> list[Tensor]:
    """The gradients of x and of the weights, given the gradients of the floating-point fields."""
    stream = torch.cuda.current_stream(x.device) if x.is_cuda else None
    arguments = (gradients, x, lengths, seed, weights, description, training, autocast)
    return in_thread(_differentiate, *arguments, stream=stream)


@encode_backward.register_fake
def _(
    gradients: Sequence[Tensor],
    x: Tensor,
    lengths: Tensor,
    seed: Tensor,
    weights: Sequence[Tensor],
    description: str,
    training: bool,
    autocast: torch.dtype | None,
) -> list[Tensor]:
    return [torch.empty_like(tensor) for tensor in (x, *weights)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: OperatorOutput) -> None:
    x, lengths, seed, weights, *ctx.options = inputs
    ctx.save_for_backward(x, lengths, seed, *weights)


def _backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
    x, lengths, seed, *weights = ctx.saved_tensors
    d_x, *d_weights = encode_backward(list(gradients[:FLOATS]), x, lengths, seed, weights, *ctx.options)
    return d_x, None, None, d_weights, None, None, None


encode.register_autograd(_backward, setup_context=_save)


def _differentiate(
    gradients: Sequence[Tensor], x: Tensor, lengths: Tensor, seed: Tensor, weights: Sequence[Tensor], *options: Any
) -> list[Tensor]:
    inputs = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in (x, *weights)]
    found = _encode(inputs[0], lengths, seed, inputs[1:], *options)
    pairs = zip(found[:FLOATS], gradients, strict=True)
    outputs, given = zip(*((field, gradient) for field, gradient in pairs if field.requires_grad), strict=True)
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    down = iter(torch.autograd.grad(outputs, wanted, given, allow_unused=True, materialize_grads=True))
    return [next(down).clone() if tensor.requires_grad else torch.zeros_like(tensor) for tensor in inputs]


def _encode(
    x: Tensor,
    lengths: Tensor,
    seed: Tensor,
    weights: Sequence[Tensor],
    description: str,
    training: bool,
    autocast: torch.dtype | None,
) -> Fields:
    module = build(description)
    names = [name for name, _ in named_weights(module)]
    generator = torch.Generator(x.device).manual_seed(int(seed))
    products = nullcontext() if autocast is None else torch.autocast(x.device.type, autocast)
    with _calling, products:
        module.train(training)
        found: Encoding = functional_call(module, dict(zip(names, weights, strict=True)), (x, lengths, generator))
    (B, N, _), state, beams = x.shape, found.state, found.beams
    if beams is None:
        none, spans = state.new_empty(B, 0), lengths.new_empty(B, 0, N - 1, 2, dtype=torch.long)
        return Fields(state, none, none, state.new_empty(0, 0), spans[..., 0], spans[..., 0], spans)
    chart = beams.chart
    store = torch.cat((chart.store[: B * N], chart.store.index_select(0, chart.nodes.flatten())))
    nodes = torch.arange(B * N, len(store), device=store.device).view_as(chart.nodes)
    return Fields(state, beams.log_probs, chart.scores, store, chart.actions, nodes, chart.spans)


def to_encoding(fields: Fields, lengths: Tensor, dim: int) -> Encoding:
    if fields.log_probs.shape[1] == 0:
        return Encoding(fields.state)
    chart = Chart(fields.store, fields.scores, fields.actions, fields.nodes, fields.spans)
    return Encoding(fields.state, Beams(fields.log_probs, chart, lengths, dim))


for dataclass in (Chart, Beams, Encoding):  # exported programs can return them
    torch.export.register_dataclass(dataclass, serialized_type_name=f"beamtree.{dataclass.__name__}")
