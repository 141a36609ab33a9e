"""Transformer (Vaswani et al., *Attention Is All You Need*, NeurIPS 2017).

PyTorch's `nn.TransformerEncoder`, as a baseline without trees.

The inputs get sinusoidal positions, which exist for any length:

    z_p = x_p + [sin(p ω_0), cos(p ω_0), sin(p ω_1), cos(p ω_1), …]        ω_i = 10000^(−2i / D)

Every layer normalises its inputs instead of its outputs (pre-norm; Xiong et al. 2020), and there is a LayerNorm at the
end:

    z ← z + attention(LN(z))        z ← z + W2 gelu(W1 LN(z))

The encoding is pooled from the final states: their mean or maximum over all positions, or that of the first position.
Padding is masked in the attention and in the pooling.

PyTorch's fused attention kernels have no second derivatives; within
`torch.nn.attention.sdpa_kernel(SDPBackend.MATH)` there are.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from beamtree.nn.beams import Encoding
from beamtree.nn.encoders.base import Cost, Encoder, in_full, inside
from beamtree.nn.encoders.pooling import pool
from beamtree.utils.checks import check_choice, check_integer, check_rate

_generator_lock = threading.RLock()  # there is one default generator per device, for all threads


class Transformer(Encoder):
    """PyTorch's Transformer encoder with sinusoidal positions: `transformer`.

    There are no beams.

    Examples:
        >>> encoder = beamtree.Transformer(dim=8, heads=2)
        >>> encoder(torch.randn(2, 5, 8), lengths=[5, 3])
        Encoding(state=(2, 8) of torch.float32, beams=None)
    """

    paper = "Vaswani et al. 2017"
    # Attention kernels that save no weights need only layers·N·D; on a CPU there is none with dropout.
    cost = Cost("–", "layers", "layers·N(D+heads·N)")

    def __init__(
        self,
        dim: int,
        layers: int = 2,
        heads: int = 4,
        feed_forward: int | None = None,
        dropout: float = 0.1,
        pooling: str = "mean",
        check_nan: bool = False,
    ) -> None:
        """Create the encoder.

        Args:
            dim: width D of inputs and encodings.
            layers: number of layers, each with its own weights.
            heads: number of attention heads, each of width D / heads.
            feed_forward: output width of W1; 4·D if None.
            dropout: dropout rate of the attention weights, the output of the attention, and the input and output of W2.
            pooling: "mean" or "max" over all positions, or "first" for the state of the first position.
            check_nan: whether to check x for NaN first (synchronises with the host on a GPU).
        """
        super().__init__(dim, check_nan)
        check_integer("layers", layers, at_least=1)
        check_integer("heads", heads, at_least=1)
        if dim % heads:
            raise ValueError(f"heads is {heads}: it must divide dim = {dim}, the width that the heads share")
        feed_forward = 4 * dim if feed_forward is None else feed_forward
        check_integer("feed_forward", feed_forward, at_least=1)
        check_rate("dropout", dropout)
        check_choice("pooling", pooling, ("mean", "max", "first"))
        self.layers, self.heads, self.feed_forward = layers, heads, feed_forward
        self.dropout, self.pooling = dropout, pooling

        def layer() -> nn.TransformerEncoderLayer:
            # Not batch_first, which selects other kernels at inference: they hold all N × N attention weights, and
            # read the weights of the sublayers instead of calling them.
            return nn.TransformerEncoderLayer(dim, heads, feed_forward, dropout, activation="gelu", norm_first=True)

        self.transformer = nn.TransformerEncoder(layer(), layers, norm=nn.LayerNorm(dim), enable_nested_tensor=False)
        # It holds copies of its argument: without this all layers would start with the same weights.
        self.transformer.layers = nn.ModuleList([layer() for _ in range(layers)])

    def encode(
        self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"], generator: torch.Generator | None
    ) -> Encoding:
        x = in_full(x)
        x = x + sinusoids(x.shape[1], self.dim, x)  # (B, N, D)
        padding = ~inside(lengths, x.shape[1])  # (B, N)
        with default_generator(generator if self.training else None, x.device):
            states = self.transformer(x.transpose(0, 1), src_key_padding_mask=padding).transpose(0, 1)  # (B, N, D)
        return Encoding(pool(in_full(states), lengths, self.pooling))

    def extra_repr(self) -> str:
        return f"heads={self.heads}, pooling={self.pooling!r}"


@contextmanager
def default_generator(generator: torch.Generator | None, device: torch.device) -> Iterator[None]:
    """A context in which PyTorch's default generator of the device draws what `generator` would draw.

    It is for modules that accept no generator. Afterwards `generator` has advanced and the default generator has not.
    None changes nothing.
    """
    if generator is None:
        yield
        return
    if generator.device.type != device.type:
        raise ValueError(f"generator is on {generator.device} and x on {device}: they must be on one device")
    default = torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[device.index]
    if generator is default:
        yield
        return
    with _generator_lock:
        before = default.get_state()
        default.set_state(generator.get_state())
        try:
            yield
        finally:
            generator.set_state(default.get_state())
            default.set_state(before)


def sinusoids(length: int, width: int, like: Tensor) -> Float[Tensor, "N D"]:
    """Sinusoidal positions 0, 1, …, with the dtype and device of `like`."""
    # In float64: the angles of far positions have few digits after the point otherwise.
    even = torch.arange(0, width, 2, device=like.device, dtype=torch.float64)
    position = torch.arange(length, device=like.device, dtype=torch.float64)
    angles = position.unsqueeze(1) * 10000 ** (-even / width)  # (N, ⌈D / 2⌉)
    return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)[:, :width].to(like.dtype)
