"""Neural Data Router (Csordás et al., *The Neural Data Router*, ICLR 2022), with a token at either end of the input.

One Transformer layer is applied repeatedly to the whole sequence START x_1 … x_n END. A gate at each position decides
how much of its state is replaced:

    y = LN(x + attention(x))
    u = LN(W2 relu(W1 y))        g = σ(G2 relu(G1 y))
    x ← (1 − g) ⊙ x + g ⊙ u

The attention is geometric: position i scans the others from the nearest to the farthest and stops at the first match.
With the projections q, k, v of a head, a learned vector b and learned scalars ζ, ζ', β,

    ℓ_ij = ζ (q_i + b) · k_j + ζ' direction_i(j) + β
    A_ij ∝ σ(ℓ_ij) Π_m (1 − σ(ℓ_im))      over all m that are closer to i than j,

where the right of two positions at the same distance counts as closer, and direction_i has one value for j < i and
another for j > i. The encoding is the state of END. There are no trees.

Training saves the input of each layer, and the backward pass recomputes everything else; see `beamtree.nn.engine.ndr`.
"""

import math
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from beamtree.nn.beams import Encoding
from beamtree.nn.cells.base import is_plain
from beamtree.nn.encoders.base import Cost, Encoder, inside, surround
from beamtree.nn.engine.ndr.attention import Distances, attend
from beamtree.nn.engine.ndr.layer import (
    LEAST_RATE,
    LayerContext,
    LayerDropout,
    LayerMasks,
    LayerWeights,
    by_head,
    layer,
    recomputed,
)
from beamtree.utils.checks import check_integer, check_rate


class NDR(Encoder):
    """A Transformer that applies one layer repeatedly, with gates that control what it changes.

    Registered as `ndr`. There are no beams.

    Examples:
        >>> encoder = beamtree.NDR(dim=8, heads=2, feed_forward=16, layers=3, layers_at_test=3)
        >>> encoder(torch.randn(2, 5, 8), lengths=[5, 3])
        Encoding(state=(2, 8) of torch.float32, beams=None)
    """

    paper = "Csordás et al. 2022"
    cost = Cost("–", "layers", "layers·N·D")
    OFFICIAL: ClassVar[dict[str, str]] = {
        "START": "start",
        "END": "end",
        "EncoderStack.att.data_to_q": "attention.query",
        "EncoderStack.att.data_to_kv": "attention.key_value",
        "EncoderStack.att.data_to_qp": "attention.direction",
        "EncoderStack.att.multi_head_merge": "attention.out",
        "EncoderStack.att.global_content_bias": "attention.query_bias",
        "EncoderStack.att.scale": "attention.scale",
        "EncoderStack.att.scale_pos": "attention.direction_scale",
        "EncoderStack.att.s_bias": "attention.bias",
        "EncoderStack.nmerge": "attention_norm",
        "EncoderStack.p1": "update_inner",
        "EncoderStack.p2": "update",
        "EncoderStack.no": "update_norm",
        "EncoderStack.g1": "gate_inner",
        "EncoderStack.g2": "gate",
    }
    # For relative positional attention, which this model does not have.
    OFFICIAL_UNUSED: ClassVar[tuple[str, ...]] = ("EncoderStack.att.pos_to_pq.weight", "EncoderStack.att.pos_encoding")

    def __init__(
        self,
        dim: int,
        heads: int = 16,
        feed_forward: int = 1024,
        dropout: float = 0.0,
        layers: int = 20,
        layers_at_test: int = 24,
        check_nan: bool = False,
        *,
        gate_dropout: float = 0.05,
    ) -> None:
        """Create the encoder.

        Args:
            dim: width D of inputs and encodings.
            heads: number of attention heads, each of width D / heads.
            feed_forward: output width of W1.
            dropout: dropout rate of the inputs, the keys, the output of the attention, and the inputs of W2 and G2.
            layers: number of times the layer is applied during training.
            layers_at_test: number of times it is applied at inference; inputs deeper than those of training may need
                more.
            check_nan: whether to check x for NaN first (synchronises with the host on a GPU).
            gate_dropout: probability that a position keeps its state in a layer during training.
        """
        super().__init__(dim, check_nan)
        check_integer("heads", heads, at_least=1)
        if dim % heads:
            raise ValueError(f"heads is {heads}: it must divide dim = {dim}, the width that the heads share")
        check_integer("feed_forward", feed_forward, at_least=1)
        check_rate("dropout", dropout)
        check_rate("gate_dropout", gate_dropout)
        check_integer("layers", layers, at_least=1)
        check_integer("layers_at_test", layers_at_test, at_least=1)
        self.heads, self.feed_forward = heads, feed_forward
        self.dropout, self.gate_dropout = dropout, gate_dropout
        self.layers, self.layers_at_test = layers, layers_at_test
        self.start = nn.Parameter(torch.randn(dim))
        self.end = nn.Parameter(torch.randn(dim))
        self.attention = GeometricAttention(dim, heads)
        self.attention_norm = nn.LayerNorm(dim)
        self.update_inner = _linear(dim, feed_forward, math.sqrt(2))  # the gain of relu
        self.update = _linear(feed_forward, dim, 5 / 3)  # that of tanh
        self.update_norm = nn.LayerNorm(dim)
        self.gate_inner = _linear(dim, dim, math.sqrt(2))
        self.gate = _linear(dim, dim, 1.0)
        nn.init.constant_(self.gate.bias, -3)  # gates are almost closed initially, so states persist

    def encode(
        self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"], generator: torch.Generator | None
    ) -> Encoding:
        x = surround(x, lengths, self.start, self.end)  # (B, n, D) with n = N + 2
        B, n, _ = x.shape
        dropout = self._layer_dropout(x.device, generator)
        scale = 1.0 if dropout is None else dropout.scale
        if dropout is not None:
            x = _drop(x, dropout.inputs(B, n), scale)
        present, distances = inside(lengths + 2, n), Distances.of(n, x.device)
        weights = self._weights(scale)
        for index in range(self.layers if self.training else self.layers_at_test):
            if weights is None:
                masks = LayerMasks() if dropout is None else dropout.layer(index, B, n)
                x = self._layer(x, present, distances, masks, scale)
            else:
                eps = self.attention_norm.eps, self.update_norm.eps
                context = LayerContext(index, self.attention.heads, eps, present, distances, dropout)
                x = recomputed(partial(layer, context), x, *weights)
        last = (lengths + 1).view(-1, 1, 1).expand(-1, 1, self.dim)
        return Encoding(x.gather(1, last).squeeze(1))

    def _layer_dropout(self, device: torch.device, generator: torch.Generator | None) -> LayerDropout | None:
        """Dropout masks of one forward pass; None if nothing is dropped."""
        if not self.training or max(self.dropout, self.gate_dropout) < LEAST_RATE:
            return None
        return LayerDropout(self.dropout, self.gate_dropout, self.dim, self.feed_forward, device, generator)

    def _weights(self, scale: float) -> LayerWeights | None:
        """The current weights of the modules, multiplied by the scale of dropout.

        None if one of the modules is not the plain one that `__init__` created.
        """
        attention = self.attention
        if not is_plain(attention, GeometricAttention):
            return None
        tensors: list[Tensor] = []
        for module, kind, bias in (
            (attention.query, nn.Linear, False),
            (attention.key_value, nn.Linear, False),
            (attention.out, nn.Linear, False),
            (attention.direction, nn.Linear, True),
            (self.attention_norm, nn.LayerNorm, True),
            (self.update_inner, nn.Linear, True),
            (self.update, nn.Linear, True),
            (self.update_norm, nn.LayerNorm, True),
            (self.gate_inner, nn.Linear, True),
            (self.gate, nn.Linear, True),
        ):
            if not is_plain(module, kind) or (module.bias is not None) != bias:
                return None
            tensors += (module.weight, module.bias) if bias else (module.weight,)
        # Subclasses of Tensor may override any operation.
        if any(type(tensor) not in (Tensor, nn.Parameter) for tensor in tensors):
            return None
        query, key_value, out, direction, direction_bias, *others = tensors
        projection = attention.fold(query, key_value, direction, direction_bias, scale)
        weights = LayerWeights(*projection, scale * out, *others)
        return weights._replace(update=scale * weights.update, gate=scale * weights.gate)

    def _layer(
        self,
        x: Float[Tensor, "B n D"],
        present: Bool[Tensor, "B n"],
        distances: Distances,
        masks: LayerMasks,
        scale: float,
    ) -> Float[Tensor, "B n D"]:
        """The same function as `beamtree.nn.engine.ndr.layer`, computed by the modules, of any kind.

        Autograd keeps what they save.
        """
        found = self.attention(x, present, distances, masks.keys, scale)
        y = self.attention_norm(x + _drop(found, masks.attention, scale))
        u = self.update_norm(self.update(_drop(self.update_inner(y).relu(), masks.update, scale)))
        g = self.gate(_drop(self.gate_inner(y).relu(), masks.gate_inner, scale)).sigmoid()
        return torch.lerp(x, u.to(x.dtype), _drop(g, masks.gate, 1.0).to(x.dtype))

    def extra_repr(self) -> str:
        return (
            f"dropout={self.dropout}, gate_dropout={self.gate_dropout}, layers={self.layers}, "
            f"layers_at_test={self.layers_at_test}"
        )


class Heads(NamedTuple):
    """The projections of a sequence, for each head."""

    queries: Float[Tensor, "B H n d"]  # scaled
    keys: Float[Tensor, "B H n d"]
    values: Float[Tensor, "B H n d"]
    back: Float[Tensor, "B H n 1"]  # added to the logits of all positions before it
    front: Float[Tensor, "B H n 1"]  # added to those after it


class GeometricAttention(nn.Module):
    """Geometric attention with a direction term."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, width = heads, dim // heads
        self.query = nn.Linear(dim, dim, bias=False)
        self.key_value = nn.Linear(dim, 2 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        bound = math.sqrt(6 / (dim + width))  # Xavier's bound, for each head separately
        for projection in (self.query, self.key_value, self.out):
            nn.init.uniform_(projection.weight, -bound, bound)
        self.direction = nn.Linear(dim, 2 * heads)
        self.query_bias = nn.Parameter(torch.zeros(heads, width))
        self.scale = nn.Parameter(torch.full((1,), 1 / math.sqrt(width)))
        self.direction_scale = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(
        self,
        x: Float[Tensor, "B n D"],
        present: Bool[Tensor, "B n"],
        distances: Distances,
        kept: Bool[Tensor, "B n D"] | None = None,
        scale: float = 1.0,
    ) -> Float[Tensor, "B n D"]:
        """What each position reads from the positions that are present.

        kept: mask of the elements of the keys that dropout keeps; these are multiplied by `scale`.
        """
        heads = self.project(x)
        if kept is not None:
            heads = heads._replace(keys=_drop(heads.keys, by_head(kept, self.heads), scale))
        # The n × n matrices are recomputed in the backward pass, so they do not accumulate over the layers.
        found = recomputed(partial(attend, present, distances), *heads)
        return self.out(found.transpose(1, 2).flatten(2))

    def project(self, x: Float[Tensor, "B n D"]) -> Heads:
        (queries,) = self._split(self.query(x), 1)
        keys, values = self._split(self.key_value(x), 2)
        back, front = self._split(self.direction_scale * self.direction(x) + self.bias, 2)
        return Heads(self.scale * (queries + self.query_bias.unsqueeze(1)), keys, values, back, front)

    def _split(self, x: Float[Tensor, "B n w"], parts: int) -> tuple[Tensor, ...]:
        """Split every head's share of the width into parts, each (B, H, n, d)."""
        return x.unflatten(2, (self.heads, parts, -1)).permute(3, 0, 2, 1, 4).unbind(0)

    def fold(
        self,
        query: Float[Tensor, "D D"],
        key_value: Float[Tensor, "W D"],
        direction: Float[Tensor, "S D"],
        direction_bias: Float[Tensor, "S"],
        key_scale: float,
    ) -> tuple[Float[Tensor, "P D"], Float[Tensor, "P"]]:
        """One matrix and bias that compute `project` in a single product, with keys multiplied by `key_scale`.

        The rows are queries, keys, values, back and front, each grouped by head.
        """
        keys, values = key_value.unflatten(0, (self.heads, 2, -1)).unbind(1)  # each (H, d, D)
        sides = (self.direction_scale * direction).unflatten(0, (self.heads, 2)).transpose(0, 1)  # (2, H, D)
        sides_bias = (self.direction_scale * direction_bias + self.bias).unflatten(0, (self.heads, 2)).mT  # (2, H)
        query_bias = (self.scale * self.query_bias).flatten()
        matrices = self.scale * query, key_scale * keys.flatten(0, 1), values.flatten(0, 1), sides.flatten(0, 1)
        biases = query_bias, query_bias.new_zeros(len(key_value)), sides_bias.flatten()
        return torch.cat(matrices), torch.cat(biases)


def _drop(x: Float[Tensor, "*shape"], kept: Bool[Tensor, "*mask"] | None, scale: float) -> Float[Tensor, "*shape"]:
    return x if kept is None else x * kept * scale


def _linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """A linear layer with Xavier initialisation."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight, gain)
    return layer
