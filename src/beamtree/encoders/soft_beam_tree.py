"""Beam Tree Cell with SOFT top-k (Ray Chowdhury & Caragea, *Beam Tree Recursive Cells*, ICML 2023, §3.1).

The search of `beamtree.encoders.beam_tree` with another second operator, in training and at test alike: each of the K
beams that go on is a mixture of all continuations, under the plan of an optimal transport (`beamtree.transport`). The
search is in `beamtree.engine.mixed_search`.

A step is some hundred launches. On a CUDA device stretches of steps are captured in graphs, so that launching is not
what takes the time; see `beamtree.engine.fused.stretches`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from beamtree.checks import check_choice
from beamtree.dropout import NodeDropout
from beamtree.encoders.base import Cost
from beamtree.encoders.beam_tree import BeamTree
from beamtree.engine import mixed_search
from beamtree.engine.base import Chart, Mix, Noise, Request
from beamtree.engine.chain import is_captured
from beamtree.engine.mixed_search import Merged, Mixed
from beamtree.transport import Scaling, TransportTopK, check_options, soft_topk


class Around(NamedTuple):
    """What a step must know besides the beams; the steps of a stretch come first."""

    number: Int[Tensor, "T"]  # of the step, from 1 on; 0: nothing happens
    lengths: Int[Tensor, "T B"]
    noise: Float[Tensor, "T B K M"] | None
    offsets: Int[Tensor, "T words"] | None  # of dropout


class SoftBeamTree(BeamTree):
    """A search with a beam whose beams are all mixtures, by optimal transport.

    A beam is shown by the heaviest of the merges it mixes.
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
    ) -> None:
        """
        dim: width D of inputs and encodings.
        beam_size: K, the number of beams.
        dropout: inside the cell; a node keeps its mask (see `beamtree.dropout`).
        stochastic: Gumbel noise on each beam's choice of candidates while training.
        check_nan: look for NaN in x before any work (costs a synchronisation on a GPU).
        epsilon, iterations: of the transport; see `beamtree.transport.soft_topk`.
        scaling: "sample": a sample's scores are stretched over the anchors. "official": as in the published code, whose
            mixtures are nearly uniform and depend on the batch and its padding.
        mix: "paper": average the updated sequences. "official": as in the published code, which averages parents,
            states and choices separately.
        engine: "torch", on any device; "triton", in CUDA graphs (which needs that package too, and a sample's own
            scaling); or "auto", the best there is.
        """
        super().__init__(dim, beam_size, dropout, stochastic, check_nan=check_nan, cell="grc", mix=mix)
        check_options(epsilon, iterations, scaling)
        check_choice("engine", engine, ("auto", "torch", "triton"))
        if scaling == "official" and engine == "triton":
            raise ValueError(
                "engine 'triton' cannot do this: with scaling 'official' a step depends on how many elements there "
                "are, and all its steps have the same number; engine 'torch' can"
            )
        self.epsilon, self.iterations, self.scaling, self.engine = epsilon, iterations, scaling, engine

    def _mix_now(self) -> Mix | None:
        return self.mix

    def _search(self, request: Request) -> Chart:
        engine = self.engine if self.scaling == "sample" else "torch"
        if is_captured(engine, request.leaves) and request.steps:
            return self._run(request)
        return mixed_search.search(request, self._second_operator)

    def _second_operator(self, scores: Float[Tensor, "B m"], k: int) -> TransportTopK:
        return soft_topk(scores, k, epsilon=self.epsilon, iterations=self.iterations, scaling=self.scaling)

    def _run(self, request: Request) -> Chart:
        """The search in CUDA graphs."""
        from beamtree.engine.fused import stretches  # needs triton, which comes with PyTorch's CUDA builds alone

        noise = Noise(request)

        def draw(steps: range) -> Around:
            T = len(steps)
            number = torch.arange(steps.start + 1, steps.stop + 1, device=request.lengths.device)
            drawn = [one for step in steps if (one := noise.at(step)[0]) is not None]
            offsets = None if request.dropout is None else request.dropout.offsets.expand(T, -1)
            return Around(number, request.lengths.expand(T, -1), torch.stack(drawn) if drawn else None, offsets)

        ran = stretches.run(self, mixed_search.start(request), (), draw, request.steps)
        source, choice, *span = ran.notes.unbind(-1)
        steps = Merged(source, choice, torch.stack(span, dim=-1), ran.states)
        return mixed_search.make_chart(request, steps, Mixed(*ran.carry))

    def stretch(
        self, carry: tuple[Tensor, ...], inputs: tuple[Tensor, ...], masks: Sequence[Tensor | None], made: Tensor | None
    ) -> tuple[Mixed, Float[Tensor, "T B K S"], Int[Tensor, "T B K 4"]]:
        """T steps, as a loop of `beamtree.engine.fused.stretches` has them: the beams after them, the states that each
        made, and source, choice and span of each. All have one width, filled up at the right; what lies beyond a
        sample's own elements has a score of −inf."""
        beams, around, states, notes = Mixed(*carry), Around(*masks), [], []  # type: ignore[arg-type]
        for t, number in enumerate(around.number):
            cell, leaves, K = self.cell, beams.states[:, 0], self.beam_size
            dropout = None
            if around.offsets is not None:
                dropout = NodeDropout(cell.dropout, cell.mask_dim, leaves, offsets=around.offsets[t])
            request = Request(leaves, around.lengths[t], cell, self.scorer, K, self.mix, dropout=dropout)
            noise = None if around.noise is None else around.noise[t]
            given = request, beams, number - 1, noise, self._second_operator
            beams, merged = mixed_search.advance(*given, live=K, call=mixed_search.at_once)
            beams = beams._replace(states=F.pad(beams.states, (0, 0, 0, 1)), bounds=F.pad(beams.bounds, (0, 1)))
            states.append(merged.states)
            notes.append(torch.cat((merged.source.unsqueeze(2), merged.choice.unsqueeze(2), merged.spans), dim=2))
        return beams, torch.stack(states), torch.stack(notes)

    def step_weights(self) -> tuple[Tensor, ...]:
        """Those of what `stretch` computes."""
        return *self.cell.parameters(), *self.scorer.parameters()

    def step_bytes(self, carry: tuple[Tensor, ...]) -> int:
        """In backward: some 40 numbers for each of the states'."""
        return 40 * carry[0].nbytes

    def extra_repr(self) -> str:
        return (
            f"beam_size={self.beam_size}, stochastic={self.stochastic}, epsilon={self.epsilon}, "
            f"iterations={self.iterations}, scaling={self.scaling!r}, mix={self.mix!r}, engine={self.engine!r}"
        )
