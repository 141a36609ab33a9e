"""The layout of the package: what imports what, and one name for one thing."""

import ast
import collections
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src/beamtree"
MODULES = {
    ".".join(("beamtree", *path.relative_to(PACKAGE).with_suffix("").parts)): path for path in PACKAGE.rglob("*.py")
}
# A package imports from those before it in this list, and from itself.
ORDER = ("utils", "trees", "nn")
EXCEPTIONS = ("beamtree.trees.analysis",)  # analyses data sets, and belongs to evaluation
GPU = (".gpu", ".kernels", ".dense", ".dense_kernels")  # of a cell: loaded by the engine on a GPU alone
INSIDE_NN = (
    "function",
    "cells",
    "topk",
    "engine",
    "beams",
    "description",
    "operator",
    "encoders",
    "compiling",
    "interop",
)


def imported(path):
    """Modules of ours that a file imports when it is loaded itself, not inside a function or for type checkers."""
    found = set()

    def visit(node):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            if isinstance(child, ast.ImportFrom) and child.module and child.module.startswith("beamtree"):
                found.update(f"{child.module}.{name.name}" for name in child.names)
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


def rank(module, order, depth):
    parts = module.split(".")
    return order.index(parts[depth]) if len(parts) > depth and parts[depth] in order else None


@pytest.mark.parametrize(("order", "depth", "prefix"), [(ORDER, 1, "beamtree"), (INSIDE_NN, 2, "beamtree.nn")])
def test_packages_import_downwards_only(order, depth, prefix):
    wrong = []
    for module, path in MODULES.items():
        own = rank(module, order, depth) if module.startswith(prefix) else None
        if own is None or module in EXCEPTIONS or (module.startswith("beamtree.nn.cells") and module.endswith(GPU)):
            continue
        for other in imported(path):
            inside = other.startswith(prefix + ".")
            theirs = rank(other, order, depth) if inside else None
            if (inside and theirs is None and other != "beamtree.Tree") or (theirs is not None and theirs > own):
                wrong.append(f"{module} imports {other}")
    assert not wrong


def test_no_two_classes_of_the_networks_have_one_name():
    places = collections.defaultdict(list)
    for module, path in MODULES.items():
        if module.startswith("beamtree.nn"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
