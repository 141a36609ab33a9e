"""The equations of the GRC as device functions, which all of its Triton kernels call.

    _gates            z, h, c and u, from memory
    _total            σ(z), σ(h), σ(c) and t = σ(z) ⊙ l + σ(h) ⊙ r + σ(c) ⊙ u
    _gated            the children from memory, σ(z), σ(h), σ(c), u and t
    _centred          t − mean, and the standard deviation of LayerNorm
    _normalised       x̂ = (t − mean) / deviation
    _normalised_back  dt, through LayerNorm
    _gates_back       d[z; h; c; u], from dt, to memory
    _masked           a tile times a dropout mask from memory

A row is a vector of BLOCK elements, of which those `inside` exist; the others are 0. What kernels of other layers need
too is in `beamtree.nn.engine.gpu.kernels.common`: GELU and its derivative, hashed dropout, and tiled products. The
equations are those of `beamtree.nn.cells.grc.GRCAdjoint`.
"""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _gates(place, inside, D):
    z, h = tl.load(place, mask=inside, other=0.0), tl.load(place + D, mask=inside, other=0.0)
    c, u = tl.load(place + 2 * D, mask=inside, other=0.0), tl.load(place + 3 * D, mask=inside, other=0.0)
    return z, h, c, u


@triton.jit
def _total(left, right, z, h, c, u):
    """σ(z), σ(h) and σ(c), and t."""
    z, h, c = tl.sigmoid(z), tl.sigmoid(h), tl.sigmoid(c)
    return z, h, c, z * left + h * right + c * u


@triton.jit
def _gated(left, right, gates, inside, D):
    """`left`, `right` and `gates` point to the row."""
    x, y = tl.load(left, mask=inside, other=0.0), tl.load(right, mask=inside, other=0.0)
    z, h, c, u = _gates(gates, inside, D)
    z, h, c, total = _total(x, y, z, h, c, u)
    return x, y, z, h, c, u, tl.where(inside, total, 0.0)


@triton.jit
def _centred(total, inside, D, epsilon):
    centred = tl.where(inside, total - tl.sum(total, axis=0) / D, 0.0)
    return centred, tl.sqrt(tl.sum(centred * centred, axis=0) / D + epsilon)


@triton.jit
def _normalised(total, inside, D, epsilon):
    """x̂, and 1 / deviation, by which `_normalised_back` multiplies."""
    centred, deviation = _centred(total, inside, D, epsilon)
    rate = 1 / deviation
    return centred * rate, rate


@triton.jit
def _normalised_back(gradient, hat, rate, D):
    """`gradient` is that of x̂: LayerNorm's own times its weight."""
    return rate * (gradient - tl.sum(gradient, axis=0) / D - hat * (tl.sum(gradient * hat, axis=0) / D))


@triton.jit
def _gates_back(out, p, left, right, z, h, c, u, inside, D):
    """p is dt. Returns what it writes."""
    d_z, d_h, d_c, d_u = p * left * z * (1 - z), p * right * h * (1 - h), p * u * c * (1 - c), p * c
    tl.store(out, d_z, mask=inside)
    tl.store(out + D, d_h, mask=inside)
    tl.store(out + 2 * D, d_c, mask=inside)
    tl.store(out + 3 * D, d_u, mask=inside)
    return d_z, d_h, d_c, d_u


@triton.jit
def _masked(x, mask, row, column, mask_width, both):
    """Rows of the mask are `mask_width` apart."""
    return x * tl.load(mask + row.to(tl.int64)[:, None] * mask_width + column[None, :], mask=both, other=0.0)
