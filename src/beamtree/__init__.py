"""beamtree: latent-tree recursive networks.

Names are imported when they are first used, so that the command line can print its help without loading PyTorch.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from beamtree import data as data
    from beamtree.data.tokenizers import Tokenizer
    from beamtree.models.pretrained import Pretrained
    from beamtree.nn import interop as interop
    from beamtree.nn.beams import Beams as Beams
    from beamtree.nn.beams import Encoding as Encoding
    from beamtree.nn.beams import Nodes as Nodes
    from beamtree.nn.cells import GRC as GRC
    from beamtree.nn.cells import TreeLSTM as TreeLSTM
    from beamtree.nn.encoders import BSRP as BSRP
    from beamtree.nn.encoders import CYK as CYK
    from beamtree.nn.encoders import LSTM as LSTM
    from beamtree.nn.encoders import NDR as NDR
    from beamtree.nn.encoders import BalancedTree as BalancedTree
    from beamtree.nn.encoders import BeamTree as BeamTree
    from beamtree.nn.encoders import CRvNN as CRvNN
    from beamtree.nn.encoders import EfficientBeamTree as EfficientBeamTree
    from beamtree.nn.encoders import Encoder as Encoder
    from beamtree.nn.encoders import GoldTree as GoldTree
    from beamtree.nn.encoders import GumbelTree as GumbelTree
    from beamtree.nn.encoders import OrderedMemory as OrderedMemory
    from beamtree.nn.encoders import RandomTree as RandomTree
    from beamtree.nn.encoders import Recurrent as Recurrent
    from beamtree.nn.encoders import SoftBeamTree as SoftBeamTree
    from beamtree.nn.encoders import Transformer as Transformer
    from beamtree.nn.encoders import encoder as encoder
    from beamtree.nn.encoders import encoders as encoders
    from beamtree.nn.engine import EngineError as EngineError
    from beamtree.nn.engine import release_memory as release_memory
    from beamtree.nn.topk.operators import SoftTopK as SoftTopK
    from beamtree.nn.topk.operators import TopK as TopK
    from beamtree.nn.topk.operators import onesoft_topk as onesoft_topk
    from beamtree.nn.topk.operators import plain_topk as plain_topk
    from beamtree.nn.topk.operators import stochastic_topk as stochastic_topk
    from beamtree.trees import Tree as Tree

__version__ = "0.2.0"

_MODULES = {
    "beamtree.nn.beams": ("Beams", "Encoding", "Nodes"),
    "beamtree.nn.cells": ("GRC", "TreeLSTM"),
    "beamtree.nn.encoders": (
        *("encoder", "encoders", "Encoder", "BSRP", "CRvNN", "CYK", "BalancedTree", "BeamTree", "EfficientBeamTree"),
        *("GoldTree", "GumbelTree", "LSTM", "NDR", "OrderedMemory", "RandomTree", "Recurrent", "SoftBeamTree"),
        "Transformer",
    ),
    "beamtree.nn.engine": ("EngineError", "release_memory"),
    "beamtree.nn.topk.operators": ("SoftTopK", "TopK", "onesoft_topk", "plain_topk", "stochastic_topk"),
    "beamtree.trees": ("Tree",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
_SUBMODULES = {"data": "beamtree.data", "interop": "beamtree.nn.interop"}

__all__ = [
    "BSRP",
    "CYK",
    "GRC",
    "LSTM",
    "NDR",
    "BalancedTree",
    "BeamTree",
    "Beams",
    "CRvNN",
    "EfficientBeamTree",
    "Encoder",
    "Encoding",
    "EngineError",
    "GoldTree",
    "GumbelTree",
    "Nodes",
    "OrderedMemory",
    "RandomTree",
    "Recurrent",
    "SoftBeamTree",
    "SoftTopK",
    "TopK",
    "Transformer",
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


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        value: Any = import_module(_SUBMODULES[name])
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # found without this function from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load(
    name: str | os.PathLike[str],
    device: "str | torch.device | None" = None,
    tokenizer: "Tokenizer | None" = None,
) -> "Pretrained":
    """Load a trained model with its vocabulary and tokenizer.

    Args:
        name: the name of a model that comes with the package, the folder of a run, or the id of a model on the
            Hugging Face hub, "owner/name".
        device: where to put the model; by default the CPU.
        tokenizer: the tokenizer that the model was trained with, if it could not be stored with the model.

    Returns:
        The model, in eval mode.

    Raises:
        ValueError: if there is no such model, or if its files are incomplete or damaged.

    Examples:
        >>> model = beamtree.load("listops-bt-grc")
        >>> model.predict(["[MAX 2 9 [MIN 4 7 ] 0 ]"])[0].label
        '9'
    """
    from beamtree.models.pretrained import load

    return load(name, device, tokenizer)
