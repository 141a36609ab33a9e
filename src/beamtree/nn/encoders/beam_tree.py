"""Beam Tree Cell (Ray Chowdhury & Caragea, *Beam Tree Recursive Cells*, ICML 2023).

Easy-first composition with a beam. A beam is a sequence of states with a score a, initially 0. At each step every beam
merges one pair of neighbours: the candidate parents v_i = R(h_i, h_{i+1}) have log-probabilities
log softmax_i(score(v_i)), a first top-k keeps each beam's best candidates, each adds its log-probability to a, and a
second top-k keeps the best of all continuations. When one state o_b is left in each beam b, the encoding is

    Σ_b softmax(a)_b · o_b .

`bt-grc` and `bt-lstm` differ in the cell R. During training, `bt-grc-onesoft` uses OneSoft as its second operator
(§3.1), so that pruned beams still receive gradients. The engines in `beamtree.nn.engine` implement the computation.
"""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from beamtree.nn.beams import Beams, Encoding
from beamtree.nn.cells import GRC, Cell, TreeLSTM, function_of, make_cell
from beamtree.nn.encoders.base import Cost, Encoder, average, best_first, in_full, neighbour_scores, node_dropout
from beamtree.nn.engine import BEAM
from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.dispatch import check_engine
from beamtree.nn.engine.request import Duplicates, Mix, Request
from beamtree.nn.engine.scorers import AnyScorer, ParentScorerFunction, scorer_of
from beamtree.nn.merge_scores import MergeScores
from beamtree.nn.topk.operators import TopKOperator, onesoft_topk, plain_topk, stochastic_topk
from beamtree.nn.topk.transport import soft_topk
from beamtree.utils.checks import check_choice, check_deviation, check_flag, check_integer, check_rate

# Module names of the published code → ours, for encoders with a leaf transform, a cell and a scorer.
OFFICIAL: dict[type[Cell], dict[str, str]] = {
    GRC: {
        "word_linear": "leaf.0",
        "LN": "leaf.1",
        "treecell_layer.wcell1": "cell.expand",
        "treecell_layer.wcell2": "cell.gates",
        "treecell_layer.LN2": "cell.norm",
        "decide_linear": "scorer",
    },
    TreeLSTM: {
        "word_linear": "leaf",
        "treecell_layer.comp_linear": "cell.gates",
        "decide_linear": "scorer",
    },
}

# Top-k operators that the engines implement → the options that select them.
OPERATORS: tuple[tuple[Any, dict[str, Any]], ...] = (  # not a mapping: a user's operator need not be hashable
    (plain_topk, {"stochastic": False, "mix": None}),
    (stochastic_topk, {"stochastic": True, "mix": None}),
    (onesoft_topk, {"mix": "paper"}),
)


class BeamTree(Encoder):
    """An easy-first beam search for the best trees, trained end to end.

    Registered as `bt-grc`, `bt-lstm` and, with `mix="paper"`, `bt-grc-onesoft`.

    Examples:
        >>> encoder = beamtree.BeamTree(dim=8, beam_size=3)
        >>> out = encoder(torch.randn(2, 5, 8), lengths=[5, 3])
        >>> out.state.shape, out.beams.log_probs.shape
        (torch.Size([2, 8]), torch.Size([2, 3]))
    """

    paper = "Ray Chowdhury & Caragea 2023"

    def __init__(
        self,
        dim: int,
        beam_size: int = 5,
        dropout: float = 0.0,
        stochastic: bool = True,
        engine: str = "auto",
        duplicates: Duplicates = "keep",
        check_nan: bool = False,
        *,
        cell: str | nn.Module = "grc",
        mix: Mix | None = None,
        slice: int | None = None,
        state_noise: float = 0.0,
        topk: TopKOperator | None = None,
    ) -> None:
        """Create the encoder.

        Args:
            dim: width D of inputs and encodings.
            beam_size: K, the number of beams.
            dropout: dropout rate inside the cell; each node keeps its mask (see `beamtree.nn.engine.dropout`).
            stochastic: whether to add Gumbel noise to the selection during training.
            engine: "auto", "reference", "torch" or "triton" (see `beamtree.nn.engine`).
            duplicates: what to do with beams that built the same constituents in a different order: "keep" them, as the
                paper does; "drop" all but the best; or "merge" their probabilities into the best.
            check_nan: whether to check x for NaN first (synchronises with the host on a GPU).
            cell: the cell R: "grc", "lstm", or your own module, which maps two states to one.
            mix: None for the plain top-k, "paper" for OneSoft, or "official" for OneSoft as in the published code,
                which averages parents, states and choices separately.
            slice: the number of leading elements of a parent that the scorer reads; None reads all, as in the paper.
            state_noise: standard deviation of the noise that is added to each composed state during training; only for
                the cell "grc", and not with OneSoft.
            topk: the top-k operator: `beamtree.plain_topk`, `beamtree.stochastic_topk` (without noise at inference) or
                `beamtree.onesoft_topk`, which set `stochastic` and `mix` (to "paper", unless it is given); or your own,
                which selects both candidates and continuations. It takes scores (…, m) and k, and returns a `TopK`, as
                `plain_topk` does; results with mixture weights are refused.
        """
        super().__init__(dim, check_nan)
        check_integer("beam_size", beam_size, at_least=1)
        check_rate("dropout", dropout)
        check_deviation("state_noise", state_noise)
        check_flag("stochastic", stochastic)
        check_engine(engine)
        check_choice("duplicates", duplicates, ("keep", "drop", "merge"))
        if mix is not None:
            check_choice("mix", mix, ("paper", "official"))
        width = slice_width(slice, dim)
        topk, implied = operator_options(topk)
        if topk is not None and mix is not None:
            raise ValueError(f"mix is {mix!r} with a top-k operator of your own: pass only one of the two")
        self.beam_size, self.stochastic, self.engine = beam_size, stochastic, engine
        self.duplicates, self.mix, self.topk = duplicates, mix, topk
        if mix is not None and implied.get("mix"):
            implied = {"mix": mix}  # both select OneSoft
        vars(self).update(implied)
        if state_noise and self.mix is not None:
            raise ValueError(f"state_noise is {state_noise}: it must be 0 with OneSoft, whose states are mixtures")
        self.cell = make_cell(cell, dim, dropout, state_noise=state_noise if self.mix is None else None)
        self.leaf = self.cell.leaf()
        self.slice, self.scorer = slice, nn.Linear(width, 1)

    @property
    def cost(self) -> Cost:
        if self.mix is None:
            return Cost("N−1 + 2K(N−2)", "N−1", "K·N·D")
        # The soft beam is dense: all its states and candidates are recomputed at each step.
        return Cost("N−1 + (N−2)(N+4K−5)/2", "N−1", "N²·D + K·N²")

    def official(self) -> dict[str, str]:
        return OFFICIAL.get(type(self.cell), {})

    def encode(
        self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"], generator: torch.Generator | None
    ) -> Encoding:
        leaves = in_full(self.leaf(x))  # (B, N, S)
        dropout = node_dropout(self.cell, leaves, generator)
        request = Request(
            leaves,
            lengths,
            function_of(self.cell),
            self._scorer(),
            self.beam_size,
            soft=self._mix_now(),
            stochastic=self.training and self.stochastic,
            duplicates=self.duplicates,
            dropout=dropout,
            generator=generator,
            topk=self.topk,
        )
        return self._finish(self._search(request), lengths)

    def _scorer(self) -> AnyScorer:
        scorer = scorer_of(self.scorer, slice_width(self.slice, self.dim))
        # Kernels read whole states. Zeros for the elements that the scorer does not read change no logit.
        return scorer.padded(self.dim) if isinstance(scorer, ParentScorerFunction) else scorer

    def _mix_now(self) -> Mix | None:
        """OneSoft applies during training only; inference uses the plain top-k."""
        return self.mix if self.training else None

    def _search(self, request: Request) -> Chart:
        chart: Chart = self._engine(BEAM, request)(request)
        return chart

    def _finish(self, chart: Chart, lengths: Int[Tensor, "B"]) -> Encoding:
        """Sort the beams by score and average their roots."""
        chart = best_first(chart)
        return average(chart, chart.scores.log_softmax(1), lengths, self.dim)

    def merge_scores(self, beams: Beams) -> MergeScores:
        return self._in_float32(lambda: neighbour_scores(beams, self.cell, self._scorer()))

    def extra_repr(self) -> str:
        names = ("beam_size", "stochastic", "engine", "mix", *(("slice",) if self.slice is not None else ()))
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


def operator_options(topk: Any) -> tuple[TopKOperator | None, dict[str, Any]]:
    """The user's own operator, and the options that one of ours implies: at most one of the two is given."""
    if topk is None:
        return None, {}
    if not callable(topk):
        raise ValueError(f"topk is {topk!r}: it must be a function such as beamtree.plain_topk")
    function = topk.func if isinstance(topk, partial) else topk
    if function is soft_topk:
        raise ValueError(
            "topk is soft_topk: its beams are all mixtures, use the encoder 'bt-grc-soft', which has its options"
        )
    implied = next((options for operator, options in OPERATORS if function is operator), None)
    if implied is None:
        return topk, {}
    if function is not topk and (topk.args or topk.keywords):
        name = function.__name__
        raise ValueError(f"topk is {name} with arguments, which the engines would ignore: pass the function alone")
    return None, implied


def slice_width(slice: object, dim: int, also: str = "") -> int:
    """The number of elements of a state that the scorer reads, for the option `slice`; `also` may have other values."""
    if slice is None:
        return dim
    if not isinstance(slice, int) or isinstance(slice, bool) or not 1 <= slice <= dim:
        raise ValueError(f"slice is {slice!r}: it must be an integer from 1 to dim = {dim}, {also}or None for all")
    return slice
