"""SOFT top-k by optimal transport (Xie et al., *Differentiable Top-k Operator with Optimal Transport*, NeurIPS 2020).

Selecting the k best of m scores a_i is equivalent to transporting m unit masses to k + 1 anchors t = k, k−1, …, 0 at
minimal cost C_ij = (a_i − t_j)²: each of the first k anchors receives one mass, the last receives the other m − k. With
entropic regularisation of weight ε the plan Γ is smooth in the scores,

    Γ = argmin ⟨C, Γ⟩ + ε Σ Γ log Γ      with rows that sum to 1 and columns that sum to 1, …, 1, m − k,

and its column j holds the weights of all entries in "the j-th best". Sinkhorn's algorithm computes the plan. Its
gradient is implicit: it solves the linear system of the row and column constraints, without unrolling the iterations.

    best = soft_topk(scores, 3, values)
    best.scores          # (…, 3)
    best.payloads[0]     # (…, 3, …)

As in `beamtree.nn.topk.operators`, a score of −inf marks an absent entry, and the module is independent of trees.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from beamtree.nn.function import first_order, save
from beamtree.nn.topk.operators import check_scores, rank
from beamtree.utils.checks import check_choice, check_integer, is_installed

Scaling = Literal["sample", "official"]
LEAST_EPSILON = 0.005
NO_SECOND_DERIVATIVE = "soft_topk has no second derivative, and so the encoder 'bt-grc-soft' has none"


class TransportTopK(NamedTuple):
    """The k soft entries, best first.

    Attributes:
        scores: their scores, (…, k).
        indices: the entry of largest weight in each, (…, k).
        payloads: their payloads, each (…, k, …).
        weights: the weights of all entries in each, (…, m, k): columns sum to 1, or to 0 if no entry is left.

    Examples:
        >>> from beamtree.nn.topk.transport import soft_topk
        >>> soft_topk(torch.randn(8), 3).weights.shape
        torch.Size([8, 3])
    """

    scores: Float[Tensor, "*batch k"]
    indices: Int[Tensor, "*batch k"]
    payloads: tuple[Tensor, ...]
    weights: Float[Tensor, "*batch m k"]


def soft_topk(
    scores: Float[Tensor, "*batch m"],
    k: int,
    *payloads: Tensor,
    epsilon: float = 0.1,
    iterations: int = 200,
    scaling: Scaling = "sample",
) -> TransportTopK:
    """Compute the k best as mixtures of all entries, for both payloads and scores.

    If at most k entries are present, each is kept unchanged.

    Args:
        scores: scores of the m entries, (…, m); −inf marks an absent entry.
        k: number of mixtures, from 1 to m.
        *payloads: tensors (…, m, …) of floats, which must be finite, even those of absent entries.
        epsilon: weight of the entropy; smaller values are closer to the plain top-k.
        iterations: number of Sinkhorn iterations. The gradient is exact only if they have converged: 200 are sufficient
            for k ≥ 3 with ε = 0.1, while k = 2 and other hard cases need 1000.
        scaling: how scores are mapped to the anchors. "sample" maps each row's lowest score to 0 and its highest to k.
            "official" follows the published code of *Beam Tree Recursive Cells*: scores are not scaled, costs are
            divided by the largest cost of the batch, and absent entries take part, with a score as far below the lowest
            of the batch as the highest is above it. A row's result then depends on the other rows.

    Returns:
        The k mixtures, best first, and their weights.

    Raises:
        ValueError: if scores, k, payloads or options do not fit.

    Examples:
        >>> from beamtree.nn.topk.transport import soft_topk
        >>> scores = torch.randn(8, requires_grad=True)
        >>> best = soft_topk(scores, 3, torch.randn(8, 4))
        >>> best.scores.shape, best.payloads[0].shape
        (torch.Size([3]), torch.Size([3, 4]))
        >>> best.scores.sum().backward()  # every score receives a gradient
    """
    check_scores(scores, k, payloads)
    check_options(epsilon, iterations, scaling)
    for number, payload in enumerate(payloads):
        if not payload.is_floating_point():
            raise ValueError(f"payload {number} is {payload.dtype}: SOFT averages payloads, pass floats")
    values = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if scaling == "official":
        values = _fill(values)
    present = ~values.isneginf()  # (…, m)
    values = values.masked_fill(~present, 0)
    places = _by_batch(values, k) if scaling == "official" else _by_row(values, present, k)  # (…, m, k+1)

    count = present.sum(-1, keepdim=True)  # (…, 1)
    unmixed = count <= k
    discarded = (count - k).to(places.dtype)
    columns = torch.cat((torch.ones_like(places[..., 0, :-1]), discarded), dim=-1)  # (…, k+1)
    # Unmixed rows have no plan with these sums, and Sinkhorn's iterations would diverge. Their plan is not used: any
    # problem that has one keeps its gradient finite.
    columns = columns.masked_fill(unmixed, scores.shape[-1] / (k + 1))
    plan = transport(places, present | unmixed, columns, epsilon, iterations)[..., :-1]  # (…, m, k)

    order = rank(scores.detach(), k)  # (…, k)
    entry = torch.arange(scores.shape[-1], device=scores.device).unsqueeze(-1)  # (m, 1)
    kept = ((entry == order.unsqueeze(-2)) & present.unsqueeze(-1)).to(plan.dtype)  # (…, m, k)
    weights = kept.where(unmixed.unsqueeze(-1), plan)
    empty = ~weights.detach().any(-2)  # (…, k)
    heaviest = rank(weights.detach().mT, 1).squeeze(-1)
    return TransportTopK(
        _mix(weights, values, values.dim()).masked_fill(empty, -torch.inf).to(scores.dtype),
        order.where(empty, heaviest),
        tuple(_mix(weights, payload, scores.dim()) for payload in payloads),
        weights,
    )


def check_options(epsilon: float, iterations: int, scaling: str) -> None:
    if not isinstance(epsilon, int | float) or not LEAST_EPSILON <= epsilon < math.inf:
        raise ValueError(
            f"epsilon is {epsilon!r}: it must be a number of at least {LEAST_EPSILON}; for choices without mixture, "
            "take the plain top-k"
        )
    check_integer("iterations", iterations, at_least=1)
    check_choice("scaling", scaling, ("sample", "official"))


def transport(
    cost: Float[Tensor, "*batch m n"],
    present: Bool[Tensor, "*batch m"],
    columns: Float[Tensor, "*batch n"],
    epsilon: float,
    iterations: int,
) -> Float[Tensor, "*batch m n"]:
    """The entropic plan of minimal cost, for costs between 0 and 1.

    Rows sum to 1, or to 0 if they are not present; columns sum to `columns`, whose total is the number of present rows.
    """
    return Transport.apply(cost, present, columns, epsilon, iterations)


class Transport(torch.autograd.Function):
    """cost → plan."""

    @staticmethod
    def forward(
        ctx: Any,
        cost: Float[Tensor, "*batch m n"],
        present: Bool[Tensor, "*batch m"],
        columns: Float[Tensor, "*batch n"],
        epsilon: float,
        iterations: int,
    ) -> Float[Tensor, "*batch m n"]:
        # Costs between 0 and 1 keep G, u and v within exp(±3 / ε), which float64 can represent for ε ≥ LEAST_EPSILON.
        # This avoids computing in log space, which is many times slower.
        m, n = cost.shape[-2:]
        G = (-cost.double() / epsilon).exp().view(-1, m, n)  # (b, m, n)
        u, v = scalings(G, present.double().view(-1, m, 1), columns.double().view(-1, n, 1), iterations)
        plan = (u * G * v.mT).view_as(cost).to(cost.dtype)
        save(ctx, (cost,), plan)
        ctx.epsilon, ctx.refusal = epsilon, NO_SECOND_DERIVATIVE
        return plan

    @staticmethod
    @first_order
    def backward(
        ctx: Any, inputs: Sequence[Tensor], others: Sequence[Any], plan_gradient: Float[Tensor, "*batch m n"]
    ) -> tuple[Tensor | None, ...]:
        """The plan is exp(f_i + g_j − C_ij / ε).

        When C changes, f and g change such that the sums of rows and columns are preserved:

            df_i + Σ_j Γ_ij dg_j = Σ_j Γ_ij dC_ij / ε      Σ_i Γ_ij df_i + ν_j dg_j = Σ_i Γ_ij dC_ij / ε

        with the last dg = 0, since one equation is redundant. The gradient follows from the transposed system, which is
        solved for the columns first.
        """
        (plan,) = others
        m, n = plan.shape[-2:]
        if kernels := _kernels(plan.is_cuda, m, n):
            found = kernels.cost_gradient(plan.view(-1, m, n), plan_gradient.reshape(-1, m, n), ctx.epsilon)
            return found.view_as(plan), None, None, None, None
        return cost_gradient(plan, plan_gradient, ctx.epsilon), None, None, None, None


def cost_gradient(
    plan: Float[Tensor, "*batch m n"], plan_gradient: Float[Tensor, "*batch m n"], epsilon: float
) -> Float[Tensor, "*batch m n"]:
    """The gradient of the cost, by the equations of `Transport.backward`."""
    gradient = plan_gradient * plan
    rows, columns = gradient.sum(-1, keepdim=True), gradient.sum(-2).unsqueeze(-1)  # (…, m, 1), (…, n, 1)
    inner = plan[..., :-1]  # (…, m, k)
    system = torch.diag_embed(inner.sum(-2)) - inner.mT @ inner  # (…, k, k)
    # If the plan hardly mixes, the system is nearly singular and the gradient nearly 0; adding the machine epsilon
    # keeps the solution finite.
    system.diagonal(dim1=-2, dim2=-1).add_(torch.finfo(plan.dtype).eps)
    g = torch.linalg.solve_ex(system, columns[..., :-1, :] - inner.mT @ rows).result  # (…, k, 1)
    f = rows - inner @ g  # (…, m, 1)
    return (plan * (f + F.pad(g, (0, 0, 0, 1)).mT) - gradient) / epsilon


def scalings(
    G: Float[Tensor, "b m n"], rows: Float[Tensor, "b m 1"], columns: Float[Tensor, "b n 1"], iterations: int
) -> tuple[Float[Tensor, "b m 1"], Float[Tensor, "b n 1"]]:
    """Sinkhorn's u and v, such that diag(u) G diag(v) has the row sums `rows` and the column sums `columns`."""
    if kernels := _kernels(G.is_cuda, *G.shape[1:]):
        u, v = kernels.scalings(G, rows, columns, iterations)
        return u, v
    transposed = G.mT.contiguous()
    u, v = torch.zeros_like(rows), torch.ones_like(columns)
    for _ in range(iterations):
        u = rows / torch.bmm(G, v)
        v = columns / torch.bmm(transposed, u)
    return u, v


def _kernels(is_cuda: bool, m: int, n: int) -> Any:
    """The module of Triton kernels; None if they do not apply."""
    if not is_cuda or not is_installed("triton"):
        return None
    from beamtree.nn.engine.gpu.kernels import sinkhorn

    return sinkhorn if sinkhorn.fits(m, n) else None


def _by_row(values: Float[Tensor, "*batch m"], present: Bool[Tensor, "*batch m"], k: int) -> Tensor:
    """Costs (…, m, k+1), between 0 and 1, of scores scaled to the range of the anchors."""
    low = values.masked_fill(~present, torch.inf).amin(-1, keepdim=True)
    high = values.masked_fill(~present, -torch.inf).amax(-1, keepdim=True)
    # Nearly equal scores must remain so: a range below one nat, the unit of log-probabilities, is not stretched.
    spread = (high - low).clamp(min=1)
    share = ((values - low) / spread).masked_fill(~present, 0)
    return (share.unsqueeze(-1) - _anchors(values, k) / k) ** 2


def _by_batch(values: Float[Tensor, "*batch m"], k: int) -> Tensor:
    """Costs (…, m, k+1) of unscaled scores, divided by the largest cost of the batch."""
    cost = (values.unsqueeze(-1) - _anchors(values, k)) ** 2
    return cost / cost.detach().amax()


def _anchors(like: Tensor, k: int) -> Float[Tensor, "anchors"]:
    return torch.arange(k, -1, -1, dtype=like.dtype, device=like.device)


def _fill(values: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch m"]:
    """Give absent entries a score as far below the lowest of the batch as the highest is above it."""
    absent, fixed = values.isneginf(), values.detach()
    low, high = fixed.masked_fill(absent, torch.inf).amin(), fixed.amax()
    return torch.where(absent, (2 * low - high).nan_to_num(), values)


def _mix(weights: Float[Tensor, "*batch m k"], payload: Tensor, dim: int) -> Tensor:
    """Weighted sums over the payload's m axis, the last of its first `dim` axes, which becomes k."""
    flat = payload.flatten(dim) if payload.dim() > dim else payload.unsqueeze(-1)  # (…, m, r)
    with torch.autocast(flat.device.type, enabled=False):  # keep the average in full precision
        mixed = weights.mT.to(flat.dtype) @ flat  # (…, k, r)
    return mixed.view(*mixed.shape[:-1], *payload.shape[dim:])
