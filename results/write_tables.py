"""Write the tables of `docs/results.md` and `docs/arguments.md` from the files of the runs: `make results`.

The text between `<!-- runs: FOLDER -->` and `<!-- end -->` is the output of `beamtree report FOLDER` without its
heading. The other tables are those of the scripts in this folder:

    probe              probe_cells.py
    variants, noise    compare_variants.py
    summary, every-run compare_variants.py
    seeds              compare_seeds.py
    lists              measure_lists.py
    ensembles          measure_ensembles.py
    parsers            measure_parsers.py
    costs              measure_costs.py

All figures come from files in results/.
"""

import json
import re
import statistics
from pathlib import Path

import compare_seeds
import compare_variants
import measure_costs
import measure_ensembles
import measure_lists
import measure_parsers
import probe_cells

from beamtree.evaluation import report

ROOT = Path(__file__).parents[1]
PAGE, ARGUMENTS = ROOT / "docs/results.md", ROOT / "docs/arguments.md"
ORIGINAL = "near-iid-original.json"
SCRIPTS = {
    "probe": probe_cells.table,
    "variants": compare_variants.table,
    "noise": compare_variants.noise_table,
    "every-run": compare_variants.every_run,
    "summary": compare_variants.summary,
    "seeds": compare_seeds.table,
    "lists": measure_lists.table,
    "ensembles": measure_ensembles.table,
    "parsers": measure_parsers.table,
    "costs": measure_costs.table,
}
BLOCK = re.compile(rf"(<!-- (runs: \S+|{'|'.join(SCRIPTS)}) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def with_tables(page: str) -> str:
    """The page with its tables updated from the files."""
    return BLOCK.sub(lambda block: f"{block[1]}{tables(block[2])}\n{block[4]}", page)


def tables(source: str) -> str:
    """The tables of the runs in a folder, `runs: FOLDER`, or of a script."""
    if source in SCRIPTS:
        return SCRIPTS[source]() + "\n"
    folder = source.removeprefix("runs: ")
    found = report.find(compare_variants.of_the_paper(ROOT / folder))
    text = report.markdown(report.tables(found.runs, mean=False))
    return re.sub(r"^## .*\n\n", "", text) + originals(ROOT / folder)


def originals(folder: Path) -> str:
    """A sentence on the original near-IID file, if runs were evaluated on it: `near-iid-original.json`."""
    scores: dict[str, list[float]] = {}
    for path in sorted(folder.glob(f"*/{ORIGINAL}")):
        scores.setdefault(path.parent.name.rpartition("-seed")[0], []).append(json.loads(path.read_text())["accuracy"])
    if not scores:
        return ""
    medians = (f"`{name}` {100 * statistics.median(values):.2f}" for name, values in scores.items())
    return f"\nOn the original near-IID file (10,000 expressions) the medians are: {', '.join(medians)}.\n"


if __name__ == "__main__":
    for path in (PAGE, ARGUMENTS):
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
