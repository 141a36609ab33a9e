"""What all encoders have in common: their interface, and the checks of their inputs.

Letters: B batch, N length, D width of inputs and encodings, S width of a node's state (D, or 2D with a Tree-LSTM).
"""

import inspect
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import pad

from beamtree.nn.beams import Beams, Encoding
from beamtree.nn.cells import Cell
from beamtree.nn.description import describe
from beamtree.nn.encoders.inputs import check_inputs
from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.dispatch import Engine, HasLeaves, select
from beamtree.nn.engine.dropout import NodeDropout
from beamtree.nn.engine.scorers import AnyScorer
from beamtree.nn.merge_scores import MergeScores, merge_scores
from beamtree.utils.checks import check_flag, check_integer

T = TypeVar("T")
R = TypeVar("R", bound=HasLeaves)

# Names in the published code → ours, for models that hold leaf transform and cell themselves.
OFFICIAL_CELL = {
    "initial_transform_layer": "leaf.0",
    "LN1": "leaf.1",
    "wcell1": "cell.expand",
    "wcell2": "cell.gates",
    "LN2": "cell.norm",
}


class Cost(NamedTuple):
    """Training cost of one input of N words, as formulas.

    The formulas are in N, the width D, the number K of beams or samples, and option names. They hold for N ≥ 3 and the
    default engine.

    Attributes:
        cells: cells composed in the forward pass; "–" where there is no cell.
        steps: sequential cells or layers.
        memory: values saved for the backward pass, up to a constant factor.

    Examples:
        >>> beamtree.CYK(dim=64).cost
        Cost(cells='(N³−N)/6', steps='N−1', memory='N²·D')
    """

    cells: str
    steps: str
    memory: str


class Encoder(nn.Module):
    """Base class of the encoders.

    `encoder(x, lengths)` takes x (B, N, D), right padded, and lengths (B,), and returns an `Encoding`. A sample's
    encoding depends neither on its padding nor on the other samples of the batch. A subclass defines `encode`, `paper`
    and `cost`.

    Examples:
        >>> encoder = beamtree.encoder("bt-grc", dim=8)
        >>> isinstance(encoder, beamtree.Encoder)
        True
        >>> encoder(torch.randn(2, 5, 8), lengths=[5, 3])
        Encoding(state=(2, 8) of torch.float32, beams=Beams(5 of each of 2 samples, of up to 5 leaves))
    """

    needs_trees = False  # whether `forward` requires trees
    OFFICIAL: ClassVar[dict[str, str]] = {}  # module and parameter names of the published code → ours
    OFFICIAL_UNUSED: ClassVar[tuple[str, ...]] = ()  # its parameters that do not affect the encoding

    OPTIONS: ClassVar[tuple[str, ...]]  # names of the constructor's arguments

    engine: str  # its option of this name, if it has one

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.OPTIONS = tuple(inspect.signature(cls.__init__).parameters)[1:]

    def __init__(self, dim: int, check_nan: bool = False) -> None:
        """Create the encoder.

        Args:
            dim: width D of inputs and encodings.
            check_nan: whether to check x for NaN first (synchronises with the host on a GPU).
        """
        super().__init__()
        check_integer("dim", dim, at_least=1)
        check_flag("check_nan", check_nan)
        self.dim, self.check_nan = dim, check_nan

    @property
    def paper(self) -> str:
        """Short citation of the model's paper, such as "Choi et al. 2018"."""
        raise NotImplementedError

    @property
    def cost(self) -> Cost:
        """Cost of training with one input, as formulas."""
        raise NotImplementedError

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        lengths: "Lengths" = None,
        generator: torch.Generator | None = None,
    ) -> Encoding:
        """Encode a batch of sequences.

        Args:
            x: input vectors (B, N, D), right padded.
            lengths: length of each sample, from 1 to N, or a boolean mask (B, N) of the vectors that are not padding;
                either as a tensor, a list or a NumPy array. None: there is no padding.
            generator: source of noise and dropout; by default PyTorch's global generator.

        Returns:
            The encodings (B, D), and the beams they were computed from if the encoder builds trees.

        Raises:
            ValueError: if shapes, lengths or devices do not fit.
            EngineError: if the engine of the encoder cannot run the request.
        """
        return self._call(self.encode, x, lengths, generator)

    def _call(self, encode: Callable[..., Encoding], x: Tensor, lengths: "Lengths", *given: Any) -> Encoding:
        lengths = as_lengths(x, lengths)
        if torch.compiler.is_compiling():  # or exporting
            from beamtree.nn import compiling  # loads Dynamo

            return compiling.call(self, encode, x, lengths, *given)
        if "torch._dynamo" in sys.modules:  # it may have skipped this function, and compile those that it calls
            from beamtree.nn import compiling

            return compiling.run_eagerly(self, encode, x, lengths, *given)
        return self._run(encode, x, lengths, *given)

    def _run(
        self,
        encode: Callable[..., Encoding],
        x: Float[Tensor, "B N D"],
        lengths: Int[Tensor, "B"],
        *given: Any,
    ) -> Encoding:
        """Check the inputs and encode them."""
        x, lengths = self.checked(x, lengths)
        if not self._is_half():
            return encode(x, lengths, *given)
        found = self._in_float32(encode, x.float(), lengths, *given)
        return Encoding(found.state.to(x.dtype), found.beams)

    def _is_half(self) -> bool:
        return next(self.parameters()).dtype in (torch.bfloat16, torch.float16)

    def _in_float32(self, function: Callable[..., T], *given: Any) -> T:
        """Call a function that uses the tensors of this encoder. A module in half precision computes in float32."""
        if not self._is_half():
            return function(*given)
        weight = next(self.parameters())
        tensors = {f"encoder.{name}": tensor for name, tensor in (*self.named_parameters(), *self.named_buffers())}
        whole = {name: tensor.float() for name, tensor in tensors.items() if tensor.is_floating_point()}
        products = torch.autocast(weight.device.type, torch.bfloat16, enabled=weight.dtype == torch.bfloat16)
        with _swapping, products:
            found: T = functional_call(_Call(self, function), whole, given)
        with torch.no_grad():
            for name, buffer in self.named_buffers():  # which the call may have modified in-place
                if buffer.is_floating_point() and buffer.dtype != torch.float32:
                    buffer.copy_(whole[f"encoder.{name}"])
        return found

    def _engine(self, engines: Sequence[Engine[R]], request: R) -> Engine[R]:
        """The engine that runs a request of this encoder."""
        return select(engines, request, self.engine, self.parameters())

    def _description(self) -> str:
        """The description by `beamtree.nn.description.describe`, or "" if the encoder has none."""
        try:
            return describe(self)
        except ValueError:
            return ""

    def _options(self) -> tuple[str | float | None, ...]:
        """The values of all options; None for those that are not plain values."""
        values = (getattr(self, name, None) for name in self.OPTIONS)
        return tuple(value if isinstance(value, str | int | float) else None for value in values)

    def checked(
        self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"]
    ) -> tuple[Float[Tensor, "B N D"], Int[Tensor, "B"]]:
        """Validate the inputs, and zero the padding."""
        check_inputs(x, lengths, self.dim, next(self.parameters()), self.check_nan)
        lengths = lengths.long()
        return x.masked_fill(~inside(lengths, x.shape[1]).unsqueeze(-1), 0), lengths

    def official(self) -> dict[str, str]:
        """Names in the published code → ours, for everything with weights; see `beamtree.interop`."""
        return self.OFFICIAL

    def merge_scores(self, beams: Beams) -> MergeScores | None:
        """Recompute how the merges of the beams were scored, without dropout and noise.

        Args:
            beams: the beams of an encoding by this encoder.

        Returns:
            Score and log-probability of each merge, or None for encoders that do not score neighbours.
        """
        return None

    def encode(
        self, x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"], generator: torch.Generator | None
    ) -> Encoding:
        """Encode inputs that were checked; a subclass implements this.

        Args:
            x: input vectors (B, N, D), zero where they are padding.
            lengths: length of each sample (B,), on the device of x.
            generator: source of noise and dropout, or None.

        Returns:
            The encodings, with beams if the encoder builds trees.
        """
        raise NotImplementedError


class _Call(nn.Module):
    """Calls a function that uses an encoder, for `functional_call`."""

    def __init__(self, encoder: Encoder, function: Callable[..., Any]) -> None:
        super().__init__()
        self.encoder, self.function = encoder, function

    def forward(self, *given: Any) -> Any:
        return self.function(*given)


_swapping = threading.RLock()  # `functional_call` swaps a module's tensors during a call


Lengths = (  # of the samples of a batch
    Int[Tensor, "B"]
    | Bool[Tensor, "B N"]
    | Integer[np.ndarray, "B"]
    | Bool[np.ndarray, "B N"]
    | Sequence[int]
    | Sequence[Sequence[bool]]
    | None
)


def as_lengths(x: Tensor, lengths: Lengths) -> Tensor:
    """The lengths as a tensor, from whatever form they were given in."""
    if not isinstance(x, Tensor) or x.dim() != 3:  # an error that `checked` explains
        return torch.as_tensor(lengths if lengths is not None else [])
    if lengths is None:
        return torch.full((len(x),), x.shape[1], device=x.device)
    if not isinstance(lengths, Tensor):
        try:
            lengths = torch.as_tensor(lengths, device=x.device)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(f"lengths is {lengths!r}: it must hold an integer for each sample of x") from None
    if lengths.dtype != torch.bool:
        return lengths
    if lengths.shape != x.shape[:2]:
        raise ValueError(
            f"the mask has shape {tuple(lengths.shape)}: it must be {tuple(x.shape[:2])}, as x has vectors"
        )
    found = lengths.sum(1)
    if not torch.compiler.is_compiling() and not torch.equal(lengths, inside(found, x.shape[1])):
        raise ValueError("the mask has padding before or between vectors: inputs must be right padded")
    return found


def inside(lengths: Int[Tensor, "B"], width: int) -> Tensor:
    """Mask (B, width) of the positions that belong to each sample; the others are padding."""
    return torch.arange(width, device=lengths.device) < lengths.unsqueeze(1)


def in_full(states: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Cast to float32: under autocast only matrix products are in half precision, never states."""
    return states.float() if states.dtype in (torch.bfloat16, torch.float16) else states


def node_dropout(cell: Cell, leaves: Float[Tensor, "*shape"], generator: torch.Generator | None) -> NodeDropout | None:
    """Dropout masks and noise of a cell's nodes for one forward pass; None if it has neither."""
    if not cell.training or (cell.state_noise == 0 and (cell.dropout == 0 or cell.mask_dim == 0)):
        return None
    return NodeDropout(
        cell.dropout, cell.mask_dim, leaves, generator, noise=cell.state_noise, noise_width=cell.state_dim
    )


def surround(
    x: Float[Tensor, "B N D"], lengths: Int[Tensor, "B"], start: Float[Tensor, "D"], end: Float[Tensor, "D"]
) -> Float[Tensor, "B N+2 D"]:
    """Insert START before the first vector and END after each sample's last, in the dtype of `start`."""
    x = torch.cat((start.expand(len(x), 1, -1), pad(x.to(start.dtype), (0, 0, 0, 1))), dim=1)
    is_end = torch.arange(x.shape[1], device=x.device) == lengths.unsqueeze(1) + 1  # (B, N+2)
    return torch.where(is_end.unsqueeze(-1), end, x)


def neighbour_scores(beams: Beams, cell: Cell, scorer: AnyScorer) -> MergeScores:
    """How a scorer of parents, or of children, scored the merges of the beams, without dropout and noise."""

    def of_pairs(left: Float[Tensor, "n S"], right: Float[Tensor, "n S"]) -> Float[Tensor, "n"]:
        if scorer.reads_children:
            return scorer.logits(torch.stack((left, right), dim=1))
        kept = left.new_ones(len(left), cell.mask_dim) if cell.mask_dim else None  # without it, a cell draws a mask
        return scorer.logits(cell(left, right, kept))

    return merge_scores(beams, of_pairs)


def best_first(chart: Chart) -> Chart:
    """The chart with its beams sorted by score, highest first."""
    order = chart.scores.detach().sort(dim=1, descending=True, stable=True).indices  # (B, K)
    batch = torch.arange(len(order), device=order.device).unsqueeze(1)
    fields = (chart.scores, chart.actions, chart.nodes, chart.spans)
    return Chart(chart.store, *(field[batch, order] for field in fields))


def average(chart: Chart, log_probs: Float[Tensor, "B K"], lengths: Int[Tensor, "B"], dim: int) -> Encoding:
    """Σ_b p_b · o_b, where o_b is the root of beam b: the state of its last merge, or its only leaf."""
    B, K, M = chart.nodes.shape
    leaf = torch.arange(0, B * (M + 1), M + 1, device=lengths.device).view(B, 1, 1).expand(B, K, 1)
    last = (lengths - 1).view(B, 1, 1).expand(B, K, 1)
    rows = torch.cat((leaf, chart.nodes), dim=2).gather(2, last)  # (B, K, 1)
    roots = chart.store.index_select(0, rows.flatten()).view(B, K, -1)[..., :dim]  # (B, K, D)
    roots = roots.masked_fill(log_probs.detach().isneginf().unsqueeze(-1), 0)  # absent beams refer to any row
    state = (log_probs.exp().unsqueeze(-1) * roots).sum(1)  # (B, D)
    return Encoding(state, Beams(log_probs, chart, lengths, dim))
