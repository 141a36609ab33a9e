"""Encoders by name. `encoder("bt-grc", dim=128)` returns a `torch.nn.Module`."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, overload

import beamtree.nn.operator  # noqa: F401 (registers `torch.ops.beamtree.encode`)
from beamtree.nn.encoders.base import Encoder
from beamtree.nn.encoders.beam_tree import BeamTree
from beamtree.nn.encoders.bsrp import BSRP
from beamtree.nn.encoders.crvnn import CRvNN
from beamtree.nn.encoders.cyk import CYK
from beamtree.nn.encoders.efficient_beam_tree import EfficientBeamTree
from beamtree.nn.encoders.given_tree import BalancedTree, GoldTree, RandomTree
from beamtree.nn.encoders.gumbel_tree import GumbelTree
from beamtree.nn.encoders.lstm import LSTM
from beamtree.nn.encoders.ndr import NDR
from beamtree.nn.encoders.ordered_memory import OrderedMemory
from beamtree.nn.encoders.recurrent import Recurrent
from beamtree.nn.encoders.soft_beam_tree import SoftBeamTree
from beamtree.nn.encoders.transformer import Transformer
from beamtree.utils.checks import unknown

__all__ = [
    "BSRP",
    "CYK",
    "LSTM",
    "NDR",
    "BalancedTree",
    "BeamTree",
    "CRvNN",
    "EfficientBeamTree",
    "Encoder",
    "GoldTree",
    "GumbelTree",
    "OrderedMemory",
    "RandomTree",
    "Recurrent",
    "SoftBeamTree",
    "Transformer",
    "classes",
    "defaults",
    "encoder",
    "encoders",
    "needs_trees",
    "options",
    "register",
]

# The paper's in its order, then the others. An entry fixes the arguments that define the model; users set all others.
_ENCODERS: dict[str, partial[Any]] = {
    "recurrent-grc": partial(Recurrent),
    "gold-tree-grc": partial(GoldTree),
    "balanced-tree-grc": partial(BalancedTree),
    "random-tree-grc": partial(RandomTree),
    "gumbel-tree-grc": partial(GumbelTree, cell="grc", samples=1, weighted=False, noise_at_test=False),
    "gumbel-tree-lstm": partial(GumbelTree, cell="lstm", samples=1, weighted=False, noise_at_test=False),
    "mc-gumbel-tree-grc": partial(GumbelTree, cell="grc", samples=5, noise_at_test=True),
    "cyk-grc": partial(CYK),
    "ordered-memory": partial(OrderedMemory),
    "crvnn": partial(CRvNN),
    "bsrp-grc": partial(BSRP),
    "ndr": partial(NDR),
    "bt-grc": partial(BeamTree, cell="grc", mix=None),
    "bt-lstm": partial(BeamTree, cell="lstm", mix=None, state_noise=0.0),
    "bt-grc-onesoft": partial(BeamTree, cell="grc", mix="paper", state_noise=0.0),
    "bt-grc-soft": partial(SoftBeamTree),
    "ebt-grc": partial(EfficientBeamTree),  # from a later paper
    "lstm": partial(LSTM),  # not in the paper
    "transformer": partial(Transformer),
}
# Fixed arguments that users may still override.
_OPEN: dict[str, tuple[str, ...]] = {
    "bt-grc": ("cell",),
    "bt-lstm": ("cell",),
    "bt-grc-onesoft": ("mix", "cell"),
    "gumbel-tree-grc": ("cell",),
    "gumbel-tree-lstm": ("cell",),
    "mc-gumbel-tree-grc": ("samples", "cell"),
}


def register(name: str, make: Callable[..., Encoder]) -> None:
    """Register your own encoder under a name, for `encoder(name, dim=…)`, recipes and benchmarks.

    Args:
        name: the new name.
        make: a class or function that takes `dim` and the options of the encoder, and returns it.

    Raises:
        ValueError: if there is an encoder of this name.

    Examples:
        >>> from beamtree.nn.encoders import register
        >>> register("wide-beam", lambda dim: beamtree.BeamTree(dim, beam_size=20))
        >>> beamtree.encoder("wide-beam", dim=8).beam_size
        20
    """
    if name in _ENCODERS:
        raise ValueError(f"there is an encoder {name!r} already: choose another name")
    _ENCODERS[name] = partial(make)


def encoders() -> list[str]:
    """List the names of all encoders: the paper's in its order, then the others.

    Returns:
        Names for `encoder`.

    Examples:
        >>> beamtree.encoders()[:3]
        ['recurrent-grc', 'gold-tree-grc', 'balanced-tree-grc']
    """
    return list(_ENCODERS)


def classes() -> set[type[Encoder]]:
    """The classes of all encoders."""
    made = (make.func for make in _ENCODERS.values())
    return {kind for kind in made if isinstance(kind, type)}


def options(name: str) -> list[str]:
    """List the options that an encoder accepts.

    Args:
        name: one of `encoders()`.

    Returns:
        Names of the options; the first is dim.

    Raises:
        ValueError: if there is no such encoder.

    Examples:
        >>> from beamtree.nn.encoders import options
        >>> options("lstm")
        ['dim', 'layers', 'bidirectional', 'dropout', 'pooling', 'check_nan']
    """
    make = _find(name)
    fixed = set(make.keywords) - set(_OPEN.get(name, ()))
    return [option for option in inspect.signature(make.func).parameters if option not in fixed]


def defaults(name: str) -> dict[str, Any]:
    """Look up the default values of an encoder's options.

    Args:
        name: one of `encoders()`.

    Returns:
        Default values by option, without dim, which has none.

    Raises:
        ValueError: if there is no such encoder.

    Examples:
        >>> from beamtree.nn.encoders import defaults
        >>> defaults("mc-gumbel-tree-grc")["samples"]
        5
    """
    known = inspect.signature(_find(name)).parameters
    return {option: known[option].default for option in options(name) if option != "dim"}


def needs_trees(name: str) -> bool:
    """Whether an encoder requires trees as input."""
    encoder: Any = _find(name).func
    return bool(encoder.needs_trees)


@overload
def encoder(name: Literal["recurrent-grc"], **settings: Any) -> Recurrent: ...
@overload
def encoder(name: Literal["gold-tree-grc"], **settings: Any) -> GoldTree: ...
@overload
def encoder(name: Literal["balanced-tree-grc"], **settings: Any) -> BalancedTree: ...
@overload
def encoder(name: Literal["random-tree-grc"], **settings: Any) -> RandomTree: ...
@overload
def encoder(
    name: Literal["gumbel-tree-grc", "gumbel-tree-lstm", "mc-gumbel-tree-grc"], **settings: Any
) -> GumbelTree: ...
@overload
def encoder(name: Literal["cyk-grc"], **settings: Any) -> CYK: ...
@overload
def encoder(name: Literal["ordered-memory"], **settings: Any) -> OrderedMemory: ...
@overload
def encoder(name: Literal["crvnn"], **settings: Any) -> CRvNN: ...
@overload
def encoder(name: Literal["bsrp-grc"], **settings: Any) -> BSRP: ...
@overload
def encoder(name: Literal["ndr"], **settings: Any) -> NDR: ...
@overload
def encoder(name: Literal["bt-grc", "bt-lstm", "bt-grc-onesoft"], **settings: Any) -> BeamTree: ...
@overload
def encoder(name: Literal["bt-grc-soft"], **settings: Any) -> SoftBeamTree: ...
@overload
def encoder(name: Literal["ebt-grc"], **settings: Any) -> EfficientBeamTree: ...
@overload
def encoder(name: Literal["lstm"], **settings: Any) -> LSTM: ...
@overload
def encoder(name: Literal["transformer"], **settings: Any) -> Transformer: ...
@overload
def encoder(name: str, **settings: Any) -> Encoder: ...
def encoder(name: str, **settings: Any) -> Encoder:
    """Create an encoder by its name.

    Args:
        name: one of `encoders()`.
        **settings: `dim`, the width D of inputs and encodings, which is required; and the options of the encoder's
            class.

    Returns:
        The encoder, a `torch.nn.Module` that maps x (B, N, D) and lengths (B,) to an `Encoding`.

    Raises:
        ValueError: if there is no such encoder or option, or if a value is invalid.

    Examples:
        >>> encoder = beamtree.encoder("bt-grc", dim=64, beam_size=5, dropout=0.1)
        >>> encoder(torch.randn(2, 6, 64), lengths=[6, 4]).state.shape
        torch.Size([2, 64])
    """
    make, known = _find(name), options(name)
    for option in settings:
        if option not in known:
            raise ValueError(unknown(f"option of {name}", option, known))
    if "dim" not in settings:
        raise ValueError(f"{name} needs dim, the width of its inputs: encoder({name!r}, dim=128)")
    return make(**settings)


def _find(name: str) -> partial[Any]:
    if not isinstance(name, str) or name not in _ENCODERS:
        raise ValueError(unknown("encoder", name, encoders()))
    return _ENCODERS[name]
