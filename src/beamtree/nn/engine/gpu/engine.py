"""The GPU engine of all searches: in float32, with products in float32, TF32 or bfloat16; see `why_not`."""

from beamtree.nn.engine.beam import replay
from beamtree.nn.engine.chart import Chart
from beamtree.nn.engine.dispatch import why_not_triton
from beamtree.nn.engine.gpu import beam, onesoft, straight_through
from beamtree.nn.engine.gpu.cache import CACHE
from beamtree.nn.engine.onesoft import replay as onesoft_replay
from beamtree.nn.engine.request import Request
from beamtree.nn.engine.straight_through import replay as straight_through_replay
from beamtree.nn.engine.straight_through.search import Samples

MAX_LENGTH = 16_384  # tokens: a row of candidates is held by one program


def why_not(request: Request) -> str | None:
    """Why a search cannot run here; None if it can."""
    if reason := why_not_triton(request.leaves):
        return reason
    if not request.is_functional:
        return "cell or scorer have layers that are not plain: hooks, a subclass or a wrapper"
    if request.cell.kernels() is None:
        return "the cell has no kernels"
    if request.topk is not None:
        return "its top-k operator is your own"
    if request.duplicates != "keep":
        return "it keeps duplicates"
    if request.leaves.shape[1] > MAX_LENGTH:
        return f"it takes up to {MAX_LENGTH} tokens, not {request.leaves.shape[1]}"
    return None


def release() -> None:
    """Free all buffers that are not in use."""
    CACHE.clear()


def encode(request: Request) -> Chart:
    """Search, and replay the search if a gradient is needed."""
    if isinstance(request, Samples):
        return straight_through_replay.encode(request) if request.steps < 1 else straight_through.encode(request)
    if request.soft:
        return onesoft_replay.encode(request) if request.steps < 1 else onesoft.encode(request)
    return replay.encode(request) if request.steps < 1 else beam.encode(request)
