"""Efficient Beam Tree Recursion (Ray Chowdhury & Caragea, NeurIPS 2023).

The search of `beamtree.nn.encoders.beam_tree` with another scorer. That of the Beam Tree Cell reads a candidate's
parent R(l, r), which has to be composed first; this one reads the children, and only the first d elements of either:

    s(l, r) = w · GELU(V [l[:d]; r[:d]] + c) + b ,        d = 64, V: d × 2d .

So each step scores the pairs of neighbours, keeps the best continuations as before, and applies the cell once in each
beam that it keeps, to the pair that was chosen: K·N cells instead of K·N²/2.
"""

from typing import Literal

from torch import nn

from beamtree.nn.encoders.base import Cost
from beamtree.nn.encoders.beam_tree import BeamTree
from beamtree.nn.engine.request import Duplicates
from beamtree.nn.engine.scorers import ChildScorer
from beamtree.nn.topk.operators import TopKOperator
from beamtree.utils.checks import check_integer

SLICE = 64  # the paper's d
# Names of its published code, of modules and of parameters, → ours.
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
    """A search with a beam that scores candidates before it composes them."""

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
        topk: TopKOperator | None = None,
    ) -> None:
        """
        dim: width D of inputs and encodings.
        beam_size: K, the number of beams.
        dropout: inside the cell; a node keeps its mask (see `beamtree.nn.engine.dropout`).
        stochastic: Gumbel noise on the selection while training.
        slice: d, how many elements of each child the scorer reads, the first ones. None: all. "auto": 64 as in the
            paper, or all where dim is less.
        engine: "auto", or one of "reference", "torch" and "triton" (see `beamtree.nn.engine`).
        duplicates: beams that have built the same by merges in another order; "keep" them as the paper does, "drop"
            all but the best, or "merge" their probabilities into the best.
        check_nan: look for NaN in x before any work (costs a synchronisation on a GPU).
        cell: R, "grc", "lstm", or a module of your own that maps two states to one.
        topk: an operator of your own, which chooses candidates and continuations; see `BeamTree`.
        """
        check_integer("dim", dim, at_least=1)
        width = _width(slice, dim)
        options = (beam_size, dropout, stochastic, engine, duplicates, check_nan)
        super().__init__(dim, *options, cell=cell, mix=None, topk=topk)
        if self.mix is not None:
            raise ValueError("topk is onesoft_topk: the Efficient Beam Tree has no OneSoft, use 'bt-grc-onesoft'")
        self.slice = width
        self.scorer = ChildScorer(width)

    def official(self) -> dict[str, str]:
        return OFFICIAL

    def extra_repr(self) -> str:
        options = {name: getattr(self, name) for name in ("beam_size", "stochastic", "slice", "engine")}
        return ", ".join(f"{name}={value!r}" for name, value in options.items())


def _width(slice: object, dim: int) -> int:
    """How many elements of each child are read."""
    if slice is None:
        return dim
    if slice == "auto":
        return min(SLICE, dim)
    if not isinstance(slice, int) or isinstance(slice, bool) or not 1 <= slice <= dim:
        raise ValueError(f"slice is {slice!r}: it must be an integer from 1 to dim = {dim}, 'auto', or None for all")
    return slice
