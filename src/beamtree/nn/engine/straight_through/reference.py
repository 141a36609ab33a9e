"""Straight-through sampling of trees: the reference, in plain differentiable PyTorch.

Every step composes all candidate parents P_j = R(h_j, h_{j+1}) of every sample and draws one of them:

    y = softmax(score(P) + noise)           (without noise: the best one)
    s = one-hot(argmax y) + y − stop(y)     its value is one-hot, its gradient that of y
    h_j ← s_j · P_j + (1 − cum_j) · h_j + (cum_j − s_j) · h_{j+1} ,    cum the running sum of s .

A sample's score a is the log-probability of its draws, without the noise: a ← a + log Σ_j s_j · softmax(score(P))_j.
It composes N²/2 nodes for each sample and keeps all of them for the backward pass.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from beamtree.nn.engine.beam.reference import BeamHistory, compose, log_probabilities, shorten
from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.noise import Noise
from beamtree.nn.engine.request import Request


def encode(request: Request) -> Chart:
    """Encode a request whose `beam_size` is the number of samples: beams that do not compete."""
    B, N, S = request.leaves.shape
    K = request.beam_size
    H = request.leaves.unsqueeze(1).expand(B, K, N, S)  # each sample's sequence of states
    bounds = torch.arange(N + 1, device=H.device).expand(B, K, N + 1)  # element i covers bounds[i] to bounds[i+1]
    scores = torch.zeros(B, K, dtype=request.score_dtype, device=H.device)
    source = torch.arange(K, device=H.device).expand(B, K)
    history, noise, all_active = BeamHistory(request), Noise(request), request.active

    for step in range(request.steps):
        parents = compose(request, H, bounds)  # (B, K, n−1, S)
        log_p = log_probabilities(request, parents, step)  # (B, K, n−1)
        choice, s = straight_through(log_p, noise.at(step)[0])  # (B, K), (B, K, n−1)
        new_H = replace(H, parents, s.to(H.dtype))  # (B, K, n−1, S)

        # Finished samples only lose a padded element on the right.
        active = all_active[:, step, None]  # (B, 1)
        column = choice.unsqueeze(2)  # (B, K, 1)
        spans = torch.cat((bounds.gather(2, column), bounds.gather(2, column + 2)), dim=2)  # (B, K, 2)
        history.add(source, choice, new_H.gather(2, column.unsqueeze(3).expand(B, K, 1, S)).squeeze(2), spans)
        H = new_H.where(active[..., None, None], H[:, :, :-1])
        bounds = shorten(bounds, choice).where(active[..., None], bounds[:, :, :-1])
        scores = (scores + log_probability(log_p, choice, s)).where(active, scores)

    if N > 1:  # the last merge is no choice and adds no score
        history.add_last(compose(request, H, bounds).squeeze(2), bounds[:, :, ::2])
    return history.chart(scores)


def straight_through(
    log_p: Float[Tensor, "B K m"], noise: Float[Tensor, "B K M"] | None
) -> tuple[Int[Tensor, "B K"], Float[Tensor, "B K m"]]:
    """The choice, and s."""
    noisy = log_p if noise is None else log_p + noise[..., : log_p.shape[2]]
    choice, y = noisy.argmax(-1), noisy.softmax(-1)
    one_hot = F.one_hot(choice, log_p.shape[2]).to(y.dtype)
    return choice, one_hot + (y - y.detach())  # in this order s is exactly one-hot


def replace(
    H: Float[Tensor, "B K n S"], parents: Float[Tensor, "B K n-1 S"], s: Float[Tensor, "B K n-1"]
) -> Float[Tensor, "B K n-1 S"]:
    """The sequence with two children replaced by their parent, as a differentiable function of all s_j."""
    s, cum = s.unsqueeze(-1), s.cumsum(-1).unsqueeze(-1)  # (B, K, n−1, 1)
    return s * parents + (1 - cum) * H[:, :, :-1] + (cum - s) * H[:, :, 1:]


def log_probability(
    log_p: Float[Tensor, "B K m"], choice: Int[Tensor, "B K"], s: Float[Tensor, "B K m"]
) -> Float[Tensor, "B K"]:
    """log Σ_j s_j p_j.

    Its gradient through p is that of log p at the choice; through s_j it is p_j divided by p at the choice. Computed
    separately, both are finite even where p underflows to 0.
    """
    chosen = log_p.gather(2, choice.unsqueeze(2))  # (B, K, 1)
    through_s = (s - s.detach()) * (log_p - chosen).exp().detach()
    return chosen.squeeze(2) + through_s.sum(2)
