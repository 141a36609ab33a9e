"""Loops of many small steps, in stretches that are captured in CUDA graphs, where launching is what takes the time.

A step takes a carry and its own inputs, and makes the next carry and a state to be kept. One graph runs a stretch of T
steps without gradients. Backward goes from the last stretch to the first: a second graph runs the stretch again under
autograd, told the states that it made, and takes its gradient there. Between the two only these states are kept, the
carry before each stretch, and the masks, unless they can be made again.

A graph fits stretches of one size. Its buffers, a copy of the module among them, stay where they are: everything is
copied in before each run and out after it. The last stretch of a loop is filled up with steps whose inputs and masks
are zero. Under autocast steps are computed in float32 all the same.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable

from beamtree.engine.fused.capture import Captured, stream_of
from beamtree.engine.fused.leases import too_many
from beamtree.engine.fused.products import precision

LONGEST = 16  # steps of a stretch at most: with more, more are run for nothing in the last one
HELD = 2**29  # bytes of activations that backward holds of a stretch, about
KEPT = 16  # sizes at most, those used last: batches have few

Carry = tuple[Tensor, ...]  # its integers have no gradient
Masks = Sequence[Tensor | None]  # whatever has no gradient, such as what dropout keeps, the steps first
Draw = Callable[[range], Masks]  # the masks of these steps


class Stretch(NamedTuple):
    """What a stretch of T steps gives."""

    carry: Carry  # after the last step
    states: Shaped[Tensor, "T *state"]
    notes: Shaped[Tensor, "T *note"]  # what else is to be known of each step, without a gradient


@runtime_checkable
class Loop(Protocol):
    """A module that can be captured. What it computes follows from its description, its weights and its arguments."""

    def stretch(
        self, carry: Carry, inputs: tuple[Tensor, ...], masks: Masks, made: Tensor | None
    ) -> tuple[Carry, Tensor, Tensor]:
        """As many steps as the inputs have; `made` are their states where these are known and only a gradient is
        wanted. It must not wait for the device, draw, or do anything that depends on what is in the tensors."""

    def step_weights(self) -> tuple[Tensor, ...]:
        """Those that have a part in a step."""

    def step_bytes(self, carry: Carry) -> int:
        """Of the activations of a step, about."""


class Ran(NamedTuple):
    """What a loop gives."""

    states: Shaped[Tensor, "N *state"]
    notes: Shaped[Tensor, "N *note"]
    carry: Carry  # after the last step, and those that fill up its stretch


class Down(NamedTuple):
    """What backward gives for a stretch."""

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
    enough: Callable[[Carry], bool] | None = None,
) -> Ran:
    """All steps, of which there is at least one, or the stretches after which it is enough.

    inputs: (N, …), for each of the steps.
    draw: is asked for one stretch after the other.
    redraw: whether it can be asked again in backward, so that masks need not be kept.
    """
    how = How(loop, draw, steps, redraw, enough, len(carry), len(carry) + len(inputs))
    states, notes, *after = Run.apply(how, *carry, *inputs, *loop.step_weights())
    return Ran(states, notes, tuple(after))


class How(NamedTuple):
    """What `Run` is given besides tensors, which are the carry, the inputs and the weights."""

    loop: Loop
    draw: Draw
    steps: int
    redraw: bool
    enough: Callable[[Carry], bool] | None
    inputs: int  # the place of the first input among the tensors …
    weights: int  # … and of the first weight

    def longest(self, carry: Carry) -> int:
        """Steps of a stretch."""
        return max(min(LONGEST, HELD // max(self.loop.step_bytes(carry), 1)), 1)


class Run(torch.autograd.Function):
    """(carry, inputs, weights) → states, notes, carry."""

    @staticmethod
    def forward(ctx: Any, how: How, *tensors: Tensor) -> tuple[Tensor, ...]:
        carry, inputs = tensors[: how.inputs], tensors[how.inputs : how.weights]
        T, graphs, found, starts = how.longest(carry), None, [], []
        kept: list[Tensor | None] = []
        with in_float32(tensors[0].device):
            for first in range(0, how.steps, T):
                steps = slice(first, min(first + T, how.steps))
                masks = how.draw(range(how.steps)[steps])
                graphs = graphs or find(how.loop, T, carry, inputs, masks)
                kept += carry if how.redraw else (*carry, *masks)
                starts.append(first)
                stretch = graphs.go(carry, tuple(tensor[steps] for tensor in inputs), masks)
                carry = tuple(tensor.clone() for tensor in stretch.carry)
                found.append(tuple(part[: steps.stop - first].clone() for part in (stretch.states, stretch.notes)))
                if how.enough is not None and how.enough(carry):
                    break
            states, notes = (torch.cat(parts) for parts in zip(*found, strict=True))
        ctx.how, ctx.T, ctx.starts, ctx.size = how, T, starts, len(tensors)
        # The weights too, so that PyTorch objects if they change before backward.
        ctx.save_for_backward(*tensors, states, *kept)
        ctx.mark_non_differentiable(notes, *(tensor for tensor in carry if not tensor.is_floating_point()))
        return states, notes, *carry

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor, *d_carry: Tensor) -> tuple[Tensor | None, ...]:
        how, tensors, (states, *kept) = ctx.how, ctx.saved_tensors[: ctx.size], ctx.saved_tensors[ctx.size :]
        inputs, C = tensors[how.inputs : how.weights], how.inputs
        each = len(kept) // len(ctx.starts)  # tensors that were kept for a stretch: its carry and masks
        d_inputs = tuple(torch.zeros_like(tensor) for tensor in inputs)
        d_weights = [torch.zeros_like(weight) for weight in tensors[how.weights :]]
        graphs, d_carry = None, floats(d_carry, tensors[:C])
        with in_float32(states.device):
            for number, first in reversed(list(enumerate(ctx.starts))):
                steps = slice(first, min(first + ctx.T, how.steps))
                before = kept[number * each : (number + 1) * each]
                masks = how.draw(range(how.steps)[steps]) if how.redraw else before[C:]
                graphs = graphs or find(how.loop, ctx.T, before[:C], inputs, masks)
                given = tuple(tensor[steps] for tensor in inputs)
                found = graphs.come_back(before[:C], given, masks, states[steps], gradient[steps], d_carry)
                d_carry = tuple(tensor.clone() for tensor in found.carry)
                for whole, part in zip(d_inputs, found.inputs, strict=True):
                    whole[steps] = part[: steps.stop - first]
                torch._foreach_add_(d_weights, list(found.weights))
        found_carry = iter(d_carry)
        all_carry = (next(found_carry) if tensor.is_floating_point() else None for tensor in tensors[:C])
        return None, *all_carry, *d_inputs, *d_weights


class Graphs:
    """Captured stretches of T steps."""

    def __init__(self, loop: Loop, T: int, carry: Sequence[Tensor], inputs: Sequence[Tensor], masks: Masks) -> None:
        self.T, self.bytes = T, T * loop.step_bytes(tuple(carry))
        self.loop = copy.deepcopy(loop)
        for weight in self.loop.step_weights():
            weight.requires_grad_()  # also of what the user has frozen
        self.carry = tuple(torch.zeros_like(tensor) for tensor in carry)
        self.d_carry = tuple(torch.zeros_like(tensor) for tensor in floats(carry))
        self.inputs = tuple(tensor.new_zeros(T, *tensor.shape[1:]) for tensor in inputs)
        self.masks = tuple(None if mask is None else mask.new_zeros(T, *mask.shape[1:]) for mask in masks)
        self.made: tuple[Tensor, Tensor] | None = None  # states and their gradient, from the first backward on
        self.forth: Captured[Stretch] = Captured(carry[0].device)
        self.back: Captured[Down] = Captured(carry[0].device)

    def take_weights(self, loop: Loop) -> None:
        torch._foreach_copy_(list(self.loop.step_weights()), list(loop.step_weights()))

    def go(self, carry: Sequence[Tensor], inputs: Sequence[Tensor], masks: Masks) -> Stretch:
        """The stretch; what it gives is overwritten by the next run."""
        fill((*self.carry, *self.inputs, *self.masks), (*carry, *inputs, *masks))
        return self.forth.run(lambda: Stretch(*self.loop.stretch(self.carry, self.inputs, self.masks, None)))

    def come_back(
        self,
        carry: Sequence[Tensor],
        inputs: Sequence[Tensor],
        masks: Masks,
        states: Shaped[Tensor, "T *state"],
        gradient: Shaped[Tensor, "T *state"],
        d_carry: Sequence[Tensor],
    ) -> Down:
        """From the gradient of a stretch's states, and of the carry after it, to that of all it was made from; what it
        gives is overwritten by the next run."""
        if self.made is None:
            room = (self.T, *states.shape[1:])
            self.made = states.new_zeros(room), states.new_zeros(room)
        made = self.made
        fill((*self.carry, *self.inputs, *self.masks), (*carry, *inputs, *masks))
        fill((*made, *self.d_carry), (states, gradient, *d_carry))
        return self.back.run(lambda: self._pull_back(*made))

    def _pull_back(self, states: Shaped[Tensor, "T *state"], gradient: Shaped[Tensor, "T *state"]) -> Down:
        # Leaves of their own, and nothing but gradients is returned: PyTorch ties what a gradient arrives at to the
        # stream that it was first used on, so nothing of one launch may live on in the capture.
        carry, inputs = (
            tuple(own.detach().requires_grad_(own.is_floating_point()) for own in part)
            for part in (self.carry, self.inputs)
        )
        with torch.enable_grad():
            after, found, _ = self.loop.stretch(carry, inputs, self.masks, states)
        wanted = (*floats(carry), *inputs, *self.loop.step_weights())
        down = torch.autograd.grad((*floats(after), found), wanted, (*self.d_carry, gradient))
        C, last = len(self.d_carry), len(self.d_carry) + len(inputs)
        return Down(down[:C], down[C:last], down[last:])


def floats(parts: Sequence[Tensor], like: Sequence[Tensor] | None = None) -> Carry:
    """Of a carry, or of what belongs to `like`: the parts that can have a gradient."""
    return tuple(part for part, own in zip(parts, like or parts, strict=True) if own.is_floating_point())


def fill(buffers: Sequence[Tensor | None], values: Sequence[Tensor | None]) -> None:
    """Values, and zeros where there are too few."""
    for buffer, value in zip(buffers, values, strict=True):
        if buffer is not None and value is not None:
            buffer[: len(value)] = value
            buffer[len(value) :].zero_()


@contextmanager
def in_float32(device: torch.device) -> Iterator[None]:
    """Without autocast, whose copies of weights would be captured as they are now; and such that what inference makes
    can be used in training."""
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield


_kept: OrderedDict[Hashable, Graphs] = OrderedDict()


def find(loop: Loop, T: int, carry: Sequence[Tensor], inputs: Sequence[Tensor], masks: Masks) -> Graphs:
    """Those for loops of this size, with the loop's weights; the ones not used for longest make way for new ones."""
    device = carry[0].device
    shapes = (*(own.shape for own in carry), *(None if own is None else own.shape[1:] for own in (*inputs, *masks)))
    # Whatever is no weight, such as a dropout's rate, stands in the module's description.
    size = (device, stream_of(device), type(loop), str(loop), T, shapes, precision(device))
    if size not in _kept:
        _kept[size] = Graphs(loop, T, carry, inputs, masks)
        while too_many([graphs.bytes for graphs in _kept.values()], KEPT, device):
            _kept.popitem(last=False)
    _kept.move_to_end(size)
    _kept[size].take_weights(loop)
    return _kept[size]


def release() -> None:
    """Give all memory back."""
    _kept.clear()
