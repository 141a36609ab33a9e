"""Whether the modules of a request draw random numbers of their own, such as dropout masks.

The search and the gradient of an engine with hand-written gradients call a module on the same nodes one after the
other. A module that draws random numbers then computes two different functions, and the gradient would not be that of
the search. The type of its layers does not tell: a module may call `torch.nn.functional.dropout`, a hook may. So the
module is called once, and PyTorch reports which operators it runs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from beamtree.nn.engine.request import Request

# Arguments of random operators. If one is 0 or False, the operator draws nothing: the fused attention without dropout.
SWITCHES = frozenset(("p", "dropout", "dropout_p", "train", "training"))


def why_not_twice(request: Request) -> str | None:
    """Why an engine that calls modules twice, in the search and for the gradient, cannot run; None if it can."""
    for name, call in request.module_calls().items():
        if draws(call):
            return (
                f"its {name} draws random numbers, such as dropout masks of its own, and would draw others for the "
                "gradient than in the search"
            )
    return None


def draws(call: Callable[[], Any]) -> bool:
    """Whether a call draws random numbers from a generator of PyTorch.

    The call is made without gradients. It ends before the first draw, so the state of no generator changes. Draws
    that are not operators of PyTorch, as those of NumPy, are not seen; nor are custom operators without the tag
    `torch.Tag.nondeterministic_seeded`.
    """
    watch = RandomOperators()
    try:
        with torch.no_grad(), watch:
            call()
    except Exception:  # not only `Drawn`: TorchScript wraps it in an exception of its own
        if not watch.found:
            raise
    return watch.found


class Drawn(Exception):
    """A random operator was about to run. Not an error: it ends the call."""


class RandomOperators(TorchDispatchMode):
    """Raises an exception instead of running a random operator. Like all dispatch modes, it applies to one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and not _is_off(func, args, kwargs):
            self.found = True
            raise Drawn
        return func(*args, **kwargs)


def _is_off(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an argument switches the randomness of the operator off."""
    for index, argument in enumerate(operator._schema.arguments):
        if argument.name in SWITCHES:
            value = args[index] if index < len(args) else kwargs.get(argument.name, argument.default_value)
            if isinstance(value, int | float) and not value:
                return True
    return False
