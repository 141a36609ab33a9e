"""Weights of the published code (github.com/JRC1995/BeamTreeRecursiveCells) in ours."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from beamtree.cells import GRC, TreeLSTM
from beamtree.encoders.beam_tree import BeamTree

# Their module names → ours, for the encoders around each cell.
_BEAM_TREE = {
    GRC: {
        "word_linear": "leaf.0",
        "LN": "leaf.1",
        "treecell_layer.wcell1": "cell.expand",
        "treecell_layer.wcell2": "cell.gates",
        "treecell_layer.LN2": "cell.norm",
        "decide_linear": "scorer",
    },
    TreeLSTM: {
        "word_linear": "leaf",
        "treecell_layer.comp_linear": "cell.gates",
        "decide_linear": "scorer",
    },
}


def official_names(encoder: nn.Module) -> dict[str, str]:
    """The published code's parameter names → this encoder's."""
    if not isinstance(encoder, BeamTree):
        raise ValueError(f"no weights of the published code are known for {type(encoder).__name__}")
    modules = _BEAM_TREE[type(encoder.cell)]
    return {f"{theirs}.{kind}": f"{ours}.{kind}" for theirs, ours in modules.items() for kind in ("weight", "bias")}


def load_official(encoder: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """Load an encoder's state dict of the published code. Nothing is changed unless all of it fits."""
    names = official_names(encoder)
    own = dict(encoder.named_parameters())
    weights = {name: torch.as_tensor(value) for name, value in state_dict.items()}  # numpy arrays will do
    problems = [f"missing {name}" for name in names if name not in state_dict]
    problems += [f"unexpected {name}" for name in state_dict if name not in names]
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
