"""The search of straight-through sampling, without gradients.

Its beams do not compete (see `beamtree.nn.engine.beam.search`): each step composes two new candidates for each sample,
3N nodes in all.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from beamtree.nn.engine.beam.search import copies, first_rows, roots, stack
from beamtree.nn.engine.noise import Noise
from beamtree.nn.engine.pool import Pool, take
from beamtree.nn.engine.request import Request

Kept = list[Tensor | None]


@dataclass(frozen=True)
class Samples(Request):
    """A request whose `beam_size` beams are samples: all exist from the start, and they do not compete."""

    def start_scores(self) -> Float[Tensor, "B K"]:
        shape = (len(self.leaves), self.beam_size)
        return torch.zeros(shape, dtype=self.score_dtype, device=self.leaves.device)


class StepDistribution(NamedTuple):
    """The distribution that a step drew from. The final merge counts as a step too, with a single candidate."""

    rows: Int[Tensor, "B K m"]  # the candidates
    y: Float[Tensor, "B K m"]  # their probabilities under the noise


class SampleTrace(NamedTuple):
    """A finished search."""

    pool: Pool
    actions: Int[Tensor, "B K T"]
    nodes: Int[Tensor, "B K T"]  # what the actions made; the absent node where a sample had finished
    scores: Float[Tensor, "B K"]
    roots: Int[Tensor, "B K"]


@torch.inference_mode()
def search(pool: Pool) -> tuple[SampleTrace, list[StepDistribution]]:
    """Draw every sample's merges; see `beamtree.nn.engine.beam.search.run`."""
    request = pool.request
    rows = first_rows(pool)  # (B, K, m+2)
    scores = request.start_scores()
    noise, here = Noise(request), torch.arange(max(rows.shape[2], 3), device=rows.device)
    draws, actions, nodes = [], [], []
    # `narrow` and `select` are faster than indexing, which matters here.
    two, three = here.narrow(0, 0, 2), here.narrow(0, 0, 3)
    for step, active in enumerate(request.active.unsqueeze(1).unbind(2)):  # (B, 1)
        m = rows.shape[2] - 2
        candidates, candidate_noise = rows.narrow(2, 1, m), noise.at(step)[0]
        log_p = pool.logits.take(candidates).log_softmax(-1)  # (B, K, m)
        noisy = log_p if candidate_noise is None else log_p + candidate_noise.narrow(2, 0, m)
        column = noisy.argmax(-1, keepdim=True)  # (B, K, 1)
        scores = (scores + log_p.gather(2, column).squeeze(2)).where(active, scores)
        draws.append(StepDistribution(candidates, noisy.softmax(-1)))

        # Remove the drawn candidate and its neighbours; in a finished sample, the absent node at the end of its row.
        column = column.where(active.unsqueeze(2), m + 1)
        left, drawn, right = rows.gather(2, (column + three).clamp_(max=m + 1)).unbind(2)  # (B, K)
        beside = torch.stack((left, right), dim=2)  # (B, K, 2)
        children = take(pool.children, beside).flatten(2)  # (B, K, 2·2)
        pairs = torch.stack((children.select(2, 0), drawn, drawn, children.select(2, 3)), dim=2).unflatten(2, (2, 2))
        added = pool.compose(pairs, beside != pool.absent)  # (B, K, 2)
        rows = rows.narrow(2, 0, m + 1).where(here.narrow(0, 0, m + 1) <= column, rows.narrow(2, 1, m + 1))
        rows.scatter_(2, (column + two).clamp_(max=m), added)
        actions.append(column.squeeze(2))
        nodes.append(drawn)
    if request.candidates:
        last = rows[..., 1:-1]  # (B, K, 1)
        draws.append(StepDistribution(last, torch.ones_like(last, dtype=scores.dtype)))
    merges = [stack(values, rows[..., 0]).movedim(0, 2) for values in (actions, nodes)]  # (B, K, T)
    return SampleTrace(pool, merges[0], merges[1], scores, roots(pool, rows)), draws


def keep(trace: SampleTrace, draws: list[StepDistribution]) -> Kept:
    """What `backward_steps` needs.

    The last merge of every sample is assigned to the last step, where the longest sample has its own.
    """
    M = trace.pool.request.candidates
    actions = nn.functional.pad(trace.actions, (0, 1))[..., :M]  # (B, K, M)
    parents = torch.cat((trace.nodes, trace.roots.unsqueeze(2)), dim=2)[..., :M]
    # Node ids are stored as int32: with y, they take most of the memory besides the states.
    return [actions, parents, *copies(draw._replace(rows=draw.rows.int()) for draw in draws)]
