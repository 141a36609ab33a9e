"""beamtree: latent-tree recursive networks."""

import os
from typing import TYPE_CHECKING

from beamtree import data
from beamtree.nn import interop
from beamtree.nn.beams import Beams, Encoding, Nodes
from beamtree.nn.cells import GRC, TreeLSTM
from beamtree.nn.encoders import encoder, encoders
from beamtree.nn.engine import EngineError, release_memory
from beamtree.nn.topk.operators import SoftTopK, TopK, onesoft_topk, plain_topk, stochastic_topk
from beamtree.trees import Tree

if TYPE_CHECKING:
    import torch

    from beamtree.pretrained import Pretrained

__version__ = "0.1.0"

__all__ = [
    "GRC",
    "Beams",
    "Encoding",
    "EngineError",
    "Nodes",
    "SoftTopK",
    "TopK",
    "Tree",
    "TreeLSTM",
    "data",
    "encoder",
    "encoders",
    "interop",
    "load",
    "onesoft_topk",
    "plain_topk",
    "release_memory",
    "stochastic_topk",
]


def load(name: str | os.PathLike[str], device: "str | torch.device | None" = None) -> "Pretrained":
    """A trained model with its vocabulary: a shipped one by its name, a run's folder, or a model on the hub."""
    from beamtree.pretrained import load  # with all that a hub needs, which an encoder alone does without

    return load(name, device)
