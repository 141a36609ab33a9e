"""Lineages: the history of each beam that survived a search.

Each step records which beam every kept beam continues. Followed from the end, these links give the history of each
surviving beam; beams that were dropped on the way are not part of it, and need no gradient.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from beamtree.nn.engine.beam.search import Trace
from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.pool import START, Pool, take


class Lineages(NamedTuple):
    """A search seen from its K final beams; the fields of `Step`, for each of the T steps."""

    action: Int[Tensor, "B K T"]
    removed: Int[Tensor, "B K T 3"]
    added: Int[Tensor, "B K T 2"]
    normaliser: Float[Tensor, "B K T"]

    @property
    def node(self) -> Int[Tensor, "B K T"]:
        """What each action made: the candidate it chose."""
        return self.removed[..., 1]


def trace_back(trace: Trace) -> Lineages:
    """The history of each final beam."""
    source, *fields = trace.steps
    slots = slots_after(source)
    return Lineages(*(along(slots, field) for field in fields))


def slots_after(source: Int[Tensor, "T B K"]) -> Int[Tensor, "T B K"]:
    """The place in the beam that each final beam's lineage had after each step.

    Each step's `source` maps a place after the step to one before it. The map from the end to a step is the composition
    of all later ones; doubling computes all of them in log T gathers.
    """
    tail = source.clone()  # tail[t] = source[t] ∘ source[t+1] ∘ … over a growing range
    reach = 1
    while reach < len(source):
        tail[:-reach] = tail[:-reach].gather(2, tail[reach:])
        reach *= 2
    last = torch.arange(source.shape[2], device=source.device).expand_as(source[:1])
    return torch.cat((tail[1:], last))


def along(slots: Int[Tensor, "T B K"], field: Shaped[Tensor, "T B K *rest"]) -> Shaped[Tensor, "B K T *rest"]:
    """A field of all steps, along the lineages."""
    index = slots.view(*slots.shape, *(1 for _ in field.shape[3:])).expand_as(field)
    return field.gather(2, index).movedim(0, 2)


def make_chart(
    pool: Pool, actions: Int[Tensor, "B K T"], nodes: Int[Tensor, "B K T"], scores: Tensor, roots: Int[Tensor, "B K"]
) -> Chart:
    """The chart of a search, over the pool itself."""
    nodes = pool.request.close(nodes, roots)
    actions = pool.request.close(actions, torch.zeros_like(roots))
    return Chart(pool.states, scores, actions, nodes, take(pool.spans, nodes)[..., START:])
