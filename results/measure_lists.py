"""Measure which lists of ListOps models keep intact, and whose values they know; see `beamtree.evaluation.lists`.

    python results/measure_lists.py runs/listops/bt-grc-seed0 --split args-10 --limit 500

Writes results/lists/NAME-SPLIT.json for each model, and draws all measurements there into docs/images/lists/.
`--draw` draws them without measuring.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from charts import line_chart

import beamtree
from beamtree.data.tasks.listops.expressions import OPERATORS
from beamtree.evaluation.lists import measure_lists
from beamtree.trees.drawing.scene import Scene, beside
from beamtree.trees.drawing.svg import to_svg

ROOT = Path(__file__).parents[1]
MEASURED, IMAGES = ROOT / "results/lists", ROOT / "docs/images/lists"
FEWEST = 20  # lists or expressions that a point of the figure must stand for


def measure(models: Iterable[str], splits: Iterable[str], limit: int | None, device: str | None) -> None:
    data = beamtree.data.load("listops")
    for name in models:
        model = beamtree.load(name, device=device)
        for split in splits:
            report = measure_lists(model, data[split], limit).to_dict()
            path = MEASURED / f"{Path(name).name}-{split}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            document = {"model": Path(name).name, "split": split, "limit": limit, **report}
            path.write_text(json.dumps(document, indent=1) + "\n")
            print(path.relative_to(ROOT))


def figure(document: dict[str, Any]) -> Scene:
    """Three charts: over the number of arguments intact lists, and lists by themselves; then whole expressions."""
    counts = {(row["operator"], row["arguments"]): row for row in document["lists"]}
    arguments = sorted({arguments for _, arguments in counts})

    def share(operator: str, part: str, whole: str) -> list[float | None]:
        rows = [counts.get((operator, count)) for count in arguments]
        return [100 * row[part] / row[whole] if row and row[whole] >= FEWEST else None for row in rows]

    places = [str(count) for count in arguments]
    return beside(
        [
            line_chart(
                "Lists kept intact (%), by arguments",
                places,
                {operator: share(operator, "intact", "lists") for operator in OPERATORS},
            ),
            line_chart(
                "Lists by themselves: accuracy (%)",
                places,
                {operator: share(operator, "alone_correct", "alone") for operator in OPERATORS},
            ),
            expressions_chart(document),
        ],
        page_width=1200.0,
    )


def expressions_chart(document: dict[str, Any]) -> Scene:
    """The accuracy of expressions by their largest number of arguments; by their operator, if that number is the same.

    In the long expressions of splits with more arguments, hardly any lacks a list of the largest number.
    """

    def accuracies(rows: list[dict[str, Any]], key: str) -> dict[Any, float]:
        many = [row for row in rows if row["expressions"] >= FEWEST]
        return {row[key]: 100 * row["correct"] / row["expressions"] for row in many}

    by_most = accuracies(document["by_most_arguments"], "arguments")
    if len(by_most) > 1:
        places = [str(count) for count in by_most]
        return line_chart(
            "Expressions, by most arguments: accuracy (%)", places, {document["model"]: list(by_most.values())}
        )
    found = accuracies(document["by_operator"], "operator")
    dots = {operator: [found.get(operator) if operator == place else None for place in OPERATORS] for operator in found}
    return line_chart("Expressions, by operator: accuracy (%)", [*OPERATORS], dots)


def table(split: str = "args-10", operator: str = "[MED") -> str:
    """For each measured model: the lists that it keeps intact, and those of an operator that it knows alone, in %."""
    documents = [json.loads(path.read_text()) for path in sorted(MEASURED.glob(f"*-{split}.json"))]
    arguments = sorted({row["arguments"] for document in documents for row in document["lists"]})
    lines = [f"| model | lists intact | {' | '.join(f'`{operator}` {count}' for count in arguments)} |"]
    lines.append("|---|---:|" + "---:|" * len(arguments))
    for document in documents:
        lists = document["lists"]
        known = {row["arguments"]: row for row in lists if row["operator"] == operator}
        shares = [f"{100 * known[count]['alone_correct'] / known[count]['alone']:.0f}" for count in arguments]
        intact = 100 * sum(row["intact"] for row in lists) / sum(row["lists"] for row in lists)
        lines.append(f"| `{document['model']}` | {intact:.2f} | {' | '.join(shares)} |")
    return "\n".join(lines)


def draw() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    for path in sorted(MEASURED.glob("*.json")):
        document = json.loads(path.read_text())
        title = f"{document['model']} on {document['split']}"
        (IMAGES / f"{path.stem}.svg").write_text(to_svg(figure(document), title))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="folders of runs, or names of shipped models")
    parser.add_argument("--split", nargs="+", default=["args-10", "args-15"], help="default: args-10 args-15")
    parser.add_argument("--limit", type=int, help="only the first LIMIT expressions (default: all)")
    parser.add_argument("--device", help="where to run the models (default: cpu)")
    parser.add_argument("--draw", action="store_true", help="only draw")
    arguments = parser.parse_args()
    if not arguments.draw:
        if not arguments.models:
            parser.error("give at least one model")
        measure(arguments.models, arguments.split, arguments.limit, arguments.device)
    draw()


if __name__ == "__main__":
    main()
