"""Helpers for the engines' autograd functions."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Backward = Callable[..., tuple[Tensor | None, ...]]

BY_REFERENCE = (
    'this engine has no second derivative: build the encoder with engine="reference", which autograd differentiates '
    "any number of times"
)


def save(ctx: Any, inputs: Sequence[Tensor], *others: Tensor | None) -> None:
    """Save the inputs that may require a gradient, and the other tensors that `backward` reads.

    PyTorch then raises an error if one of them is modified in-place before the backward pass.
    """
    ctx.inputs = len(inputs)
    ctx.save_for_backward(*inputs, *others)


def first_order(backward: Backward) -> Backward:
    """Decorator for a `backward(ctx, inputs, others, *gradients)` that autograd does not differentiate.

    It receives the tensors from `save`. Computing a second derivative through its results raises an error, whose
    message is `ctx.refusal` if `forward` has set it, where no reference engine computes the same.

    `torch.autograd.function.once_differentiable` raises only if the second derivative depends on the incoming
    gradients. One that depends on the inputs alone would be silently incomplete.
    """

    @functools.wraps(backward)
    def wrapper(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once: checkpointing recomputes it on each access
        inputs, others = saved[: ctx.inputs], saved[ctx.inputs :]
        with torch.no_grad():
            found = backward(ctx, inputs, others, *gradients)
        if not torch.is_grad_enabled():  # no second derivative is required
            return found
        through = [tensor for tensor in (*inputs, *gradients) if tensor is not None and tensor.requires_grad]
        tensors = [tensor for tensor in found if tensor is not None]
        refusal = getattr(ctx, "refusal", BY_REFERENCE)
        marked = iter(FirstOrderOnly.apply(refusal, len(tensors), *tensors, *through))
        return tuple(None if tensor is None else next(marked) for tensor in found)

    return wrapper


class FirstOrderOnly(torch.autograd.Function):
    """The identity on gradients, connected to all that a second derivative may depend on; its backward raises."""

    @staticmethod
    def forward(ctx: Any, refusal: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.refusal = refusal
        return tuple(tensor.view_as(tensor) for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        raise RuntimeError(ctx.refusal)


def watched(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Copies of weights, for a function that is recomputed in the backward pass.

    PyTorch raises an error if one of the weights is modified in-place before that, as it does for tensors saved by
    autograd.
    """
    return tuple(Watched.apply(tensor) for tensor in tensors)


class Watched(torch.autograd.Function):
    """A copy that saves its input."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        ctx.save_for_backward(tensor)
        return tensor.clone()  # a view is not allowed here

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        _ = ctx.saved_tensors  # checks the version counters
        return gradient
