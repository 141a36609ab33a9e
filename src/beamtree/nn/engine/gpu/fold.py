"""The fold of Ordered Memory on a GPU.

It takes three launches per slot in each of the forward and the backward pass, instead of the nine and seven of
`beamtree.nn.engine.loops.fold.Fold`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from beamtree.nn.cells.grc import GRCFunction, dense_kernels
from beamtree.nn.cells.grc import kernels as grc_kernels
from beamtree.nn.cells.grc.dense import DenseGRC, fuse
from beamtree.nn.engine.gpu.cells import row_blocks
from beamtree.nn.engine.gpu.kernels import fold as kernels
from beamtree.nn.engine.gpu.precision import tile, weight_gradient
from beamtree.nn.engine.loops.fold import Fold, at, split, times
from beamtree.nn.function import first_order, save


def make_fold(cell: GRCFunction, rows: int) -> Callable[..., Tensor]:
    """`Fold.apply` with the cell bound: by kernels if the weights are float32.

    rows: approximate number of rows in all slots, which selects the method of the products.
    """
    if cell.weights[0].dtype == torch.float32:
        return partial(fold_by_kernels, fuse(cell, rows))
    return partial(fold_plainly, cell)


def fold_plainly(cell: GRCFunction, *given: Tensor | None) -> Tensor:
    found: Tensor = Fold.apply(cell.eps, *given, *cell.weights)
    return found


def fold_by_kernels(cell: DenseGRC, *given: Tensor | None) -> Tensor:
    found: Tensor = KernelFold.apply(cell, *given, *cell.weights)
    return found


class KernelFold(torch.autograd.Function):
    """(leaf, finished, share, weights) → candidates, like `Fold`."""

    @staticmethod
    def forward(
        ctx: Any,
        cell: DenseGRC,
        leaf: Float[Tensor, "B D"],
        finished: Float[Tensor, "open B D"],
        share: Float[Tensor, "open B 1"],
        mask: Float[Tensor, "open B 6*D"] | None,
        made: Float[Tensor, "open B D"] | None,
        *weights: Tensor,
    ) -> Float[Tensor, "open B D"]:
        leaf, finished, share = leaf.contiguous(), finished.contiguous(), share.contiguous()
        mask = None if mask is None else mask.contiguous()
        candidates = fold(cell, leaf, finished, share, mask, weights) if made is None else made
        ctx.cell = cell
        save(ctx, (leaf, finished, share, *weights), mask, candidates)
        return candidates

    @staticmethod
    @first_order
    def backward(
        ctx: Any, inputs: Sequence[Tensor], kept: Sequence[Any], gradient: Float[Tensor, "open B D"]
    ) -> tuple[Tensor | None, ...]:
        (leaf, finished, share, *weights), (mask, candidates) = inputs, kept
        cell: DenseGRC = ctx.cell
        slots, B, D = finished.shape
        E, rows, masked, gradient = 4 * D, slots * B, mask is not None, gradient.contiguous()
        k_left, k_right, k_inner = split(mask, D)
        left = torch.cat((leaf.unsqueeze(0), candidates[:-1]))
        left_kept, right_kept = times(left, k_left), times(finished, k_right)  # the inputs of W1
        a, inner, gates, d_gates, d_a = finished.new_empty(5, slots, B, E).unbind()
        _activate(cell, left_kept, right_kept, k_inner, weights, a, inner, gates, keep=True)

        d_state, d_finished, hats, reached = finished.new_empty(4, slots, B, D).unbind()
        carried, past = leaf.new_zeros(2, B, D).unbind()
        d_share = torch.empty_like(share)
        W1, W2 = cell.matrices("backward")
        sizes = tile(B, cell.method)
        tiles = triton.cdiv(B, sizes["BM"])
        sums = leaf.new_empty(slots, tiles, E)
        for i in reversed(range(slots)):
            kernels.into_gates[(B,)](
                gradient[i], carried, left[i], finished[i], gates[i], *weights[4:], leaf, share[i],
                d_state[i], d_gates[i], past, d_finished[i], d_share[i], hats[i], reached[i],
                D, cell.eps, **row_blocks(D),
            )  # fmt: skip
            dense_kernels.into_inner[(tiles, triton.cdiv(E, sizes["BN"]))](
                d_gates[i], W2, a[i], or_else(at(k_inner, i), leaf), d_a[i], sums[i],
                B, 6 * D, E, MASKED=masked, **sizes,
            )  # fmt: skip
            kernels.into_child[(tiles, triton.cdiv(D, sizes["BN"]))](
                d_a[i], W1, or_else(at(k_left, i), leaf), past, carried,
                B, 6 * D, D, E, MASKED=masked, **sizes,
            )  # fmt: skip
        sizes = tile(rows, cell.method)
        kernels.into_child[(triton.cdiv(rows, sizes["BM"]), triton.cdiv(D, sizes["BN"]))](
            d_a, W1[..., D:], or_else(k_right, leaf), d_finished, d_finished,
            rows, 6 * D, D, E, MASKED=masked, **sizes,
        )  # fmt: skip
        d_leaf = carried + (d_state - d_state * share).sum(0)
        flat_a, flat_gates = d_a.view(rows, E), d_gates.view(rows, E)
        children = torch.cat((left_kept, right_kept), dim=-1).view(rows, 2 * D)
        d_weights = (
            weight_gradient(flat_a, children, cell.method),
            sums.sum((0, 1)),
            weight_gradient(flat_gates, inner.view(rows, E), cell.method),
            flat_gates.sum(0),
            hats.sum((0, 1)),
            reached.sum((0, 1)),
        )
        return None, d_leaf, d_finished, d_share, None, None, *d_weights


def fold(
    cell: DenseGRC,
    leaf: Float[Tensor, "B D"],
    finished: Float[Tensor, "open B D"],
    share: Float[Tensor, "open B 1"],
    mask: Float[Tensor, "open B 6*D"] | None,
    weights: Sequence[Tensor],
) -> Float[Tensor, "open B D"]:
    """The candidates, slot by slot."""
    slots, B, D = finished.shape
    k_left, k_right, k_inner = split(mask, D)
    right_kept = times(finished, k_right)
    candidates, state = torch.empty_like(finished), leaf
    following = leaf.clone() if k_left is None else leaf * k_left[0]  # the next left child, as input of W1
    inner, gates = leaf.new_empty(2, B, 4 * D).unbind()
    for i, candidate in enumerate(candidates):
        _activate(cell, following, right_kept[i], None if k_inner is None else k_inner[i], weights, inner, inner, gates)
        masked = k_left is not None and i + 1 < slots
        kernels.finish[(B,)](
            state, finished[i], gates, *weights[4:], leaf, share[i], or_else(at(k_left, i + 1 if masked else 0), leaf),
            candidate, following, 6 * D, D, cell.eps, MASKED=masked, **row_blocks(D),
        )  # fmt: skip
        state = candidate
    return candidates


def or_else(mask: Tensor | None, other: Tensor) -> Tensor:
    """The mask, or if None a placeholder, which the kernel does not read."""
    return other if mask is None else mask


def _activate(
    cell: DenseGRC,
    left: Float[Tensor, "*nodes D"],
    right: Float[Tensor, "*nodes D"],
    mask: Float[Tensor, "*nodes 4*D"] | None,
    weights: Sequence[Tensor],
    a: Float[Tensor, "*nodes 4*D"],
    inner: Float[Tensor, "*nodes 4*D"],
    gates: Float[Tensor, "*nodes 4*D"],
    keep: bool = False,
) -> None:
    """Compute the gates from children to which dropout has been applied. If `keep`, also write `a`."""
    D, rows = cell.dim, left.numel() // cell.dim
    W1, W2 = cell.matrices("forward")
    sizes = tile(rows, cell.method)
    grid = (triton.cdiv(rows, sizes["BM"]), triton.cdiv(4 * D, sizes["BN"]))
    whole = (rows, 0, D)  # children in consecutive rows
    dense_kernels.expand[grid](
        left, right, W1, weights[1], or_else(mask, inner), a, inner,
        rows, *whole, *whole, 6 * D, D, 4 * D, MASKED=mask is not None, KEEP=keep, **sizes,
    )  # fmt: skip
    grc_kernels.gates[grid](inner, W2, weights[3], gates, rows, 4 * D, **sizes)
