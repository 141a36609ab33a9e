"""The scripts of results/ as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

RESULTS = Path(__file__).parents[1] / "results"


def script(name: str) -> ModuleType:
    """Import a script, which may import others by their names."""
    spec = importlib.util.spec_from_file_location(name, RESULTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
