"""The pool: every node a search has composed, once.

A node's number is its row in the pool, for all samples alike: first the B·N leaves, then whatever is appended, and at
the very end the absent node, which stands wherever a row has no candidate.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from beamtree.engine.base import Request

SAMPLE, START, END = range(3)  # the columns of Pool.spans
AT_ONCE = 16384  # nodes that are composed in one call: a bound on the memory of their inner activations


class Pool:
    """States of nodes, the scorer's logits, the children, and the spans covered."""

    @torch.no_grad()
    def __init__(self, request: Request, size: int, tables: "Tables | None" = None) -> None:
        """With room for `size` nodes, in these tables or in new ones."""
        B, N, _ = request.leaves.shape
        leaves = request.leaves.detach()
        self.request, self.absent, self.used = request, size, 0
        self.heights: Tensor | None = None  # (P,): of every node, where a search notes them
        self.states, self.logits, self.children, self.spans, self.numbers = tables or new_tables(request, size)
        number = self.numbers[: B * N].unsqueeze(1)
        self.add(leaves, torch.cat((number // N, number % N, number % N + 1), dim=1).view(B, N, 3))

    def compose(
        self,
        children: Int[Tensor, "B *shape 2"],
        present: Bool[Tensor, "B *shape"],
    ) -> Int[Tensor, "B *shape"]:
        """Append the parents of these pairs; the absent node's number where none is present."""
        children, begin = children.reshape(-1, 2), self.used  # (n, 2)
        for part, there in zip(children.split(AT_ONCE), present.flatten().split(AT_ONCE), strict=True):
            first, second = take(self.spans, part).unbind(1)  # (n, 3)
            mask = self.request.dropout.mask(first, second) if self.request.dropout else None
            states = self.request.cell(*take(self.states, part).unbind(1), mask)
            new = self._append(states, torch.cat((first[:, :END], second[:, END:]), dim=1))
            self.logits[new] = self.request.score(states).where(there, -torch.inf)
            self.children[new] = part
        return self.numbers[begin : self.used].view(present.shape).where(present, self.absent)

    def add(self, states: Float[Tensor, "B m S"], spans: Int[Tensor, "B m 3"]) -> Int[Tensor, "B m"]:
        """Append states that are no parents."""
        return self.numbers[self._append(states.flatten(0, 1), spans.flatten(0, 1))].view(spans.shape[:2])

    def row(self, numbers: Int[Tensor, "*shape m"]) -> Int[Tensor, "*shape m+2"]:
        """A row of candidates, with the absent node at either end, so that each has two neighbours."""
        return torch.nn.functional.pad(numbers, (1, 1), value=self.absent)

    def _append(self, states: Float[Tensor, "n S"], spans: Int[Tensor, "n 3"]) -> slice:
        new = slice(self.used, self.used + len(states))
        self.states[new], self.spans[new], self.used = states, spans, new.stop
        return new


class Tables(NamedTuple):
    """The memory of a pool, a row for each node and one for the absent node."""

    states: Float[Tensor, "P S"]
    logits: Float[Tensor, "P"]
    children: Int[Tensor, "P 2"]
    spans: Int[Tensor, "P 3"]
    numbers: Int[Tensor, "P-1"]


def new_tables(request: Request, size: int) -> Tables:
    """Filled, since assigning a number to an element would make a GPU wait for it. What has no logit of its own
    (leaves, soft states, the absent node) has −inf, what has no children the absent node."""
    device, S = request.leaves.device, request.leaves.shape[2]
    states = torch.empty(size + 1, S, dtype=request.leaves.dtype, device=device)
    states[size].zero_()
    return Tables(
        states,
        torch.full((size + 1,), -torch.inf, dtype=request.score_dtype, device=device),
        torch.full((size + 1, 2), size, device=device),
        torch.zeros(size + 1, 3, dtype=torch.long, device=device),
        torch.arange(size, device=device),
    )


def take(table: Shaped[Tensor, "P width"], numbers: Int[Tensor, "*shape"]) -> Shaped[Tensor, "*shape width"]:
    """Rows of a table; much faster on a CPU than indexing it."""
    return table.index_select(0, numbers.flatten()).view(*numbers.shape, table.shape[1])
