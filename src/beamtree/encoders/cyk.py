"""CYK with a Gated Recursive Cell (Maillard et al., *Jointly Learning Sentence Embeddings and Syntax with Unsupervised
Tree-LSTMs*, 2019; with the cell and the settings of Ray Chowdhury & Caragea, *Beam Tree Recursive Cells*, ICML 2023).

Every span has a state, made from all the ways to split it. A span of one word has its leaf; that of w words from word
i on is a mixture over its w−1 splits,

    c_j = R(h_{i, j}, h_{i+j, w−j}),   ĉ_j = c_j / (‖c_j‖ + ε),   α = softmax_j(score(ĉ_j)),   h_{i, w} = Σ_j α_j ĉ_j ,

and the encoding is the state of the whole sample. The tree that is shown follows the heaviest split from the root down.

A sample of n words has n(n+1)/2 spans, which are kept, and about n³/6 splits, which are not: their cells are computed
in pieces, in backward once more.
"""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from beamtree.beams import Encoding
from beamtree.bench_memory import available_bytes
from beamtree.cells import GRC
from beamtree.checks import check_choice, check_rate
from beamtree.dropout import NodeDropout
from beamtree.encoders.base import OFFICIAL_CELL, Cost, Encoder, average, in_full, node_dropout
from beamtree.engine.adjoint import batch_size
from beamtree.engine.autocast import Autocast
from beamtree.engine.base import Chart
from beamtree.engine.pool import take
from beamtree.trees import Tree

EPSILON = 1e-8  # of the published code; keeps a state of length zero finite
CELL_WIDTHS = 80  # numbers that a cell holds at most while it is differentiated, in units of D; 73 were measured


class CYK(Encoder):
    """An encoder that mixes all trees, span by span."""

    paper = "Maillard et al. 2019"
    cost = Cost("(N³−N)/6", "N−1", "N²·D")
    OFFICIAL: ClassVar[dict[str, str]] = OFFICIAL_CELL | {"scorer": "scorer"}

    def __init__(
        self,
        dim: int,
        dropout: float = 0.0,
        masks: Literal["exact", "official"] = "exact",
        check_nan: bool = False,
    ) -> None:
        """
        dim: width D of inputs and encodings.
        dropout: inside the cell; a split keeps its mask (see `beamtree.dropout`).
        masks: "exact": a span is there or it is not. "official": as in the published code, whose spans are there by a
            fraction that falls below 1 as they grow, by 1e-7 for ten words (see `fade`).
        check_nan: look for NaN in x before any work (costs a synchronisation on a GPU).
        """
        super().__init__(dim, check_nan)
        check_rate("dropout", dropout)
        check_choice("masks", masks, ("exact", "official"))
        self.masks = masks
        self.cell = GRC(dim, dropout)
        self.leaf = self.cell.leaf()
        self.scorer = nn.Linear(dim, 1)

    def encode(
        self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"], generator: torch.Generator | None
    ) -> Encoding:
        spans = Spans(lengths, x.shape[1])
        self._check_memory(x, spans)
        leaves = in_full(self.leaf(x))  # (B, N, D)
        dropout = node_dropout(self.cell, leaves, generator)
        if self.masks == "official":  # a state has one number more: how much of it is there
            leaves = nn.functional.pad(leaves, (0, 1), value=1)  # (B, N, D+1)
        weights = (*self.cell.parameters(), *self.scorer.parameters())
        store, best = Fill.apply(self, spans, dropout, leaves.flatten(0, 1), *weights)
        chart = make_chart(store, spans, best)
        return average(chart, chart.scores, lengths, self.dim)

    def mix(
        self,
        left: Float[Tensor, "spans splits S"],
        right: Float[Tensor, "spans splits S"],
        mask: Float[Tensor, "spans splits width"] | None,
    ) -> tuple[Float[Tensor, "spans S"], Float[Tensor, "spans splits"]]:
        """The states of spans from the two parts of each of their splits, and the weights of the splits."""
        parents = self.cell(left[..., : self.dim], right[..., : self.dim], mask)
        parents = parents / (parents.norm(dim=-1, keepdim=True) + EPSILON)
        if self.masks == "official":
            return self.fade(parents, left[..., : self.dim], right[..., self.dim :])
        weights = self._weigh(parents)
        return (weights.unsqueeze(-1) * parents).sum(1), weights

    def fade(
        self,
        parents: Float[Tensor, "spans splits D"],
        left: Float[Tensor, "spans splits D"],
        there: Float[Tensor, "spans splits 1"],
    ) -> tuple[Float[Tensor, "spans S"], Float[Tensor, "spans splits"]]:
        """The same as the published code does it. A right part stands for padding as far as it is not there, and ε in
        the sum of the weights makes every span a little less there than its parts."""
        parents = there * parents + (1 - there) * left
        weights = self._weigh(parents) * there.squeeze(-1)
        weights = weights / (weights + EPSILON).sum(-1, keepdim=True)
        return (weights.unsqueeze(-1) * torch.cat((parents, there), dim=-1)).sum(1), weights

    def _weigh(self, parents: Float[Tensor, "spans splits D"]) -> Float[Tensor, "spans splits"]:
        return self.scorer(parents).squeeze(-1).to(parents.dtype).softmax(-1)

    def _check_memory(self, x: Float[Tensor, "B N D"], spans: "Spans") -> None:
        """Better no work at all than to run out of memory after minutes of it."""
        # With a gradient: the states, their gradient, and that which comes from outside.
        tables, cells = (3, CELL_WIDTHS) if torch.is_grad_enabled() else (1, CELL_WIDTHS // 2)
        pieces = min(batch_size(x.device), spans.splits) * cells
        needed = (tables * spans.total + pieces) * self.dim * x.element_size()
        available = available_bytes(x.device.type)
        if available is None or needed <= available:
            return
        if x.is_cuda:  # what PyTorch holds and does not use
            available += torch.cuda.memory_reserved(x.device) - torch.cuda.memory_allocated(x.device)
        if needed > available:
            raise MemoryError(
                f"cyk-grc needs about {needed / 2**30:.1f} GiB for {len(x)} × {x.shape[1]} words, and "
                f"{available / 2**30:.1f} GiB are free: give it fewer samples at a time, or shorter ones"
            )


class Spans:
    """All spans of a batch, and the row of the store that each has: first B·N leaves, then spans of two words, of
    three, and so on. Spans that padding would be part of have none."""

    def __init__(self, lengths: Int[Tensor, "B"], width: int) -> None:
        B, device = len(lengths), lengths.device
        self.lengths: list[int] = lengths.tolist()
        self.longest = max(self.lengths)
        self.total = B * width + sum(n * (n - 1) // 2 for n in self.lengths)
        self.splits = sum((n**3 - n) // 6 for n in self.lengths)
        self.counts = (lengths.unsqueeze(1) - torch.arange(width, device=device)).clamp(min=0)  # (B, N)
        self.counts[:, :1] = width
        ends = self.counts.mT.flatten().cumsum(0).view(width, B).mT
        self.rows = ends - self.counts  # (B, N): the row of the first span of w words is rows[:, w − 1]

    def row(
        self, sample: Int[Tensor, "*shape"], start: Int[Tensor, "*shape"], end: Int[Tensor, "*shape"]
    ) -> Int[Tensor, "*shape"]:
        return self.rows[sample, end - start - 1] + start

    def pieces(self, at_once: int, longest_first: bool = False) -> Iterator["Piece"]:
        """All spans of two words and more, by their length, with about `at_once` splits in a piece."""
        order = range(2, self.longest + 1)
        for words in reversed(order) if longest_first else order:
            count = sum(max(n - words + 1, 0) for n in self.lengths)
            first = self.total - sum(max(n - words + 1, 0) * max(n - words + 2, 0) // 2 for n in self.lengths)
            sample = torch.repeat_interleave(self.counts[:, words - 1], output_size=count)  # (spans,)
            rows = torch.arange(first, first + count, device=sample.device)
            start = rows - self.rows[sample, words - 1]
            step = max(at_once // (words - 1), 1)
            for low in range(0, count, step):
                part = slice(low, min(low + step, count))
                yield self._piece(slice(first + part.start, first + part.stop), sample[part], start[part], words)

    def _piece(self, rows: slice, sample: Int[Tensor, "spans"], start: Int[Tensor, "spans"], words: int) -> "Piece":
        split = torch.arange(1, words, device=start.device)  # words on the left
        sample, start, split = torch.broadcast_tensors(sample.unsqueeze(1), start.unsqueeze(1), split)
        middle, end = start + split, start + words  # (spans, splits)
        left = torch.stack((sample, start, middle), dim=-1)
        right = torch.stack((sample, middle, end), dim=-1)
        children = torch.stack((self.row(sample, start, middle), self.row(sample, middle, end)))
        return Piece(rows, children, left, right)


class Piece(NamedTuple):
    """Some spans of equal length, with all their splits."""

    rows: slice
    children: Int[Tensor, "2 spans splits"]  # rows of the left and right parts
    left: Int[Tensor, "spans splits 3"]  # (sample, start, end) of them
    right: Int[Tensor, "spans splits 3"]


class Fill(torch.autograd.Function):
    """(leaves, weights) → (states of all spans, heaviest split of each, as the number of words on its left)."""

    @staticmethod
    def forward(
        ctx: Any,
        encoder: CYK,
        spans: Spans,
        dropout: NodeDropout | None,
        leaves: Float[Tensor, "leaves S"],
        *weights: Tensor,
    ) -> tuple[Float[Tensor, "rows S"], Int[Tensor, "rows"]]:
        store = leaves.new_empty(spans.total, leaves.shape[1])
        store[: len(leaves)] = leaves
        best = torch.zeros(spans.total, dtype=torch.int32, device=leaves.device)
        for piece in spans.pieces(batch_size(leaves.device)):
            mask = dropout.mask(piece.left, piece.right) if dropout else None
            left, right = take(store, piece.children)  # (spans, splits, S)
            store[piece.rows], alpha = encoder.mix(left, right, mask)
            best[piece.rows] = alpha.argmax(1) + 1
        ctx.encoder, ctx.spans, ctx.dropout = encoder, spans, dropout
        ctx.autocast = Autocast(leaves.device.type)
        # The weights too, so that PyTorch objects if they change before backward.
        ctx.save_for_backward(*weights, store)
        ctx.mark_non_differentiable(best)
        return store, best

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, store_gradient: Float[Tensor, "rows S"], _: Tensor) -> tuple[Tensor | None, ...]:
        *weights, store = ctx.saved_tensors
        gradient = store_gradient.clone()  # of every state, complete once all longer spans have come by
        wanted = [weight for weight, needed in zip(weights, ctx.needs_input_grad[4:], strict=True) if needed]
        totals = [torch.zeros_like(weight) for weight in wanted]
        for piece in ctx.spans.pieces(batch_size(store.device), longest_first=True):
            mask = ctx.dropout.mask(piece.left, piece.right) if ctx.dropout else None
            children = take(store, piece.children).requires_grad_()  # (2, spans, splits, S)
            with torch.enable_grad(), ctx.autocast.again():
                states, _ = ctx.encoder.mix(*children.unbind(), mask)
            down, *found = torch.autograd.grad(states, (children, *wanted), gradient[piece.rows])
            gradient.index_add_(0, piece.children.flatten(), down.flatten(0, 2))
            for total, part in zip(totals, found, strict=True):
                total += part
        own = iter(totals)
        leaves = ctx.spans.rows.numel()
        return None, None, None, gradient[:leaves], *(next(own) if n else None for n in ctx.needs_input_grad[4:])


def make_chart(store: Float[Tensor, "rows S"], spans: Spans, best: Int[Tensor, "rows"]) -> Chart:
    """The trees of the heaviest splits, one beam a sample."""
    B, N = spans.rows.shape
    splits, rows = best.tolist(), spans.rows.tolist()
    actions, bounds = torch.zeros(B, N - 1, dtype=torch.long), torch.zeros(B, N - 1, 2, dtype=torch.long)
    for sample, n in enumerate(spans.lengths):
        tree = top_down(splits, rows[sample], n)
        if n > 1:
            actions[sample, : n - 1] = torch.tensor(tree.actions())
            bounds[sample, : n - 1] = torch.tensor(tree.spans(leaves=False))
    actions, bounds = actions.to(store.device), bounds.to(store.device)
    start, end = bounds.unbind(-1)  # (B, M)
    samples = torch.arange(B, device=store.device).unsqueeze(1).expand_as(start)
    nodes = spans.row(samples, start, end.clamp(min=1))  # a leaf's where there is none
    return Chart(store, store.new_zeros(B, 1), actions.unsqueeze(1), nodes.unsqueeze(1), bounds.unsqueeze(1))


def top_down(best: list[int], rows: list[int], length: int) -> Tree:
    """The tree over positions that takes the best split of the whole, then of its parts."""
    found: list[tuple[int, int]] = []
    waiting = [(0, length)]
    while waiting:
        start, end = waiting.pop()
        if end - start > 1:
            middle = start + best[rows[end - start - 1] + start]
            found.append((start, end))
            waiting += [(start, middle), (middle, end)]
    return Tree.from_spans(found, [str(position) for position in range(length)])
