"""LSTM (Hochreiter & Schmidhuber, *Long Short-Term Memory*, Neural Computation 1997).

PyTorch's `nn.LSTM`, as a baseline without trees.

With h_0 = c_0 = 0, a layer computes

    i, f, o = σ(W x_t + U h_{t−1} + b)        g = tanh(W' x_t + U' h_{t−1} + b')
    c_t = f ⊙ c_{t−1} + i ⊙ g                 h_t = o ⊙ tanh(c_t),

and its states h_t are the inputs of the layer above. If bidirectional, a layer is two such networks of D / 2 units, one
of which reads from the last vector to the first, and its states are [h_t; h'_t]. The encoding is pooled from the states
of the top layer: the final state of each direction, or the maximum or mean over all positions.

Sequences are packed, so that padding is never read.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from beamtree.nn.beams import Encoding
from beamtree.nn.encoders.base import Cost, Encoder, in_full
from beamtree.nn.encoders.pooling import pool
from beamtree.utils.checks import check_choice, check_flag, check_integer, check_rate

_without_cudnn = threading.RLock()  # the flag is global


class LSTM(Encoder):
    """PyTorch's LSTM, bidirectional by default: `lstm`.

    There are no beams.

    Examples:
        >>> encoder = beamtree.LSTM(dim=8, layers=2)
        >>> encoder(torch.randn(2, 5, 8), lengths=[5, 3])
        Encoding(state=(2, 8) of torch.float32, beams=None)
    """

    paper = "Hochreiter & Schmidhuber 1997"
    cost = Cost("–", "layers·N", "layers·N·D")

    def __init__(
        self,
        dim: int,
        layers: int = 1,
        bidirectional: bool = True,
        dropout: float = 0.0,
        pooling: str = "last",
        check_nan: bool = False,
    ) -> None:
        """Create the encoder.

        Args:
            dim: width D of inputs and encodings.
            layers: number of layers.
            bidirectional: whether each layer reads in both directions, with D / 2 units each.
            dropout: dropout rate of the states between layers, as in `nn.LSTM`; without effect if there is one layer.
            pooling: "last" for the final state of each direction; "max" or "mean" over all positions.
            check_nan: whether to check x for NaN first (synchronises with the host on a GPU).
        """
        super().__init__(dim, check_nan)
        check_integer("layers", layers, at_least=1)
        check_flag("bidirectional", bidirectional)
        check_rate("dropout", dropout)
        check_choice("pooling", pooling, ("last", "max", "mean"))
        if bidirectional and dim % 2:
            raise ValueError(f"dim is {dim}: it must be even if bidirectional, with dim / 2 units in each direction")
        self.layers, self.bidirectional, self.dropout, self.pooling = layers, bidirectional, dropout, pooling
        width = dim // 2 if bidirectional else dim
        # One module per layer: cuDNN's dropout between the layers of one module has a state of its own, which follows
        # no generator and which checkpointing does not restore.
        self.lstm = nn.ModuleList(
            nn.LSTM(dim, width, batch_first=True, bidirectional=bidirectional) for _ in range(layers)
        )

    def encode(
        self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"], generator: torch.Generator | None
    ) -> Encoding:
        # Packing needs the lengths on the CPU.
        states = pack_padded_sequence(in_full(x), lengths.cpu(), batch_first=True, enforce_sorted=False)
        with self._backend(x):
            for index, layer in enumerate(self.lstm):
                states, (final, _) = layer(states if index == 0 else self._drop(states, generator))
        if self.pooling == "last":
            return Encoding(in_full(final.transpose(0, 1).flatten(1)))  # from (directions, B, D / directions)
        padded, _ = pad_packed_sequence(states, batch_first=True, total_length=x.shape[1])  # (B, N, D)
        return Encoding(pool(in_full(padded), lengths, self.pooling))

    def _drop(self, states: PackedSequence, generator: torch.Generator | None) -> PackedSequence:
        if not self.training or self.dropout == 0:
            return states
        kept = torch.empty_like(states.data).bernoulli_(1 - self.dropout, generator=generator)
        return PackedSequence(states.data * kept / (1 - self.dropout), *states[1:])

    @contextmanager
    def _backend(self, x: Float[Tensor, "B N D"]) -> Iterator[None]:
        """cuDNN has no gradients in eval mode; PyTorch's own kernels do."""
        if not x.is_cuda or self.training or not torch.is_grad_enabled():
            yield
            return
        with _without_cudnn, torch.backends.cudnn.flags(enabled=False):
            yield

    def _description(self) -> str:
        """None for `torch.compile`: Dynamo does not trace code that accesses an `nn.LSTM`.

        That includes access to its weights, which the operator `encode` takes. The encoder runs eagerly between two
        graphs, as in training.
        """
        return ""

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}, pooling={self.pooling!r}"
