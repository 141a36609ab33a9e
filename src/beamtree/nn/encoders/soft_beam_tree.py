"""Beam Tree Cell with SOFT top-k (Ray Chowdhury & Caragea, *Beam Tree Recursive Cells*, ICML 2023, §3.1).

The search of `beamtree.nn.encoders.beam_tree` with a different second operator, in training and at inference: each of
the K new beams is a mixture of all continuations, weighted by an optimal transport plan
(`beamtree.nn.topk.transport`). `beamtree.nn.engine.soft.search` implements the search.

A step takes hundreds of kernel launches. On a CUDA device segments of steps are captured in graphs, so that launch
overhead does not dominate; see `beamtree.nn.engine.gpu.segments`.
"""

from torch import nn

from beamtree.nn.encoders.base import Cost
from beamtree.nn.encoders.beam_tree import BeamTree
from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.dispatch import check_engine
from beamtree.nn.engine.request import Mix, Request
from beamtree.nn.engine.soft.loop import SOFT, SoftRequest, TransportOptions
from beamtree.nn.topk.transport import Scaling, check_options


class SoftBeamTree(BeamTree):
    """A beam search whose beams are all mixtures, by optimal transport.

    Registered as `bt-grc-soft`. The reported tree of a beam follows the merges of largest weight in its mixtures.

    Examples:
        >>> encoder = beamtree.SoftBeamTree(dim=8, beam_size=3)
        >>> encoder(torch.randn(2, 5, 8), lengths=[5, 3]).state.shape
        torch.Size([2, 8])
    """

    paper = "Ray Chowdhury & Caragea 2023"
    cost = Cost("N−1 + K(N−1)(N−2)/2", "N−1", "K·N²·D")

    def __init__(
        self,
        dim: int,
        beam_size: int = 5,
        dropout: float = 0.0,
        stochastic: bool = True,
        check_nan: bool = False,
        *,
        epsilon: float = 0.1,
        iterations: int = 200,
        scaling: Scaling = "sample",
        mix: Mix = "paper",
        engine: str = "auto",
        cell: str | nn.Module = "grc",
    ) -> None:
        """Create the encoder.

        Args:
            dim: width D of inputs and encodings.
            beam_size: K, the number of beams.
            dropout: dropout rate inside the cell; each node keeps its mask (see `beamtree.nn.engine.dropout`).
            stochastic: whether to add Gumbel noise to each beam's selection of candidates during training.
            check_nan: whether to check x for NaN first (synchronises with the host on a GPU).
            epsilon: weight of the entropy in the transport; smaller values are closer to the plain top-k.
            iterations: number of Sinkhorn iterations; see `beamtree.nn.topk.transport.soft_topk`.
            scaling: "sample" scales each sample's scores to the range of the anchors; "official" follows the published
                code, whose mixtures are nearly uniform and depend on the batch and its padding.
            mix: "paper" averages the updated sequences; "official" follows the published code, which averages parents,
                states and choices separately.
            engine: "torch", on any device; "triton", in CUDA graphs, which needs the package triton and scaling
                "sample"; or "auto", the faster engine available.
            cell: the cell R: "grc", "lstm", or your own module, which maps two states to one. Whole states are mixed.
        """
        super().__init__(dim, beam_size, dropout, stochastic, check_nan=check_nan, cell=cell, mix=mix)
        check_options(epsilon, iterations, scaling)
        check_engine(engine, ("torch", "triton"))
        self.epsilon, self.iterations, self.scaling, self.engine = epsilon, iterations, scaling, engine

    def _mix_now(self) -> Mix | None:
        return self.mix

    def _search(self, request: Request) -> Chart:
        operator = TransportOptions(self.epsilon, self.iterations, self.scaling)
        soft = SoftRequest(**{**vars(request), "operator": operator})
        chart: Chart = self._engine(SOFT, soft)(soft)
        return chart

    def extra_repr(self) -> str:
        return (
            f"beam_size={self.beam_size}, stochastic={self.stochastic}, epsilon={self.epsilon}, "
            f"iterations={self.iterations}, scaling={self.scaling!r}, mix={self.mix!r}, engine={self.engine!r}"
        )
