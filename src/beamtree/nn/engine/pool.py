"""The pool: every node a search has composed, once.

A node's id is its row in the pool, which all samples share: first the B·N leaves, then the nodes that are appended, and
last the absent node, which fills the places of a row that have no candidate.

Where the scorer reads children, a candidate has an id and a logit before it has a state, which `compose_chosen`
computes once it is chosen.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from beamtree.nn.engine.request import Request
from beamtree.utils.interrupts import check_interrupt

SAMPLE, START, END = range(3)  # the columns of Pool.spans
AT_ONCE = 16384  # nodes per call of the cell: bounds the memory of their inner activations


class Pool:
    """States of nodes, the scorer's logits, the children, and the spans covered."""

    @torch.no_grad()
    def __init__(self, request: Request, size: int, tables: "Tables | None" = None) -> None:
        """A pool for up to `size` nodes, in these tables or in new ones."""
        B, N, _ = request.leaves.shape
        leaves = request.leaves.detach()
        self.request, self.absent, self.used = request, size, 0
        self.heights: Tensor | None = None  # (P,): of every node, where a search records them
        self.states, self.logits, self.children, self.spans, self.ids = tables or new_tables(request, size)
        self.uncomposed: Tensor | None = None  # (P,): whether a candidate has no state yet; on a CPU only
        if request.scores_children and not leaves.is_cuda:
            self.uncomposed = torch.ones(size + 1, dtype=torch.bool, device=leaves.device)
        leaf = self.ids[: B * N].unsqueeze(1)
        self.add(leaves, torch.cat((leaf // N, leaf % N, leaf % N + 1), dim=1).view(B, N, 3))

    def compose(
        self,
        children: Int[Tensor, "B *shape 2"],
        present: Bool[Tensor, "B *shape"],
    ) -> Int[Tensor, "B *shape"]:
        """Append the parents of these pairs. Returns their ids; the absent node's where none is present."""
        check_interrupt()  # every search composes once per step
        pairs, present_pairs, begin = children.reshape(-1, 2), present.flatten(), self.used  # (n, 2), (n,)
        for low in range(0, len(pairs), AT_ONCE):
            part, there = pairs[low : low + AT_ONCE], present_pairs[low : low + AT_ONCE]
            new = self._next(len(part))
            first, second = take(self.spans, part).unbind(1)  # (n, 3)
            torch.cat((first.narrow(1, 0, END), second.narrow(1, END, 1)), dim=1, out=self.spans[new])
            below = take(self.states, part)  # (n, 2, S)
            self.children[new] = part
            if self.request.scores_children:
                read = below
            else:
                left, right = below.unbind(1)
                read = self.request.cell(left, right, self._mask(first, second))
                self.states[new] = read
            if self.request.scorer is not None:
                self.logits[new] = self.request.score(read).where(there, -torch.inf)
        return self.ids[begin : self.used].view(present.shape).where(present, self.absent)

    def compose_chosen(self, chosen: Int[Tensor, "B K"]) -> None:
        """Compose the chosen candidates that have no state yet."""
        if not self.request.scores_children:
            return
        # If two beams choose the same candidate, it is composed twice, with the same result. Some choose the absent
        # node, whose state is finite and not used.
        chosen = chosen.flatten()
        if self.uncomposed is not None:  # another beam has chosen half of them before; a GPU would have to synchronise
            chosen = chosen.masked_select(self.uncomposed.index_select(0, chosen))
            self.uncomposed.index_fill_(0, chosen, False)
        for low in range(0, len(chosen), AT_ONCE):
            ids = chosen[low : low + AT_ONCE]
            pairs = take(self.children, ids)  # (n, 2)
            mask = self._mask(*take(self.spans, pairs).unbind(1))
            left, right = take(self.states, pairs).unbind(1)
            parents = self.request.cell(left, right, mask).to(self.states.dtype)  # a user's cell may follow autocast
            self.states.index_copy_(0, ids, parents)

    def add(self, states: Float[Tensor, "B m S"], spans: Int[Tensor, "B m 3"]) -> Int[Tensor, "B m"]:
        """Append states that are not composed of children."""
        return self.put(self._next(spans.shape[0] * spans.shape[1]).start, states, spans)

    def put(self, first: int, states: Float[Tensor, "B m S"], spans: Int[Tensor, "B m 3"]) -> Int[Tensor, "B m"]:
        """Write such states to the ids from `first` on."""
        B, m, _ = spans.shape
        new = slice(first, first + B * m)
        self.states[new], self.spans[new] = states.flatten(0, 1), spans.flatten(0, 1)
        return self.ids[new].view(B, m)

    def row(self, ids: Int[Tensor, "*shape m"]) -> Int[Tensor, "*shape m+2"]:
        """A row of candidates, with the absent node at either end, so that each has two neighbours."""
        return torch.nn.functional.pad(ids, (1, 1), value=self.absent)

    def _next(self, count: int) -> slice:
        """The rows of the next nodes."""
        new = slice(self.used, self.used + count)
        self.used = new.stop
        return new

    def _mask(self, first: Int[Tensor, "n 3"], second: Int[Tensor, "n 3"]) -> Float[Tensor, "n width"] | None:
        return self.request.dropout.mask(first, second) if self.request.dropout else None


class Tables(NamedTuple):
    """The buffers of a pool: a row for each node and one for the absent node."""

    states: Float[Tensor, "P S"]
    logits: Float[Tensor, "P"]
    children: Int[Tensor, "P 2"]
    spans: Int[Tensor, "P 3"]
    ids: Int[Tensor, "P-1"]


def new_tables(request: Request, size: int) -> Tables:
    """New tables, filled as a whole, since assigning single elements would synchronise with a GPU.

    The logit of nodes that are not scored (leaves, soft states, the absent node) is −inf; missing children are the
    absent node.
    """
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


def take(table: Shaped[Tensor, "P width"], ids: Int[Tensor, "*shape"]) -> Shaped[Tensor, "*shape width"]:
    """Rows of a table; much faster on a CPU than indexing it."""
    return table.index_select(0, ids.flatten()).view(*ids.shape, table.shape[1])
