"""Which engine runs a request.

    reference   the algorithm as its paper writes it, in plain differentiable PyTorch
    torch       the same function with hand-written gradients, in plain PyTorch on any device
    triton      fused kernels and CUDA graphs
    auto        the fastest of them that can run the request

Every algorithm has a list of its engines, fastest first. Only the reference engine consists of operations that
`torch.func` and forward-mode automatic differentiation can transform.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from beamtree.nn.engine.transforms import is_transformed
from beamtree.utils.checks import check_choice, is_installed

AUTO, REFERENCE = "auto", "reference"
ENGINES = (REFERENCE, "torch", "triton")


class EngineError(ValueError):
    """An engine cannot run a request.

    Args:
        engine: name of the engine.
        reason: why it cannot.
        instead: name of an engine that can; None if there is none.

    Examples:
        >>> print(beamtree.EngineError("triton", "the inputs are on the CPU"))
        engine 'triton' cannot do this: the inputs are on the CPU; engine 'auto' can
    """

    def __init__(self, engine: str, reason: str, instead: str | None = AUTO) -> None:
        hint = "" if instead is None else f"; engine {instead!r} can"
        super().__init__(f"engine {engine!r} cannot do this: {reason}{hint}")
        self.engine, self.reason, self.instead = engine, reason, instead

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle all arguments; an exception keeps only its message by default."""
        return type(self), (self.engine, self.reason, self.instead)


@runtime_checkable
class HasLeaves(Protocol):
    """Any request."""

    @property
    def leaves(self) -> Tensor: ...


R = TypeVar("R", bound=HasLeaves)


def _anything(request: Any) -> str | None:
    return None


@dataclass(frozen=True)
class Engine(Generic[R]):
    """A way to run requests of one kind."""

    name: str
    run: Callable[[R], Any]
    why_not: Callable[[R], str | None] = _anything  # why it cannot run a request; None if it can

    def __call__(self, request: R) -> Any:
        """Run the request, with the device of its leaves as the current one."""
        with on_device_of(request.leaves):
            return self.run(request)


def select(engines: Sequence[Engine[R]], request: R, name: str = AUTO, parameters: Iterable[Tensor] = ()) -> Engine[R]:
    """The engine of this name.

    "auto" is the first of the list that can run the request; "triton" only on a CUDA device. `parameters` are those of
    the encoder, if it has any besides the request's leaves.
    """
    if any(map(is_transformed, (request.leaves, *parameters))):
        engines = [engine if engine.name == REFERENCE else _refusing(engine) for engine in engines]
    if name == AUTO:
        return _fastest(engines, request)
    for engine in engines:
        if engine.name == name:
            if reason := engine.why_not(request):
                raise EngineError(name, reason, _instead(engines, request))
            return engine
    names = ", ".join(engine.name for engine in engines)
    raise EngineError(name, f"the engines here are {names}", _instead(engines, request))


def _refusing(engine: Engine[R]) -> Engine[R]:
    return replace(engine, why_not=lambda request: "torch.func and forward-mode AD cannot transform its operations")


def _fastest(engines: Sequence[Engine[R]], request: R) -> Engine[R]:
    refusals = []
    for engine in engines:
        if engine.name == "triton" and not request.leaves.is_cuda:  # Triton's interpreter is not meant to be fast
            reason: str | None = f"it runs on a CUDA device, not on {request.leaves.device}"
        else:
            reason = engine.why_not(request)
        if reason is None:
            return engine
        refusals.append(f"{engine.name!r}: {reason}")
    raise EngineError(AUTO, "; ".join(refusals), instead=None)


def _instead(engines: Sequence[Engine[R]], request: R) -> str | None:
    """What to recommend: "auto", unless all engines refuse."""
    try:
        _fastest(engines, request)
    except EngineError:
        return None
    return AUTO


def on_device_of(tensor: Tensor) -> AbstractContextManager[Any]:
    """Kernels are launched on the current device, which need not be that of their arguments."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def check_engine(name: str, engines: Sequence[str] = ENGINES) -> None:
    """Check that an encoder has an engine of this name."""
    check_choice("engine", name, (AUTO, *engines))


def why_not_triton(leaves: Tensor) -> str | None:
    """Why engines on Triton cannot run with these leaves; None if they can."""
    if not is_installed("triton"):
        return "the package triton is not installed"
    import triton

    if not leaves.is_cuda and not triton.knobs.runtime.interpret:
        return f"it runs on a CUDA device, not on {leaves.device}"
    if leaves.dtype != torch.float32:
        return f"it computes in float32, not in {leaves.dtype}"
    kind = leaves.device.type
    if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) != torch.bfloat16:
        return f"under autocast it takes bfloat16, not {torch.get_autocast_dtype(kind)}"
    if torch.are_deterministic_algorithms_enabled():
        return "it adds in no fixed order, and torch.use_deterministic_algorithms is on"
    return None
