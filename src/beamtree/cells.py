"""The cells: functions R(left, right) that join two children into their parent.

A cell is shared by every position, step and beam. The engines ask three things of it: how wide a node's state is
(`state_dim`), how a leaf's state is made from an input vector (`leaf`), and the parent of two states (`forward`).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

FEW = 2**15  # numbers


def gelu(x: Float[Tensor, "*nodes width"]) -> Float[Tensor, "*nodes width"]:
    """GELU. A CPU leaves it to oneDNN, which is fast with many numbers but takes longer to begin than it takes PyTorch
    to be done with few. What does not lie in order is left to PyTorch."""
    if x.dim() == 2 and x.device.type == "cpu" and x.numel() < FEW:
        return F.gelu(x.mT).mT
    return F.gelu(x)


class Cell(nn.Module):
    """What every cell has. A subclass sets the widths and defines `forward` and `leaf`."""

    dim: int  # D, the width of inputs and encodings
    state_dim: int  # S, the width of a node's state, whose first D numbers are its encoding
    mask_dim: int  # the width of the activation that dropout acts on
    dropout: float

    def __init__(self, dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dim, self.dropout = dim, dropout

    def leaf(self) -> nn.Module:
        """A new transform (…, D) → (…, S) from input vectors to leaf states."""
        raise NotImplementedError

    def drop(self, activation: Tensor, mask: Tensor | None) -> Tensor:
        """Apply a node's own mask where the caller keeps one, else ordinary dropout."""
        if mask is not None:
            return activation * mask
        return F.dropout(activation, self.dropout, self.training)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, dropout={self.dropout}"


class GRC(Cell):
    """Gated Recursive Cell (Shen et al. 2019, with the GELU of Ray Chowdhury & Caragea 2021).

        g = dropout(GELU([l; r] W1 + b1))
        [z; h; c; u] = g W2 + b2
        R(l, r) = LN(σ(z) ⊙ l + σ(h) ⊙ r + σ(c) ⊙ u)

    W1 is 2D × 4D and W2 is 4D × 4D (the paper prints 4D × D, which cannot give four gates).
    """

    def __init__(self, dim: int, dropout: float = 0.0) -> None:
        super().__init__(dim, dropout)
        self.state_dim, self.mask_dim = dim, 4 * dim
        self.expand = nn.Linear(2 * dim, 4 * dim)
        self.gates = nn.Linear(4 * dim, 4 * dim)
        self.norm = nn.LayerNorm(dim)

    def leaf(self) -> nn.Module:
        return nn.Sequential(nn.Linear(self.dim, self.dim), nn.LayerNorm(self.dim))

    def forward(
        self,
        left: Float[Tensor, "*nodes state"],
        right: Float[Tensor, "*nodes state"],
        mask: Float[Tensor, "*nodes mask"] | None = None,
    ) -> Float[Tensor, "*nodes state"]:
        children = torch.cat((left, right), dim=-1)  # (…, 2D)
        inner = self.drop(gelu(self.expand(children)), mask)  # (…, 4D)
        gates = self.gates(inner)  # (…, 4D)
        z, h, c = gates[..., : 3 * self.dim].sigmoid().chunk(3, dim=-1)  # (…, D) each
        return self.norm(torch.addcmul(torch.addcmul(z * left, h, right), c, gates[..., 3 * self.dim :]))


class TreeLSTM(Cell):
    """Binary Tree-LSTM (Tai et al. 2015, as in Choi et al. 2018). A state is [h; c], 2D wide.

        [i; f_l; f_r; u; o] = [h_l; h_r] W + b
        c = σ(f_l + 1) ⊙ c_l + σ(f_r + 1) ⊙ c_r + σ(i) ⊙ dropout(tanh u)
        h = σ(o) ⊙ tanh c

    W is orthogonal and b zero at the start. The paper's cell has no dropout, which is the default here.
    """

    def __init__(self, dim: int, dropout: float = 0.0) -> None:
        super().__init__(dim, dropout)
        self.state_dim, self.mask_dim = 2 * dim, dim
        self.gates = nn.Linear(2 * dim, 5 * dim)
        nn.init.orthogonal_(self.gates.weight)
        nn.init.zeros_(self.gates.bias)

    def leaf(self) -> nn.Module:
        return nn.Linear(self.dim, 2 * self.dim)

    def forward(
        self,
        left: Float[Tensor, "*nodes state"],
        right: Float[Tensor, "*nodes state"],
        mask: Float[Tensor, "*nodes mask"] | None = None,
    ) -> Float[Tensor, "*nodes state"]:
        (h_left, c_left), (h_right, c_right) = left.chunk(2, dim=-1), right.chunk(2, dim=-1)
        gates = self.gates(torch.cat((h_left, h_right), dim=-1))  # (…, 5D)
        i, f_left, f_right, u, o = gates.chunk(5, dim=-1)
        update = self.drop(u.tanh(), mask)
        c = (f_left + 1).sigmoid() * c_left + (f_right + 1).sigmoid() * c_right + i.sigmoid() * update
        return torch.cat((o.sigmoid() * c.tanh(), c), dim=-1)
