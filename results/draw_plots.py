"""Draw the plots of the documentation from the files of the runs and of the benchmark: `make results`.

    python results/draw_plots.py

Writes docs/images/results/NAME.svg: accuracy over length and over the number of arguments (ListOps, ListOps-DG), over
the number of operators (logic), and time and memory over length.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from charts import Axis, line_chart
from compare_variants import of_the_paper

from beamtree.evaluation import report
from beamtree.evaluation.report import ReportRow, paper
from beamtree.trees.drawing.scene import Scene, beside
from beamtree.trees.drawing.svg import to_svg

ROOT = Path(__file__).parents[1]
RUNS, IMAGES = ROOT / "results", ROOT / "docs/images/results"
BENCHMARK = RUNS / "bench/speed.json"
PAGE_WIDTH = 1000.0
LENGTHS = {"200-300": "200–300", "500-600": "500–600", "900-1000": "900–1000"}
ARGUMENTS = {"args-10": "≤ 10", "args-15": "≤ 15"}
OPERATORS = {str(count): str(count) for count in range(8, 13)}  # in training at most 6
SECONDS = Axis({0.1: "0.1 s", 1: "1 s", 10: "10 s", 100: "100 s", 1000: "1000 s", 10000: "10,000 s"}, is_log=True)
MEBIBYTES = Axis({4: "4 MiB", 16: "16 MiB", 64: "64 MiB", 256: "256 MiB", 1024: "1 GiB", 4096: "4 GiB"}, is_log=True)
ABOUT = {
    "listops": "Accuracy on ListOps over length and over the number of arguments, a line for each encoder",
    "listops-dg": "Accuracy on ListOps-DG over length and over the number of arguments, a line for each encoder",
    "logic": "Accuracy on logical inference over the number of operators, a line for each encoder",
    "speed": "Time of training and peak memory over length, a line for each encoder",
}


def plots() -> dict[str, Scene]:
    """The plots by name. One whose files are missing, or that would have a single line, is left out."""
    found = {
        "listops": accuracy(
            "listops", length={"near-iid": "≤ 100"} | LENGTHS, arguments={"near-iid": "≤ 5"} | ARGUMENTS
        ),
        "listops-dg": accuracy("listops-dg", length={"dg": "20–100"} | LENGTHS, arguments={"dg": "≤ 5"} | ARGUMENTS),
        "logic": accuracy("logic", operators=OPERATORS),
        "speed": speed(json.loads(BENCHMARK.read_text())["results"]) if BENCHMARK.exists() else None,
    }
    return {name: scene for name, scene in found.items() if scene is not None}


def accuracy(task: str, **charts: Mapping[str, str]) -> Scene | None:
    """A chart for each mapping of splits to names of places, with a line for each row of the task's table."""
    if not (RUNS / task).is_dir():
        return None
    (table,) = report.tables(report.find(of_the_paper(RUNS / task)).runs)
    ours = [row for row in table.rows if row.runs]
    if len(ours) < 2:
        return None
    scenes = [
        line_chart(f"{paper.title(task)}: accuracy (%) over {over}", list(places.values()), _lines(ours, places))
        for over, places in charts.items()
    ]
    return beside(scenes, page_width=PAGE_WIDTH)


def _lines(rows: Iterable[ReportRow], splits: Iterable[str]) -> dict[str, list[float | None]]:
    figures = {row.model: [row.figures.get(split) for split in splits] for row in rows}
    return {name: [None if figure is None else figure.value for figure in line] for name, line in figures.items()}


def speed(results: list[dict[str, Any]]) -> Scene:
    """Time of training on 100 samples, one at a time, and its peak memory, over the length."""
    lengths = sorted({result["length"] for result in results})
    cases = {(result["encoder"], result["length"]): result for result in results}

    def lines(key: str, scale: float) -> dict[str, list[float | None]]:
        names = dict.fromkeys(result["encoder"] for result in results)
        values = {name: [cases.get((name, length), {}).get(key) for length in lengths] for name in names}
        return {name: [None if value is None else scale * value for value in line] for name, line in values.items()}

    places = [str(length) for length in lengths]
    time = line_chart(
        "Training on 100 samples, one at a time: time over length", places, lines("train_seconds", 100), SECONDS
    )
    memory = line_chart("Peak memory over length", places, lines("peak_bytes", 2**-20), MEBIBYTES)
    return beside([time, memory], page_width=PAGE_WIDTH)


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, scene in plots().items():
        path = IMAGES / f"{name}.svg"
        path.write_text(to_svg(scene, ABOUT[name]), encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
