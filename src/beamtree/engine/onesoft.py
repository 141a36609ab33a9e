"""OneSoft's search and replay: K−1 beams of integers, as in `search`, and one soft beam that is dense.

The soft beam's sequence is the average of the sequences of all continuations that fall out, under v = softmax of
their scores. Continuations that come from one beam q share its states, so the sum over up to K² sequences is one over
the K beams. With H_q the states, P_q the candidate parents, s_q[i] the weight v of q's continuation that merges at i,
cum its running sum and V_q its total,

    new[i] = Σ_q  s_q[i] · P_q[i] + (V_q − cum_q[i]) · H_q[i] + (cum_q[i] − s_q[i]) · H_q[i+1] .

Its states, and the candidates composed from them, are nodes of the pool like any other, so a hard beam that continues
the soft one is integers again.

Nothing but the pool's states is stored for backward, which undoes the steps one by one, last first: it composes a
step's nodes again and pulls their gradient back, then that of the average, then that of the scores.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from beamtree import topk
from beamtree.engine.adjoint import BATCH, adjoint
from beamtree.engine.autocast import Autocast
from beamtree.engine.base import Chart, Mix, Noise, Request
from beamtree.engine.lineage import along, make_chart, slots_after, stack
from beamtree.engine.pool import LEFT, RIGHT, SAMPLE, START, Pool
from beamtree.engine.search import Choice, first_rows, propose, rescore, roots, shift_rows


class SoftStep(NamedTuple):
    """What a step did in each beam it kept; the soft beam, the last, stands for the heaviest it mixes."""

    source: Int[Tensor, "B K"]
    action: Int[Tensor, "B K"]
    node: Int[Tensor, "B K"]  # what the action made


class Undo(NamedTuple):
    """What is needed to go back over a step."""

    choice: Choice
    scores: Float[Tensor, "B K"]  # before the step
    elements: int  # the first of the soft beam's new states in the pool, followed by …
    composed: int  # … the first of the step's new candidates, followed by the next step's nodes


class SoftTrace(NamedTuple):
    pool: Pool
    steps: list[SoftStep]
    undo: list[Undo]
    scores: Float[Tensor, "B K"]
    roots: Int[Tensor, "B K"]


def encode(request: Request) -> Chart:
    """Search with a soft beam, and replay where a gradient is wanted."""
    trace = search(request)
    store, scores = trace.pool.states, trace.scores
    if request.wants_gradient():
        store, scores = SoftReplay.apply(request, trace, request.leaves.flatten(0, 1), *request.weights)
    source, action, node = (stack([step[field] for step in trace.steps], trace.roots) for field in range(3))
    slots = slots_after(source)
    return make_chart(trace.pool, store, scores, along(slots, action), along(slots, node), trace.roots)


@torch.no_grad()
def search(request: Request) -> SoftTrace:
    B, N, _ = request.leaves.shape
    K = request.beam_size
    # A step that starts from m candidates adds m soft states, their m − 1 candidates, and two for each hard beam.
    grown = sum(2 * m - 1 + 2 * (K - 1) for m in range(2, N))
    pool = Pool(request, size=B * (N + request.candidates + grown))
    rows = first_rows(pool)  # (B, K, m+2)
    scores, forests = request.start_scores(), None
    noise = Noise(request)
    steps, undo = [], []
    for number in range(request.steps):
        active = request.active[:, number, None]  # (B, 1)
        proposal = propose(pool, rows, scores, forests, noise.at(number)[0])
        best = topk.onesoft_topk(proposal.scores, K)
        shift = shift_rows(pool, rows, proposal, best.indices[:, :-1], active)

        first = pool.used
        heaviest = best.indices[:, -1:]
        source = (heaviest // proposal.columns.shape[2]).where(active, K - 1)  # (B, 1)
        action = (proposal.columns.flatten(1).gather(1, heaviest) - 1).clamp(0, rows.shape[2] - 3)
        path = path_links(pool, rows, source, action)  # (B, m, 5)
        mixture = mixture_weights(best.weights, proposal.columns, rows.shape[2] - 2, request.soft)
        elements = pool.add(average(pool, rows, mixture), path)  # (B, m)
        there = torch.arange(1, elements.shape[1], device=rows.device) < request.lengths.unsqueeze(1) - 1 - number

        # One call of the cell for the new candidates of all beams.
        pairs = 2 * (K - 1)
        composed = pool.used
        new = pool.compose(
            torch.cat((shift.left.flatten(1), elements[:, :-1]), dim=1),
            torch.cat((shift.right.flatten(1), elements[:, 1:]), dim=1),
            torch.cat((shift.present.flatten(1), there), dim=1),
        )  # (B, 2(K−1) + m−1)
        hard = shift.rows.scatter_(2, shift.columns, new[:, :pairs].view(B, K - 1, 2))[..., :-1]
        soft = pool.row(new[:, pairs:]).where(active, rows[:, -1, :-1])

        undo.append(Undo(Choice(rows, proposal.columns, proposal.forests, best.indices), scores, first, composed))
        made = elements.gather(1, action)
        hard_and_soft = ((shift.source, source), (shift.action, action), (shift.dead[..., 1], made))
        steps.append(SoftStep(*(torch.cat(pair, dim=1) for pair in hard_and_soft)))
        rows = torch.cat((hard, soft.unsqueeze(1)), dim=1)  # (B, K, m+1)
        _, forests = proposal.keep(best.indices, active, scores, forests)
        scores = best.scores.where(active, scores)
    return SoftTrace(pool, steps, undo, scores, roots(pool, rows))


class Mixture(NamedTuple):
    """The weights of each beam's parents and states in the soft beam's new states."""

    parent: Float[Tensor, "B K m"]  # of P[i]
    left: Float[Tensor, "B K m"]  # of H[i]
    right: Float[Tensor, "B K m"]  # of H[i+1]


def mixture_weights(v: Float[Tensor, "B KJ"], columns: Int[Tensor, "B K J"], m: int, mix: Mix | None) -> Mixture:
    """The formula above, as three weights for each beam and position."""
    v = v.view_as(columns)  # (B, K, J)
    # Columns count from 1; the padding ones that an absent continuation may name have weight 0.
    s = v.new_zeros(*columns.shape[:2], m + 2).scatter(2, columns, v)[..., 1:-1]  # (B, K, m)
    total = v.sum(2, keepdim=True)  # (B, K, 1)
    if mix == "paper":
        cum = s.cumsum(2)
        return Mixture(s, total - cum, cum - s)
    # The published code averages choices, parents and old states apart: the same sum with other weights.
    s = s.sum(1, keepdim=True)  # (B, 1, m)
    cum = s.cumsum(2)
    return Mixture(s * total, (1 - cum) * total, (cum - s) * total)


def members(links: Int[Tensor, "P _"], rows: Int[Tensor, "B K W"]) -> tuple[Int[Tensor, "B K m"], ...]:
    """P[i], H[i] and H[i+1] of each beam: its candidates and their children."""
    parents = rows[..., 1:-1]
    children = links[parents]
    return parents, children[..., LEFT], children[..., RIGHT]


def average(pool: Pool, rows: Int[Tensor, "B K W"], mixture: Mixture) -> Float[Tensor, "B m S"]:
    """The soft beam's new states."""
    total = pool.states.new_zeros(())
    for weight, numbers in zip(mixture, members(pool.links, rows), strict=True):
        total = total + torch.einsum("bkm,bkms->bms", weight.to(total.dtype), pool.at(numbers))
    return total


def path_links(
    pool: Pool, rows: Int[Tensor, "B K W"], source: Int[Tensor, "B 1"], action: Int[Tensor, "B 1"]
) -> Int[Tensor, "B m 5"]:
    """Links of the sequence of one beam after one merge, whose spans the soft states take on."""
    row = rows[torch.arange(len(rows), device=rows.device), source.squeeze(1)].unsqueeze(1)  # (B, 1, W)
    parent, left, right = (numbers.squeeze(1) for numbers in members(pool.links, row))  # (B, m)
    here = torch.arange(parent.shape[1], device=rows.device)
    return pool.links[parent.where(here == action, left.where(here < action, right))]


class SoftReplay(torch.autograd.Function):
    """(leaves, weights) → (states of the pool, scores of the beams), with values taken from the search."""

    @staticmethod
    def forward(
        ctx: Any, request: Request, trace: SoftTrace, leaves: Float[Tensor, "L S"], *weights: Tensor
    ) -> tuple[Float[Tensor, "P S"], Float[Tensor, "B K"]]:
        pool = trace.pool
        ctx.cell, ctx.scorer, ctx.dropout = request.cell, request.scorer, request.dropout
        ctx.mix, ctx.duplicates, ctx.autocast = request.soft, request.duplicates, Autocast(leaves.device.type)
        ctx.blocks = [(undo.elements, undo.composed) for undo in trace.undo] + [(pool.used, pool.used)]
        ctx.leaves = len(leaves)
        # Numbers of nodes fit 32 bits; they are the larger part of what is kept beside the states.
        links = pool.links.int() if request.dropout else pool.links[:, : RIGHT + 1].int()
        choices = [
            tensor
            for undo in trace.undo
            for tensor in (
                undo.choice.rows.int(),
                undo.choice.columns,
                undo.choice.forests,
                undo.choice.order,
                undo.scores,
            )
        ]
        ctx.save_for_backward(pool.states, pool.logits, links, request.active, *choices)
        return pool.states, trace.scores

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, store_gradient: Float[Tensor, "P S"], score_gradient: Float[Tensor, "B K"]
    ) -> tuple[Tensor | None, ...]:
        states, logits, links, active, *choices = ctx.saved_tensors
        links, dim = links.long(), ctx.cell.dim
        gradient = store_gradient.clone()  # of every state, complete once its users have come by
        logit_gradient = torch.zeros_like(logits)
        weight_gradients = [torch.zeros_like(weight) for weight in ctx.cell.parameters()]
        scorer_weight = ctx.scorer.weight.squeeze(0).to(states.dtype)

        def pull_back(begin: int, end: int) -> None:
            """From the nodes composed in one step to their children."""
            gradient[begin:end, :dim].addr_(logit_gradient[begin:end].to(states.dtype), scorer_weight)
            for first in range(begin, end, BATCH):
                last = min(first + BATCH, end)
                pairs = links[first:last, : RIGHT + 1]  # (n, 2)
                left, right = states.index_select(0, pairs.flatten()).view(*pairs.shape, states.shape[1]).unbind(1)
                mask = None
                if ctx.dropout:
                    start, stop, sample = links[first:last, START : SAMPLE + 1].unbind(1)
                    mask = ctx.dropout.mask(sample, start, links[pairs[:, 1], START], stop)
                with ctx.autocast.again():
                    nodes = adjoint(ctx.cell, left, right, mask)
                    down = nodes.pull_back(slice(None), gradient[first:last])  # (n, 2, S)
                    for total, part in zip(weight_gradients, nodes.weight_gradients(), strict=True):
                        total += part
                gradient.index_add_(0, pairs.flatten(), down.flatten(0, 1))

        for number in reversed(range(len(ctx.blocks) - 1)):
            elements, composed = ctx.blocks[number]
            pull_back(composed, ctx.blocks[number + 1][0])
            rows, columns, forests, order, scores = choices[5 * number : 5 * number + 5]
            rows, going = rows.long(), active[:, number, None]
            with torch.enable_grad():
                scores.requires_grad_()
                # A finished sample's row may hold no candidate at all; zeros keep its unused branch finite.
                row_logits = logits.take(rows).where(going.unsqueeze(2), 0).requires_grad_()
                best = topk.soften(rescore(row_logits, scores, columns, forests, ctx.duplicates), order)
                mixture = mixture_weights(best.weights, columns, rows.shape[2] - 2, ctx.mix)
            above = gradient[elements:composed].view(len(rows), -1, states.shape[1])  # (B, m, S)
            mixture_gradient = []
            for weight, numbers in zip(mixture, members(links, rows), strict=True):
                part = states.index_select(0, numbers.flatten()).view(*numbers.shape, states.shape[1])  # (B, K, m, S)
                mixture_gradient.append(torch.einsum("bkms,bms->bkm", part, above).to(weight.dtype))
                down = weight.detach().to(states.dtype).unsqueeze(-1) * above.unsqueeze(1)  # (B, K, m, S)
                gradient.index_add_(0, numbers.flatten(), down.flatten(0, 2))
            row_gradient, before = torch.autograd.grad(
                (best.scores, *mixture), (row_logits, scores), (score_gradient.where(going, 0), *mixture_gradient)
            )
            logit_gradient.index_add_(0, rows.flatten(), row_gradient.flatten())
            score_gradient = before.where(going, score_gradient)
        pull_back(ctx.leaves, ctx.blocks[0][0])
        logit_gradient = logit_gradient.to(states.dtype)
        return (
            None,
            None,
            gradient[: ctx.leaves],
            *weight_gradients,
            (logit_gradient @ states[:, :dim]).view_as(ctx.scorer.weight),
            logit_gradient.sum(0).view_as(ctx.scorer.bias),
        )
