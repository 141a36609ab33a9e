"""One layer of the Neural Data Router as a function of tensors, recomputed in the backward pass, and its dropout.

Autograd would save about thirty tensors of each layer. Here only the layer's input is saved: the backward pass
recomputes the layer from the same tensors and with the same dropout masks. Masks are never stored: a hash of a seed,
the sample, the position, the layer and the column determines which elements are dropped.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from beamtree.nn.engine.autocast import Autocast
from beamtree.nn.engine.dropout import FACTORS, mix
from beamtree.nn.engine.ndr.attention import Distances, attend
from beamtree.utils.checks import is_installed

WORD_FACTOR = 0x1E3779B1  # multiplies the index of a pair of columns
LEAST_RATE = 2**-16  # smaller dropout rates have no effect
INPUTS = -1  # used in place of a layer's index for the dropout of the inputs


class LayerWeights(NamedTuple):
    """The weights of a layer, already multiplied by the scales."""

    projection: Float[Tensor, "P D"]  # queries, keys, values, back, front; each grouped by head
    projection_bias: Float[Tensor, "P"]
    out: Float[Tensor, "D D"]
    attention_norm: Float[Tensor, "D"]
    attention_norm_bias: Float[Tensor, "D"]
    update_inner: Float[Tensor, "F D"]
    update_inner_bias: Float[Tensor, "F"]
    update: Float[Tensor, "D F"]
    update_bias: Float[Tensor, "D"]
    update_norm: Float[Tensor, "D"]
    update_norm_bias: Float[Tensor, "D"]
    gate_inner: Float[Tensor, "D D"]
    gate_inner_bias: Float[Tensor, "D"]
    gate: Float[Tensor, "D D"]
    gate_bias: Float[Tensor, "D"]


class LayerMasks(NamedTuple):
    """What dropout keeps in one layer; None if nothing is dropped."""

    keys: Bool[Tensor, "B n D"] | None = None
    attention: Bool[Tensor, "B n D"] | None = None
    update: Bool[Tensor, "B n F"] | None = None
    gate_inner: Bool[Tensor, "B n D"] | None = None
    gate: Bool[Tensor, "B n 1"] | None = None  # where False, a position keeps its state


class LayerDropout:
    """The dropout masks of one forward pass.

    At least one of the rates must reach `LEAST_RATE`. Kept elements, except gates, must be multiplied by `scale`.
    """

    def __init__(
        self,
        rate: float,
        gate_rate: float,
        dim: int,
        feed_forward: int,
        device: torch.device,
        generator: torch.Generator | None = None,
    ) -> None:
        """Prepare the masks of one forward pass.

        Args:
            rate: probability that an element is dropped.
            gate_rate: probability that a position's gate is dropped.
            dim: width D of the states.
            feed_forward: output width of W1.
            device: device of the masks.
            generator: source of the seed of this pass.
        """
        drops, self.drops_gates = rate >= LEAST_RATE, gate_rate >= LEAST_RATE
        self.scale = 1 / (1 - rate) if drops else 1.0
        self.dim, self.widths = dim, (dim, dim, feed_forward, dim) if drops else ()
        # A uniform int16 value is above the limit with probability 1 − rate.
        # The last column of the masks belongs to the gates.
        limit, last_limit = (round(one * 2**16) - 1 - 2**15 for one in (rate, gate_rate))
        self.limits = limit if drops else last_limit, last_limit if self.drops_gates else limit
        seed = torch.randint(2**31 - 1, (), device=device, generator=generator, dtype=torch.int32)
        # One 32-bit hash serves two columns, 16 bits each.
        self.offsets = torch.arange((self.width + 1) // 2, device=device, dtype=torch.int32) * WORD_FACTOR + seed

    @property
    def width(self) -> int:
        """Total number of columns of a layer's masks."""
        return sum(self.widths) + self.drops_gates

    def inputs(self, B: int, n: int) -> Bool[Tensor, "B n D"] | None:
        """Mask of the inputs that are kept."""
        return self._kept(INPUTS, B, n)[..., : self.dim] if self.widths else None

    def layer(self, index: int, B: int, n: int) -> LayerMasks:
        """Masks of what is kept in a layer."""
        columns = self._kept(index, B, n)
        gate = columns[..., -1:] if self.drops_gates else None
        if not self.widths:
            return LayerMasks(gate=gate)
        keys, attention, update, gate_inner = columns[..., : sum(self.widths)].split(self.widths, dim=2)
        return LayerMasks(keys, attention, update, gate_inner, gate)

    def _kept(self, layer: int, B: int, n: int) -> Bool[Tensor, "B n width"]:
        draw = kept
        if self.offsets.is_cuda and is_installed("triton"):
            from beamtree.nn.engine.gpu.kernels import ndr

            draw = ndr.kept
        return draw(self.offsets, layer, B, n, self.width, *self.limits)


def kept(
    offsets: Int[Tensor, "words"], layer: int, B: int, n: int, width: int, limit: int, last_limit: int
) -> Bool[Tensor, "B n width"]:
    """True where the hash is above the limit; the last column has its own limit."""
    sample, position = (torch.arange(size, device=offsets.device) for size in (B, n))
    key = (sample * FACTORS[0]).unsqueeze(1) + position * FACTORS[1] + layer * FACTORS[2]  # (B, n)
    words = mix(key.int().unsqueeze(2) + offsets)  # (B, n, ⌈width / 2⌉)
    values = words.view(torch.int16)[..., :width]  # uniform over int16
    found = values > limit
    found[..., -1] = values[..., -1] > last_limit
    return found


class LayerContext(NamedTuple):
    """What a layer depends on besides its input and its weights."""

    layer: int
    heads: int
    eps: tuple[float, float]  # of the two LayerNorms
    present: Bool[Tensor, "B n"]
    distances: Distances
    dropout: LayerDropout | None


def layer(context: LayerContext, x: Float[Tensor, "B n D"], *tensors: Tensor) -> Float[Tensor, "B n D"]:
    """The states after a layer whose weights are `tensors`."""
    B, n, D = x.shape
    H, weights = context.heads, LayerWeights(*tensors)
    masks = LayerMasks() if context.dropout is None else context.dropout.layer(context.layer, B, n)
    rows = x.flatten(0, 1)  # (B·n, D)
    projected = F.linear(rows, weights.projection, weights.projection_bias)
    content, direction = projected.split((3 * D, 2 * H), dim=1)
    queries, keys, values = content.view(B, n, 3, H, -1).permute(2, 0, 3, 1, 4)  # each (B, H, n, d)
    back, front = direction.view(B, n, 2, H, 1).permute(2, 0, 3, 1, 4)  # each (B, H, n, 1)
    if masks.keys is not None:
        keys = keys * by_head(masks.keys, H)
    found = attend(context.present, context.distances, queries, keys, values, back, front)
    mixed = F.linear(found.transpose(1, 2).reshape(B * n, D), weights.out)
    if masks.attention is not None:
        mixed = mixed.mul_(masks.attention.flatten(0, 1))
    y = F.layer_norm(rows + mixed, (D,), weights.attention_norm, weights.attention_norm_bias, context.eps[0])
    u = _drop_and_relu(F.linear(y, weights.update_inner, weights.update_inner_bias), masks.update)
    u = F.linear(u, weights.update, weights.update_bias)
    u = F.layer_norm(u, (D,), weights.update_norm, weights.update_norm_bias, context.eps[1])
    g = _drop_and_relu(F.linear(y, weights.gate_inner, weights.gate_inner_bias), masks.gate_inner)
    g = F.linear(g, weights.gate, weights.gate_bias).sigmoid()
    if masks.gate is not None:
        g = g * masks.gate.flatten(0, 1)
    return torch.lerp(rows, u.to(x.dtype), g.to(x.dtype)).view(B, n, D)


def by_head(mask: Bool[Tensor, "B n D"], heads: int) -> Bool[Tensor, "B H n d"]:
    return mask.unflatten(2, (heads, -1)).transpose(1, 2)


def _drop_and_relu(x: Float[Tensor, "rows width"], kept: Bool[Tensor, "B n width"] | None) -> Tensor:
    """In-place. Dropped elements are 0 before relu, whose gradient at 0 is 0, so the mask need not be saved."""
    if kept is not None:
        with torch.no_grad():
            x.mul_(kept.flatten(0, 1))
    return x.relu_()


def recomputed(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """function(*tensors), of which autograd saves only the arguments.

    The backward pass calls the function again with the same tensors, so it must not depend on anything else that may
    change.
    """
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return Recomputed.apply(function, *tensors)
    return function(*tensors)


class Recomputed(torch.autograd.Function):
    """Like `torch.utils.checkpoint`, but the arguments are saved tensors.

    Autograd raises an error if one of them is modified in-place before the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        ctx.function, ctx.autocast = function, Autocast(tensors[0].device.type)
        ctx.save_for_backward(*tensors)
        # Detached: autocast would cache the casts without gradient and reuse them where a gradient is required.
        return function(*(tensor.detach() for tensor in tensors))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        again = torch.is_grad_enabled()  # a second derivative is required, which continues to the saved tensors
        needed = ctx.needs_input_grad[1:]
        with torch.enable_grad(), ctx.autocast.again():
            given = [
                tensor.view_as(tensor) if again else tensor.detach().requires_grad_(wanted)
                for tensor, wanted in zip(ctx.saved_tensors, needed, strict=True)
            ]
            result = ctx.function(*given)
        sources = [tensor for tensor, wanted in zip(given, needed, strict=True) if wanted]
        found = iter(torch.autograd.grad(result, sources, gradient, create_graph=again))
        return None, *(next(found) if wanted else None for wanted in needed)
