"""The cells of probe_cells.py: functions of two children, whose parent they compose."""

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from beamtree.nn.cells.base import uniform_noise

GRC_KINDS = ("grc", "rms", "counter", "additive", "linear", "mixed")


class ProbedCell(Protocol):
    noise: float  # standard deviation of the uniform noise that is added to new states during training

    def __call__(self, left: Tensor, right: Tensor, adds: Tensor | None = None) -> Tensor:
        """The parents (B, S) of the children. `adds` (B, 1): which of them are pools; None: the cell decides."""

    def start(self, leaves: Tensor) -> Tensor:
        """The states (N, S) of leaves (N, D)."""

    def read(self, state: Tensor) -> Tensor:
        """A state (B, S) as gates and classifier see it, (B, D)."""

    def composed(self, state: Tensor) -> Tensor:
        """How many nodes (B,) below this one were composed although they could have been pooled."""


class GatedCell(nn.Module):
    """The GRC, R(l, r) = norm(σ(z) ⊙ l + σ(h) ⊙ r + σ(c) ⊙ u), and variants of it.

    grc: as in the paper, with a layer norm.
    rms: with an RMS norm, which does not subtract the mean.
    counter: a quarter of the state is not normalised, so that it can grow.
    additive: no part is normalised; the gates and the classifier read normalised states.
    linear: as `additive`, and the gates read only the right child, so a parent is a linear function of its left child.
    mixed: a quarter of the state as in `grc`, the rest as in `linear`; all gates of the first part read both children.
    """

    noise = 0.0

    def __init__(self, kind: str, dim: int) -> None:
        super().__init__()
        self.kind, self.parts = kind, [dim // 4, dim - dim // 4]  # of the state of `mixed`
        self.expand, self.gates = nn.Linear(2 * dim, 4 * dim), nn.Linear(4 * dim, 4 * dim)
        self.norm = nn.RMSNorm(dim) if kind == "rms" else nn.LayerNorm(self.parts[0] if kind == "mixed" else dim)
        self.rest_norm = nn.LayerNorm(self.parts[1]) if kind == "mixed" else nn.Identity()
        self.dropout = nn.Dropout(0.1)

    def forward(self, left: Tensor, right: Tensor, adds: Tensor | None = None) -> Tensor:
        parent = self.parent(left, right)
        if self.training and self.noise:
            return parent + uniform_noise(parent, self.noise)
        return parent

    def parent(self, left: Tensor, right: Tensor) -> Tensor:
        read_left, read_right = self.read(left), self.read(right)
        if self.kind == "mixed":
            parents = self.total(read_left, read_right, left, right), self.total(None, read_right, left, right)
            (first, _), (_, rest) = (parent.split(self.parts, dim=-1) for parent in parents)
            return torch.cat((self.norm(first), rest), dim=-1)
        total = self.total(None if self.kind == "linear" else read_left, read_right, left, right)
        if self.kind in ("additive", "linear"):
            return total
        normalised: Tensor = self.norm(total)
        if self.kind == "counter":
            return torch.cat((normalised[..., : self.parts[1]], total[..., self.parts[1] :]), dim=-1)
        return normalised

    def total(self, read_left: Tensor | None, read_right: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """σ(z) ⊙ l + σ(h) ⊙ r + σ(c) ⊙ u. Without `read_left`, the gates read only the right child."""
        children = torch.zeros_like(left) if read_left is None else read_left, read_right
        z, h, c, u = self.gates(self.dropout(F.gelu(self.expand(torch.cat(children, dim=-1))))).chunk(4, dim=-1)
        return z.sigmoid() * left + h.sigmoid() * right + c.sigmoid() * u

    def start(self, leaves: Tensor) -> Tensor:
        return leaves

    def read(self, state: Tensor) -> Tensor:
        if self.kind == "mixed":
            first, rest = state.split(self.parts, dim=-1)
            return torch.cat((first, self.rest_norm(rest)), dim=-1)
        return self.norm(state) if self.kind in ("additive", "linear") else state

    def composed(self, state: Tensor) -> Tensor:
        return state.new_zeros(state.shape[:-1])


class PooledCell(nn.Module):
    """A cell that adds its children unless a gate decides to compose them.

    A state [h; s; x; n] has a head, a sum, a maximum and a count. With p = σ(g(h_l, h_r)):

        pooled, if p > 1/2:   [h_l; s_l + s_r; max(x_l, x_r); n_l + n_r]
        composed otherwise:   [GRC(l, r); n_l + n_r + 1]

    The gate is straight-through: its gradient is that of p. It reads the heads only, which do not change while children
    are pooled. The GRC reads sums under an RMS norm and normalises each part of its result. The count is of the nodes
    that were composed, a penalty on which keeps pooling the default.

    Noise is added to all parts of a composed state, but only to the sum of a pool, so that a head can be kept.
    """

    noise = 0.0

    def __init__(self, dim: int, with_maximum: bool) -> None:
        super().__init__()
        head = dim // 3
        self.parts = [head, head, dim - 2 * head] if with_maximum else [head, dim - head, 0]
        self.expand, self.gates = nn.Linear(2 * dim, 4 * dim), nn.Linear(4 * dim, 4 * dim)
        self.gate = nn.Sequential(nn.Linear(2 * head, dim), nn.GELU(), nn.Linear(dim, 1))
        nn.init.constant_(self.gate[-1].bias, 0.4)  # pool, at first
        self.norms = nn.ModuleList(nn.LayerNorm(part) for part in self.parts if part)
        self.sum_norm = nn.RMSNorm(self.parts[1])
        self.dropout = nn.Dropout(0.1)

    def forward(self, left: Tensor, right: Tensor, adds: Tensor | None = None) -> Tensor:
        heads, sums, maxima, counts = zip(*(state.split([*self.parts, 1], -1) for state in (left, right)), strict=True)
        if adds is None:
            p = self.pool_logit(left, right).sigmoid()
            pool = (p > 0.5).float() + p - p.detach()  # (B, 1)
        else:
            pool = adds.float()
        pooled = torch.cat((heads[0], self.noisy(sums[0] + sums[1]), torch.maximum(*maxima)), dim=-1)
        read_left, read_right = self.read(left), self.read(right)
        inner = self.dropout(F.gelu(self.expand(torch.cat((read_left, read_right), dim=-1))))
        z, h, c, u = self.gates(inner).chunk(4, dim=-1)
        total = z.sigmoid() * read_left + h.sigmoid() * read_right + c.sigmoid() * u
        composed = self.noisy(self.normalise(total))
        state = pool * pooled + (1 - pool) * composed
        return torch.cat((state, counts[0] + counts[1] + 1 - pool), dim=-1)

    def pool_logit(self, left: Tensor, right: Tensor) -> Tensor:
        """The logit (B, 1) of p: a parent is pooled where it is positive."""
        logit: Tensor = self.gate(torch.cat([state[..., : self.parts[0]] for state in (left, right)], dim=-1))
        return logit

    def noisy(self, state: Tensor) -> Tensor:
        return state + uniform_noise(state, self.noise) if self.training and self.noise else state

    def normalise(self, total: Tensor) -> Tensor:
        parts = total.split([part for part in self.parts if part], dim=-1)
        return torch.cat([norm(part) for norm, part in zip(self.norms, parts, strict=True)], dim=-1)

    def start(self, leaves: Tensor) -> Tensor:
        return F.pad(self.normalise(leaves), (0, 1))

    def read(self, state: Tensor) -> Tensor:
        head, total, maximum, _ = state.split([*self.parts, 1], dim=-1)
        return torch.cat((head, self.sum_norm(total), maximum), dim=-1)

    def composed(self, state: Tensor) -> Tensor:
        return state[..., -1]
