"""What all encoders have in common: what they take, what they give, and the checks before any work.

Letters: B batch, N length, D width of inputs and encodings, S width of a node's state (D, or 2D with a Tree-LSTM).
"""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from beamtree.beams import Encoding
from beamtree.cells import Cell
from beamtree.checks import check_flag, check_inputs, check_integer
from beamtree.dropout import NodeDropout


class Encoder(nn.Module):
    """`encoder(x, lengths)` takes x (B, N, D), right padded, and lengths (B,), and gives an `Encoding`.

    A subclass defines `encode`. What is beyond a sample's length never has a part in its encoding, and neither have
    the other samples of its batch.
    """

    needs_trees = False  # whether `forward` must be given the trees to compose by
    OFFICIAL: ClassVar[dict[str, str]] = {}  # the published code's names of modules and parameters → ours
    OFFICIAL_UNUSED: ClassVar[tuple[str, ...]] = ()  # and those that have no part in the encoding

    def __init__(self, dim: int, check_nan: bool = False) -> None:
        """
        dim: width D of inputs and encodings.
        check_nan: look for NaN in x before any work (costs a synchronisation on a GPU).
        """
        super().__init__()
        check_integer("dim", dim, at_least=1)
        check_flag("check_nan", check_nan)
        self.dim, self.check_nan = dim, check_nan

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        lengths: Int[Tensor, "B"],
        generator: torch.Generator | None = None,
    ) -> Encoding:
        """`generator` makes noise and dropout of a training pass repeatable; without it they come from PyTorch's
        global one."""
        x, lengths = self.checked(x, lengths)
        return self.encode(x, lengths, generator)

    def checked(
        self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"]
    ) -> tuple[Float[Tensor, "B N D"], Int[Tensor, "B"]]:
        """The inputs, if they are right, with zeros for padding."""
        check_inputs(x, lengths, self.dim, next(self.parameters()), self.check_nan)
        lengths = lengths.long()
        return x.masked_fill(~inside(lengths, x.shape[1]).unsqueeze(-1), 0), lengths

    def official(self) -> dict[str, str]:
        """The published code's names → ours, of all that has weights; see `beamtree.interop`."""
        return self.OFFICIAL

    def encode(
        self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"], generator: torch.Generator | None
    ) -> Encoding:
        raise NotImplementedError


def inside(lengths: Int[Tensor, "B"], width: int) -> Tensor:
    """Which of `width` places belong to each sample, (B, width): the others are padding."""
    return torch.arange(width, device=lengths.device) < lengths.unsqueeze(1)


def in_full(states: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Under autocast products are in half precision; states are not."""
    return states.float() if states.dtype in (torch.bfloat16, torch.float16) else states


def node_dropout(cell: Cell, leaves: Float[Tensor, "*shape"], generator: torch.Generator | None) -> NodeDropout | None:
    """The masks of a cell's nodes for one pass; None where nothing is dropped."""
    if not cell.training or cell.dropout == 0:
        return None
    return NodeDropout(cell.dropout, cell.mask_dim, leaves, generator)
