"""Beam Tree Cell with SOFT top-k (Ray Chowdhury & Caragea, *Beam Tree Recursive Cells*, ICML 2023, §3.1).

The search of `beamtree.encoders.beam_tree` with another second operator, in training and at test alike: each of the K
beams that go on is a mixture of all continuations, under the plan A of an optimal transport (see `beamtree.transport`).
With continuation i = (q, j) of beam q, its score a_i and its updated sequence S_i, the beam in place p becomes

    a'_p = Σ_i A_ip a_i        S'_p = Σ_i A_ip S_i .

Continuations that come from one beam q share its states H_q and candidate parents P_q, so the sum over K² sequences is
one over K beams. With s_pq[i] the weight of q's continuation that merges at i, cum its running sum and V_pq its total,

    S'_p[i] = Σ_q  s_pq[i] · P_q[i] + (V_pq − cum_pq[i]) · H_q[i] + (cum_pq[i] − s_pq[i]) · H_q[i+1] .

All beams are dense, so that every candidate has to be composed anew at each step. The states are kept for backward;
what goes on inside the cell is computed again.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from beamtree.encoders.base import Cost
from beamtree.encoders.beam_tree import BeamTree
from beamtree.engine.base import Chart, Mix, Noise, Request, choose
from beamtree.engine.reference import History, compose, log_probabilities, shorten
from beamtree.transport import Scaling, TransportTopK, check_options, soft_topk

T = TypeVar("T")
Operator = Callable[[Float[Tensor, "B m"], int], TransportTopK]


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
        """
        super().__init__(dim, beam_size, dropout, stochastic, check_nan=check_nan, cell="grc", mix=mix)
        check_options(epsilon, iterations, scaling)
        self.epsilon, self.iterations, self.scaling = epsilon, iterations, scaling

    def _mix_now(self) -> Mix | None:
        return self.mix

    def _search(self, request: Request) -> Chart:
        return search(request, self._second_operator)

    def _second_operator(self, scores: Float[Tensor, "B m"], k: int) -> TransportTopK:
        return soft_topk(scores, k, epsilon=self.epsilon, iterations=self.iterations, scaling=self.scaling)

    def extra_repr(self) -> str:
        return (
            f"beam_size={self.beam_size}, stochastic={self.stochastic}, epsilon={self.epsilon}, "
            f"iterations={self.iterations}, scaling={self.scaling!r}, mix={self.mix!r}"
        )


def search(request: Request, operator: Operator) -> Chart:
    B, N, S = request.leaves.shape
    K, device = request.beam_size, request.leaves.device
    batch = torch.arange(B, device=device).unsqueeze(1)  # (B, 1), indexes together with (B, K)
    H = request.leaves.unsqueeze(1).expand(B, K, N, S)
    bounds = torch.arange(N + 1, device=device).expand(B, K, N + 1)  # element i covers bounds[i] to bounds[i+1]
    scores, live = request.start_scores(), 1  # (B, K); places from `live` on are empty in every sample
    history, noise, all_active = History(request), Noise(request), request.active

    for step in range(request.steps):
        parents, log_p = again(propose, request, H[:, :live], bounds[:, :live], step)

        # First operator: J choices for each beam.
        J = min(K, N - step - 1)
        candidate_noise = noise.at(step)[0]
        choices = choose(log_p, J, None if candidate_noise is None else candidate_noise[:, :live])  # (B, live, J)
        new_scores = (scores[:, :live].unsqueeze(2) + log_p.gather(2, choices)).flatten(1)  # (B, live·J)

        # Second operator: K mixtures of all continuations.
        best = operator(new_scores, min(K, live * J))
        new_H = again(mixtures, H[:, :live], parents, choices, best.weights, request.soft)
        live = new_H.shape[1]
        order, new_scores = widen(best.indices, K), widen(best.scores, K, -torch.inf)  # (B, K)
        new_H = widen(new_H, K)  # (B, K, n−1, S)
        source, choice = order // J, choices.flatten(1).gather(1, order)

        # Finished samples only lose a padded element on the right.
        active = all_active[:, step, None]  # (B, 1)
        before = bounds[batch, source]  # (B, K, n+1)
        history.add(
            source.where(active, torch.arange(K, device=device)),
            choice,
            new_H.gather(2, choice.view(B, K, 1, 1).expand(B, K, 1, S)).squeeze(2),
            before.gather(2, torch.stack((choice, choice + 2), dim=2)),
        )
        H = new_H.where(active[..., None, None], H[:, :, :-1])
        bounds = shorten(before, choice).where(active[..., None], bounds[:, :, :-1])
        scores = new_scores.where(active, scores)

    if N > 1:  # the last merge is no choice and adds no score
        history.add_last(compose(request, H, bounds).squeeze(2), bounds[:, :, ::2])
    return history.chart(scores)


def propose(
    request: Request, H: Float[Tensor, "B b n S"], bounds: Int[Tensor, "B b n+1"], step: int
) -> tuple[Float[Tensor, "B b n-1 S"], Float[Tensor, "B b n-1"]]:
    """The candidate parents of all neighbours and their log-probabilities."""
    parents = compose(request, H, bounds)
    return parents, log_probabilities(request, parents, step)


def mixtures(
    H: Float[Tensor, "B b n S"],
    parents: Float[Tensor, "B b n-1 S"],
    choices: Int[Tensor, "B b J"],
    weights: Float[Tensor, "B bJ k"],
    mix: Mix | None,
) -> Float[Tensor, "B k n-1 S"]:
    """The k sequences that mix the continuations of b beams, by the formula above."""
    B, b, J = choices.shape
    k = weights.shape[2]
    v = weights.mT.reshape(B, k, b, J).to(H.dtype)
    s = v.new_zeros(B, k, b, parents.shape[2]).scatter(3, choices.unsqueeze(1).expand(B, k, b, J), v)  # (B, k, b, n−1)
    total = v.sum(3, keepdim=True)  # (B, k, b, 1)
    if mix == "paper":
        cum = s.cumsum(3)
        stay, shift = total - cum, cum - s
    else:  # the published code averages choices, parents and old states apart: the same sum with other weights
        s = s.sum(2, keepdim=True)  # (B, k, 1, n−1)
        cum = s.cumsum(3)
        s, stay, shift = s * total, (1 - cum) * total, (cum - s) * total
    parts = torch.cat((s, stay, shift), dim=2)  # (B, k, 3b, n−1)
    states = torch.cat((parents, H[:, :, :-1], H[:, :, 1:]), dim=1)  # (B, 3b, n−1, S)
    with torch.autocast(H.device.type, enabled=False):  # an average must not lose digits
        return torch.einsum("bpqi,bqis->bpis", parts, states)


def again(function: Callable[..., T], *arguments: Any) -> T:
    """The function's value; backward computes what is inside it again instead of keeping it."""
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)


def widen(table: Tensor, width: int, value: float = 0) -> Tensor:
    """The table (B, k, …) with empty places up to `width` beams."""
    missing = width - table.shape[1]
    if missing == 0:  # padding with nothing would copy
        return table
    return F.pad(table, (*(0 for _ in range(2 * (table.dim() - 2))), 0, missing), value=value)
