"""The loop of Ordered Memory: a stack of slots that reads one leaf after another.

A leaf takes about nine sequential kernel launches per slot. On a CUDA device segments of leaves are captured in graphs,
so that launch overhead does not dominate; see `beamtree.nn.engine.gpu.segments`.

Letters: N leaves, T leaves of a segment, B batch, D width of a state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from beamtree.nn.cells import AnyCell
from beamtree.nn.cells.base import Layer, is_plain
from beamtree.nn.cells.grc import GRC, GRCFunction, compose
from beamtree.nn.engine.dispatch import Engine, why_not_triton
from beamtree.nn.engine.functional import Composite
from beamtree.nn.engine.loops.fold import Fold, at, split, times
from beamtree.utils.interrupts import check_interrupt

# A slot is closed if the last step's distribution has less than this mass below it, as in the published code.
CLOSED = 1e-5


class Memory(NamedTuple):
    """The slots after a step, lowest first."""

    finished: Float[Tensor, "slots B D"]  # M
    candidates: Float[Tensor, "slots B D"]  # M̂
    distribution: Float[Tensor, "slots B"]  # p


class MemoryMasks(NamedTuple):
    """Dropout masks: factors in a step, booleans (True: kept) in a segment; None if nothing is dropped."""

    candidates: Shaped[Tensor, "*T slots B D"] | None  # before W_k
    matches: Shaped[Tensor, "*T slots B D"] | None  # before w
    cells: Shaped[Tensor, "*T slots B cell"] | None  # R's children and activation, [2D; mask_dim] wide


class Dropouts(NamedTuple):
    """Dropout rates: on candidates and activations in the computation of p, and inside the cell."""

    candidates: float
    matches: float
    cells: float


@dataclass(frozen=True)
class MemoryLoop(Composite):
    """The steps that read leaves, as a function of weights."""

    key: Layer
    scorer: Layer
    cell: AnyCell
    slots: int
    mask_dim: int  # width of the activation that the cell drops
    dropouts: Dropouts | None  # None: nothing is dropped
    by_autograd: bool = False  # whether autograd computes all gradients

    @property
    def dim(self) -> int:
        return self.cell.dim

    def closed(self, step: int) -> int:
        """Number of slots that cannot be open yet: initially all but the top one; each step opens at most one more."""
        return max(self.slots - 1 - step, 0)

    def step(
        self,
        leaf: Float[Tensor, "B D"],
        query: Float[Tensor, "B D"],
        memory: Memory,
        masks: MemoryMasks,
        closed: int = 0,
        made: Float[Tensor, "slots B D"] | None = None,
        fold: Callable[..., Tensor] | None = None,
    ) -> Memory:
        """Read one leaf.

        closed: number of closed slots at the bottom, which are skipped.
        made: the candidates, if they are already known.
        fold: replacement for `Fold.apply`, called without the arguments of the cell.
        """
        distribution = self.distribution(query, memory, masks)  # (slots, B)
        up_to = distribution.cumsum(0)  # Σ_{j≤i} p_j
        from_here = 1 - up_to + distribution  # Σ_{j≥i} p_j
        finished = torch.lerp(memory.finished, memory.candidates, from_here.unsqueeze(-1))  # (slots, B, D)
        share, mask = up_to[closed:].unsqueeze(-1), at(masks.cells, slice(closed, None))
        if self.by_autograd:
            above = fold_by_autograd(self.cell, leaf, finished[closed:], share, mask)
        elif fold is not None:
            above = fold(leaf, finished[closed:], share, mask, made)
        else:
            assert isinstance(self.cell, GRCFunction)
            above = Fold.apply(self.cell.eps, leaf, finished[closed:], share, mask, made, *self.cell.weights)
        candidates = torch.cat((leaf.expand(closed, -1, -1), above)) if closed else above
        return Memory(finished, candidates, distribution)

    def distribution(self, query: Float[Tensor, "B D"], memory: Memory, masks: MemoryMasks) -> Float[Tensor, "slots B"]:
        """p, from the leaf's query and the memory of the previous step."""
        keys = self.key(times(memory.candidates, masks.candidates))  # (slots, B, D)
        matches = times(F.gelu(query + keys), masks.matches)
        scores = self.scorer(matches).squeeze(-1) / self.dim**0.5  # (slots, B)
        below = memory.distribution.cumsum(0)[1:]  # Σ_{j ≤ i+1} p′_j
        is_open = F.pad(below.masked_fill(below < CLOSED, 0), (0, 0, 0, 1), value=1.0)  # (slots, B)
        scores = scores.to(is_open.dtype).masked_fill(is_open == 0, -torch.inf)
        weights = (scores - scores.detach().amax(0)).exp() * is_open
        return weights / weights.sum(0)  # the sum is at least CLOSED

    def segment(
        self, carry: tuple[Tensor, ...], inputs: tuple[Tensor, ...], masks: Sequence[Tensor | None], made: Tensor | None
    ) -> tuple[Memory, Float[Tensor, "T slots B D"], Float[Tensor, "T slots B"]]:
        """Read T leaves, as a loop for `beamtree.nn.engine.gpu.segments`.

        Returns the memory after them, and the candidates and p of each step. No slot is skipped, so that all steps are
        the same: in a closed slot p and the cell's share are 0, so its candidate is the leaf, and only the leaf
        receives its gradient.
        """
        from beamtree.nn.engine.gpu.fold import make_fold  # needs triton, an optional package

        memory, candidates, distributions = Memory(*carry), [], []
        assert isinstance(self.cell, GRCFunction)
        fold = make_fold(self.cell, memory.distribution.numel())
        for t, (leaf, query, scaled) in enumerate(
            zip(*inputs, self.scaled(MemoryMasks(*masks), inputs[0]), strict=True)
        ):
            memory = self.step(leaf, query, memory, scaled, made=at(made, t), fold=fold)
            candidates.append(memory.candidates)
            distributions.append(memory.distribution.detach())
        return memory, torch.stack(candidates), torch.stack(distributions)

    def step_bytes(self, carry: tuple[Tensor, ...]) -> int:
        """The backward pass holds about 30 values, mostly of the cells, for each value of M̂."""
        return 15 * sum(tensor.nbytes for tensor in carry)

    def masks(self, steps: range, leaves: Float[Tensor, "N B D"], generator: torch.Generator | None) -> MemoryMasks:
        """What dropout keeps in these steps. Drawn step by step, so that masks do not depend on the segment size."""
        if self.dropouts is None:
            return MemoryMasks(None, None, None)
        shape, widths = (len(steps), self.slots, leaves.shape[1]), (self.dim, self.dim, 2 * self.dim + self.mask_dim)
        masks = MemoryMasks(*(leaves.new_zeros(*shape, width, dtype=torch.bool) if rate else None
                        for width, rate in zip(widths, self.dropouts, strict=True)))  # fmt: skip
        for t, step in enumerate(steps):
            for mask, rate, closed in zip(masks, self.dropouts, (0, 0, self.closed(step)), strict=True):
                if mask is not None:
                    mask[t, closed:].bernoulli_(1 - rate, generator=generator)
        return masks

    def scaled(self, masks: MemoryMasks, leaves: Float[Tensor, "T B D"]) -> list[MemoryMasks]:
        """The factors by which each step multiplies."""
        pairs = zip(masks, self.dropouts or (0.0, 0.0, 0.0), strict=True)
        scaled = [None if mask is None else mask.to(leaves.dtype).div_(1 - rate) for mask, rate in pairs]
        return [MemoryMasks(*(at(mask, t) for mask in scaled)) for t in range(len(leaves))]


def fold_by_autograd(
    cell: AnyCell,
    leaf: Float[Tensor, "B D"],
    finished: Float[Tensor, "open B D"],
    share: Float[Tensor, "open B 1"],
    mask: Float[Tensor, "open B cell"] | None,
) -> Float[Tensor, "open B D"]:
    """`Fold` for any cell: h_i = x + s_i (R(h_{i−1}, M_i) − x), h_{−1} = x, slot by slot under autograd."""
    state, candidates = leaf, []
    for i, right in enumerate(finished):
        k_left, k_right, k_inner = split(at(mask, i), leaf.shape[1])
        layers = _layers(cell)
        if layers is None:  # another kind of cell: dropout is applied to its children
            own = None if k_inner is None or not k_inner.shape[-1] else k_inner  # None: it drops nothing by a mask
            parent = cell(times(state, k_left), times(right, k_right), own)
        else:
            expand, gates, norm = layers
            keep = None if k_left is None or k_right is None else torch.cat((k_left, k_right), dim=-1)
            dropped = partial(_apply_after, expand, keep)
            parent = compose(state, right, dropped, gates, norm, partial(times, mask=k_inner))
        state = torch.lerp(leaf, parent.to(leaf.dtype), share[i])
        candidates.append(state)
    return torch.stack(candidates)


def _apply_after(layer: Layer, mask: Tensor | None, x: Tensor) -> Tensor:
    return layer(times(x, mask))


def _layers(cell: AnyCell) -> tuple[Layer, Layer, Layer] | None:
    """The layers of a GRC; None for other cells."""
    if isinstance(cell, GRCFunction):
        return cell.layers()
    module = getattr(cell, "module", None)
    # A cell with hooks, or of a subclass, must be called itself.
    return (module.expand, module.gates, module.norm) if module is not None and is_plain(module, GRC) else None


@dataclass(frozen=True)
class MemoryRequest:
    """One forward pass of Ordered Memory."""

    leaves: Float[Tensor, "N B D"]
    queries: Float[Tensor, "N B D"]
    loop: MemoryLoop
    generator: torch.Generator | None = None

    def start(self) -> Memory:
        """The initial memory: the first leaf fills all of M̂."""
        first = self.leaves[:1].expand(self.loop.slots, -1, -1)  # (slots, B, D)
        return Memory(torch.zeros_like(first), first, torch.zeros_like(first[..., 0]))


Read = tuple[Float[Tensor, "N slots B D"], Int[Tensor, "M B"]]  # all candidates, and each leaf's most probable slot


def one_by_one(request: MemoryRequest, by_autograd: bool = False) -> Read:
    """Read all leaves, one by one."""
    leaves, loop, memory = request.leaves, request.loop, request.start()
    loop = replace(loop, by_autograd=by_autograd or not isinstance(loop.cell, GRCFunction))
    candidates, choices = [memory.candidates], []
    for step in range(len(leaves) - 1):
        check_interrupt()
        (masks,) = loop.scaled(loop.masks(range(step, step + 1), leaves, request.generator), leaves[:1])
        memory = loop.step(leaves[step + 1], request.queries[step + 1], memory, masks, loop.closed(step))
        candidates.append(memory.candidates)
        choices.append(memory.distribution.detach().argmax(0))
    empty = torch.zeros(0, leaves.shape[1], dtype=torch.long, device=leaves.device)
    return torch.stack(candidates), torch.stack(choices) if choices else empty


def captured(request: MemoryRequest) -> Read:
    """Read all leaves, in CUDA graphs."""
    leaves, loop, memory = request.leaves, request.loop, request.start()
    if len(leaves) == 1:
        return one_by_one(request)
    from beamtree.nn.engine.gpu import segments  # needs triton, an optional package

    inputs = leaves[1:], request.queries[1:]
    draw = partial(loop.masks, leaves=leaves, generator=request.generator)
    later, p, _ = segments.run(loop, memory, inputs, draw, steps=len(leaves) - 1)
    return torch.cat((memory.candidates.unsqueeze(0), later)), p.argmax(1)


def _why_not(request: MemoryRequest) -> str | None:
    if not request.loop.is_functional:
        return "its layers are not plain: hooks, a subclass or a wrapper"
    if not isinstance(request.loop.cell, GRCFunction):
        return "its cell is not the GRC, for which the fold is written"
    return why_not_triton(request.leaves)


MEMORY: tuple[Engine[MemoryRequest], ...] = (
    Engine("triton", captured, _why_not),
    Engine("torch", one_by_one),
    Engine("reference", partial(one_by_one, by_autograd=True)),
)
