"""The golden cases of the published code, one object a file."""

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import beamtree

FILES = sorted(Path(__file__).with_name("golden").glob("*.npz"))


class Golden:
    """One case; see `golden/README.md` for its arrays."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as arrays:
            self.meta = json.loads(str(arrays["meta"]))
            self.arrays = {name: torch.from_numpy(arrays[name]) for name in arrays if name != "meta"}
        self.parameters, self.gradients = self._named("param/"), self._named("grad/")

    def _named(self, prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): a for name, a in self.arrays.items() if name.startswith(prefix)}

    def encoder(self, engine: str = "auto") -> nn.Module:
        """A new encoder of the case's kind in float64, in the case's mode and without noise."""
        name = self.meta["encoder"].removesuffix("-beam2")
        options = {"mix": "official"} if name == "bt-grc-onesoft" else {}
        options |= {key: self.meta[key] for key in ("dim", "beam_size", "dropout")}
        encoder = beamtree.encoder(name, stochastic=False, engine=engine, **options)
        return encoder.double().train(self.meta["mode"] == "train")
