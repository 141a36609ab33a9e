"""RecurrentGRC: the Gated Recursive Cell as a recurrent network.

A baseline of Ray Chowdhury & Caragea, *Beam Tree Recursive Cells*, ICML 2023.

With leaves r_t = LN(x_t W + b) and a learned h_0, initialised to zero,

    h_t = R(h_{t−1}, r_t),

and the encoding is h_n. If bidirectional, another cell with its own h'_0 reads the leaves from the last to the first,
and the encoding is [h_n; h'_n] V + a. The paper's model is unidirectional. The chain begins with h_0 instead of a leaf,
so it is not a tree over the tokens, and there are no beams.
"""

import copy
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from beamtree.nn.beams import Encoding
from beamtree.nn.cells import Cell, function_of, make_cell
from beamtree.nn.encoders.base import Cost, Encoder, in_full, node_dropout
from beamtree.nn.engine.dispatch import check_engine
from beamtree.nn.engine.loops.chain import CHAIN, ChainRequest
from beamtree.utils.checks import check_flag, check_rate


class Recurrent(Encoder):
    """The Gated Recursive Cell as a recurrent network: `recurrent-grc`.

    There are no beams.

    Examples:
        >>> encoder = beamtree.Recurrent(dim=8, bidirectional=True)
        >>> encoder(torch.randn(2, 5, 8), lengths=[5, 3])
        Encoding(state=(2, 8) of torch.float32, beams=None)
    """

    paper = "Ray Chowdhury & Caragea 2023"
    cost = Cost("N", "N", "N·D")
    # Module and parameter names of the published code → ours. Those of the second cell exist only if bidirectional.
    OFFICIAL: ClassVar[dict[str, str]] = {
        "word_linear": "leaf.0",
        "LN": "leaf.1",
        "initial_fh": "start",
        "fcell.wcell1": "cell.expand",
        "fcell.wcell2": "cell.gates",
        "fcell.LN2": "cell.norm",
        "initial_bh": "second_start",
        "bcell.wcell1": "second_cell.expand",
        "bcell.wcell2": "second_cell.gates",
        "bcell.LN2": "second_cell.norm",
        "compress_linear1": "join",
    }
    OFFICIAL_UNUSED: ClassVar[tuple[str, ...]] = ("compress_linear2.weight", "compress_linear2.bias")

    def __init__(
        self,
        dim: int,
        dropout: float = 0.0,
        bidirectional: bool = False,
        engine: str = "auto",
        check_nan: bool = False,
        *,
        cell: str | nn.Module = "grc",
    ) -> None:
        """Create the encoder.

        Args:
            dim: width D of inputs and encodings.
            dropout: dropout rate inside the cell.
            bidirectional: whether a second cell reads the leaves from the last to the first.
            engine: "auto", "reference", "torch" or "triton" (see `beamtree.nn.engine`).
            check_nan: whether to check x for NaN first (synchronises with the host on a GPU).
            cell: the cell R: "grc", "lstm", or your own module, which maps two states to one.
        """
        super().__init__(dim, check_nan)
        check_rate("dropout", dropout)
        check_flag("bidirectional", bidirectional)
        check_engine(engine)
        self.bidirectional, self.engine = bidirectional, engine
        self.cell = make_cell(cell, dim, dropout)
        self.leaf = self.cell.leaf()
        self.start = nn.Parameter(torch.zeros(self.cell.state_dim))
        if bidirectional:
            self.second_cell = make_cell(_another(cell), dim, dropout)
            self.second_start = nn.Parameter(torch.zeros(self.cell.state_dim))
            self.join = nn.Linear(2 * dim, dim)

    def encode(
        self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"], generator: torch.Generator | None
    ) -> Encoding:
        leaves = in_full(self.leaf(x))  # (B, N, S)
        state = self._read(leaves, lengths, self.cell, self.start, generator)  # (B, D)
        if self.bidirectional:
            position = torch.arange(x.shape[1], device=x.device)
            back = (lengths.unsqueeze(1) - 1 - position).clamp(min=0)  # (B, N); padding repeats the first leaf
            turned = leaves.gather(1, back.unsqueeze(2).expand_as(leaves))
            second = self._read(turned, lengths, self.second_cell, self.second_start, generator)
            state = self.join(torch.cat((state, second), dim=1)).to(state.dtype)
        return Encoding(state)

    def _read(
        self,
        leaves: Float[Tensor, "B N S"],
        lengths: Int[Tensor, "B"],
        cell: Cell,
        start: Float[Tensor, "S"],
        generator: torch.Generator | None,
    ) -> Float[Tensor, "B D"]:
        """The state after each sample's last leaf. Padding follows it and has no effect."""
        dropout = node_dropout(cell, leaves, generator)
        B = len(leaves)
        sequence, start = leaves.transpose(0, 1).contiguous(), start.expand(B, -1).to(leaves.dtype)
        request = ChainRequest(sequence, start, function_of(cell), dropout)
        states = self._engine(CHAIN, request)(request)  # (N, B, S)
        return states[lengths - 1, torch.arange(B, device=lengths.device), : self.dim]

    def extra_repr(self) -> str:
        return f"bidirectional={self.bidirectional}, engine={self.engine!r}"


def _another(cell: str | nn.Module) -> str | nn.Module:
    """A cell of the same kind. Layers that can be are initialised anew, so that the two do not start equal."""
    other = copy.deepcopy(cell)
    if isinstance(other, nn.Module):
        for layer in reversed(list(other.modules())):  # a cell after its layers, as it may initialise them itself
            reset = getattr(layer, "reset_parameters", None)
            if callable(reset):
                reset()
    return other
