"""Descriptions of encoders: JSON strings from which the same encoder can be built, without its weights."""

import inspect
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from beamtree.nn.cells import CELLS
from beamtree.nn.cells.base import has_hooks

T = TypeVar("T")


def describe(encoder: nn.Module) -> str:
    """The description of an encoder. Raises a `ValueError` if it does not fully determine the encoder's computation."""
    kind = type(encoder)
    settings = {name: _setting(encoder, name) for name in inspect.signature(kind).parameters}
    description = json.dumps({"encoder": _name(kind), **settings})
    built, modules = build(description), list(encoder.modules())
    same = [type(module) for module in built.modules()] == [type(module) for module in modules]
    if (
        not same
        or repr(built) != repr(encoder)
        or any(has_hooks(module) or "forward" in vars(module) for module in modules)
    ):
        raise ValueError("its layers are not plain: hooks, a subclass or a wrapper")
    if len({module.training for module in encoder.modules()}) > 1:
        raise ValueError("some of its layers are in training mode and others are not")
    return description


def _setting(encoder: nn.Module, name: str) -> Any:
    """The current value of a constructor argument."""
    cell = getattr(encoder, "cell", None)
    if name == "cell":
        names = [name for name, kind in CELLS.items() if type(cell) is kind]
        if not names:
            raise ValueError("its cell is not one of beamtree's")
        return names[0]
    owner = encoder if hasattr(encoder, name) else cell  # the dropout rate may be the cell's
    if not hasattr(owner, name):
        raise ValueError(f"it has no attribute {name!r}, the value of that option")
    value = getattr(owner, name)
    if not isinstance(value, str | int | float | None):
        raise ValueError(f"its option {name!r} is a Python object")
    return value


def _name(kind: type[nn.Module]) -> str:
    if kind not in _kinds().values():
        raise ValueError("its class is not registered: see `beamtree.nn.encoders.register`")
    return kind.__name__


def _kinds() -> dict[str, Any]:
    from beamtree.nn.encoders import classes  # imported here: it imports this module

    return {kind.__name__: kind for kind in classes()}


@lru_cache(maxsize=64)
def build(description: str) -> nn.Module:
    """An encoder without weights, on the meta device."""
    return in_thread(_build, description)


@lru_cache(maxsize=64)
def beam_shape(description: str) -> tuple[int, int]:
    """K and S; both 0 if there are no beams."""
    return in_thread(_beam_shape, description)


def _build(description: str, **changes: Any) -> nn.Module:
    settings = json.loads(description)
    kind = _kinds()[settings.pop("encoder")]
    with torch.device("meta"):
        made: nn.Module = kind(**{**settings, **changes})
    return made


def _beam_shape(description: str) -> tuple[int, int]:
    """Determined by encoding the shortest input with a merge, on the CPU."""
    has_engine = "engine" in json.loads(description)
    module: Any = _build(description, **({"engine": "auto"} if has_engine else {})).to_empty(device="cpu").eval()
    with torch.no_grad():
        for weight in module.parameters():
            weight.zero_()
        # Not through `forward`: `torch.compiler.is_exporting` is true in all threads.
        beams = module._run(module.encode, torch.zeros(1, 2, module.dim), torch.tensor([2]), torch.Generator()).beams
    return (0, 0) if beams is None else (beams.log_probs.shape[1], beams.chart.store.shape[1])


def named_weights(encoder: nn.Module) -> list[tuple[str, Tensor]]:
    """All parameters and buffers by name; tied tensors appear under each of their names."""
    return [*encoder.named_parameters(remove_duplicate=False), *encoder.named_buffers(remove_duplicate=False)]


def in_thread(function: Callable[..., T], *arguments: Any, stream: torch.cuda.Stream | None = None) -> T:
    """Call a function in a new thread.

    The dispatch modes by which PyTorch traces, and the state inside an operator, are thread-local: in a new thread
    tensors are ordinary.
    """

    def call() -> T:
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            return function(*arguments)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()
