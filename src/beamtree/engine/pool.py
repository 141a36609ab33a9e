"""The pool: every node a search has composed, once.

A node's number is its row in the pool, for all samples alike: first the B·N leaves, then whatever is appended, and at
the very end the absent node, which stands wherever a row has no candidate.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from beamtree.engine.base import Request

LEFT, RIGHT, START, END, SAMPLE = range(5)  # the columns of Pool.links


class Pool:
    """States of nodes, the scorer's logits, and links: the children, the span covered, the sample."""

    def __init__(self, request: Request, size: int) -> None:
        B, N, S = request.leaves.shape
        leaves = request.leaves.detach().flatten(0, 1)
        self.request, self.absent, self.used = request, size, B * N
        self.states = leaves.new_empty(size + 1, S)
        self.logits = request.start_scores().new_empty(size + 1)
        self.links = torch.empty(size + 1, 5, dtype=torch.long, device=leaves.device)
        self.states[size], self.logits[size] = 0, -torch.inf
        self.links[size, : RIGHT + 1], self.links[size, RIGHT + 1 :] = size, 0

        self.states[: B * N], self.logits[: B * N] = leaves, -torch.inf
        self.numbers = torch.arange(size, device=leaves.device)
        number = self.numbers[: B * N]
        position = number % N
        self.links[: B * N] = torch.stack((number, number, position, position + 1, number // N), dim=-1)

    def compose(
        self,
        left: Int[Tensor, "B *shape"],
        right: Int[Tensor, "B *shape"],
        present: Bool[Tensor, "B *shape"],
    ) -> Int[Tensor, "B *shape"]:
        """Append the parents of these nodes; the absent node's number where none is present."""
        children = torch.stack((left, right), dim=-1).view(-1, 2)  # (n, 2)
        first, second = self.links[children].unbind(1)  # (n, 5)
        start, split, end = first[:, START], second[:, START], second[:, END]
        mask = self.request.dropout.mask(first[:, SAMPLE], start, split, end) if self.request.dropout else None
        states = self.request.cell(*self.at(children).unbind(1), mask)
        logits = self.request.score(states).where(present.flatten(), -torch.inf)
        links = torch.cat((children, start.unsqueeze(1), second[:, END:SAMPLE], first[:, SAMPLE:]), dim=1)
        return self._append(states, logits, links).view(left.shape).where(present, self.absent)

    def add(self, states: Float[Tensor, "B m S"], links: Int[Tensor, "B m 5"]) -> Int[Tensor, "B m"]:
        """Append states that are no parents."""
        return self._append(states.flatten(0, 1), -torch.inf, links.flatten(0, 1)).view(links.shape[:2])

    def _append(
        self, states: Float[Tensor, "n S"], logits: Tensor | float, links: Int[Tensor, "n 5"]
    ) -> Int[Tensor, "n"]:
        new = slice(self.used, self.used + len(states))
        self.states[new], self.logits[new], self.links[new] = states, logits, links
        self.used = new.stop
        return self.numbers[new]

    def row(self, numbers: Int[Tensor, "*shape m"]) -> Int[Tensor, "*shape m+2"]:
        """A row of candidates, with the absent node at either end, so that each has two neighbours."""
        return torch.nn.functional.pad(numbers, (1, 1), value=self.absent)

    def at(self, numbers: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape S"]:
        """States of these nodes."""
        return self.states.index_select(0, numbers.flatten()).view(*numbers.shape, self.states.shape[1])
