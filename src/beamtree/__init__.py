"""beamtree: latent-tree recursive networks."""

import os
from typing import TYPE_CHECKING

from beamtree import data, interop
from beamtree.beams import Beams, Encoding, Nodes
from beamtree.cells import GRC, TreeLSTM
from beamtree.encoders import encoder, encoders
from beamtree.topk import SoftTopK, TopK, onesoft_topk, plain_topk, stochastic_topk
from beamtree.trees import Tree

if TYPE_CHECKING:
    import torch

    from beamtree.pretrained import Pretrained

__version__ = "0.1.0"

__all__ = [
    "GRC",
    "Beams",
    "Encoding",
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
    "stochastic_topk",
]


def load(name: str | os.PathLike[str], device: "str | torch.device | None" = None) -> "Pretrained":
    """A trained model with its vocabulary: a shipped one by its name, a run's folder, or a model on the hub."""
    from beamtree.pretrained import load  # with all that a hub needs, which an encoder alone does without

    return load(name, device)
