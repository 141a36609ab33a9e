"""The chart of CYK: every span has a state, a mixture over all its splits.

A sample of n words has n(n+1)/2 spans, which are saved, and about n³/6 splits, which are not: their cells are computed
in pieces, and recomputed in the backward pass.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.nn.cells import AnyCell, CellFunction
from beamtree.nn.cells.adjoint import batch_size
from beamtree.nn.engine.autocast import Autocast
from beamtree.nn.engine.dispatch import Engine, why_not_triton
from beamtree.nn.engine.dropout import NodeDropout
from beamtree.nn.engine.functional import Composite
from beamtree.nn.engine.pool import take
from beamtree.nn.engine.scorers import AnyScorer
from beamtree.nn.function import first_order, save
from beamtree.utils.interrupts import check_interrupt

EPSILON = 1e-8  # from the published code; avoids division by a norm of 0


@dataclass(frozen=True)
class SplitMixer(Composite):
    """Computes the state of a span from the two parts of each of its splits.

    c_j = R(left_j, right_j),   ĉ_j = c_j / (‖c_j‖ + ε),   α = softmax_j(score(ĉ_j)),   h = Σ_j α_j ĉ_j
    """

    cell: AnyCell
    scorer: AnyScorer
    official: bool  # as in the published code, where spans exist to a degree; see `fade`

    def __call__(
        self,
        left: Float[Tensor, "spans splits S"],
        right: Float[Tensor, "spans splits S"],
        mask: Float[Tensor, "spans splits width"] | None,
    ) -> tuple[Float[Tensor, "spans S"], Float[Tensor, "spans splits"]]:
        """The states of the spans, and the weights of their splits."""
        D = self.cell.dim
        parents = self.cell(left[..., :D], right[..., :D], mask)
        parents = parents / (parents.norm(dim=-1, keepdim=True) + EPSILON)
        if self.official:
            return self.fade(parents, left[..., :D], right[..., D:])
        weights = self._weigh(parents)
        return (weights.unsqueeze(-1) * parents).sum(1), weights

    def fade(
        self,
        parents: Float[Tensor, "spans splits D"],
        left: Float[Tensor, "spans splits D"],
        there: Float[Tensor, "spans splits 1"],
    ) -> tuple[Float[Tensor, "spans S"], Float[Tensor, "spans splits"]]:
        """The mixture of the published code.

        A right part counts as padding to the degree that it does not exist, and ε in the sum of the weights makes every
        span exist slightly less than its parts.
        """
        parents = there * parents + (1 - there) * left
        weights = self._weigh(parents) * there.squeeze(-1)
        weights = weights / (weights + EPSILON).sum(-1, keepdim=True)
        return (weights.unsqueeze(-1) * torch.cat((parents, there), dim=-1)).sum(1), weights

    def _weigh(self, parents: Float[Tensor, "spans splits D"]) -> Float[Tensor, "spans splits"]:
        return self.scorer.logits(parents).to(parents.dtype).softmax(-1)


class Spans:
    """All spans of a batch, and the row of each in the store.

    First there are B·N leaves, then spans of two words, of three, and so on. Spans that contain padding have no row.
    """

    def __init__(self, lengths: Int[Tensor, "B"], width: int) -> None:
        B, device = len(lengths), lengths.device
        self.lengths: list[int] = lengths.tolist()
        self.longest = max(self.lengths)
        self.total = B * width + sum(n * (n - 1) // 2 for n in self.lengths)
        self.splits = sum((n**3 - n) // 6 for n in self.lengths)
        self.counts = (lengths.unsqueeze(1) - torch.arange(width, device=device)).clamp(min=0)  # (B, N)
        self.counts[:, :1] = width
        ends = self.counts.mT.flatten().cumsum(0).view(width, B).mT
        self.rows = ends - self.counts  # (B, N): rows[:, w − 1] is the row of the first span of w words

    def row(
        self, sample: Int[Tensor, "*shape"], start: Int[Tensor, "*shape"], end: Int[Tensor, "*shape"]
    ) -> Int[Tensor, "*shape"]:
        return self.rows[sample, end - start - 1] + start

    def pieces(self, at_once: int, longest_first: bool = False) -> Iterator["Piece"]:
        """All spans of at least two words, sorted by length, in pieces of about `at_once` splits."""
        order = range(2, self.longest + 1)
        for words in reversed(order) if longest_first else order:
            check_interrupt()
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
        split = torch.arange(1, words, device=start.device)  # number of words on the left
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
    left: Int[Tensor, "spans splits 3"]  # (sample, start, end)
    right: Int[Tensor, "spans splits 3"]


@dataclass(frozen=True)
class SpanRequest:
    """The spans of a batch, to be computed from the leaves."""

    mixer: SplitMixer
    spans: Spans
    leaves: Float[Tensor, "leaves S"]
    dropout: NodeDropout | None = None


Filled = tuple[Float[Tensor, "rows S"], Int[Tensor, "rows"]]  # states, and words on the left of the best split


def fill(request: SpanRequest, by_kernels: bool = False) -> Filled:
    """The states of all spans, with gradients, and the best split of each.

    by_kernels: whether Triton kernels compute the cells.
    """
    mixer = request.mixer
    if not mixer.is_functional:
        return reference(request)
    unbound = mixer.unbound
    found: Filled = Fill.apply(unbound, by_kernels, request.spans, request.dropout, request.leaves, *mixer.weights)
    return found


def reference(request: SpanRequest) -> Filled:
    """The same under autograd, which saves the cells' inner activations."""
    store, best = request.leaves, torch.zeros(request.spans.total, dtype=torch.int32, device=request.leaves.device)
    for piece in request.spans.pieces(batch_size(store.device)):
        mask = request.dropout.mask(piece.left, piece.right) if request.dropout else None
        left, right = take(store, piece.children)  # (spans, splits, S)
        states, alpha = request.mixer(left, right, mask)
        store = torch.cat((store, states.to(store.dtype)))
        best[piece.rows] = alpha.detach().argmax(1).int() + 1
    return store, best


class Fill(torch.autograd.Function):
    """(leaves, weights) → (states of all spans, number of words left of the split of largest weight of each)."""

    @staticmethod
    def forward(
        ctx: Any,
        mixer: SplitMixer,
        by_kernels: bool,
        spans: Spans,
        dropout: NodeDropout | None,
        leaves: Float[Tensor, "leaves S"],
        *weights: Tensor,
    ) -> Filled:
        store = leaves.new_empty(spans.total, leaves.shape[1])
        store[: len(leaves)] = leaves
        best = torch.zeros(spans.total, dtype=torch.int32, device=leaves.device)
        at_once = splits_at_once(leaves.device)
        bound = bind(mixer, weights, by_kernels, at_once)
        for piece in spans.pieces(at_once):
            mask = dropout.mask(piece.left, piece.right) if dropout else None
            left, right = take(store, piece.children)  # (spans, splits, S)
            store[piece.rows], alpha = bound(left, right, mask)
            best[piece.rows] = alpha.argmax(1).int() + 1
        ctx.mixer, ctx.by_kernels, ctx.spans, ctx.dropout = mixer, by_kernels, spans, dropout
        ctx.autocast = Autocast(leaves.device.type)
        save(ctx, (leaves, *weights), store)
        ctx.mark_non_differentiable(best)
        return store, best

    @staticmethod
    @first_order
    def backward(
        ctx: Any,
        inputs: Sequence[Tensor],
        kept: Sequence[Any],
        store_gradient: Float[Tensor, "rows S"],
        _: Tensor,
    ) -> tuple[Tensor | None, ...]:
        (store,) = kept
        gradient = store_gradient.clone()  # of every state; complete once all longer spans are processed
        weights = [weight.detach().requires_grad_() for weight in inputs[1:]]
        totals, at_once = [torch.zeros_like(weight) for weight in weights], splits_at_once(store.device)
        with ctx.autocast.again():  # which the kernels' precision depends on
            mixer = bind(ctx.mixer, weights, ctx.by_kernels, at_once)
        for piece in ctx.spans.pieces(at_once, longest_first=True):
            mask = ctx.dropout.mask(piece.left, piece.right) if ctx.dropout else None
            children = take(store, piece.children).requires_grad_()  # (2, spans, splits, S)
            with torch.enable_grad(), ctx.autocast.again():
                left, right = children.unbind()
                states, _ = mixer(left, right, mask)
            down, *found = torch.autograd.grad(states, (children, *weights), gradient[piece.rows])
            gradient.index_add_(0, piece.children.flatten(), down.flatten(0, 2))
            for total, part in zip(totals, found, strict=True):
                total += part
        return None, None, None, None, gradient[: len(inputs[0])], *totals


def splits_at_once(device: torch.device) -> int:
    """The number of splits in a piece. On a GPU small pieces would be dominated by launch overhead."""
    return 65536 if device.type == "cuda" else batch_size(device)


def bind(mixer: SplitMixer, weights: Sequence[Tensor], by_kernels: bool, rows: int) -> SplitMixer:
    """The mixer with these weights. If `by_kernels`, Triton kernels compute its cell, for about `rows` rows."""
    bound = mixer.bind(weights)
    if not by_kernels:
        return bound
    from beamtree.nn.engine.gpu.cells import dense  # needs triton, an optional package

    assert isinstance(bound.cell, CellFunction)
    return replace(bound, cell=dense(bound.cell, rows))


def _why_not(request: SpanRequest) -> str | None:
    if not request.mixer.is_functional:
        return "its layers are not plain: hooks, a subclass or a wrapper"
    return why_not_triton(request.leaves)


SPANS: tuple[Engine[SpanRequest], ...] = (
    Engine("triton", partial(fill, by_kernels=True), _why_not),
    Engine("torch", fill),
    Engine("reference", reference),
)
