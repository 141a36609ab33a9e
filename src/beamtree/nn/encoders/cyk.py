"""CYK with a Gated Recursive Cell (Maillard et al., *Jointly Learning Sentence Embeddings and Syntax with Unsupervised
Tree-LSTMs*, 2019; with the cell and the settings of Ray Chowdhury & Caragea, *Beam Tree Recursive Cells*, ICML 2023).

Every span has a state, made from all the ways to split it. A span of one word has its leaf; that of w words from word
i on is a mixture over its w−1 splits,

    c_j = R(h_{i, j}, h_{i+j, w−j}),   ĉ_j = c_j / (‖c_j‖ + ε),   α = softmax_j(score(ĉ_j)),   h_{i, w} = Σ_j α_j ĉ_j ,

and the encoding is the state of the whole sample. The tree that is shown follows the heaviest split from the root down.
How the spans are filled is in `beamtree.nn.engine.cyk`.
"""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from beamtree.nn.beams import Encoding
from beamtree.nn.cells import function_of, make_cell
from beamtree.nn.cells.adjoint import batch_size
from beamtree.nn.encoders.base import OFFICIAL_CELL, Cost, Encoder, average, in_full, node_dropout
from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.cyk import SPANS, SpanRequest, Spans, SplitMixer
from beamtree.nn.engine.dispatch import check_engine, select
from beamtree.nn.engine.scorers import scorer_of
from beamtree.trees import Tree
from beamtree.utils.checks import check_choice, check_rate
from beamtree.utils.memory import available_bytes

CELL_WIDTHS = 80  # values that a cell holds at most while it is differentiated, in units of D; 73 were measured


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
        engine: str = "auto",
        check_nan: bool = False,
        *,
        cell: str | nn.Module = "grc",
    ) -> None:
        """
        dim: width D of inputs and encodings.
        dropout: inside the cell; a split keeps its mask (see `beamtree.nn.engine.dropout`).
        masks: "exact": a span is there or it is not. "official": as in the published code, whose spans are there by a
            fraction that falls below 1 as they grow, by 1e-7 for ten words (see `SplitMixer.fade`).
        engine: "auto", or one of "reference", "torch" and "triton" (see `beamtree.nn.engine`).
        check_nan: look for NaN in x before any work (costs a synchronisation on a GPU).
        cell: R, "grc", or a module of your own that maps two states, as wide as the inputs, to one.
        """
        super().__init__(dim, check_nan)
        check_rate("dropout", dropout)
        check_choice("masks", masks, ("exact", "official"))
        check_engine(engine)
        self.masks, self.engine = masks, engine
        self.cell = make_cell(cell, dim, dropout, state_dim=dim)
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
        mixer = SplitMixer(function_of(self.cell), scorer_of(self.scorer, self.dim), self.masks == "official")
        request = SpanRequest(mixer, spans, leaves.flatten(0, 1), dropout)
        store, best = select(SPANS, request, self.engine)(request)
        chart = make_chart(store, spans, best)
        return average(chart, chart.scores, lengths, self.dim)

    def _check_memory(self, x: Float[Tensor, "B N D"], spans: "Spans") -> None:
        """Better no work at all than to run out of memory after minutes of it."""
        # With a gradient: the states, their gradient, and that which comes from outside.
        tables, cells = (3, CELL_WIDTHS) if torch.is_grad_enabled() else (1, CELL_WIDTHS // 2)
        pieces = min(batch_size(x.device), spans.splits) * cells
        needed = (tables * spans.total + pieces) * self.dim * x.element_size()
        available = available_bytes(x.device)
        if available is None or needed <= available:
            return
        if x.is_cuda:  # what PyTorch holds and does not use
            available += torch.cuda.memory_reserved(x.device) - torch.cuda.memory_allocated(x.device)
        if needed > available:
            raise MemoryError(
                f"cyk-grc needs about {needed / 2**30:.1f} GiB for {len(x)} × {x.shape[1]} words, and "
                f"{available / 2**30:.1f} GiB are free: give it fewer samples at a time, or shorter ones"
            )


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
