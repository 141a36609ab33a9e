"""Load weights of the published code into encoders.

The code is github.com/JRC1995/BeamTreeRecursiveCells, and its successor JRC1995/BeamRecursionFamily for `ebt-grc`.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from beamtree.nn.encoders.base import Encoder


def official_names(encoder: nn.Module) -> dict[str, str]:
    """Map the published code's parameter names to those of an encoder.

    Args:
        encoder: an encoder of beamtree.

    Returns:
        This encoder's parameter names by those of the published code.

    Raises:
        ValueError: if the published code has no such model.

    Examples:
        >>> names = beamtree.interop.official_names(beamtree.encoder("bt-lstm", dim=8))
        >>> names["decide_linear.weight"]
        'scorer.weight'
    """
    known = encoder.official() if isinstance(encoder, Encoder) else {}
    if not known:
        raise ValueError(f"no weights of the published code are known for {type(encoder).__name__}")
    own = [name for name, _ in encoder.named_parameters()]
    names = {}
    for theirs, ours in known.items():
        if ours in own:
            names[theirs] = ours
        else:  # a module, with all its parameters
            names |= {theirs + name.removeprefix(ours): name for name in own if name.startswith(f"{ours}.")}
    return names


def load_official(encoder: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """Load a state dict of the published code into an encoder.

    On any mismatch nothing is changed.

    Args:
        encoder: an encoder of beamtree, of the same width.
        state_dict: weights by the published code's names, as tensors or NumPy arrays.

    Raises:
        ValueError: if names or shapes do not fit.

    Examples:
        >>> encoder = beamtree.encoder("bt-lstm", dim=8)
        >>> weights = dict(encoder.named_parameters())
        >>> names = beamtree.interop.official_names(encoder)
        >>> published = {theirs: torch.zeros_like(weights[ours]) for theirs, ours in names.items()}
        >>> beamtree.interop.load_official(encoder, published)
        >>> bool(encoder.scorer.weight.any())
        False
    """
    names = official_names(encoder)
    own = dict(encoder.named_parameters())
    weights = {name: torch.as_tensor(value) for name, value in state_dict.items()}  # NumPy arrays are accepted
    problems = [f"missing {name}" for name in names if name not in state_dict]
    unused = encoder.OFFICIAL_UNUSED if isinstance(encoder, Encoder) else ()
    problems += [f"unexpected {name}" for name in state_dict if name not in names and name not in unused]
    for theirs, ours in names.items():
        if theirs in weights and tuple(weights[theirs].shape) != tuple(own[ours].shape):
            problems.append(
                f"{theirs} has shape {tuple(weights[theirs].shape)}, this encoder needs {tuple(own[ours].shape)}"
            )
    if problems:
        raise ValueError(f"the state dict does not fit this encoder: {'; '.join(problems)}")
    with torch.no_grad():
        for theirs, ours in names.items():
            own[ours].copy_(weights[theirs])
