"""Loops of many small steps, in segments that are captured in CUDA graphs, where launching dominates.

A step takes a carry and its own inputs, and makes the next carry and a state to be kept. One graph runs a segment of T
steps without gradients. Backward goes from the last segment to the first: a second graph runs the segment again under
autograd, given the states that it made, and takes its gradient there. Between the two only these states are kept, the
carry before each segment, and the masks, unless they can be drawn again.

A graph fits segments of one size. Its buffers, a copy of the weights among them, stay where they are: everything is
copied in before each run and out after it. The last segment of a loop is filled up with steps whose inputs and masks
are zero. Under autocast steps are computed in float32 all the same.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Shaped
from torch import Tensor

from beamtree.nn.engine.gpu.cache import CACHE
from beamtree.nn.engine.gpu.capture import Captured, stream_of
from beamtree.nn.engine.gpu.precision import precision
from beamtree.nn.function import first_order, save

MAX_STEPS = 16  # of a segment: with more, more are run for nothing in the last one
MAX_BYTES = 2**29  # of activations that backward holds of a segment, about

Carry = tuple[Tensor, ...]  # its integers have no gradient
Masks = Sequence[Tensor | None]  # whatever has no gradient, such as what dropout keeps, the steps first
Draw = Callable[[range], Masks]  # the masks of these steps


class Segment(NamedTuple):
    """The results of a segment of T steps."""

    carry: Carry  # after the last step
    states: Shaped[Tensor, "T *state"]
    notes: Shaped[Tensor, "T *note"]  # what else is to be known of each step, without a gradient


@runtime_checkable
class Loop(Protocol):
    """A loop that can be captured: a function of tensors. Without its weights it is hashable, and equal for loops that
    compute the same function of carry, inputs, masks and weights."""

    @property
    def weights(self) -> tuple[Tensor, ...]: ...

    @property
    def unbound(self) -> "Loop":
        """Without its weights."""

    def bind(self, weights: Sequence[Tensor]) -> "Loop":
        """The same function of other weights."""

    def segment(
        self, carry: Carry, inputs: tuple[Tensor, ...], masks: Masks, made: Tensor | None
    ) -> tuple[Carry, Tensor, Tensor]:
        """As many steps as the inputs have; `made` are their states where these are known and only a gradient is
        wanted. It must not synchronise with the device, draw, or depend on what is in the tensors."""

    def step_bytes(self, carry: Carry) -> int:
        """Of the activations of a step, about."""


class LoopResult(NamedTuple):
    """The results of a loop."""

    states: Shaped[Tensor, "N *state"]
    notes: Shaped[Tensor, "N *note"]
    carry: Carry  # after the last step, and those that fill up its segment


class LoopGradients(NamedTuple):
    """The gradients of all that a segment was computed from."""

    carry: Carry  # before the first step, its floats
    inputs: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]


def run(
    loop: Loop,
    carry: Carry,
    inputs: tuple[Tensor, ...],
    draw: Draw,
    steps: int,
    redraw: bool = False,
    should_stop: Callable[[Carry], bool] | None = None,
) -> LoopResult:
    """All steps, of which there is at least one, or segments until `should_stop`.

    inputs: (N, …), for each of the steps.
    draw: is called for one segment after the other.
    redraw: whether it can be called again in backward, so that masks need not be kept.
    should_stop: looks at the carry after a segment.
    """
    spec = LoopSpec(loop.unbound, draw, steps, redraw, should_stop, len(carry), len(carry) + len(inputs))
    states, notes, *after = RunLoop.apply(spec, *carry, *inputs, *loop.weights)
    return LoopResult(states, notes, tuple(after))


class LoopSpec(NamedTuple):
    """What `RunLoop` is given besides tensors, which are the carry, the inputs and the weights."""

    loop: Loop  # unbound
    draw: Draw
    steps: int
    redraw: bool
    should_stop: Callable[[Carry], bool] | None
    inputs: int  # the place of the first input among the tensors …
    weights: int  # … and of the first weight

    def segment_steps(self, carry: Carry) -> int:
        return max(min(MAX_STEPS, MAX_BYTES // max(self.loop.step_bytes(carry), 1)), 1)


class RunLoop(torch.autograd.Function):
    """(carry, inputs, weights) → states, notes, carry."""

    @staticmethod
    def forward(ctx: Any, spec: LoopSpec, *tensors: Tensor) -> tuple[Tensor, ...]:
        carry, inputs, weights = tensors[: spec.inputs], tensors[spec.inputs : spec.weights], tensors[spec.weights :]
        T, found, starts = spec.segment_steps(carry), [], []
        kept: list[Tensor | None] = []
        masks = spec.draw(range(min(T, spec.steps)))
        with in_float32(tensors[0].device), captured_segments(spec.loop, T, carry, inputs, masks, weights) as graphs:
            for first in range(0, spec.steps, T):
                steps = slice(first, min(first + T, spec.steps))
                if first:
                    masks = spec.draw(range(spec.steps)[steps])
                kept += carry if spec.redraw else (*carry, *masks)
                starts.append(first)
                segment = graphs.forward_segment(carry, tuple(tensor[steps] for tensor in inputs), masks)
                carry = tuple(tensor.clone() for tensor in segment.carry)
                found.append(tuple(part[: steps.stop - first].clone() for part in (segment.states, segment.notes)))
                if spec.should_stop is not None and spec.should_stop(carry):
                    break
            states, notes = (torch.cat(parts) for parts in zip(*found, strict=True))
        ctx.spec, ctx.T, ctx.starts = spec, T, starts
        save(ctx, tensors, states, *kept)
        ctx.mark_non_differentiable(notes, *(tensor for tensor in carry if not tensor.is_floating_point()))
        return states, notes, *carry

    @staticmethod
    @first_order
    def backward(
        ctx: Any, tensors: Sequence[Tensor], others: Sequence[Any], gradient: Tensor, _: Tensor, *d_carry: Tensor
    ) -> tuple[Tensor | None, ...]:
        spec, (states, *kept) = ctx.spec, others
        inputs, weights, C = tensors[spec.inputs : spec.weights], tensors[spec.weights :], spec.inputs
        each = len(kept) // len(ctx.starts)  # tensors that were kept for a segment: its carry and masks
        d_inputs = tuple(torch.zeros_like(tensor) for tensor in inputs)
        d_weights = [torch.zeros_like(weight) for weight in weights]
        d_carry = floats(d_carry, tensors[:C])

        def masks_of(number: int) -> Masks:
            first = ctx.starts[number]
            redrawn = range(spec.steps)[first : first + ctx.T]
            return spec.draw(redrawn) if spec.redraw else kept[number * each + C : (number + 1) * each]

        masks = masks_of(len(ctx.starts) - 1)
        carry = kept[:C]
        with in_float32(states.device), captured_segments(spec.loop, ctx.T, carry, inputs, masks, weights) as graphs:
            for number, first in reversed(list(enumerate(ctx.starts))):
                steps = slice(first, min(first + ctx.T, spec.steps))
                before = kept[number * each : number * each + C]
                if number < len(ctx.starts) - 1:
                    masks = masks_of(number)
                given = tuple(tensor[steps] for tensor in inputs)
                found = graphs.backward_segment(before, given, masks, states[steps], gradient[steps], d_carry)
                d_carry = tuple(tensor.clone() for tensor in found.carry)
                for whole, part in zip(d_inputs, found.inputs, strict=True):
                    whole[steps] = part[: steps.stop - first]
                torch._foreach_add_(d_weights, list(found.weights))
        found_carry = iter(d_carry)
        all_carry = (next(found_carry) if tensor.is_floating_point() else None for tensor in tensors[:C])
        return None, *all_carry, *d_inputs, *d_weights


class CapturedSegments:
    """Captured segments of T steps."""

    def __init__(
        self,
        loop: Loop,
        T: int,
        carry: Sequence[Tensor],
        inputs: Sequence[Tensor],
        masks: Masks,
        weights: Sequence[Tensor],
    ) -> None:
        self.T, self.bytes = T, T * loop.step_bytes(tuple(carry))
        # Gradients are computed for all of them, also for what the user has frozen.
        self.loop = loop.bind([torch.zeros_like(weight).requires_grad_() for weight in weights])
        self.carry = tuple(torch.zeros_like(tensor) for tensor in carry)
        self.d_carry = tuple(torch.zeros_like(tensor) for tensor in floats(carry))
        self.inputs = tuple(tensor.new_zeros(T, *tensor.shape[1:]) for tensor in inputs)
        self.masks = tuple(None if mask is None else mask.new_zeros(T, *mask.shape[1:]) for mask in masks)
        self.made: tuple[Tensor, Tensor] | None = None  # states and their gradient, from the first backward on
        self.forward: Captured[Segment] = Captured(carry[0].device)
        self.backward: Captured[LoopGradients] = Captured(carry[0].device)

    def copy_weights(self, weights: Sequence[Tensor]) -> None:
        torch._foreach_copy_(list(self.loop.weights), list(weights))

    def forward_segment(self, carry: Sequence[Tensor], inputs: Sequence[Tensor], masks: Masks) -> Segment:
        """The segment; the result is overwritten by the next run."""
        fill((*self.carry, *self.inputs, *self.masks), (*carry, *inputs, *masks))
        return self.forward.run(lambda: Segment(*self.loop.segment(self.carry, self.inputs, self.masks, None)))

    def backward_segment(
        self,
        carry: Sequence[Tensor],
        inputs: Sequence[Tensor],
        masks: Masks,
        states: Shaped[Tensor, "T *state"],
        gradient: Shaped[Tensor, "T *state"],
        d_carry: Sequence[Tensor],
    ) -> LoopGradients:
        """From the gradient of a segment's states, and of the carry after it, to that of all it was computed from; the
        result is overwritten by the next run."""
        if self.made is None:
            room = (self.T, *states.shape[1:])
            self.made = states.new_zeros(room), states.new_zeros(room)
        made = self.made
        fill((*self.carry, *self.inputs, *self.masks), (*carry, *inputs, *masks))
        fill((*made, *self.d_carry), (states, gradient, *d_carry))
        return self.backward.run(lambda: self._pull_back(*made))

    def _pull_back(self, states: Shaped[Tensor, "T *state"], gradient: Shaped[Tensor, "T *state"]) -> LoopGradients:
        # Leaves of their own, and nothing but gradients is returned: PyTorch ties what a gradient arrives at to the
        # stream that it was first used on, so nothing of one launch may live on in the capture.
        carry, inputs = (
            tuple(own.detach().requires_grad_(own.is_floating_point()) for own in part)
            for part in (self.carry, self.inputs)
        )
        with torch.enable_grad():
            after, found, _ = self.loop.segment(carry, inputs, self.masks, states)
        wanted = (*floats(carry), *inputs, *self.loop.weights)
        down = torch.autograd.grad(
            (*floats(after), found), wanted, (*self.d_carry, gradient), allow_unused=True, materialize_grads=True
        )
        C, last = len(self.d_carry), len(self.d_carry) + len(inputs)
        return LoopGradients(down[:C], down[C:last], down[last:])


def floats(parts: Sequence[Tensor], like: Sequence[Tensor] | None = None) -> Carry:
    """Of a carry, or of what belongs to `like`: the parts that can have a gradient."""
    return tuple(part for part, own in zip(parts, like or parts, strict=True) if own.is_floating_point())


def fill(buffers: Sequence[Tensor | None], values: Sequence[Tensor | None]) -> None:
    """Copy values, and zeros where there are too few."""
    for buffer, value in zip(buffers, values, strict=True):
        if buffer is not None and value is not None:
            buffer[: len(value)] = value
            buffer[len(value) :].zero_()


@contextmanager
def in_float32(device: torch.device) -> Iterator[None]:
    """Without autocast, whose copies of weights would be captured as they are now; and such that training can use what
    inference made."""
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield


@contextmanager
def captured_segments(
    loop: Loop,
    T: int,
    carry: Sequence[Tensor],
    inputs: Sequence[Tensor],
    masks: Masks,
    weights: Sequence[Tensor],
) -> Iterator[CapturedSegments]:
    """Those for loops of this kind and size, with these weights."""
    device = carry[0].device
    shapes = (*(own.shape for own in carry), *(None if own is None else own.shape[1:] for own in (*inputs, *masks)))
    key = ("loop", device, stream_of(device), loop, T, shapes, precision(device))
    with CACHE.borrow(key, device, lambda: CapturedSegments(loop, T, carry, inputs, masks, weights)) as segments:
        segments.copy_weights(weights)
        yield segments
