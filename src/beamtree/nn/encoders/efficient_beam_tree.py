"""Efficient Beam Tree Recursion (Ray Chowdhury & Caragea, NeurIPS 2023).

The search of `beamtree.nn.encoders.beam_tree` with a different scorer. The Beam Tree Cell scores a candidate's parent
R(l, r), which must be composed first. This scorer reads the children, and only the first d elements of each:

    s(l, r) = w · GELU(V [l[:d]; r[:d]] + c) + b ,        d = 64, V: d × 2d .

Each step scores the pairs of neighbours, keeps the best continuations as before, and applies the cell once per kept
beam, to the chosen pair: K·N cells instead of K·N²/2.
"""

from typing import Literal

from torch import nn

from beamtree.nn.encoders.base import Cost
from beamtree.nn.encoders.beam_tree import BeamTree, slice_width
from beamtree.nn.engine.request import Duplicates
from beamtree.nn.engine.scorers import ChildScorer
from beamtree.nn.topk.operators import TopKOperator
from beamtree.utils.checks import check_integer

SLICE = 64  # the paper's d
# Module and parameter names of its published code → ours.
OFFICIAL = {
    "initial_transform.0": "leaf.0",
    "initial_transform.1": "leaf.1",
    "treecell_layer.wcell1": "cell.expand",
    "treecell_layer.wcell2": "cell.gates",
    "treecell_layer.NT": "cell.norm",
    "decision_module.0": "scorer.hidden",
    "decision_module.2.weight": "scorer.weight",
    "decision_module.2.bias": "scorer.bias",
}


class EfficientBeamTree(BeamTree):
    """A beam search that scores candidates before composing them.

    Registered as `ebt-grc`.

    Examples:
        >>> encoder = beamtree.EfficientBeamTree(dim=8, beam_size=3)
        >>> encoder.slice  # the paper's 64, or dim if that is smaller
        8
        >>> encoder(torch.randn(2, 5, 8), lengths=[5, 3]).state.shape
        torch.Size([2, 8])
    """

    paper = "Ray Chowdhury & Caragea 2023b"
    cost = Cost("≤ K(N−1)", "N−1", "K·N·D")

    def __init__(
        self,
        dim: int,
        beam_size: int = 5,
        dropout: float = 0.0,
        stochastic: bool = True,
        slice: int | Literal["auto"] | None = "auto",
        engine: str = "auto",
        duplicates: Duplicates = "keep",
        check_nan: bool = False,
        *,
        cell: str | nn.Module = "grc",
        state_noise: float = 0.0,
        topk: TopKOperator | None = None,
    ) -> None:
        """Create the encoder.

        Args:
            dim: width D of inputs and encodings.
            beam_size: K, the number of beams.
            dropout: dropout rate inside the cell; each node keeps its mask (see `beamtree.nn.engine.dropout`).
            stochastic: whether to add Gumbel noise to the selection during training.
            slice: d, the number of leading elements of each child that the scorer reads. None reads all; "auto" reads
                64, as in the paper, or all if dim is smaller.
            engine: "auto", "reference", "torch" or "triton" (see `beamtree.nn.engine`).
            duplicates: what to do with beams that built the same constituents in a different order: "keep" them, as the
                paper does; "drop" all but the best; or "merge" their probabilities into the best.
            check_nan: whether to check x for NaN first (synchronises with the host on a GPU).
            cell: the cell R: "grc", "lstm", or your own module, which maps two states to one.
            state_noise: standard deviation of the noise that is added to each composed state during training; only for
                the cell "grc".
            topk: your own top-k operator, which selects candidates and continuations; see `BeamTree`.
        """
        check_integer("dim", dim, at_least=1)
        width = min(SLICE, dim) if slice == "auto" else slice_width(slice, dim, "'auto', ")
        options = (beam_size, dropout, stochastic, engine, duplicates, check_nan)
        super().__init__(dim, *options, cell=cell, mix=None, state_noise=state_noise, topk=topk)
        if self.mix is not None:
            raise ValueError("topk is onesoft_topk: the Efficient Beam Tree has no OneSoft, use 'bt-grc-onesoft'")
        self.slice = width
        self.scorer = ChildScorer(width)

    def official(self) -> dict[str, str]:
        return OFFICIAL

    def extra_repr(self) -> str:
        options = {name: getattr(self, name) for name in ("beam_size", "stochastic", "slice", "engine")}
        return ", ".join(f"{name}={value!r}" for name, value in options.items())
