"""Gumbel-Tree (Choi, Yoo & Lee 2018), and its Monte-Carlo variant.

Choi, Yoo & Lee, *Learning to Compose Task-Specific Tree Structures*, AAAI 2018, with the cells of Ray Chowdhury &
Caragea, *Beam Tree Recursive Cells*, ICML 2023, and their Monte-Carlo variant.

Easy-first composition of one sampled tree. At each step every pair of neighbours has a candidate parent
P_j = R(h_j, h_{j+1}), and the straight-through Gumbel-softmax, at temperature 1, draws one of them:

    y = softmax(score(P) + Gumbel noise) ,    s = one-hot(argmax y) + y − stop(y)
    h_j ← s_j · P_j + (1 − cum_j) · h_j + (cum_j − s_j) · h_{j+1} ,    cum the running sum of s ,

until one state is left, the encoding. At test time there is no noise, and the best candidate is taken.

Monte-Carlo Gumbel-Tree draws several trees, at test time too, and averages their encodings. The published code weights
them by softmax(a), where a is the log-probability of a tree's draws. The paper does not mention this; set `weighted` to
do the same.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from beamtree.nn.beams import Beams, Encoding
from beamtree.nn.cells import TreeLSTM, function_of, make_cell
from beamtree.nn.encoders import beam_tree
from beamtree.nn.encoders.base import Cost, Encoder, average, best_first, in_full, neighbour_scores, node_dropout
from beamtree.nn.engine import SAMPLES
from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.dispatch import check_engine
from beamtree.nn.engine.scorers import scorer_of
from beamtree.nn.engine.straight_through.search import Samples
from beamtree.nn.merge_scores import MergeScores
from beamtree.utils.checks import check_flag, check_integer, check_rate

# Module names of the published code → ours, for each cell.
OFFICIAL = beam_tree.OFFICIAL | {
    TreeLSTM: {
        "word_linear": "leaf",
        "treelstm_layer.comp_linear": "cell.gates",
        "decide_linear": "scorer",
    },
}


class GumbelTree(Encoder):
    """Trees sampled merge by merge, with straight-through gradients.

    Registered as `gumbel-tree-grc`, `gumbel-tree-lstm` and, with several samples and noise at test time,
    `mc-gumbel-tree-grc`. The beams are the sampled trees, most probable first.

    Examples:
        >>> encoder = beamtree.GumbelTree(dim=8, samples=4, noise_at_test=True)
        >>> encoder(torch.randn(2, 5, 8), lengths=[5, 3]).beams.log_probs.shape
        torch.Size([2, 4])
    """

    cost = Cost("N−1 + 2K(N−2)", "N−1", "K·N·D + K·N²")

    def __init__(
        self,
        dim: int,
        samples: int = 1,
        dropout: float = 0.0,
        stochastic: bool = True,
        weighted: bool = False,
        engine: str = "auto",
        check_nan: bool = False,
        *,
        cell: str | nn.Module = "grc",
        noise_at_test: bool = False,
    ) -> None:
        """Create the encoder.

        Args:
            dim: width D of inputs and encodings.
            samples: K, the number of trees drawn for each input.
            dropout: dropout rate inside the cell; each node keeps its mask (see `beamtree.nn.engine.dropout`), the same
                in every sample.
            stochastic: whether to add noise at all; without it the best candidate is always taken.
            weighted: whether to weight the samples by their probabilities, as the published code does, instead of
                equally.
            engine: "auto", "reference", "torch" or "triton" (see `beamtree.nn.engine`).
            check_nan: whether to check x for NaN first (synchronises with the host on a GPU).
            cell: the cell R: "grc", "lstm", or your own module, which maps two states to one.
            noise_at_test: whether to draw at test time too, for the Monte-Carlo variant.
        """
        super().__init__(dim, check_nan)
        check_integer("samples", samples, at_least=1)
        check_rate("dropout", dropout)
        check_flag("stochastic", stochastic)
        check_flag("weighted", weighted)
        check_engine(engine)
        check_flag("noise_at_test", noise_at_test)
        self.samples, self.stochastic, self.weighted = samples, stochastic, weighted
        self.engine, self.noise_at_test = engine, noise_at_test
        self.cell = make_cell(cell, dim, dropout)
        self.leaf = self.cell.leaf()
        self.scorer = nn.Linear(dim, 1)

    @property
    def paper(self) -> str:
        monte_carlo = self.noise_at_test
        return "Ray Chowdhury & Caragea 2023" if monte_carlo else "Choi et al. 2018"

    def official(self) -> dict[str, str]:
        return OFFICIAL.get(type(self.cell), {})

    def encode(
        self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"], generator: torch.Generator | None
    ) -> Encoding:
        leaves = in_full(self.leaf(x))  # (B, N, S)
        dropout = node_dropout(self.cell, leaves, generator)
        request = Samples(
            leaves,
            lengths,
            function_of(self.cell),
            scorer_of(self.scorer, self.dim),
            self.samples,
            stochastic=self.stochastic and (self.training or self.noise_at_test),
            dropout=dropout,
            generator=generator,
        )
        return self._finish(self._engine(SAMPLES, request)(request), lengths)

    def _finish(self, chart: Chart, lengths: Int[Tensor, "B"]) -> Encoding:
        """Sort the samples by probability and average their roots.

        The beams' log-probabilities are the weights of this average, so they are equal unless `weighted`. The chart
        holds the log-probabilities of the draws.
        """
        chart = best_first(chart)
        scores = chart.scores if self.weighted else torch.zeros_like(chart.scores)
        return average(chart, scores.log_softmax(1), lengths, self.dim)

    def merge_scores(self, beams: Beams) -> MergeScores:
        return self._in_float32(lambda: neighbour_scores(beams, self.cell, scorer_of(self.scorer, self.dim)))

    def extra_repr(self) -> str:
        return f"samples={self.samples}, stochastic={self.stochastic}, weighted={self.weighted}, engine={self.engine!r}"
