"""The reference engine: a shift-reduce parser with a beam, one sample at a time, on Python lists.

Every action runs under autograd, and nothing is shared or skipped. The outputs and gradients of the other engines are
tested against this engine.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.shift_reduce.request import REDUCE, SHIFT, ParserRequest


class Element(NamedTuple):
    """An element of a stack or a queue: a node, and the words [start, end) that it covers."""

    row: int  # of the store
    start: int
    end: int


class Reduction(NamedTuple):
    """The parent that a reduce created, and its position on the stack."""

    parent: Element
    position: int


class ParserBeam(NamedTuple):
    score: Float[Tensor, ""]
    stack: list[Element]
    queue: list[Element]
    reductions: list[Reduction]


def encode(request: ParserRequest) -> Chart:
    """Parse all samples, and collect their beams in one chart."""
    B, K, M = len(request.leaves), request.beam_size, request.candidates
    parser, scores = Parser(request), []
    actions, nodes = torch.zeros(B, K, M, dtype=torch.long), torch.zeros(B, K, M, dtype=torch.long)
    spans = torch.zeros(B, K, M, 2, dtype=torch.long)
    nothing = torch.full((), -torch.inf, dtype=request.score_dtype, device=request.leaves.device)
    for sample, length in enumerate(request.lengths.tolist()):
        beams = parser.parse(sample, length)
        scores.append(torch.stack([beam.score for beam in beams] + [nothing] * (K - len(beams))))  # (K,)
        for k, beam in enumerate(beams):
            for m, (parent, position) in enumerate(beam.reductions):
                actions[sample, k, m], nodes[sample, k, m] = position, parent.row
                spans[sample, k, m] = torch.tensor([parent.start, parent.end])
    store = torch.stack(parser.store)
    actions, nodes, spans = (field.to(store.device) for field in (actions, nodes, spans))
    return Chart(store, torch.stack(scores), actions, nodes, spans)


class Parser:
    """Parses the samples of a request. Its store holds all states, leaves first."""

    def __init__(self, request: ParserRequest) -> None:
        self.request = request
        self.store = list(request.leaves.flatten(0, 1))  # (S,) each

    def parse(self, sample: int, length: int) -> list[ParserBeam]:
        """The final beams of a sample, best first."""
        first, device = sample * self.request.leaves.shape[1], self.request.leaves.device
        words = [Element(first + place, place, place + 1) for place in range(length)]
        score = torch.zeros((), dtype=self.request.score_dtype, device=device)
        beams = [ParserBeam(score, words[:2], words[2:], [])]
        for _ in range(2 * length - 3):
            continuations = []
            for beam in beams:
                log_p = self.decide(beam)
                if len(beam.stack) > 1:
                    continuations.append((beam.score + log_p[REDUCE], beam, REDUCE))
                if beam.queue:
                    continuations.append((beam.score + log_p[SHIFT], beam, SHIFT))
            continuations.sort(key=lambda one: -one[0].item())  # stable: ties keep their order
            beams = [self.act(sample, *one) for one in continuations[: self.request.beam_size]]
        return beams

    def decide(self, beam: ParserBeam) -> Float[Tensor, "2"]:
        """Log-probabilities of reducing and shifting."""
        possible = len(beam.stack) > 1, len(beam.queue) > 0
        top = self.store[beam.stack[-1].row]
        second = self.store[beam.stack[-2].row] if possible[REDUCE] else torch.zeros_like(top)
        word = self.store[beam.queue[0].row] if possible[SHIFT] else torch.zeros_like(top)
        states = torch.stack((second, top, word)).unsqueeze(0)  # (1, 3, D)
        return self.request.decision(states, torch.tensor([possible], device=top.device)).squeeze(0)

    def act(self, sample: int, score: Float[Tensor, ""], beam: ParserBeam, action: int) -> ParserBeam:
        """The beam after an action."""
        if action == SHIFT:
            return ParserBeam(score, [*beam.stack, beam.queue[0]], beam.queue[1:], beam.reductions)
        *below, left, right = beam.stack
        parent = self.compose(sample, left, right)
        return ParserBeam(score, [*below, parent], beam.queue, [*beam.reductions, Reduction(parent, len(below))])

    def compose(self, sample: int, left: Element, right: Element) -> Element:
        """Compose the parent of two elements, and append its state to the store."""
        request, mask = self.request, None
        if request.dropout:
            spans = torch.tensor([[sample, one.start, one.end] for one in (left, right)], device=request.leaves.device)
            mask = request.dropout.mask(spans[:1], spans[1:])
        states = request.cell(self.store[left.row].unsqueeze(0), self.store[right.row].unsqueeze(0), mask)  # (1, S)
        self.store.append(states.squeeze(0).to(request.leaves.dtype))
        return Element(len(self.store) - 1, left.start, right.end)
