"""Measure ensembles, whose probabilities are the average of those of several models, such as seeds.

    python results/measure_ensembles.py NAME runs/listops/gold-tree-grc-parsed-noise50-seed? --split args-dev

Writes results/ensembles/NAME.json: the accuracies of all ensembles of the given models, of every size from a single
model to all of them.
"""

import argparse
import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from compare_variants import NAMES

import beamtree
from beamtree.evaluation import evaluate

MEASURED = Path(__file__).parent / "ensembles"


def accuracies(probabilities: Sequence[np.ndarray], labels: np.ndarray) -> dict[str, list[float]]:
    """The accuracy in per cent of every ensemble, by its size. `probabilities` are (S, C) for each model."""
    found: dict[str, list[float]] = {}
    for size in range(1, len(probabilities) + 1):
        groups = itertools.combinations(probabilities, size)
        right = [(np.mean(group, axis=0).argmax(1) == labels).mean() for group in groups]
        found[str(size)] = [round(100 * float(each), 2) for each in right]
    return found


def measure(models: Sequence[str], splits: Sequence[str], device: str | None) -> dict[str, dict[str, list[float]]]:
    """The accuracies of all ensembles of these models, by split and size."""
    loaded = [beamtree.load(model, device=device) for model in models]
    for name, model in zip(models, loaded, strict=True):
        if model.labels != loaded[0].labels:
            raise ValueError(f"{name} has other labels than {models[0]}: they cannot be averaged")
        if _data_of(model) != _data_of(loaded[0]):
            raise ValueError(f"{name} was trained on other data than {models[0]}: they cannot be compared")
    task, options = _data_of(loaded[0])
    data = beamtree.data.load(task, **options)
    for split in splits:
        data[split]  # an unknown split is an error before anything is measured
    found = {}
    for split in splits:
        outcomes = [evaluate(model, data[split]).outcomes for model in loaded]
        found[split] = accuracies([each.probabilities for each in outcomes], outcomes[0].labels)
    return found


def _data_of(model: beamtree.models.pretrained.Pretrained) -> tuple[str, dict[str, Any]]:
    return model.config.task, model.config.data_options


def table() -> str:
    """For each measurement and size, the mean accuracy of the ensembles, and the lowest and the highest."""
    documents = [json.loads(path.read_text()) for path in sorted(MEASURED.glob("*.json"))]
    splits = list(dict.fromkeys(split for document in documents for split in document["splits"]))
    names = (NAMES.get(split, split) for split in splits)
    lines = [f"| models | averaged | {' | '.join(names)} |", "|---|---:|" + "---:|" * len(splits)]
    for document in documents:
        measured: Mapping[str, Mapping[str, list[float]]] = document["splits"]
        for size in range(1, len(document["models"]) + 1):
            cells = [_summary(measured[split][str(size)]) if split in measured else "–" for split in splits]
            lines.append(f"| `{document['name']}` | {size} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _summary(values: Sequence[float]) -> str:
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="name of the measurement")
    parser.add_argument("models", nargs="+", help="folders of runs, or names of shipped models")
    parser.add_argument("--split", nargs="+", default=["args-dev"], help="default: args-dev")
    parser.add_argument("--device", help="where to run the models (default: cpu)")
    arguments = parser.parse_args()
    if Path(arguments.name).name != arguments.name:
        parser.error(f"{arguments.name!r} is a path: give a name")
    try:
        splits = measure(arguments.models, arguments.split, arguments.device)
    except ValueError as error:
        parser.error(str(error))
    MEASURED.mkdir(parents=True, exist_ok=True)
    document = {"name": arguments.name, "models": [Path(model).name for model in arguments.models], "splits": splits}
    (MEASURED / f"{arguments.name}.json").write_text(json.dumps(document, indent=1) + "\n")
    print(table())


if __name__ == "__main__":
    main()
