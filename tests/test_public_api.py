"""The names users build on. A change here is a change of the interface."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

import beamtree
from beamtree.nn.encoders import options

BEAMS = ["beam_size", "dropout", "stochastic", "engine", "duplicates"]


def test_public_names() -> None:
    assert sorted(beamtree.__all__) == [
        "BSRP",
        "BalancedTree",
        "BeamTree",
        "Beams",
        "CRvNN",
        "CYK",
        "EfficientBeamTree",
        "Encoder",
        "Encoding",
        "EngineError",
        "GRC",
        "GoldTree",
        "GumbelTree",
        "LSTM",
        "NDR",
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
    assert all(hasattr(beamtree, name) for name in beamtree.__all__)


OPTIONS = {
    "recurrent-grc": ["dropout", "bidirectional", "engine", "cell"],
    "gold-tree-grc": ["dropout", "engine", "cell", "state_noise"],
    "balanced-tree-grc": ["dropout", "engine", "cell", "state_noise"],
    "random-tree-grc": ["dropout", "engine", "cell", "state_noise"],
    "gumbel-tree-grc": ["dropout", "stochastic", "engine", "cell"],
    "gumbel-tree-lstm": ["dropout", "stochastic", "engine", "cell"],
    "mc-gumbel-tree-grc": ["samples", "dropout", "stochastic", "weighted", "engine", "cell"],
    "cyk-grc": ["dropout", "masks", "engine", "cell"],
    "ordered-memory": ["slots", "dropout", "memory_dropout", "engine", "cell"],
    "crvnn": ["dropout", "halt", "threshold", "recompute", "floor", "engine", "cell"],
    "bsrp-grc": ["beam_size", "dropout", "engine", "cell", "state_noise"],
    "ndr": ["heads", "feed_forward", "dropout", "layers", "layers_at_test", "gate_dropout"],
    "bt-grc": [*BEAMS, "cell", "slice", "state_noise", "topk"],
    "bt-lstm": [*BEAMS, "cell", "slice", "topk"],
    "bt-grc-onesoft": [*BEAMS, "cell", "mix", "slice", "topk"],
    "bt-grc-soft": ["beam_size", "dropout", "stochastic", "epsilon", "iterations", "scaling", "mix", "engine", "cell"],
    "ebt-grc": ["beam_size", "dropout", "stochastic", "slice", "engine", "duplicates", "cell", "state_noise", "topk"],
    "lstm": ["layers", "bidirectional", "dropout", "pooling"],
    "transformer": ["layers", "heads", "feed_forward", "dropout", "pooling"],
}


def test_encoders_are_listed_in_the_papers_order_before_the_others() -> None:
    assert beamtree.encoders() == list(OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_an_encoder(name: str) -> None:
    found = options(name)
    assert {"dim", "check_nan"} <= set(found)
    assert [option for option in found if option not in ("dim", "check_nan")] == OPTIONS[name]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (beamtree.Encoding, ["state", "beams"]),
        (beamtree.Beams, ["log_probs", "chart", "lengths", "dim"]),
        (beamtree.Nodes, ["states", "spans", "mask"]),
        (beamtree.TopK, ["scores", "indices", "payloads"]),
        (beamtree.SoftTopK, ["scores", "indices", "payloads", "weights"]),
    ],
)
def test_fields_of_a_result(kind: type, names: list[str]) -> None:
    found = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else kind._fields
    assert list(found) == names


@pytest.mark.parametrize("name", ["trees", "parses", "best_trees", "distinct", "nodes"])
def test_beams_offer(name: str) -> None:
    assert hasattr(beamtree.Beams, name)


def test_importing_beamtree_imports_no_tools() -> None:
    """Training, the command line and plots load what they need when they are used."""
    tools = ("lightning", "typer", "rich", "matplotlib")
    script = f"import sys, beamtree; print([name for name in {tools} if name in sys.modules])"
    source = str(Path(beamtree.__file__).parents[1])
    run = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "[]"
