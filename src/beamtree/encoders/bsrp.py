"""Beam Shift-Reduce Parser with a Gated Recursive Cell (Maillard & Clark, *Latent Tree Learning with Differentiable
Parsers: Shift-Reduce Parsing and Chart Parsing*, 2018; as BSRP-GRC in Ray Chowdhury & Caragea, *Beam Tree Recursive
Cells*, ICML 2023).

A beam is a stack, a queue and a score a, 0 at first; the stack begins with the first two words. At each step a beam
reduces, which joins the two topmost states of its stack into their parent R(s₂, s₁), or shifts the next word q onto it:

    p(reduce) = σ(w · GELU(W [s₂; s₁; q] + b) + b′),   p(shift) = 1 − p(reduce) .

Without a q only reducing is possible, without an s₂ only shifting; then p = 1. (The published code has a learned vector
START in place of a missing s₂. Since that decision is forced it never matters; it is here for the sake of published
weights.) Each beam goes both ways, adding the log-probability to a, and the K best stay. After
2n−3 steps one state o_b is left in each beam b, and the encoding is

    Σ_b softmax(a)_b · o_b .

The published code replaces a by the last step's log-probability, which is always 0, so that nothing ever trains the
scorer. Here a is the sum, as both papers have it.

It is computed as the engines do it: first a search without gradients over integers, then a replay of what survived. A
stack is a chain of entries (a node, and the entry below it) that beams share, so that nothing is copied at a step.
"""

from itertools import accumulate
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from beamtree.beams import Encoding
from beamtree.cells import GRC
from beamtree.checks import check_integer, check_rate
from beamtree.encoders.base import OFFICIAL_CELL, Cost, Encoder, average, in_full, node_dropout
from beamtree.engine.base import Chart, Request
from beamtree.engine.lineage import along, slots_after
from beamtree.engine.pool import START as SPAN_START
from beamtree.engine.pool import Pool, take
from beamtree.engine.replay import Plan, Replay, by_height, mark
from beamtree.engine.search import stack
from beamtree.topk import rank

REDUCE, SHIFT = range(2)


class BSRP(Encoder):
    """A shift-reduce parser with a beam."""

    paper = "Maillard & Clark 2018"
    cost = Cost("K(2N−3)", "2N−3", "K·N·D")
    OFFICIAL: ClassVar[dict[str, str]] = OFFICIAL_CELL | {
        "conv_layer": "features",
        "scorer": "scorer",
        "START": "start",
    }

    def __init__(self, dim: int, beam_size: int = 5, dropout: float = 0.0, check_nan: bool = False) -> None:
        """
        dim: width D of inputs and encodings.
        beam_size: K, the number of beams.
        dropout: inside the cell; a node keeps its mask (see `beamtree.dropout`).
        check_nan: look for NaN in x before any work (costs a synchronisation on a GPU).
        """
        super().__init__(dim, check_nan)
        check_integer("beam_size", beam_size, at_least=1)
        check_rate("dropout", dropout)
        self.beam_size = beam_size
        self.cell = GRC(dim, dropout)
        self.leaf = self.cell.leaf()
        self.features = nn.Linear(3 * dim, dim)
        self.scorer = nn.Linear(dim, 1)
        self.start = nn.Parameter(torch.randn(dim))

    def encode(
        self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"], generator: torch.Generator | None
    ) -> Encoding:
        leaves = in_full(self.leaf(x))  # (B, N, D)
        dropout = node_dropout(self.cell, leaves, generator)
        request = Request(leaves, lengths, self.cell, self.scorer, self.beam_size, dropout=dropout)
        found = self._search(request)
        store, row = replay(request, found)
        scores = self._score(store, row, found)  # (B, K), best first
        return average(make_chart(store, row, scores, found), scores.log_softmax(1), lengths, self.dim)

    def decide(
        self, states: Float[Tensor, "*beams 3 D"], possible: Bool[Tensor, "*beams 2"]
    ) -> Float[Tensor, "*beams 2"]:
        """Log-probabilities to reduce and to shift, from s₂, s₁ and q; −inf for what is not possible."""
        second, top, word = states.unbind(-2)  # (…, D)
        second = second.where(possible[..., REDUCE, None], self.start)
        word = word.where(possible[..., SHIFT, None], 0)
        hidden = F.gelu(self.features(torch.cat((second, top, word), dim=-1)))  # (…, D)
        logit = self.scorer(hidden).to(states.dtype)  # (…, 1)
        log_p = F.logsigmoid(torch.cat((logit, -logit), dim=-1))  # (…, 2)
        forced = ~possible.all(-1, keepdim=True)
        return log_p.masked_fill(forced, 0).masked_fill(~possible, -torch.inf)

    @torch.no_grad()
    def _search(self, request: Request) -> "Search":
        """Which beams there are in the end, and what each of them did. Every step has the same shapes."""
        (B, N, _), K, device = request.leaves.shape, self.beam_size, request.leaves.device
        steps, length = max(2 * N - 3, 0), request.lengths.unsqueeze(1)  # (B, 1)
        active = torch.arange(steps, device=device) < 2 * length - 3  # (B, T); a finished sample does not change
        # The pool also scores the nodes it composes, as other models want it; here nobody reads that.
        pool = Pool(request, size=B * (N + K * steps))
        pool.heights = torch.zeros(len(pool.states), dtype=torch.long, device=device)
        stacks = Stacks(request, steps)
        first = torch.arange(0, B * N, N, device=device).unsqueeze(1)  # (B, 1): the leaf of the first word
        top, words = stacks.top.expand(B, K), torch.full((B, K), 2, device=device)  # words that have left the queue
        scores, here = request.start_scores(), torch.arange(K, device=device).expand(B, K)
        done = []
        for step in range(steps):
            depth = 2 * words - 2 - step  # of the stack: as many as words, less one for each reduce so far
            second, word = stacks.below.take(top), first + words.clamp(max=N - 1)
            seen = torch.stack((stacks.node.take(second), stacks.node.take(top), word), dim=-1)  # (B, K, 3)
            possible = torch.stack((depth > 1, words < length), dim=-1)  # (B, K, 2)
            new_scores = (scores.unsqueeze(-1) + self.decide(take(pool.states, seen), possible)).flatten(1)

            now = active[:, step, None]  # (B, 1)
            order = rank(new_scores, K)  # (B, K)
            scores = new_scores.gather(1, order).where(now, scores)
            source, action = (order // 2).where(now, here), order % 2
            top, second, words, depth, word = (take_beams(f, source) for f in (top, second, words, depth, word))
            seen, possible = take_beams(seen, source), take_beams(possible, source)

            reduces = (action == REDUCE) & possible[..., REDUCE] & now
            parent = pool.compose(seen[..., :2], reduces)  # (B, K)
            height = pool.heights.take(seen[..., :2]).amax(-1) + 1
            pool.heights[pool.used - B * K : pool.used] = height.flatten()
            shifts = action == SHIFT
            pushed = stacks.push(word.where(shifts, parent), top.where(shifts, stacks.below.take(second)))
            top, words = pushed.where(now, top), words + (shifts & now)
            done.append(Step(source, seen, possible, action, parent, depth - 2))
        return Search(pool, lineages(done, like=top), active, scores)

    def _score(self, store: Float[Tensor, "rows D"], row: Int[Tensor, "P"], found: "Search") -> Float[Tensor, "B K"]:
        """The scores of the final beams, all decisions at once; a gradient reaches both the states and the scorer."""
        steps = found.steps
        log_p = self.decide(take(store, row[steps.seen]), steps.possible)  # (B, K, T, 2)
        log_p = log_p.gather(-1, steps.action.unsqueeze(-1)).squeeze(-1)  # (B, K, T)
        scores = log_p.masked_fill(~found.active.unsqueeze(1), 0).sum(-1)
        return scores.where(found.scores.isfinite(), -torch.inf)

    def extra_repr(self) -> str:
        return f"beam_size={self.beam_size}"


class Step(NamedTuple):
    """What a step did in each beam it kept."""

    source: Int[Tensor, "*T B K"]  # the beam it continues
    seen: Int[Tensor, "*T B K 3"]  # nodes that decided: s₂, s₁ and q
    possible: Bool[Tensor, "*T B K 2"]  # whether it could reduce and shift
    action: Int[Tensor, "*T B K"]  # what it did
    parent: Int[Tensor, "*T B K"]  # the node that a reduce made; else the absent node
    position: Int[Tensor, "*T B K"]  # of that node on the stack, and so in the whole sequence


class Search(NamedTuple):
    """A finished search."""

    pool: Pool
    steps: Step  # of the final beams: every field is (B, K, T, …)
    active: Bool[Tensor, "B T"]
    scores: Float[Tensor, "B K"]  # −inf: no such beam


class Stacks:
    """The stacks of all beams. An entry has a node and the entry below it, so that a stack is known by its top entry
    and beams with a common past have common entries. The last entry stands for the ground."""

    def __init__(self, request: Request, steps: int) -> None:
        """With the first two words, or the only one, on each sample's stack."""
        B, N, _ = request.leaves.shape
        size, device = B * (2 + request.beam_size * steps), request.leaves.device
        self.node = torch.zeros(size + 1, dtype=torch.long, device=device)
        self.below = torch.full((size + 1,), size, device=device)
        self.numbers, self.used = torch.arange(size, device=device), 0
        leaf = torch.arange(0, B * N, N, device=device).unsqueeze(1)  # (B, 1)
        ground = self.push(leaf, torch.full_like(leaf, size))
        self.top = self.push(leaf + min(N - 1, 1), ground).where(request.lengths.unsqueeze(1) > 1, ground)  # (B, 1)

    def push(self, node: Int[Tensor, "B k"], below: Int[Tensor, "B k"]) -> Int[Tensor, "B k"]:
        new = slice(self.used, self.used + node.numel())
        self.node[new], self.below[new], self.used = node.flatten(), below.flatten(), new.stop
        return self.numbers[new].view(node.shape)


def take_beams(field: Shaped[Tensor, "B K *rest"], source: Int[Tensor, "B K"]) -> Shaped[Tensor, "B K *rest"]:
    return field[torch.arange(len(source), device=source.device).unsqueeze(1), source]


def lineages(steps: list[Step], like: Int[Tensor, "B K"]) -> Step:
    """The steps as the final beams have gone through them; `like` has their shape, for the case that there is none."""
    shapes = (like, like.unsqueeze(2).expand(-1, -1, 3), like.bool().unsqueeze(2).expand(-1, -1, 2), like, like, like)
    every = [stack([step[field] for step in steps], shape) for field, shape in enumerate(shapes)]
    slots = slots_after(every[0])
    return Step(*(along(slots, field) for field in every))


def replay(request: Request, found: Search) -> tuple[Float[Tensor, "rows D"], Int[Tensor, "P"]]:
    """States with gradients of the leaves and of all nodes of the final beams, and the row of each node of the pool."""
    pool, leaves = found.pool, request.leaves.flatten(0, 1)
    row = torch.arange(len(pool.states), device=leaves.device)
    if not request.wants_gradient():
        return pool.states, row
    with torch.no_grad():
        chosen = mark(pool, found.steps.parent.where(found.scores.isfinite().unsqueeze(-1), pool.absent))
        numbers, sizes = by_height(pool, chosen.nonzero().squeeze(1))  # (R,)
        row[len(leaves) :] = 0
        row[numbers] = torch.arange(len(leaves), len(leaves) + len(numbers), device=leaves.device)
        children = pool.children[numbers]  # (R, 2)
        levels = list(accumulate((len(leaves), 0, *sizes)))
        spans = take(pool.spans, children)
        plan = Plan(pool.states[numbers], row[children], spans, levels, found.scores, unscored, (), row)
    store, _ = Replay.apply(request, plan, leaves, *request.weights)
    return store, row


def unscored(gradient: Float[Tensor, "B K"], rows: int) -> Float[Tensor, "rows"]:
    """The part of the scores in a node's own logit: none, since scores come from decisions."""
    return gradient.new_zeros(rows)


def make_chart(
    store: Float[Tensor, "rows D"], row: Int[Tensor, "P"], scores: Float[Tensor, "B K"], found: Search
) -> Chart:
    """The reduces of each beam, in their order."""
    pool, steps = found.pool, found.steps
    N = pool.request.leaves.shape[1]
    reduces = steps.parent != pool.absent  # (B, K, T)
    order = (~reduces).long().sort(dim=2, stable=True).indices[..., : N - 1]  # (B, K, M)
    nodes, positions = steps.parent.gather(2, order), steps.position.gather(2, order)
    actions = positions.where(nodes != pool.absent, 0)
    return Chart(store, scores, actions, row[nodes], take(pool.spans, nodes)[..., SPAN_START:])
