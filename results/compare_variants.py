"""Compare variants on lists with more arguments than in training: medians over the seeds, and an exact rank test.

    python results/compare_variants.py

A row for each variant: its median accuracies and, if it was trained with several seeds, in brackets the p-value of a
two-sided Mann-Whitney test of its runs against those of BT-GRC; for noise on states, against those of the same encoder
without noise, in tables of their own. Runs on ListOps-DG have the same test splits, except near-IID. A last table has
every run. `summary` is the variant that was chosen, beside other models.
"""

import fnmatch
import itertools
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from run_queue import NOISES, NOISY, RISING

from beamtree.evaluation.report import paper

RESULTS = Path(__file__).parent
BASELINE = "listops/bt-grc"
VARIANTS = (
    *(f"listops/{name}" for name in ("bt-grc-slice16", "bt-grc-slice32", "bt-grc-slice64", "ebt-grc", "ebt-grc-all")),
    *("listops/bsrp-grc", "listops/gold-tree-grc", "listops-dg/bt-grc", "listops-dg/ebt-grc"),
    *("listops/gold-tree-grc-parsed", "listops/gold-tree-grc-parsed-noise50"),
    "listops/gold-tree-grc-parsed-shipped-ebt-grc",
    *(f"listops/gold-tree-grc-parsed-{parser}-noise50" for parser in ("shipped-ebt-grc", "ebt-grc", "bsrp-grc")),
)
# Names of runs that are not in the tables of the paper's models.
OF_THE_STUDY = ("*-slice*", "*-all-*", "*-noise*", "*-rise*", "*-parsed*")
LENGTHS = {"near-iid": "near-IID", "200-300": "200–300", "500-600": "500–600", "900-1000": "900–1000"}
LIMITED = {split: LENGTHS[split] for split in ("near-iid", "900-1000")}  # what a variant may not cost
COMPARED = {"args-dev": "args-dev", "args-10": "10 arguments", "args-15": "15 arguments", "lra": "LRA"}
NAMES = {**LENGTHS, **COMPARED}  # of splits, in tables
CHOSEN = {
    "`listops-args`": "listops/gold-tree-grc-parsed-shipped-ebt-grc-noise50",
    "EBT-GRC, the encoder of its parser": "listops/ebt-grc",
    "BT-GRC": BASELINE,
}


def of_the_paper(folder: Path) -> list[Path]:
    """The runs in a folder without those of the study."""
    found = sorted(path for path in folder.iterdir() if path.is_dir())
    return [path for path in found if not any(fnmatch.fnmatch(path.name, pattern) for pattern in OF_THE_STUDY)]


def p_value(ours: Sequence[float], others: Sequence[float]) -> float:
    """The p-value of the two-sided Mann-Whitney test, over all divisions of the values into two groups."""
    values = [*ours, *others]
    wins = [[(left > right) + (left == right) / 2 for right in values] for left in values]
    expected = len(ours) * len(others) / 2

    def deviation(group: Sequence[int]) -> float:
        rest = set(range(len(values))) - set(group)
        return abs(sum(wins[one][other] for one in group for other in rest) - expected)

    found = deviation(range(len(ours)))
    all_groups = [deviation(group) for group in itertools.combinations(range(len(values)), len(ours))]
    return sum(each >= found for each in all_groups) / len(all_groups)


def accuracies(name: str) -> dict[str, list[float]]:
    """The accuracies in per cent of a variant's runs, by split; of those splits that all of them have."""
    splits = [json.loads(path.read_text())["splits"] for path in sorted(RESULTS.glob(f"{name}-seed*/results.json"))]
    measured = [split for split in (splits[0] if splits else ()) if all(split in each for each in splits)]
    return {split: [100 * each[split]["accuracy"] for each in splits] for split in measured}


def summary() -> str:
    """The medians of the chosen variant and of others, on the columns of the paper's Table 1."""
    (published,) = (row for row in paper.rows("listops") if (row.table, row.encoder) == (1, "ordered-memory"))
    lines = [f"| model | runs | {' | '.join(NAMES.get(split, split) for split in published.figures)} |"]
    lines.append("|---|" + "---:|" * (1 + len(published.figures)))
    for label, name in CHOSEN.items():
        own = accuracies(name)
        cells = [f"{statistics.median(own[split]):.2f}" for split in published.figures]
        lines.append(f"| {label} | {len(own['args-10'])} | {' | '.join(cells)} |")
    cells = [figure.printed if figure else "–" for figure in published.figures.values()]
    lines.append(f"| Ordered Memory (paper) | {published.runs} | {' | '.join(cells)} |")
    return "\n".join(lines)


def table() -> str:
    """The variants, compared with BT-GRC."""
    return "\n".join(header() + rows(BASELINE, VARIANTS))


def noise_table() -> str:
    """Encoders with noise on states, each compared with itself without noise."""
    lines = header()
    for encoder in NOISY:
        variants = noisy(encoder)
        if any(accuracies(variant) for variant in variants):
            lines += rows(f"listops/{encoder}", variants)
    return "\n".join(lines)


def every_run() -> str:
    """The accuracies of every run, in the order of the seeds."""
    lines = [f"| variant | {' | '.join(COMPARED.values())} |", "|---" * (1 + len(COMPARED)) + "|"]
    for name in dict.fromkeys((BASELINE, *VARIANTS, *itertools.chain(*map(noisy, NOISY)))):
        if own := accuracies(name):
            cells = (", ".join(f"{value:.2f}" for value in own.get(split, ())) or "–" for split in COMPARED)
            lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def noisy(encoder: str) -> list[str]:
    """The variants of an encoder with noise on states."""
    kinds = (*(f"noise{percent}" for percent in NOISES), *(f"rise{percent}" for percent in RISING))
    return [f"listops/{encoder}-{kind}" for kind in kinds]


def header() -> list[str]:
    columns = ("runs", *LIMITED.values(), *COMPARED.values())
    return [f"| variant | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]


def rows(baseline: str, variants: Sequence[str]) -> list[str]:
    """The baseline, and the variants that are compared with it."""
    reference, lines = accuracies(baseline), []
    for name in (baseline, *variants):
        own = accuracies(name)
        if not own:
            continue
        compared = name != baseline and len(own["args-10"]) > 1
        cells = []
        for split in (*LIMITED, *COMPARED):
            cell = f"{statistics.median(own[split]):.2f}" if split in own else "–"
            if compared and split in COMPARED and split in own and split in reference:
                cell += f" ({p_value(own[split], reference[split]):.3f})"
            cells.append(cell)
        lines.append(f"| `{name}` | {len(own['args-10'])} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    print(summary(), table(), noise_table(), every_run(), sep="\n\n")
