"""beamtree: latent-tree recursive networks."""

from beamtree import data, interop
from beamtree.beams import Beams, Encoding, Nodes
from beamtree.cells import GRC, TreeLSTM
from beamtree.encoders import encoder, encoders
from beamtree.topk import SoftTopK, TopK, onesoft_topk, plain_topk, stochastic_topk
from beamtree.trees import Tree

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
    "onesoft_topk",
    "plain_topk",
    "stochastic_topk",
]
