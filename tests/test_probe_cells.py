"""The probe of cells: values of lists, and what the variants of the cell are."""

import json
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from result_scripts import script

probe = script("probe_cells")
VALUES = {
    "MIN": min,
    "MAX": max,
    "MED": lambda digits: int(statistics.median(digits)),
    "SM": lambda digits: sum(digits) % 10,
}


@given(st.integers(0, 100), st.integers(1, 6), st.integers(0, 9))
def test_lists_have_their_values(seed, fewest, more):
    lists = probe.random_lists(20, fewest, fewest + more, torch.Generator().manual_seed(seed))
    for operator, digits, arguments, value in zip(*(column.tolist() for column in lists), strict=True):
        assert fewest <= arguments <= fewest + more
        assert VALUES[probe.NAMES[operator]](digits[:arguments]) == value


def test_digits_that_are_no_arguments_do_not_matter():
    torch.manual_seed(0)
    lists = probe.random_lists(8, 2, 5, torch.Generator().manual_seed(0))
    model = probe.ListModel("grc").eval()
    absent = torch.arange(5) >= lists.arguments.unsqueeze(1)
    other = lists._replace(digits=torch.where(absent, (lists.digits + 1) % 10, lists.digits))
    torch.testing.assert_close(model(other), model(lists))


@pytest.mark.parametrize("kind", probe.CELLS)
def test_which_cells_are_linear_and_which_can_grow(kind):
    torch.manual_seed(0)
    cell, leaf = probe.ProbedCell(kind).eval(), torch.randn(probe.DIM)
    one, two = torch.randn(2, probe.DIM)
    with torch.no_grad():
        middle = (cell(one, leaf) + cell(two, leaf)) / 2
        is_linear = torch.allclose(cell((one + two) / 2, leaf), middle, atol=1e-5)
        grows = cell(1000 * one, leaf).norm() > 50
    assert is_linear == (kind == "linear")
    assert bool(grows) == (kind in ("counter", "additive", "linear", "mixed"))


def test_a_run_is_repeatable_and_its_medians_are_in_the_table(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "RESULTS", tmp_path)
    runs = [probe.run("rms", seed=seed, steps=2, tested=50) for seed in (3, 3, 4)]
    assert {**runs[0], "seconds": 0} == {**runs[1], "seconds": 0}
    for run in runs[1:]:
        (tmp_path / f"rms-seed{run['seed']}.json").write_text(json.dumps(run))
    lines = probe.table().splitlines()
    assert len(lines) == 2 + len(probe.NAMES)
    median = statistics.median(run["MED"]["15"] for run in runs[1:])
    assert next(line for line in lines if "MED" in line).endswith(f"| {median:.1f} |")
