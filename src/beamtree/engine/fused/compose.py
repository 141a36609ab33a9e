"""Composing the new nodes of a step, for each cell that the fused engine knows."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import triton

from beamtree.cells import GRC, Cell, TreeLSTM
from beamtree.dropout import NodeDropout
from beamtree.engine.fused import kernels
from beamtree.engine.fused.products import tile

if TYPE_CHECKING:
    from beamtree.engine.fused.workspaces import Workspace


def masks(dropout: NodeDropout | None) -> tuple[int, float]:
    """What the kernels must know of the masks."""
    return (dropout.threshold, dropout.scale) if dropout else (0, 1.0)


def compose_grc(memory: "Workspace", slot: int) -> None:
    size, tables, request = memory.size, memory.tables, memory.request
    D, E, n = size.D, 4 * size.D, 2 * size.beams
    first, sizes = size.composed, tile(n, memory.method)
    w1, b1, w2, b2, norm_weight, norm_bias, score_weight, score_bias = memory.weights
    grid = (triton.cdiv(n, sizes["BM"]), triton.cdiv(E, sizes["BN"]))
    assert isinstance(request.cell, GRC)
    kernels.expand[grid](
        tables.states, tables.children, w1, b1, memory.inner, memory.keys, memory.seed, memory.base,
        slot, first, n, D, D, E, *masks(request.dropout),
        GELU=True, DROPOUT=request.dropout is not None, **sizes,
    )  # fmt: skip
    kernels.gates[grid](memory.inner, w2, b2, memory.gates, n, E, **sizes)
    kernels.finish[(n,)](
        tables.states, tables.logits, tables.children, memory.gates, norm_weight, norm_bias, score_weight, score_bias,
        memory.present, memory.base, slot, first, n, D, D, request.cell.norm.eps,
        BLOCK=triton.next_power_of_2(D), num_warps=4,
    )  # fmt: skip


def compose_lstm(memory: "Workspace", slot: int) -> None:
    size, tables, request = memory.size, memory.tables, memory.request
    D, E, n = size.D, 5 * size.D, 2 * size.beams
    first, sizes = size.composed, tile(n, memory.method)
    weight, bias, score_weight, score_bias = memory.weights
    kernels.expand[(triton.cdiv(n, sizes["BM"]), triton.cdiv(E, sizes["BN"]))](
        tables.states, tables.children, weight, bias, memory.gates, memory.keys, memory.seed, memory.base,
        slot, first, n, D, 2 * D, E, 0, 1.0,
        GELU=False, DROPOUT=False, **sizes,
    )  # fmt: skip
    kernels.remember[(n,)](
        tables.states, tables.logits, tables.children, memory.gates, score_weight, score_bias, memory.present,
        memory.keys, memory.seed, memory.base, slot, first, n, D, 2 * D, *masks(request.dropout),
        DROPOUT=request.dropout is not None, BLOCK=triton.next_power_of_2(D), num_warps=4,
    )  # fmt: skip


COMPOSE: dict[type[Cell], Callable[..., None]] = {GRC: compose_grc, TreeLSTM: compose_lstm}
