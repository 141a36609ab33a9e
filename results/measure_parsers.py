"""Measure what the errors of a parser cost: models along its trees, and the same models along gold trees.

    python results/measure_parsers.py runs/listops/gold-tree-grc-parsed-noise50-seed?

Writes results/parsers/NAME.json for each finished run: its accuracy in per cent on the splits of its results, along the
trees of its parser (from its results) and along gold trees.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from compare_variants import NAMES

import beamtree
from beamtree.evaluation import evaluate

MEASURED = Path(__file__).parent / "parsers"
TREES = {"parsed": "its parser's", "gold": "gold"}


def measure(name: str, device: str | None) -> dict[str, dict[str, float]]:
    """The accuracies of a run by split, along both kinds of trees."""
    model = beamtree.load(name, device=device)
    if model.parser is None or model.results is None:
        raise ValueError(f"{name} is not a finished run along the trees of a parser")
    data = beamtree.data.load(model.config.task, **model.config.data_options)
    along_parsed = {split: scores["accuracy"] for split, scores in model.results["splits"].items()}
    model.parser = None  # the trees of the data remain
    return {
        split: {"parsed": _per_cent(accuracy), "gold": _per_cent(evaluate(model, data[split]).accuracy)}
        for split, accuracy in along_parsed.items()
    }


def _per_cent(accuracy: float) -> float:
    return round(100 * accuracy, 2)


def table() -> str:
    """Two rows for each model: along its parser's trees, and along gold trees."""
    documents = [json.loads(path.read_text()) for path in sorted(MEASURED.glob("*.json"))]
    splits = list(dict.fromkeys(split for document in documents for split in document["splits"]))
    names = (NAMES.get(split, split) for split in splits)
    lines = [f"| model | trees | {' | '.join(names)} |", "|---|---|" + "---:|" * len(splits)]
    for document in documents:
        measured = document["splits"]
        for kind, trees in TREES.items():
            cells = [f"{measured[split][kind]:.2f}" if split in measured else "–" for split in splits]
            lines.append(f"| `{document['model']}` | {trees} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write(models: Sequence[str], device: str | None) -> None:
    MEASURED.mkdir(parents=True, exist_ok=True)
    for name in models:
        document = {"model": Path(name).name, "splits": measure(name, device)}
        (MEASURED / f"{Path(name).name}.json").write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="folders of finished runs")
    parser.add_argument("--device", help="where to run the models (default: cpu)")
    arguments = parser.parse_args()
    try:
        write(arguments.models, arguments.device)
    except ValueError as error:
        parser.error(str(error))
    print(table())


if __name__ == "__main__":
    main()
