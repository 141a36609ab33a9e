"""CYK with a Gated Recursive Cell (Maillard et al. 2019).

Maillard et al., *Jointly Learning Sentence Embeddings and Syntax with Unsupervised Tree-LSTMs*, 2019; with the cell and
the settings of Ray Chowdhury & Caragea, *Beam Tree Recursive Cells*, ICML 2023.

Every span has a state. The state of a single word is its leaf. That of the w words from word i on is a mixture over
the w−1 splits of the span,

    c_j = R(h_{i, j}, h_{i+j, w−j}),   ĉ_j = c_j / (‖c_j‖ + ε),   α = softmax_j(score(ĉ_j)),   h_{i, w} = Σ_j α_j ĉ_j ,

and the encoding is the state of the whole sample. The reported tree follows the split of largest weight from the root
down. `beamtree.nn.engine.cyk` implements the computation.
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
from beamtree.nn.engine.dispatch import check_engine
from beamtree.nn.engine.scorers import scorer_of
from beamtree.trees import Tree
from beamtree.utils.checks import check_choice, check_rate
from beamtree.utils.memory import available_bytes

CELL_WIDTHS = 80  # upper bound on the activations of a cell in the backward pass, in units of D; measured: 73


class CYK(Encoder):
    """An encoder that mixes all trees, span by span.

    Registered as `cyk-grc`. There is one beam: the tree of the splits of largest weight.

    Examples:
        >>> encoder = beamtree.CYK(dim=8)
        >>> encoder(torch.randn(2, 5, 8), lengths=[5, 3]).state.shape
        torch.Size([2, 8])
    """

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
        """Create the encoder.

        Args:
            dim: width D of inputs and encodings.
            dropout: dropout rate inside the cell; each split keeps its mask (see `beamtree.nn.engine.dropout`).
            masks: "exact", where a span either exists or does not; or "official", as in the published code, where spans
                exist to a degree that falls below 1 as they grow, by 1e-7 for ten words (see `SplitMixer.fade`).
            engine: "auto", "reference", "torch" or "triton" (see `beamtree.nn.engine`).
            check_nan: whether to check x for NaN first (synchronises with the host on a GPU).
            cell: the cell R: "grc", or your own module, which maps two states of width D to one.
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
        if self.masks == "official":  # one more element in each state: the degree to which it exists
            leaves = nn.functional.pad(leaves, (0, 1), value=1)  # (B, N, D+1)
        mixer = SplitMixer(function_of(self.cell), scorer_of(self.scorer, self.dim), self.masks == "official")
        request = SpanRequest(mixer, spans, leaves.flatten(0, 1), dropout)
        store, best = self._engine(SPANS, request)(request)
        chart = chart_of_splits(store, spans, best)
        return average(chart, chart.scores, lengths, self.dim)

    def _check_memory(self, x: Float[Tensor, "B N D"], spans: "Spans") -> None:
        """Raise a `MemoryError` up front, rather than run out of memory after minutes of work."""
        # With gradients: the states, their gradient, and the incoming gradient.
        tables, cells = (3, CELL_WIDTHS) if torch.is_grad_enabled() else (1, CELL_WIDTHS // 2)
        pieces = min(batch_size(x.device), spans.splits) * cells
        needed = (tables * spans.total + pieces) * self.dim * x.element_size()
        available = available_bytes(x.device)
        if available is None or needed <= available:
            return
        if x.is_cuda:  # cached by PyTorch's allocator but unused
            available += torch.cuda.memory_reserved(x.device) - torch.cuda.memory_allocated(x.device)
        if needed > available:
            raise MemoryError(
                f"cyk-grc needs about {needed / 2**30:.1f} GiB for {len(x)} × {x.shape[1]} words, and "
                f"{available / 2**30:.1f} GiB are free: give it fewer samples at a time, or shorter ones"
            )


def chart_of_splits(store: Float[Tensor, "rows S"], spans: Spans, best: Int[Tensor, "rows"]) -> Chart:
    """The trees of the splits of largest weight, one beam per sample."""
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
    nodes = spans.row(samples, start, end.clamp(min=1))  # a leaf's row for padding
    return Chart(store, store.new_zeros(B, 1), actions.unsqueeze(1), nodes.unsqueeze(1), bounds.unsqueeze(1))


def top_down(best: list[int], rows: list[int], length: int) -> Tree:
    """The tree over positions that takes the best split of the whole sample, then of each part."""
    found: list[tuple[int, int]] = []
    waiting = [(0, length)]
    while waiting:
        start, end = waiting.pop()
        if end - start > 1:
            middle = start + best[rows[end - start - 1] + start]
            found.append((start, end))
            waiting += [(start, middle), (middle, end)]
    return Tree.from_spans(found, [str(position) for position in range(length)])
