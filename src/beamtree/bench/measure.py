"""Time and memory of every engine, compared with the reference in the same run.

    results = run(grid(["bt-grc"], lengths=[200], batch_sizes=[4], engines=["torch"]))
    ratios(results)  # improvement factors over the reference

A training step is the forward and backward pass of Σ sin(state) over full-length random inputs; inference is the
forward pass in eval mode without gradients. Only results of the same run on the same machine are comparable.
"""

import importlib.util
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from beamtree.nn.encoders import defaults, encoder, encoders, options
from beamtree.nn.engine import ENGINES, EngineError
from beamtree.trees import Tree
from beamtree.utils.checks import check_choice, check_integer, check_rate
from beamtree.utils.devices import find_device
from beamtree.utils.memory import available_bytes, is_out_of_memory, peak_bytes, release_memory, watch_saved

AUTO, REFERENCE = "auto", "reference"
# Names of dtypes → dtype of the weights.
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16-autocast": torch.float32}
OUT_OF_MEMORY = "out of memory"
REPEATS = 5
BUDGET = 10.0  # seconds; limits the repeats of a slow case
# Vectors of width D that the reference saves per cell for the backward pass, rounded up from measurements: 26 with the
# GRC, 16 with the LSTM. CRvNN also saves its neighbours, and OneSoft copies all continuations, K for each candidate,
# twice.
KEPT, KEPT_CRVNN, KEPT_ONESOFT = 27, 52, 2
SLOTS, SAMPLES = 21, 5  # defaults of Ordered Memory and MC-Gumbel
WITHOUT_REFERENCE = ("ndr", "lstm", "transformer")  # small estimates: "cannot", and not "skipped"


@dataclass(frozen=True)
class Case:
    """A configuration to measure."""

    encoder: str = "bt-grc"
    engine: str = REFERENCE
    length: int = 200
    batch_size: int = 4
    dim: int = 64
    beam_size: int = 5
    dropout: float = 0.1
    device: str = "cpu"
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("encoder", self.encoder, tuple(encoders()))
        check_choice("engine", self.engine, (AUTO, *ENGINES))
        for name in ("length", "batch_size", "dim", "beam_size"):
            check_integer(name, getattr(self, name), at_least=1)
        check_rate("dropout", self.dropout)
        check_choice("dtype", self.dtype, tuple(DTYPES))
        check_integer("seed", self.seed, at_least=0)
        object.__setattr__(self, "device", find_device(self.device))  # results name the actual device, never "auto"


@dataclass(frozen=True)
class Result:
    """The measurements of a case. None: not measured, as the note explains, or not reported by the system."""

    case: Case
    train_seconds: float | None = None
    inference_seconds: float | None = None
    saved_bytes: int | None = None  # held by autograd between the forward and the backward pass
    peak_bytes: int | None = None  # peak of a training step
    note: str = ""


BenchProgress = Callable[[Case, Result | None], None]  # called before each case, with None, and after it


@dataclass(frozen=True)
class Ratios:
    """Improvement factors over the reference: 2 is twice as fast, or half the memory. None: one value is unknown."""

    train_seconds: float | None
    inference_seconds: float | None
    saved_bytes: float | None
    peak_bytes: float | None


def engines_on(device: str) -> list[str]:
    """The engines that can run on "cpu" or "cuda"."""
    fused = device == "cuda" and importlib.util.find_spec("triton") is not None
    return [engine for engine in ENGINES if engine != "triton" or fused]


def check_engine(engine: str, device: str) -> None:
    """Check that an engine exists and can run on the device."""
    check_choice("engine", engine, (AUTO, *ENGINES))
    possible = (AUTO, *engines_on(device))
    if engine not in possible:
        lacking = "the package triton, which is not installed" if device == "cuda" else f"a CUDA device, not {device}"
        raise ValueError(f"engine {engine!r} needs {lacking}; here there are: {', '.join(possible)}")


def grid(
    names: Iterable[str],
    lengths: Iterable[int],
    batch_sizes: Iterable[int],
    engines: Iterable[str] | None = None,
    device: str = "cpu",
    reference: bool = True,
    **common: Any,
) -> list[Case]:
    """All combinations. The engines of one case are consecutive, the reference first, since the ratios need it.

    engines: engines to measure; None for all that can run on the device.
    reference: whether to add the reference if it is not among the engines.
    """
    device = find_device(device)
    chosen = engines_on(device) if engines is None else list(engines)
    engines = dict.fromkeys((REFERENCE, *chosen) if reference else chosen)  # each once
    for engine in engines:
        check_engine(engine, device)
    return [
        Case(encoder=name, length=length, batch_size=batch_size, engine=engine, device=device, **common)
        for name, length, batch_size in itertools.product(names, lengths, batch_sizes)
        for engine in engines
    ]


def run(
    cases: Sequence[Case],
    progress: BenchProgress = lambda case, result: None,
    repeats: int = REPEATS,
    budget: float = BUDGET,
) -> list[Result]:
    """Measure all cases."""
    results = []
    for case in cases:
        progress(case, None)
        results.append(measure(case, repeats, budget))
        progress(case, results[-1])
    return results


def ratios(results: Sequence[Result]) -> list[Ratios]:
    """The factors of each result over the reference of the same case."""
    references = {result.case: result for result in results if result.case.engine == REFERENCE}

    def factor(result: Result, quantity: str) -> float | None:
        reference = references.get(replace(result.case, engine=REFERENCE))
        theirs, ours = getattr(reference, quantity, None), getattr(result, quantity)
        return theirs / ours if theirs and ours else None

    return [Ratios(*(factor(result, field.name) for field in fields(Ratios))) for result in results]


def records(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Results and their ratios as JSON-serialisable dictionaries."""
    rows = [(asdict(result), asdict(ratio)) for result, ratio in zip(results, ratios(results), strict=True)]
    return [{**row.pop("case"), **row, "ratios": ratio} for row, ratio in rows]


def measure(case: Case, repeats: int = REPEATS, budget: float = BUDGET) -> Result:
    """Memory, and median times of up to `repeats` passes, as many as fit into `budget` seconds.

    A case that does not fit into memory, or that the engine does not support, returns a result with a note.
    """
    check_integer("repeats", repeats, at_least=1)
    release_memory()
    needed, available = needed_bytes(case), available_bytes(case.device)
    if available is not None and needed > available:
        return Result(case, note=f"skipped: would need about {needed / 2**30:,.1f} GiB")
    devices = [torch.cuda.current_device()] if case.device == "cuda" else []
    try:
        with torch.random.fork_rng(devices):
            return _measure(case, repeats, budget)
    except EngineError as error:
        return Result(case, note=f"cannot: {error.reason}")
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return Result(case, note=OUT_OF_MEMORY)


def make_encoder(case: Case) -> Any:
    """The encoder of a case, with those of its settings that the encoder accepts."""
    known = options(case.encoder)
    given: dict[str, Any] = {"dim": case.dim, "beam_size": case.beam_size, "dropout": case.dropout}
    given["heads"] = math.gcd(case.dim, defaults(case.encoder).get("heads", 1))  # must divide the width
    if case.encoder == "lstm":
        given["bidirectional"] = case.dim % 2 == 0  # each direction has half the width
    given["halt"] = False  # for CRvNN, which halts early with random weights; as in the paper's table
    if "engine" in known:
        try:
            encoder(case.encoder, dim=1, engine=case.engine)
        except ValueError as error:
            raise EngineError(case.engine, str(error)) from None
        given["engine"] = case.engine
    elif case.engine == REFERENCE:
        raise EngineError(REFERENCE, "it has no reference engine")
    return encoder(case.encoder, **{name: value for name, value in given.items() if name in known})


def _measure(case: Case, repeats: int, budget: float) -> Result:
    torch.manual_seed(case.seed)  # the same weights, inputs and noise for every engine
    dtype, half = DTYPES[case.dtype], case.dtype == "bfloat16-autocast"
    model = make_encoder(case).to(case.device, dtype)
    x = torch.randn(case.batch_size, case.length, case.dim, dtype=dtype).to(case.device).requires_grad_()  # (B, N, D)
    known = [*model.parameters(), x]

    def forward(x: Tensor) -> Tensor:
        lengths = torch.full((len(x),), x.shape[1], device=x.device)
        # Left-branching trees, like those of ListOps within a list.
        given = {"trees": [Tree.from_actions([0] * (x.shape[1] - 1))] * len(x)} if model.needs_trees else {}
        with torch.autocast(case.device, torch.bfloat16, enabled=half):
            return model(x, lengths, **given).state.sin().sum()

    def train_step() -> None:
        for tensor in known:
            tensor.grad = None
        forward(x).backward()

    saved: dict[int, int] = {}

    def first_steps() -> None:
        with watch_saved(saved, known):
            loss = forward(x)
        loss.backward()  # not watched: tensors recomputed here are not saved
        if case.device == "cuda":
            train_step()  # an engine may capture its launches the second time

    @torch.no_grad()
    def infer() -> None:
        forward(x)

    # Warm up: threads and workspaces that a library allocates at first use are not the case's memory.
    for _ in range(2 if case.device == "cuda" else 1):
        forward(x[:1, :3]).backward()
    for tensor in known:
        tensor.grad = None
    # Watch the first full steps, so that buffers that an engine keeps between steps are counted.
    peak = peak_bytes(first_steps, case.device)
    train_seconds = median_seconds(train_step, case.device, repeats, budget)
    model.eval()
    for _ in range(2 if case.device == "cuda" else 1):
        infer()
    inference_seconds = median_seconds(infer, case.device, repeats, budget)
    return Result(case, train_seconds, inference_seconds, sum(saved.values()), peak)


def median_seconds(work: Callable[[], None], device: str, repeats: int, budget: float) -> float:
    """The median of at least one timing; stops before a repeat that would probably exceed the budget."""
    times: list[float] = []
    while len(times) < repeats and (not times or sum(times) + times[-1] < budget):
        _synchronize(device)
        start = time.perf_counter()
        work()
        _synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def needed_bytes(case: Case) -> int:
    """Estimated memory of a training step: the cells that the reference saves; 0 for the other engines."""
    if case.engine != REFERENCE:
        return 0
    kept = KEPT_CRVNN if case.encoder == "crvnn" else KEPT
    if "onesoft" in case.encoder:
        kept += KEPT_ONESOFT * case.beam_size
    return case.batch_size * reference_cells(case) * kept * case.dim * DTYPES[case.dtype].itemsize


def reference_cells(case: Case) -> int:
    """Number of cells that the reference composes for one input."""
    N, K = case.length, case.beam_size
    if case.encoder.startswith(("recurrent", "gold", "balanced", "random", *WITHOUT_REFERENCE)):
        return N
    own = {
        "cyk-grc": (N**3 - N) // 6,
        "crvnn": N * (N + 2),
        "ordered-memory": SLOTS * N,
        "bsrp-grc": 2 * K * N,
        "gumbel-tree-grc": N**2 // 2,
        "gumbel-tree-lstm": N**2 // 2,
        "mc-gumbel-tree-grc": SAMPLES * N**2 // 2,
    }
    return own.get(case.encoder, K * N**2 // 2)


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
