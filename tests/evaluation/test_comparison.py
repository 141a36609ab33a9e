"""Our figures beside the paper's: bold where they are better, marked where chance alone rarely explains it."""

import math

import numpy as np
import pytest

from beamtree.evaluation import report
from beamtree.evaluation.report import paper
from beamtree.evaluation.report.comparison import MEDIAN_FACTOR, compare
from written_runs import table_of, write_run


def paper_row(task, encoder, statistic):
    return next(row for row in paper.rows(task) if (row.encoder, row.statistic) == (encoder, statistic))


@pytest.mark.parametrize("shift", [0.9, 1.1])
@pytest.mark.parametrize("sign", [-1, 1])
def test_means_are_compared_by_their_standard_errors(shift, sign):
    """SST-5, BT-GRC: 52.32 ± 0.47, the deviation of three runs divided by n."""
    values = np.array([-0.6, 0.1, 0.5])
    error = math.sqrt(values.var(ddof=1) / 3 + 0.47**2 * 3 / 2 / 3)
    values += 52.32 - values.mean() + sign * shift * 2 * error
    compared = compare({"iid": values.tolist()}, paper_row("sst5", "bt-grc", "mean"), "sst5")
    assert compared["iid"].is_better == (sign > 0)
    assert compared["iid"].is_significant == (shift > 1)


@pytest.mark.parametrize("shift", [0.9, 1.1])
def test_a_median_has_the_deviation_of_the_papers_table_of_means(shift):
    """ListOps, LRA, BT-GRC: median 67.3, deviation 5.7 in Table 11."""
    values = np.array([-4.0, 0.0, 3.0])
    error = MEDIAN_FACTOR * math.sqrt(values.var(ddof=1) / 3 + 5.7**2 * 3 / 2 / 3)
    values += 67.3 - shift * 2 * error
    compared = compare({"lra": values.tolist()}, paper_row("listops", "bt-grc", "median"), "listops")
    assert not compared["lra"].is_better
    assert compared["lra"].is_significant == (shift > 1)


def test_medians_of_samples_deviate_as_assumed():
    medians = np.median(np.random.default_rng(0).normal(size=(20_000, 101)), axis=1)
    assert medians.std() * math.sqrt(101) == pytest.approx(MEDIAN_FACTOR, rel=0.02)


def test_without_a_deviation_nothing_is_significant():
    one_run = compare({"iid": [90.0]}, paper_row("sst5", "bt-grc", "mean"), "sst5")
    assert (one_run["iid"].is_better, one_run["iid"].is_significant) == (True, None)
    not_in_the_paper = compare({"lra": [90.0, 90.1, 90.2]}, paper_row("listops", "bsrp-grc", "median"), "listops")
    assert (not_in_the_paper["lra"].is_better, not_in_the_paper["lra"].is_significant) == (True, None)


def test_an_equal_figure_is_not_better():
    assert not compare({"lra": [29.7]}, paper_row("listops", "bsrp-grc", "median"), "listops")["lra"].is_better


def write_runs(folder, accuracies, **changes):
    for seed, accuracy in enumerate(accuracies):
        write_run(folder / str(seed), {"iid": accuracy}, seed, recipe="sst5", **changes)


@pytest.mark.parametrize(
    ("accuracies", "markdown", "latex"),
    [
        ((0.60, 0.601, 0.602), "| **60.10 ± 0.08** † |", r"$\mathbf{60.10}_{0.8}^\dagger$"),
        ((0.40, 0.401, 0.402), "| 40.10 ± 0.08 † |", r"$40.10_{0.8}^\dagger$"),
        ((0.523, 0.524, 0.525), "| **52.40 ± 0.08** |", r"$\mathbf{52.40}_{0.8}$"),
    ],
)
def test_better_figures_are_bold_and_significant_differences_marked(tmp_path, accuracies, markdown, latex):
    write_runs(tmp_path, accuracies)
    tables = [table_of(tmp_path)]
    assert markdown in report.markdown(tables)
    assert latex in report.latex(tables)
    (ours, _) = report.records(tables)[0]["rows"]
    assert ours["compared"]["iid"] == {"is_better": "**" in markdown, "is_significant": "†" in markdown}


@pytest.mark.parametrize(
    ("changes", "compared"),
    [
        ({"training__precision": "tf32"}, True),
        ({"encoder__options__beam_size": 2}, True),
        ({"data__vectors": "glove-6b", "model__dim": 100}, False),
        ({"optimizer__lr": 5e-4}, False),
    ],
)
def test_only_runs_with_the_papers_settings_are_compared(tmp_path, changes, compared):
    write_runs(tmp_path, (0.6, 0.7), **changes)
    assert bool(table_of(tmp_path).rows[0].comparisons) == compared
