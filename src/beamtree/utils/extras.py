"""Optional packages: which part of beamtree needs which, and what to install.

    require("train", "beamtree train")

Encoders, trees, loading, predicting and parsing need none of them.
"""

import importlib.util

# The extras of pyproject.toml: for each of their packages, the module that it provides.
EXTRAS: dict[str, dict[str, str]] = {
    "train": {
        "lightning": "lightning",
        "torchmetrics": "torchmetrics",
        "pydantic": "pydantic",
        "tensorboard": "tensorboard",
    },
    "web": {"fastapi": "fastapi", "uvicorn": "uvicorn"},
    "plot": {"matplotlib": "matplotlib"},
    "datasets": {"datasets": "datasets", "tokenizers": "tokenizers"},
    "tune": {"optuna": "optuna"},
    "slurm": {"submitit": "submitit"},
}


def require(extra: str, purpose: str) -> None:
    """Raise a `ValueError` that says what to install, unless all packages of the extra can be imported."""
    missing = [package for package, module in EXTRAS[extra].items() if importlib.util.find_spec(module) is None]
    if missing:
        verb = "which is not installed" if len(missing) == 1 else "which are not installed"
        advice = f"pip install 'beamtree[{extra}]', or '.[{extra}]' in a clone"
        raise ValueError(f"{purpose} needs {' and '.join(missing)}, {verb}: {advice}")
