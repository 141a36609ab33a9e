"""Trees from a trained model, the parser, for encoders that compose along given trees.

    parser = load_parser("listops-bt-grc")
    best_trees(parser, [["[MAX", "2", "9", "]"]])     # the most probable tree of each text
    with_trees(split, parser)                         # the split with these in place of its gold trees

A model that was trained along the trees of a parser needs the parser for new texts, too. It is stored with the model,
in a folder of its own.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from beamtree.data.cache import Prepared, stored
from beamtree.data.split import Split
from beamtree.data.task import DataProgress
from beamtree.trees import Tree
from beamtree.utils.digests import sha256

if TYPE_CHECKING:
    from beamtree.models.pretrained import Pretrained

_VERSION = 1  # of how trees are chosen: a new version invalidates the cached trees
_CHUNK = 512  # texts between two calls of `progress`; enough for batches of similar length


def load_parser(name: str | os.PathLike[str], device: str | torch.device | None = None) -> "Pretrained":
    """Load a model to parse with.

    Args:
        name: the folder of a run, a shipped model, or a hub id.
        device: where to put the model; by default the CPU.

    Returns:
        The model.

    Raises:
        ValueError: if there is no such model, if it needs trees itself, or if it builds none or random ones.
    """
    from beamtree.models.pretrained import load

    parser = load(name, device)
    encoder = parser.config.encoder
    if parser.model.needs_trees:
        raise ValueError(f"{name} cannot be a parser: its encoder, {encoder}, needs trees itself")
    if encoder == "random-tree-grc":
        raise ValueError(f"{name} cannot be a parser: the trees of {encoder} are others in each call")
    try:
        parser.parse_tokens([[parser.vocabulary.words()[-1]]])
    except ValueError as error:
        raise ValueError(f"{name} cannot be a parser: {error}") from None
    return parser


def best_trees(
    parser: "Pretrained", sentences: Sequence[Sequence[str]], progress: DataProgress | None = None
) -> list[Tree]:
    """Parse texts.

    Args:
        parser: the model.
        sentences: the tokens of each text.
        progress: called with the number of parsed texts.

    Returns:
        The most probable tree of each text.

    Raises:
        ValueError: if the parser builds no trees.
    """
    found: list[Tree] = []
    for start in range(0, len(sentences), _CHUNK):
        if progress is not None:
            progress("trees", start, len(sentences))
        found += parser.best_trees(sentences[start : start + _CHUNK])
    if progress is not None:
        progress("trees", len(sentences), len(sentences))
    return found


def with_trees(split: Split, parser: "Pretrained | None", progress: DataProgress | None = None) -> Split:
    """Replace the gold trees of a split by the most probable trees of a parser. They are cached on disk.

    Args:
        split: the data.
        parser: the model; None: keep the gold trees.
        progress: called with the number of parsed texts.

    Returns:
        The split with these trees.
    """
    if parser is None:
        return split

    def parse() -> Prepared:
        parsed = split.with_trees(best_trees(parser, split.texts(), progress))
        arrays = {"reduces": parsed.reduces, "second-reduces": parsed.second_reduces}
        return Prepared({name: array for name, array in arrays.items() if array is not None}, {})

    arrays = stored("trees", {"version": _VERSION, "parser": _digest(parser), "data": split.fingerprint}, parse).arrays
    return replace(split, gold=None, reduces=arrays["reduces"], second_reduces=arrays.get("second-reduces"))


def _digest(parser: "Pretrained") -> str:
    """The SHA-256 of everything that determines the trees of a parser."""
    weights = {name: tensor.detach().cpu().numpy() for name, tensor in parser.model.state_dict().items()}
    return sha256(weights, json.dumps(parser.config.document, sort_keys=True), parser.vocabulary.fingerprint)
