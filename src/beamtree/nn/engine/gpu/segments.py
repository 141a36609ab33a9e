"""Loops of many small steps, where launch overhead dominates, in segments that are captured in CUDA graphs.

A step takes a carry and its own inputs, and returns the next carry and a state to be kept. One graph runs a segment of
T steps without gradients. The backward pass runs from the last segment to the first: a second graph runs the segment
again under autograd, given its states, and computes its gradient. Only the states, the carry before each segment and
the masks are kept for it; masks that can be drawn again are not.

A graph fits segments of one size. Its buffers, including a copy of the weights, have fixed addresses: inputs are copied
in before each run, and results out after it. The last segment of a loop is padded with steps whose inputs and masks are
zero.

Steps run under the autocast of the forward pass, in both passes: their matrix products are in bfloat16 if it is on.
All else, such as the gradients and the copies, is computed without it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Shaped
from torch import Tensor

from beamtree.nn.engine.autocast import Autocast
from beamtree.nn.engine.gpu.cache import CACHE
from beamtree.nn.engine.gpu.capture import Captured, stream_of
from beamtree.nn.engine.gpu.precision import precision
from beamtree.nn.function import BY_REFERENCE, first_order, save

MAX_STEPS = 16  # of a segment: longer segments have more padding in the last one
MAX_BYTES = 2**29  # approximate limit for the activations of a segment in the backward pass

Carry = tuple[Tensor, ...]  # integer tensors have no gradient
Masks = Sequence[Tensor | None]  # inputs without a gradient, such as dropout masks; the steps are the first dimension
Draw = Callable[[range], Masks]  # the masks of these steps


class Segment(NamedTuple):
    """The results of a segment of T steps."""

    carry: Carry  # after the last step
    states: Shaped[Tensor, "T *state"]
    notes: Shaped[Tensor, "T *note"]  # other results of each step, without a gradient


@runtime_checkable
class Loop(Protocol):
    """A loop that can be captured: a function of tensors.

    Without its weights it is hashable, and equal for loops that compute the same function of carry, inputs, masks and
    weights.
    """

    @property
    def weights(self) -> tuple[Tensor, ...]: ...

    @property
    def unbound(self) -> "Loop":
        """The function without its weights."""

    def bind(self, weights: Sequence[Tensor]) -> "Loop":
        """The same function of other weights."""

    def segment(
        self, carry: Carry, inputs: tuple[Tensor, ...], masks: Masks, made: Tensor | None
    ) -> tuple[Carry, Tensor, Tensor]:
        """Run as many steps as the inputs have.

        `made` are their states if these are known and only a gradient is needed. It must not synchronise with the
        device, draw random numbers, or branch on the values of tensors. The results have the dtypes that they have
        without autocast.
        """

    def step_bytes(self, carry: Carry) -> int:
        """Approximate size of the activations of a step."""


class LoopResult(NamedTuple):
    """The results of a loop."""

    states: Shaped[Tensor, "N *state"]
    notes: Shaped[Tensor, "N *note"]
    carry: Carry  # after the last step and the padding of its segment


class LoopGradients(NamedTuple):
    """The gradients of all inputs of a segment."""

    carry: Carry  # before the first step; floating-point tensors only
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
    refusal: str = BY_REFERENCE,
) -> LoopResult:
    """Run all steps, at least one, or segments until `should_stop`.

    inputs: (N, …), one entry per step.
    draw: called for each segment in order.
    redraw: whether `draw` can be called again in the backward pass, so that masks need not be kept.
    should_stop: called with the carry after each segment.
    refusal: message of the error when a second derivative is computed.
    """
    autocast, sizes = Autocast(carry[0].device.type), (len(carry), len(carry) + len(inputs))
    spec = LoopSpec(loop.unbound, autocast, draw, steps, redraw, should_stop, refusal, *sizes)
    states, notes, *after = RunLoop.apply(spec, *carry, *inputs, *loop.weights)
    return LoopResult(states, notes, tuple(after))


class LoopSpec(NamedTuple):
    """Arguments of `RunLoop` besides its tensors: the carry, the inputs and the weights."""

    loop: Loop  # unbound
    autocast: Autocast  # of the forward pass
    draw: Draw
    steps: int
    redraw: bool
    should_stop: Callable[[Carry], bool] | None
    refusal: str
    inputs: int  # the index of the first input among the tensors …
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
        with captured_segments(spec, T, carry, inputs, masks, weights) as graphs:
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
        ctx.spec, ctx.T, ctx.starts, ctx.refusal = spec, T, starts, spec.refusal
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

        def masks_of(index: int) -> Masks:
            first = ctx.starts[index]
            redrawn = range(spec.steps)[first : first + ctx.T]
            return spec.draw(redrawn) if spec.redraw else kept[index * each + C : (index + 1) * each]

        masks = masks_of(len(ctx.starts) - 1)
        carry = kept[:C]
        with captured_segments(spec, ctx.T, carry, inputs, masks, weights) as graphs:
            for index, first in reversed(list(enumerate(ctx.starts))):
                steps = slice(first, min(first + ctx.T, spec.steps))
                before = kept[index * each : index * each + C]
                if index < len(ctx.starts) - 1:
                    masks = masks_of(index)
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
        autocast: Autocast,
        T: int,
        carry: Sequence[Tensor],
        inputs: Sequence[Tensor],
        masks: Masks,
        weights: Sequence[Tensor],
    ) -> None:
        self.T, self.bytes, self.autocast = T, T * loop.step_bytes(tuple(carry)), autocast
        self.loop = loop.bind([torch.zeros_like(weight) for weight in weights])
        self.carry = tuple(torch.zeros_like(tensor) for tensor in carry)
        self.d_carry = tuple(torch.zeros_like(tensor) for tensor in floats(carry))
        self.inputs = tuple(tensor.new_zeros(T, *tensor.shape[1:]) for tensor in inputs)
        self.masks = tuple(None if mask is None else mask.new_zeros(T, *mask.shape[1:]) for mask in masks)
        self.made: tuple[Tensor, Tensor] | None = None  # states and their gradient, from the first backward pass on
        self.forward: Captured[Segment] = Captured(carry[0].device)
        self.backward: Captured[LoopGradients] = Captured(carry[0].device)

    def copy_weights(self, weights: Sequence[Tensor]) -> None:
        torch._foreach_copy_(list(self.loop.weights), list(weights))

    def forward_segment(self, carry: Sequence[Tensor], inputs: Sequence[Tensor], masks: Masks) -> Segment:
        """Run a segment. The result is overwritten by the next run."""
        fill((*self.carry, *self.inputs, *self.masks), (*carry, *inputs, *masks))
        return self.forward.run(lambda: self._run_steps(self.loop, self.carry, self.inputs, None))

    def backward_segment(
        self,
        carry: Sequence[Tensor],
        inputs: Sequence[Tensor],
        masks: Masks,
        states: Shaped[Tensor, "T *state"],
        gradient: Shaped[Tensor, "T *state"],
        d_carry: Sequence[Tensor],
    ) -> LoopGradients:
        """The gradients of all inputs of a segment, given those of its states and of the carry after it.

        The result is overwritten by the next run.
        """
        if self.made is None:
            shape = (self.T, *states.shape[1:])
            self.made = states.new_zeros(shape), states.new_zeros(shape)
        made = self.made
        fill((*self.carry, *self.inputs, *self.masks), (*carry, *inputs, *masks))
        fill((*made, *self.d_carry), (states, gradient, *d_carry))
        return self.backward.run(lambda: self._pull_back(*made))

    def _run_steps(self, loop: Loop, carry: Carry, inputs: tuple[Tensor, ...], made: Tensor | None) -> Segment:
        # Without autocast's cache: the casts must be part of the graph, as the weights change between its runs.
        with self.autocast.again(cache=False):
            return Segment(*loop.segment(carry, inputs, self.masks, made))

    def _pull_back(self, states: Shaped[Tensor, "T *state"], gradient: Shaped[Tensor, "T *state"]) -> LoopGradients:
        # New leaf tensors each time, and only gradients are returned: autograd ties a leaf's gradient to the stream of
        # its first use, so no autograd state of a direct launch may be reused in the capture. Frozen weights have a
        # gradient too, so that one graph serves them all.
        carry, inputs, weights = (
            tuple(own.detach().requires_grad_(own.is_floating_point()) for own in part)
            for part in (self.carry, self.inputs, self.loop.weights)
        )
        with torch.enable_grad():
            after, found, _ = self._run_steps(self.loop.bind(weights), carry, inputs, states)
        wanted = (*floats(carry), *inputs, *weights)
        down = torch.autograd.grad(
            (*floats(after), found), wanted, (*self.d_carry, gradient), allow_unused=True, materialize_grads=True
        )
        C, last = len(self.d_carry), len(self.d_carry) + len(inputs)
        return LoopGradients(down[:C], down[C:last], down[last:])


def floats(parts: Sequence[Tensor], like: Sequence[Tensor] | None = None) -> Carry:
    """The parts that can have a gradient: those that are floating-point, or whose counterpart in `like` is."""
    return tuple(part for part, own in zip(parts, like or parts, strict=True) if own.is_floating_point())


def fill(buffers: Sequence[Tensor | None], values: Sequence[Tensor | None]) -> None:
    """Copy the values, padded with zeros."""
    for buffer, value in zip(buffers, values, strict=True):
        if buffer is not None and value is not None:
            buffer[: len(value)] = value
            buffer[len(value) :].zero_()


@contextmanager
def captured_segments(
    spec: LoopSpec,
    T: int,
    carry: Sequence[Tensor],
    inputs: Sequence[Tensor],
    masks: Masks,
    weights: Sequence[Tensor],
) -> Iterator[CapturedSegments]:
    """Borrow captured segments for loops of this kind, size and precision, with these weights.

    Disables autocast and gradients, and leaves inference mode: training must be able to use what inference allocated.
    """
    loop, autocast, device = spec.loop, spec.autocast, carry[0].device
    shapes = (*(own.shape for own in carry), *(None if own is None else own.shape[1:] for own in (*inputs, *masks)))
    with autocast.again():
        key = ("loop", device, stream_of(device), loop, T, shapes, precision(device))

    def make() -> CapturedSegments:
        return CapturedSegments(loop, autocast, T, carry, inputs, masks, weights)

    without_autocast = torch.autocast(device.type, enabled=False)
    with torch.inference_mode(False), torch.no_grad(), without_autocast, CACHE.borrow(key, device, make) as segments:
        segments.copy_weights(weights)
        yield segments
