"""What the autograd functions of the engines have in common."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Backward = Callable[..., tuple[Tensor | None, ...]]


def save(ctx: Any, inputs: Sequence[Tensor], *others: Tensor | None) -> None:
    """Save the inputs that may need a gradient, and whatever else `backward` reads. PyTorch then raises if one of them
    is changed in place before backward."""
    ctx.inputs = len(inputs)
    ctx.save_for_backward(*inputs, *others)


def first_order(backward: Backward) -> Backward:
    """Decorates a `backward(ctx, inputs, others, *gradients)` that autograd does not differentiate. It gets what `save`
    saved, and computing a second derivative through its results raises an error.

    `torch.autograd.function.once_differentiable` raises only where a second derivative goes through the incoming
    gradients. One that goes through the inputs alone would be incomplete without a word.
    """

    @functools.wraps(backward)
    def wrapper(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once: checkpointing computes it anew each time
        inputs, others = saved[: ctx.inputs], saved[ctx.inputs :]
        with torch.no_grad():
            found = backward(ctx, inputs, others, *gradients)
        if not torch.is_grad_enabled():  # no graph of this backward pass is wanted
            return found
        through = [tensor for tensor in (*inputs, *gradients) if tensor is not None and tensor.requires_grad]
        tensors = [tensor for tensor in found if tensor is not None]
        marked = iter(FirstOrderOnly.apply(len(tensors), *tensors, *through))
        return tuple(None if tensor is None else next(marked) for tensor in found)

    return wrapper


class FirstOrderOnly(torch.autograd.Function):
    """The identity on gradients, connected to all that a second derivative might go through, where it raises."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.view_as(tensor) for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        raise RuntimeError(
            'this engine has no second derivative: build the encoder with engine="reference", which autograd '
            "differentiates any number of times"
        )


def watched(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Copies of weights, for a function that backward computes again: if one of the weights is changed in place before
    that, PyTorch raises, as it does for tensors that autograd itself has saved."""
    return tuple(Watched.apply(tensor) for tensor in tensors)


class Watched(torch.autograd.Function):
    """A copy, which saves its input."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        ctx.save_for_backward(tensor)
        return tensor.clone()  # PyTorch forbids views here

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        _ = ctx.saved_tensors  # compares versions
        return gradient
