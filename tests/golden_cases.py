"""The golden cases of the published code, one object a file."""

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import beamtree
from beamtree.nn.encoders import options

# Where ours differ by default, what makes them do as the published code does.
OFFICIAL_WAYS = {"mix": "official", "scaling": "official", "masks": "official", "floor": "official"}
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
        given = {key: self.meta[key] for key in ("dim", "beam_size", "dropout") if self.meta[key] is not None}
        given |= {"slots": self.meta["memory_slots"], "stochastic": False, "engine": engine, **OFFICIAL_WAYS}
        known = options(name)
        encoder = beamtree.encoder(name, **{key: value for key, value in given.items() if key in known})
        return encoder.double().train(self.meta["mode"] == "train")
