"""The reference engine: the paper's Algorithm 2, batched, in plain differentiable PyTorch.

Every step composes and scores all candidates of all beams, as in the paper: K·N²/2 cells, all saved for the backward
pass. If the scorer reads children, every step scores all candidates and composes the one that each kept beam chose. The
outputs and gradients of the other engines are tested against this engine.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.duplicates import resolve, span_hash
from beamtree.nn.engine.noise import Noise
from beamtree.nn.engine.request import Request
from beamtree.nn.topk import operators as topk


def encode(request: Request) -> Chart:
    B, N, S = request.leaves.shape
    K = request.beam_size
    batch = torch.arange(B, device=request.leaves.device).unsqueeze(1)  # (B, 1), indexes together with (B, K)
    H = request.leaves.unsqueeze(1).expand(B, K, N, S)  # each beam's sequence of states
    bounds = torch.arange(N + 1, device=H.device).expand(B, K, N + 1)  # element i covers bounds[i] to bounds[i+1]
    scores = request.start_scores()  # (B, K)
    forests = bounds.new_zeros(B, K)  # hash of what a beam has built, see duplicates.py
    history, noise, all_active = BeamHistory(request), Noise(request), request.active

    for step in range(request.steps):
        n = N - step
        parents = None if request.scores_children else compose(request, H, bounds)  # (B, K, n−1, S)
        logits = request.score(neighbours(H) if parents is None else parents)
        log_p = normalise(request, logits, step)  # (B, K, n−1)

        # First operator: J choices for each beam.
        J = min(K, n - 1)
        candidate_noise, beam_noise = noise.at(step)
        choices = request.choose(log_p, J, candidate_noise)  # (B, K, J)
        new_scores = (scores.unsqueeze(2) + log_p.gather(2, choices)).flatten(1)  # (B, K·J)
        starts, ends = bounds[:, :, :-2].gather(2, choices), bounds[:, :, 2:].gather(2, choices)
        new_forests = (forests.unsqueeze(2) + span_hash(starts, ends)).flatten(1)
        new_scores = resolve(new_scores, new_forests, request.duplicates)

        # Second operator: K of the K·J continuations.
        if request.soft:
            assert parents is not None
            best, new_H = onesoft(request, H, parents, choices, new_scores)
            order, new_scores = best.indices, best.scores  # (B, K)
        else:
            order = request.choose(
                new_scores, K, None if beam_noise is None else beam_noise[..., :J].flatten(1)
            )  # (B, K)
            new_scores = new_scores.gather(1, order)
        source, choice = order // J, choices.flatten(1).gather(1, order)  # (B, K)
        if not request.soft:
            kept = H[batch, source]  # (B, K, n, S)
            if parents is None:
                chosen = compose_at(request, kept, bounds[batch, source], choice)  # (B, K, 1, S)
            else:
                chosen = parents[batch, source]  # (B, K, n−1, S)
            new_H = replace(kept, chosen, choice)

        # A finished sample only drops a padded element on the right.
        active = all_active[:, step, None]  # (B, 1)
        history.add(
            source.where(active, torch.arange(K, device=H.device)),
            choice,
            new_H.gather(2, choice.view(B, K, 1, 1).expand(B, K, 1, S)).squeeze(2),
            torch.stack((starts, ends), dim=-1).flatten(1, 2)[batch, order],
        )
        H = new_H.where(active[..., None, None], H[:, :, :-1])
        bounds = shorten(bounds[batch, source], choice).where(active[..., None], bounds[:, :, :-1])
        forests = new_forests.gather(1, order).where(active, forests)
        scores = new_scores.where(active, scores)

    if N > 1:  # the last merge has no alternative and adds no score
        history.add_last(compose(request, H, bounds).squeeze(2), bounds[:, :, ::2])
    return history.chart(scores)


def compose(
    request: Request, H: Float[Tensor, "B K n S"], bounds: Int[Tensor, "B K n+1"]
) -> Float[Tensor, "B K n-1 S"]:
    """The candidate parents of all pairs of neighbours."""
    mask = None
    if request.dropout:
        sample = torch.arange(len(H), device=H.device).view(-1, 1, 1).expand_as(bounds[:, :, 1:])
        spans = torch.stack((sample, bounds[:, :, :-1], bounds[:, :, 1:]), dim=-1)  # (B, K, n, 3)
        mask = request.dropout.mask(spans[:, :, :-1], spans[:, :, 1:])
    return request.cell(H[:, :, :-1], H[:, :, 1:], mask)


def neighbours(H: Float[Tensor, "B K n S"]) -> Float[Tensor, "B K n-1 2 S"]:
    """The children of all candidates."""
    return torch.stack((H[:, :, :-1], H[:, :, 1:]), dim=3)


def compose_at(
    request: Request, H: Float[Tensor, "B K n S"], bounds: Int[Tensor, "B K n+1"], choice: Int[Tensor, "B K"]
) -> Float[Tensor, "B K 1 S"]:
    """The parent of the elements `choice` and `choice` + 1."""
    near = choice.unsqueeze(2) + torch.arange(3, device=H.device)  # (B, K, 3)
    children = H.gather(2, near[..., :2].unsqueeze(3).expand(-1, -1, -1, H.shape[3]))  # (B, K, 2, S)
    return compose(request, children, bounds.gather(2, near))


def log_probabilities(
    request: Request, parents: Float[Tensor, "B K m S"], step: int | Int[Tensor, ""]
) -> Float[Tensor, "B K m"]:
    """Log-softmax of the scorer's logits over the candidates that exist."""
    return normalise(request, request.score(parents), step)


def normalise(request: Request, logits: Float[Tensor, "B K m"], step: int | Int[Tensor, ""]) -> Float[Tensor, "B K m"]:
    """Log-softmax over the candidates that exist. A finished sample keeps one, which is not used."""
    left = (request.lengths - 1 - step).clamp(min=1).view(-1, 1, 1)  # (B, 1, 1)
    absent = torch.arange(logits.shape[2], device=logits.device) >= left
    return logits.masked_fill(absent, -torch.inf).log_softmax(-1)


def replace(
    H: Float[Tensor, "*beams n S"], parents: Float[Tensor, "*beams m S"], choice: Int[Tensor, "*beams"]
) -> Float[Tensor, "*beams n-1 S"]:
    """The sequence with elements `choice` and `choice` + 1 replaced by their parent. m is n−1 (all parents) or 1."""
    here = torch.arange(H.shape[-2] - 1, device=H.device)  # (n−1,)
    choice = choice.unsqueeze(-1)
    kept = H[..., :-1, :].where((here < choice).unsqueeze(-1), H[..., 1:, :])
    return parents.where((here == choice).unsqueeze(-1), kept)


def shorten(bounds: Int[Tensor, "B K w"], choice: Int[Tensor, "B K"]) -> Int[Tensor, "B K w-1"]:
    """The bounds after the merge, without the one between the two children."""
    here = torch.arange(bounds.shape[-1] - 1, device=bounds.device)
    return bounds[..., :-1].where(here <= choice.unsqueeze(-1), bounds[..., 1:])


def onesoft(
    request: Request,
    H: Float[Tensor, "B K n S"],
    parents: Float[Tensor, "B K n-1 S"],
    choices: Int[Tensor, "B K J"],
    scores: Float[Tensor, "B KJ"],
) -> tuple[topk.SoftTopK, Float[Tensor, "B K n-1 S"]]:
    """OneSoft over all K·J continuations, and the K sequences after it."""
    B, K, J = choices.shape
    H = H.unsqueeze(2).expand(B, K, J, *H.shape[2:]).flatten(1, 2)  # (B, K·J, n, S)
    parents = parents.unsqueeze(2).expand(B, K, J, *parents.shape[2:]).flatten(1, 2)  # (B, K·J, n−1, S)
    choice = choices.flatten(1)  # (B, K·J)
    if request.soft == "paper":  # mix the updated sequences
        best = topk.onesoft_topk(scores, K, replace(H, parents, choice))
        return best, best.payloads[0]
    # The published code mixes choices, parents and old states separately, and then updates.
    s = torch.nn.functional.one_hot(choice, parents.shape[2]).to(H.dtype)  # (B, K·J, n−1)
    best = topk.onesoft_topk(scores, K, s, parents, H)
    s, parents, H = best.payloads
    s, cum = s.unsqueeze(-1), s.cumsum(-1).unsqueeze(-1)  # (B, K, n−1, 1)
    return best, s * parents + (1 - cum) * H[:, :, :-1] + (cum - s) * H[:, :, 1:]


class BeamHistory:
    """The actions of each beam, and the state and span of the node that each action created."""

    def __init__(self, request: Request) -> None:
        B = len(request.leaves)
        self.request = request
        self.rows = [request.leaves.flatten(0, 1)]  # states, concatenated into the chart's store
        empty = torch.zeros(B, request.beam_size, 0, dtype=torch.long, device=request.leaves.device)
        self.actions, self.nodes, self.spans = empty, empty, empty.unsqueeze(-1).expand(-1, -1, -1, 2)

    def add(
        self,
        source: Int[Tensor, "B K"],
        choice: Int[Tensor, "B K"],
        states: Float[Tensor, "B K S"],
        spans: Int[Tensor, "B K 2"],
    ) -> None:
        batch = torch.arange(len(source), device=source.device).unsqueeze(1)
        self.actions = torch.cat((self.actions[batch, source], choice.unsqueeze(2)), dim=2)
        self.nodes = torch.cat((self.nodes[batch, source], self._store(states).unsqueeze(2)), dim=2)
        self.spans = torch.cat((self.spans[batch, source], spans.unsqueeze(2)), dim=2)

    def add_last(self, states: Float[Tensor, "B K S"], spans: Int[Tensor, "B K 2"]) -> None:
        self.actions = self.request.close(self.actions, torch.zeros_like(spans[..., 0]))
        self.nodes = self.request.close(self.nodes, self._store(states))
        self.spans = self.request.close(self.spans, spans)

    def chart(self, scores: Float[Tensor, "B K"]) -> Chart:
        return Chart(torch.cat(self.rows), scores, self.actions, self.nodes, self.spans)

    def _store(self, states: Float[Tensor, "B K S"]) -> Int[Tensor, "B K"]:
        """Append states to the store, and return their rows."""
        B, K, _ = states.shape
        used = self.request.leaves.shape[0] * self.request.leaves.shape[1] + (len(self.rows) - 1) * B * K
        self.rows.append(states.flatten(0, 1))
        return torch.arange(used, used + B * K, device=states.device).view(B, K)
