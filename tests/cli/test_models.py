"""`beamtree models`, and the list of recipes that it shares with `beamtree train --list`."""

import importlib.util
import json
import math
import re
import sys

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typer.testing import CliRunner

import beamtree
from beamtree import cli, runs
from beamtree.cli.models import DIM, list_recipes
from beamtree.data import TASKS, Vocabulary
from beamtree.models import pretrained
from beamtree.models.build import build
from beamtree.models.config import make_config
from beamtree.nn.encoders import defaults, options
from beamtree.runs import recipes

WIDEST = 120  # columns of a terminal in which the list can still be read
SMALL = {"beam_size": 3, "samples": 3, "slots": 5, "heads": 2, "layers": 3, "halt": False}  # where cost is counted
every_encoder = pytest.mark.parametrize("name", beamtree.encoders())


def run(*arguments):
    return CliRunner().invoke(cli.app, ("models", *arguments), prog_name="beamtree")


def printed(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


@pytest.fixture(scope="module")
def encoder_rows():
    return json.loads(printed("--json"))["encoders"]


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """An untrained model in place of the shipped ones."""
    torch.manual_seed(0)
    settings = recipes.load("listops", "bt-lstm", changes={"model.dim": 8})
    config = make_config(settings.to_dict(), TASKS["listops"].labels, pair=False, closed_vocabulary=True)
    vocabulary = Vocabulary(TASKS["listops"].words, closed=True)
    model = pretrained.Pretrained(config, vocabulary, build(config, len(vocabulary)))
    model.save_pretrained(tmp_path / "listops-shipped")
    monkeypatch.setattr(pretrained, "_SHIPPED", tmp_path)


def test_models_lists_all_there_is_to_load_and_to_train(shipped, encoder_rows):
    shown = printed()
    lines = [line.split() for line in shown.splitlines()]
    assert ["listops-shipped", "bt-lstm", "listops", "not", "known"] in lines
    for name, row in encoder_rows.items():
        [line] = [line for line in lines if line[:2] == [name, f"{row['parameters']:,}"]]
        assert " ".join(line[2:]) == " ".join((*row["cost"].values(), row["paper"]))
    encoders = shown[shown.index("encoder  ") : shown.index("recipe  ", shown.index("encoder  "))]
    assert max(map(len, encoders.splitlines())) <= WIDEST
    for name in recipes.names():
        [line] = [line for line in lines if line[:2] == [name, recipes.default_encoder(name)]]
        assert line[2] == str(len(recipes.encoders(name)))
        assert " ".join(line[3:]) == recipes.describe(name)


def test_models_without_a_shipped_one_has_no_table_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "_SHIPPED", tmp_path)
    assert printed().startswith("encoder ")
    assert json.loads(printed("--json"))["models"] == []


def test_json_holds_the_same_and_all_of_the_encoders(shipped):
    report = json.loads(printed("--json"))
    [model] = report["models"]
    assert model == {"name": "listops-shipped", "encoder": "bt-lstm", "recipe": "listops", "accuracies": {}}
    assert list(report["encoders"]) == beamtree.encoders()
    for name, row in report["encoders"].items():
        assert (row["name"], row["about"][-1]) == (name, ".")
        assert row["options"] == defaults(name)
        assert row["recipes"] == [recipe for recipe in recipes.names() if name in recipes.encoders(recipe)]
    rows = {row["name"]: row for row in report["recipes"]}
    assert sorted(rows) == recipes.names()
    for name, row in rows.items():
        assert (row["encoder"], row["about"]) == (recipes.default_encoder(name), recipes.describe(name))
        assert row["encoders"] == recipes.encoders(name)


@pytest.mark.parametrize("name", ["gold-tree-grc", "mc-gumbel-tree-grc", "ndr", "bt-grc-onesoft"])
def test_an_encoders_page_tells_all_of_it(name, encoder_rows):
    row, shown = encoder_rows[name], printed(name)
    assert json.loads(printed(name, "--json")) == row
    assert shown.startswith(f"{name}: {row['about']}\n")
    assert max(map(len, shown.splitlines())) <= WIDEST
    for text in (row["paper"], f"{row['parameters']:,} at dim {DIM}", *row["cost"].values()):
        assert text in shown
    assert {word.removesuffix(",") for word in shown.split()} >= set(row["recipes"])
    words = " ".join(shown.split())
    for option, value in row["options"].items():
        assert row["explained"][option]
        assert f"{option} {value} {row['explained'][option]}" in words


def test_a_model_is_described_by_its_card():
    shown = printed("listops-bt-grc")
    assert shown.startswith("# listops-bt-grc\n")
    assert shown.endswith("\nIts trees: beamtree parse listops-bt-grc TEXT\n")
    results = beamtree.load("listops-bt-grc").results["splits"]
    described = json.loads(printed("listops-bt-grc", "--json"))
    assert shown.startswith(described["card"])
    assert described["accuracies"].keys() == results.keys()
    assert f"{100 * next(iter(results.values()))['accuracy']:.2f} % on {next(iter(results))}" in printed()


@every_encoder
def test_every_option_is_explained(name):
    row = json.loads(printed(name, "--json"))
    assert set(row["explained"]) == set(row["options"])


def test_defaults_are_those_of_the_model_and_not_of_its_class():
    """Several models share a class, with other values for its arguments."""
    assert defaults("mc-gumbel-tree-grc")["samples"] == 5
    assert defaults("bt-grc-onesoft")["mix"] == "paper"
    assert "mix" not in defaults("bt-grc")
    for name in beamtree.encoders():
        assert ["dim", *defaults(name)] == options(name)
        beamtree.encoder(name, dim=16, **defaults(name))


def test_an_unknown_encoder_has_a_nearest_name():
    result = run("bt-gcr")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(
        "error: unknown encoder or model 'bt-gcr' (did you mean 'bt-grc'?); known: recurrent-grc, "
    )
    result = run("imdb-bt-gcr")
    assert result.stderr.startswith("error: unknown encoder or model 'imdb-bt-gcr' (did you mean 'imdb-bt-grc'?); ")


def test_parameters_are_as_many_as_in_the_published_code(encoder_rows):
    """At the width of the paper for ListOps."""
    published = {
        "recurrent-grc": 411_392,
        "gold-tree-grc": 411_264,
        "gumbel-tree-lstm": 197_633,
        "bt-lstm": 197_633,
        "ordered-memory": 444_673,
        "crvnn": 493_697,
        **dict.fromkeys(("gumbel-tree-grc", "cyk-grc", "bt-grc", "bt-grc-onesoft", "bt-grc-soft"), 411_393),
    }
    assert {name: encoder_rows[name]["parameters"] for name in published} == published
    assert all(row["parameters"] > 0 and row["counted"]["dim"] == 128 for row in encoder_rows.values())


@every_encoder
def test_paper_and_cost_are_an_encoders_own(name):
    """A class that derives a model from another must define both, and not inherit those of the other."""
    encoder = make(name)
    assert re.fullmatch(r"[\w. &-]+ (19|20)\d\db?", encoder.paper)
    registered = {type(make(other)) for other in beamtree.encoders()}
    for kind in type(encoder).__mro__:
        if kind in registered - {type(encoder)}:
            pytest.fail(f"{name} has the paper or the cost of {kind.__name__}")
        if {"paper", "cost"} <= set(vars(kind)):
            break


def make(name):
    torch.manual_seed(0)
    return beamtree.encoder(name, dim=16, **{key: value for key, value in SMALL.items() if key in options(name)})


def sizes(encoder, length):
    """The values of the names in a formula."""
    beams = getattr(encoder, "beam_size", getattr(encoder, "samples", None))
    return {"N": length, "D": 16, "K": beams, **SMALL}


def value(formula, names):
    """The value of a formula, in which 2K is short for 2·K."""
    for written, meant in (("−", "-"), ("·", "*"), ("²", "**2"), ("³", "**3"), ("≤", ""), ("tree height", "height")):
        formula = formula.replace(written, meant)
    formula = re.sub(r"(?<=[\dKND)])(?=[KND(])", "*", formula).replace("⌈log₂ N⌉", "ceil(log2(N))")
    return eval(formula.strip(), {"ceil": math.ceil, "log2": math.log2, **names})


def encode(encoder, length):
    """One forward pass in training mode; gold trees are chains."""
    trees = {"trees": [beamtree.Tree.from_actions([0] * (length - 1))]} if encoder.needs_trees else {}
    x = torch.randn(1, length, 16, generator=torch.Generator().manual_seed(1)).requires_grad_()
    return encoder(x, torch.tensor([length]), **trees)


class CellCalls(TorchDispatchMode):
    """Counts the matrix products with a weight that each call of a cell uses once, and their rows."""

    def __init__(self, weight):
        super().__init__()
        self.weight, self.rows, self.calls = weight.untyped_storage().data_ptr(), 0, 0

    def __torch_dispatch__(self, function, types, arguments=(), settings=None):
        factors = {"aten::linear": slice(2), "aten::mm": slice(2), "aten::addmm": slice(1, 3)}
        if place := factors.get(function._schema.name):
            left, right = arguments[place]
            if right.untyped_storage().data_ptr() == self.weight:
                self.rows, self.calls = self.rows + left.shape[:-1].numel(), self.calls + 1
        return function(*arguments, **(settings or {}))


@every_encoder
@pytest.mark.parametrize("length", [9, 14])
def test_the_formulas_count_the_calls_of_the_cell(name, length):
    encoder = make(name)
    if not hasattr(encoder, "cell"):
        assert encoder.cost.cells == "–"
        return
    # Without gradients, for which some engines copy the weights. The forward pass composes the same number.
    with torch.no_grad(), CellCalls(encoder.cell.gates.weight) as found:
        out = encode(encoder, length)
    names = sizes(encoder, length) | ({"height": out.beams.trees()[0][0].height} if out.beams else {})
    for counted, formula in ((found.rows, encoder.cost.cells), (found.calls, encoder.cost.steps)):
        exact = value(formula, names)
        assert (0.6 * exact <= counted <= exact) if "≤" in formula else counted == exact


class Storages(TorchDispatchMode):
    """Records allocated storages without keeping them alive."""

    def __init__(self):
        super().__init__()
        self.taken = {}

    def __torch_dispatch__(self, function, types, arguments=(), settings=None):
        result = function(*arguments, **(settings or {}))
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor):
                storage = each.untyped_storage()
                self.taken[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return result


def kept(encoder, length):
    """The number of bytes held between the forward and the backward pass."""
    weights = {weight.untyped_storage()._cdata for weight in encoder.parameters()}
    with Storages() as found:
        out = encode(encoder, length)
    assert out.state.requires_grad
    return sum(size for key, (ref, size) in found.taken.items() if key not in weights and not ref.expired())


@every_encoder
def test_memory_grows_with_the_length_as_the_formula_says(name):
    encoder = make(name)
    short, long = (kept(encoder, length) / value(encoder.cost.memory, sizes(encoder, length)) for length in (20, 40))
    assert 0.6 < long / short < 1.1  # constant parts matter less for the longer input


def test_the_list_of_recipes_says_how_to_train_one(capsys):
    list_recipes()
    shown = capsys.readouterr().out
    assert all(name in shown for name in recipes.names())
    assert "'beamtree train RECIPE'" in shown


@pytest.fixture
def no_pydantic(monkeypatch):
    """Makes the import of recipes fail, as without pydantic."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pydantic" else found(name))
    monkeypatch.delattr(runs, "recipes")
    monkeypatch.setitem(sys.modules, "beamtree.runs.recipes", None)


def test_without_pydantic_models_and_encoders_are_listed(no_pydantic):
    shown = printed()
    assert all(f"\n{name} " in shown for name in (*beamtree.encoders(), *pretrained.shipped()[1:]))
    assert shown.splitlines()[-1] == (
        "the list of recipes needs pydantic, which is not installed: "
        "pip install 'beamtree[train]', or '.[train]' in a clone. "
        "Without it, parameters are counted with the default options of each encoder."
    )
    report = json.loads(printed("--json"))
    assert report["recipes"] == []
    assert list(report["encoders"]) == beamtree.encoders()
    assert "with its default options" in printed("bt-grc")


def test_a_recipe_that_is_missing_for_another_reason_is_a_bug(monkeypatch):
    monkeypatch.delattr(runs, "recipes")
    monkeypatch.setitem(sys.modules, "beamtree.runs.recipes", None)
    assert isinstance(run().exception, ModuleNotFoundError)


def test_models_has_help_with_an_example():
    shown = printed("--help")
    assert "Usage: beamtree models" in " ".join(shown.split())
    assert "beamtree models --json" in shown
