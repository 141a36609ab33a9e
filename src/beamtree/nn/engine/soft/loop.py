"""The search of `beamtree.nn.engine.soft.search` as a loop whose segments are captured in CUDA graphs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from beamtree.nn.cells import CellFunction
from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.dispatch import Engine, why_not_triton
from beamtree.nn.engine.dropout import NodeDropout
from beamtree.nn.engine.functional import Composite
from beamtree.nn.engine.noise import Noise
from beamtree.nn.engine.request import Mix, Request
from beamtree.nn.engine.scorers import ScorerFunction
from beamtree.nn.engine.soft import search
from beamtree.nn.engine.soft.search import Merged, Mixed
from beamtree.nn.topk.transport import NO_SECOND_DERIVATIVE, Scaling, TransportTopK, soft_topk


@dataclass(frozen=True)
class TransportOptions:
    """The options of `soft_topk`."""

    epsilon: float
    iterations: int
    scaling: Scaling

    def __call__(self, scores: Float[Tensor, "B m"], k: int) -> TransportTopK:
        return soft_topk(scores, k, epsilon=self.epsilon, iterations=self.iterations, scaling=self.scaling)


@dataclass(frozen=True)
class SoftRequest(Request):
    """A request whose second operator is SOFT top-k."""

    operator: TransportOptions = TransportOptions(0.1, 200, "sample")


class StepInputs(NamedTuple):
    """The inputs of the T steps of a segment, besides the beams."""

    step: Int[Tensor, "T"]  # index of the step, starting at 1; 0 for padding steps, which do nothing
    lengths: Int[Tensor, "T B"]
    noise: Float[Tensor, "T B K M"] | None
    offsets: Int[Tensor, "T words"] | None  # of the dropout hash


@dataclass(frozen=True)
class SoftLoop(Composite):
    """Steps of the search, as a loop for `beamtree.nn.engine.gpu.segments`.

    All steps have the same width, padded on the right; candidates in the padding have a score of −inf.
    """

    cell: CellFunction
    scorer: ScorerFunction
    beam_size: int
    mix: Mix | None
    operator: TransportOptions
    dropout: tuple[float, int] | None  # rate, and width of the masks

    def segment(
        self, carry: tuple[Tensor, ...], inputs: tuple[Tensor, ...], masks: Sequence[Tensor | None], made: Tensor | None
    ) -> tuple[Mixed, Float[Tensor, "T B K S"], Int[Tensor, "T B K 4"]]:
        """T steps: the beams after them, the states that each created, and source, choice and span of each."""
        from beamtree.nn.engine.gpu.cells import dense  # needs triton, an optional package

        beams, given, states, notes = Mixed(*carry), StepInputs(*masks), [], []  # type: ignore[arg-type]
        cell = dense(self.cell, beams.states[..., 0].numel())
        for t, step in enumerate(given.step):
            leaves, dropout = beams.states[:, 0], None
            if given.offsets is not None and self.dropout is not None:
                dropout = NodeDropout(*self.dropout, leaves, offsets=given.offsets[t])
            request = Request(leaves, given.lengths[t], cell, self.scorer, self.beam_size, self.mix, dropout=dropout)
            noise = None if given.noise is None else given.noise[t]
            beams, merged = search.advance(
                request, beams, step - 1, noise, self.operator, live=self.beam_size, call=search.uncheckpointed
            )
            beams = beams._replace(states=F.pad(beams.states, (0, 0, 0, 1)), bounds=F.pad(beams.bounds, (0, 1)))
            states.append(merged.states)
            notes.append(torch.cat((merged.source.unsqueeze(2), merged.choice.unsqueeze(2), merged.spans), dim=2))
        return beams, torch.stack(states), torch.stack(notes)

    def step_bytes(self, carry: tuple[Tensor, ...]) -> int:
        """The backward pass holds about 40 values for each value of the states."""
        return 40 * carry[0].nbytes


def encode(request: SoftRequest) -> Chart:
    """The search in CUDA graphs."""
    if not request.steps:
        return search.search(request, request.operator)
    from beamtree.nn.engine.gpu import segments  # needs triton, an optional package

    noise = Noise(request)

    def draw(steps: range) -> StepInputs:
        T = len(steps)
        step = torch.arange(steps.start + 1, steps.stop + 1, device=request.lengths.device)
        drawn = [one for each in steps if (one := noise.at(each)[0]) is not None]
        offsets = None if request.dropout is None else request.dropout.offsets.expand(T, -1)
        return StepInputs(step, request.lengths.expand(T, -1), torch.stack(drawn) if drawn else None, offsets)

    assert isinstance(request.cell, CellFunction)
    assert isinstance(request.scorer, ScorerFunction)
    dropout = None if request.dropout is None else (request.dropout.rate, request.dropout.width)
    loop = SoftLoop(request.cell, request.scorer, request.beam_size, request.soft, request.operator, dropout)
    result = segments.run(loop, search.start(request), (), draw, request.steps, refusal=NO_SECOND_DERIVATIVE)
    source, choice, *span = result.notes.unbind(-1)
    steps = Merged(source, choice, torch.stack(span, dim=-1), result.states)
    return search.chart_of_mixtures(request, steps, Mixed(*result.carry))


def _why_not(request: SoftRequest) -> str | None:
    if request.operator.scaling == "official":
        return "with scaling 'official' a step depends on the number of elements left, which is fixed in a CUDA graph"
    if not request.is_functional:
        return "cell or scorer have layers that are not plain: hooks, a subclass or a wrapper"
    return why_not_triton(request.leaves)


def _search(request: SoftRequest, call: search.Call) -> Chart:
    return search.search(request, request.operator, call)


SOFT: tuple[Engine[SoftRequest], ...] = (
    Engine("triton", encode, _why_not),
    Engine("torch", partial(_search, call=search.checkpointed)),
)
