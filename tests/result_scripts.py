"""The scripts of results/ as modules."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

RESULTS = Path(__file__).parents[1] / "results"


def script(name: str) -> ModuleType:
    """Import a script, which may import others."""
    if str(RESULTS) not in sys.path:
        sys.path.append(str(RESULTS))
    return importlib.import_module(name)
