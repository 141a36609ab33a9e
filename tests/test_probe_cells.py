"""The probe of cells: values of lists, and what the variants of the cell are."""

import json
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from result_scripts import script

cells = script("probed_cells")
probe = script("probe_cells")
DIM = 12
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


@pytest.mark.parametrize("name", ["grc", "pooled", "pooled-known"])
def test_digits_that_are_no_arguments_do_not_matter(name):
    torch.manual_seed(0)
    lists = probe.random_lists(8, 2, 5, torch.Generator().manual_seed(0))
    model = probe.ListModel(probe.CELLS[name]).eval()
    absent = torch.arange(5) >= lists.arguments.unsqueeze(1)
    other = lists._replace(digits=torch.where(absent, (lists.digits + 1) % 10, lists.digits))
    torch.testing.assert_close(model(other), model(lists))


@pytest.mark.parametrize("kind", cells.GRC_KINDS)
def test_which_cells_are_linear_and_which_can_grow(kind):
    torch.manual_seed(0)
    cell, leaf = cells.GatedCell(kind, 64).eval(), torch.randn(64)
    one, two = torch.randn(2, 64)
    with torch.no_grad():
        middle = (cell(one, leaf) + cell(two, leaf)) / 2
        is_linear = torch.allclose(cell((one + two) / 2, leaf), middle, atol=1e-5)
        grows = cell(1000 * one, leaf).norm() > 50
    assert is_linear == (kind == "linear")
    assert bool(grows) == (kind in ("counter", "additive", "linear", "mixed"))


def pooled_cell(with_maximum=True):
    torch.manual_seed(0)
    cell = cells.PooledCell(DIM, with_maximum).eval()
    return cell, cell.start(torch.randn(5, DIM))


@pytest.mark.parametrize("with_maximum", [True, False])
def test_a_pool_has_the_first_head_and_does_not_depend_on_the_order(with_maximum):
    cell, leaves = pooled_cell(with_maximum)
    states = []
    for order in ([0, 1, 2, 3, 4], [0, 4, 2, 1, 3]):
        state = leaves[order[:1]]
        for index in order[1:]:
            state = cell(state, leaves[[index]], torch.ones(1, 1, dtype=torch.bool))
        states.append(state)
    torch.testing.assert_close(*states)
    head, total, maximum, count = states[0].split([*cell.parts, 1], dim=-1)
    torch.testing.assert_close(head, leaves[:1, : cell.parts[0]])
    torch.testing.assert_close(total, leaves.split([*cell.parts, 1], dim=-1)[1].sum(0, keepdim=True))
    torch.testing.assert_close(maximum, leaves.split([*cell.parts, 1], dim=-1)[2].amax(0, keepdim=True))
    assert count.item() == 0


def test_a_composed_node_is_counted_and_as_large_as_a_leaf():
    cell, leaves = pooled_cell()
    never, always = torch.zeros(1, 1, dtype=torch.bool), torch.ones(1, 1, dtype=torch.bool)
    pool = cell(leaves[:1], leaves[1:2], always)
    node = cell(cell(pool, pool, never), leaves[2:3], never)
    assert cell.composed(node).item() == 2
    assert node[..., :-1].norm().item() == pytest.approx(leaves[0].norm().item(), rel=1e-3)


@pytest.mark.parametrize("adds", [True, False])
def test_noise_spares_the_head_of_a_pool(adds):
    cell, leaves = pooled_cell()
    decisions = torch.full((1, 1), adds)
    expected = cell(leaves[:1], leaves[1:2], decisions).split([*cell.parts, 1], dim=-1)
    cell.train()
    cell.dropout.p, cell.noise = 0.0, 0.5
    noisy = torch.cat([cell(leaves[:1], leaves[1:2], decisions) for _ in range(500)])
    head, total, maximum, count = noisy.split([*cell.parts, 1], dim=-1)
    assert total.std(dim=0).mean().item() == pytest.approx(0.5, rel=0.1)
    assert count.std().item() == 0
    for part, index in ((head, 0), (maximum, 2)):
        assert part.std(dim=0).mean().item() == pytest.approx(0.0 if adds else 0.5, rel=0.1, abs=1e-6)
        if adds:
            torch.testing.assert_close(part[:1], expected[index])


def test_the_gate_decides_and_gets_the_gradient_of_its_probability():
    cell, leaves = pooled_cell()
    for bias, count in ((10.0, 0), (-10.0, 1)):
        torch.nn.init.constant_(cell.gate[-1].bias, bias)
        assert cell.composed(cell(leaves[:1], leaves[1:2])).item() == pytest.approx(count, abs=1e-6)
    torch.nn.init.constant_(cell.gate[-1].bias, 0.0)
    heads = torch.cat((leaves[:1], leaves[1:2]), dim=-1)[:, [*range(cell.parts[0]), *range(DIM + 1, DIM + 5)]]
    p = cell.gate(heads).sigmoid()
    (expected,) = torch.autograd.grad(1 - p, cell.gate[-1].bias)
    (found,) = torch.autograd.grad(cell.composed(cell(leaves[:1], leaves[1:2])), cell.gate[-1].bias)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["explored", "tracked-noisy"])
def test_random_decisions_estimate_the_difference_of_the_losses(name):
    """Of lists with one digit: the gradient of the gate's bias is the mean of that difference, less the cost."""
    torch.manual_seed(0)
    model = probe.ListModel(probe.CELLS[name]._replace(dim=12)).eval()
    with torch.no_grad():
        model.classifier[-1].weight.mul_(50)  # losses that differ
    lists = probe.random_lists(40, 1, 1, torch.Generator().manual_seed(0))
    random = slice(20, None)  # the lists whose decisions are random
    with torch.no_grad():
        losses = []
        for adds in (True, False):
            logits, _, gates = model(lists, torch.full((40, 1), adds))
            losses.append(torch.nn.functional.cross_entropy(logits, lists.value, reduction="none"))
        difference, gate = (losses[0] - losses[1] - probe.COST)[random], gates[random, 0]
        p = gate.sigmoid()
        expected = difference * p * (1 - p) if name == "explored" else difference + 2 * probe.PULL * gate
        expected = expected.mean().item()
    bias = model.cell.gate[-1].bias
    estimates = [torch.autograd.grad(probe.explored_loss(model, lists), bias)[0].item() for _ in range(300)]
    error = statistics.stdev(estimates) / 300**0.5
    assert abs(expected) > 8 * error, "or the test could not tell it from 0"
    assert statistics.mean(estimates) == pytest.approx(expected, abs=4 * error)


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
