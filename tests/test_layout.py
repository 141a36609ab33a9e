"""The layout of the package: which modules import which, and one name for one thing."""

import ast
import collections
import re
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src/beamtree"
MODULES = {
    ".".join(("beamtree", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}
# A package imports from itself and from those before it in this list.
ORDER = ("utils", "trees", "nn", "bench", "data", "models", "runs", "evaluation", "training", "web", "cli")
ROOT = ("beamtree", "beamtree.__main__")  # may import from all packages
EVERYWHERE = "beamtree.__version__"  # may be imported by all packages
GPU = (".gpu", ".kernels", ".device", ".dense", ".dense_kernels")  # of a cell: loaded only by the engine on a GPU
INSIDE_NN = (
    "function",
    "cells",
    "topk",
    "engine",
    "beams",
    "merge_scores",
    "description",
    "operator",
    "encoders",
    "compiling",
    "interop",
)


def imported(path, inside_functions):
    """Modules and names of beamtree that a file imports. Without `inside_functions`, only those that it loads itself,
    not those of functions and of type checkers."""
    found = set()

    def visit(node):
        for child in ast.iter_child_nodes(node):
            if not inside_functions and (isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or is_typing(child)):
                continue
            if isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path} has a relative import"
                found.update(f"{child.module}.{name.name}" for name in child.names)
            if isinstance(child, ast.Import):
                found.update(name.name for name in child.names)
            visit(child)

    visit(ast.parse(path.read_text()))
    return {name for name in found if name.split(".")[0] == "beamtree"}


def is_typing(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def rank(module, order, depth):
    """The position of the module's package in the order; None if it is not there."""
    parts = module.split(".")
    return order.index(parts[depth]) if len(parts) > depth and parts[depth] in order else None


def test_packages_import_downwards_only():
    """In functions too, and for type checkers."""
    wrong = []
    for module, path in MODULES.items():
        if module in ROOT:
            continue
        own = rank(module, ORDER, depth=1)
        assert own is not None, f"{module} belongs to no package of ORDER"
        for other in imported(path, inside_functions=True):
            theirs = rank(other, ORDER, depth=1)
            if other != EVERYWHERE and (theirs is None or theirs > own):
                wrong.append(f"{module} imports {other}")
    assert not wrong


def test_the_networks_import_downwards_only():
    wrong = []
    for module, path in MODULES.items():
        own = rank(module, INSIDE_NN, depth=2) if module.startswith("beamtree.nn.") else None
        if own is None or (module.startswith("beamtree.nn.cells") and module.endswith(GPU)):
            continue
        for other in imported(path, inside_functions=False):
            inside = other.startswith("beamtree.nn.")
            theirs = rank(other, INSIDE_NN, depth=2) if inside else None
            if inside and (theirs is None or theirs > own):
                wrong.append(f"{module} imports {other}")
    assert not wrong


def test_no_module_looks_for_another_by_a_name_above_it():
    """As `sys.modules.get` and `import_module` do."""
    wrong = []
    for module, path in MODULES.items():
        own = rank(module, ORDER, depth=1)
        for node in ast.walk(ast.parse(path.read_text())):
            if own is not None and isinstance(node, ast.Constant) and node.value in MODULES:
                theirs = rank(node.value, ORDER, depth=1)
                if theirs is not None and theirs > own:
                    wrong.append(f"{module} names {node.value}")
    assert not wrong


def types_of(source):
    """The names of all classes, nested ones too, and of the type aliases of a module. An alias is a name in CamelCase
    that is assigned at the top level; single letters are variables of generic types, and may repeat."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name) and re.match(r"_?[A-Z]\w*[a-z]", target.id):
                yield target.id


def test_types_are_found():
    source = "class A:\n    class Inner: ...\nPair = tuple[A, A]\nOther: TypeAlias = A\n_Own = Pair\nT, LIMIT, x = ..."
    assert sorted(types_of(source)) == ["A", "Inner", "Other", "Pair", "_Own"]


def test_no_two_types_have_one_name():
    """Classes and type aliases of the whole package."""
    places = collections.defaultdict(list)
    for module, path in MODULES.items():
        for name in types_of(path.read_text()):
            places[name].append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
