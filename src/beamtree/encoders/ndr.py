"""Neural Data Router (Csordás et al., *The Neural Data Router*, ICLR 2022), with a token at either end of the input.

One Transformer layer is applied again and again, each time to the whole sequence START x_1 … x_n END. A gate at each
position decides how much of its state is replaced:

    y = LN(x + attention(x))
    u = LN(W2 relu(W1 y))        g = σ(G2 relu(G1 y))
    x ← (1 − g) ⊙ x + g ⊙ u

The attention is geometric: position i looks at the others from the nearest to the farthest and stops at the first that
matches. With q, k, v the projections of a head, b a learned vector and ζ, ζ', β learned numbers,

    ℓ_ij = ζ (q_i + b) · k_j + ζ' direction_i(j) + β
    A_ij ∝ σ(ℓ_ij) Π_m (1 − σ(ℓ_im))      over all m that are closer to i than j,

where of two at the same distance the right one is closer, and direction_i has one value for j < i and one for j > i.
The encoding is the state of END. There are no trees.
"""

import math
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from beamtree.beams import Encoding
from beamtree.checks import check_integer, check_rate
from beamtree.encoders.base import Cost, Encoder, inside, surround


class NDR(Encoder):
    """A Transformer whose one layer is applied again and again, and whose gates say what it changes."""

    paper = "Csordás et al. 2022"
    cost = Cost("–", "layers", "layers·N·D + N²")
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
    # What it keeps for an attention to relative positions that this model does not have.
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
        """
        dim: width D of inputs and encodings.
        heads: of the attention; they share the width evenly.
        feed_forward: width of the layer W1.
        dropout: of the inputs, of the keys, of the attention's result, and inside W2 and G2.
        layers: how often the layer is applied while training.
        layers_at_test: and otherwise; deeper inputs than those of the training may need more.
        check_nan: look for NaN in x before any work (costs a synchronisation on a GPU).
        gate_dropout: probability that a position keeps its state in a layer while training.
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
        nn.init.constant_(self.gate.bias, -3)  # gates begin almost closed: a state stays until there is a reason

    def encode(
        self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"], generator: torch.Generator | None
    ) -> Encoding:
        x = self._drop(surround(x, lengths, self.start, self.end), generator)  # (B, N+2, D)
        present = inside(lengths + 2, x.shape[1])  # (B, N+2)
        distances = Distances.of(x.shape[1], x.device)
        for _ in range(self.layers if self.training else self.layers_at_test):
            x = self._layer(x, present, distances, generator)
        last = (lengths + 1).view(-1, 1, 1).expand(-1, 1, self.dim)
        return Encoding(x.gather(1, last).squeeze(1))

    def _layer(
        self,
        x: Float[Tensor, "B n D"],
        present: Bool[Tensor, "B n"],
        distances: "Distances",
        generator: torch.Generator | None,
    ) -> Float[Tensor, "B n D"]:
        heads = self.attention.project(x)
        heads = heads._replace(keys=self._drop(heads.keys, generator))
        y = self.attention_norm(x + self._drop(self.attention(heads, present, distances), generator))
        u = self.update_norm(self.update(self._drop(self.update_inner(y).relu(), generator)))
        g = self.gate(self._drop(self.gate_inner(y).relu(), generator)).sigmoid()
        if self.training and self.gate_dropout > 0:
            g = g * torch.empty_like(g[..., :1]).bernoulli_(1 - self.gate_dropout, generator=generator)
        return torch.lerp(x, u.to(x.dtype), g.to(x.dtype))

    def _drop(self, x: Float[Tensor, "*shape"], generator: torch.Generator | None) -> Float[Tensor, "*shape"]:
        """Dropout under a generator, which PyTorch's own does not take."""
        if not self.training or self.dropout == 0:
            return x
        return x * torch.empty_like(x).bernoulli_(1 - self.dropout, generator=generator).div_(1 - self.dropout)

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
    back: Float[Tensor, "B H n 1"]  # what a position adds to the logits of all before it
    front: Float[Tensor, "B H n 1"]  # and after it


class Distances(NamedTuple):
    """Who is closer, for n positions."""

    order: Int[Tensor, "n n"]  # row i: all positions from the closest to i on, which is itself
    place: Int[Tensor, "n n"]  # row i: where each position stands in that order

    @classmethod
    def of(cls, n: int, device: torch.device) -> "Distances":
        position = torch.arange(n, device=device)
        offset = position - position.unsqueeze(1)  # (n, n): j − i
        order = (2 * offset.abs() - (offset > 0).long()).argsort(1)  # of two at the same distance the right one first
        return cls(order, order.argsort(1))


class GeometricAttention(nn.Module):
    """Geometric attention that knows left from right."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, width = heads, dim // heads
        self.query = nn.Linear(dim, dim, bias=False)
        self.key_value = nn.Linear(dim, 2 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        bound = math.sqrt(6 / (dim + width))  # Xavier's, each head for itself
        for projection in (self.query, self.key_value, self.out):
            nn.init.uniform_(projection.weight, -bound, bound)
        self.direction = nn.Linear(dim, 2 * heads)
        self.query_bias = nn.Parameter(torch.zeros(heads, width))
        self.scale = nn.Parameter(torch.full((1,), 1 / math.sqrt(width)))
        self.direction_scale = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(1))

    def project(self, x: Float[Tensor, "B n D"]) -> Heads:
        (queries,) = self._split(self.query(x), 1)
        keys, values = self._split(self.key_value(x), 2)
        back, front = self._split(self.direction_scale * self.direction(x) + self.bias, 2)
        return Heads(self.scale * (queries + self.query_bias.unsqueeze(1)), keys, values, back, front)

    def _split(self, x: Float[Tensor, "B n w"], parts: int) -> tuple[Tensor, ...]:
        """The parts, each (B, H, n, d), that every head's share of the width consists of."""
        return x.unflatten(2, (self.heads, parts, -1)).permute(3, 0, 2, 1, 4).unbind(0)

    def forward(self, heads: Heads, present: Bool[Tensor, "B n"], distances: Distances) -> Float[Tensor, "B n D"]:
        # What is n × n is computed again in backward, so that it does not add up over the layers.
        found = checkpoint(attend, *heads, present, distances, use_reentrant=False, preserve_rng_state=False)
        return self.out(found.transpose(1, 2).flatten(2))


def attend(
    queries: Float[Tensor, "B H n d"],
    keys: Float[Tensor, "B H n d"],
    values: Float[Tensor, "B H n d"],
    back: Float[Tensor, "B H n 1"],
    front: Float[Tensor, "B H n 1"],
    present: Bool[Tensor, "B n"],
    distances: Distances,
) -> Float[Tensor, "B H n d"]:
    position = torch.arange(present.shape[1], device=present.device)
    logits = queries @ keys.mT + torch.where(position < position.unsqueeze(1), back, front)  # (B, H, n, n)
    hidden = ~present[:, None, None, :] | (position == position.unsqueeze(1))  # (B, 1, n, n)
    return geometric(logits, hidden, distances).to(values.dtype) @ values


def geometric(
    logits: Float[Tensor, "B H n n"], hidden: Bool[Tensor, "B 1 n n"], distances: Distances
) -> Float[Tensor, "B H n n"]:
    """Row i: the normalised probability that j is the first that matches, from the closest on; 0 for those hidden."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # sums over a row
    order = distances.order.expand_as(logits)
    match = F.logsigmoid(logits).masked_fill(hidden, -torch.inf).gather(3, order)
    passed = F.logsigmoid(-logits).masked_fill(hidden, 0).gather(3, order).cumsum(3)  # this one and all closer ones
    first = match + F.pad(passed[..., :-1], (1, 0))
    return first.softmax(3).gather(3, distances.place.expand_as(logits))


def _linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """A layer with weights of Xavier's size."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight, gain)
    return layer
