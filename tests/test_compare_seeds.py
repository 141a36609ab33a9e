"""The comparison of seeds: the exact test over several encoders, and its table."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from result_scripts import script

compare = script("compare_seeds")

values = st.integers(0, 3)
group = st.integers(2, 3).flatmap(lambda size: st.tuples(*2 * [st.lists(values, min_size=size, max_size=size)]))


@pytest.mark.parametrize(
    ("losses", "accuracies", "expected"),
    [
        ([1, 2, 3], [9, 8, 7], (3, 3, 2 / 6)),  # as far as possible from half, as is the opposite order
        ([1, 2, 3], [7, 8, 9], (0, 3, 2 / 6)),
        ([1, 2], [5, 5], (0.5, 1, 1)),
        ([1, 2, 3, 4], [8, 9, 7, 6], (5, 6, 8 / 24)),  # four orders with at most one pair that differs, both ways
    ],
)
def test_pairs_within_one_group(losses, accuracies, expected):
    assert compare.agreement([(losses, accuracies)]) == pytest.approx(expected)


@given(st.lists(group, min_size=1, max_size=3))
def test_the_p_value_is_that_of_all_assignments(groups):
    def total(assigned):
        return sum(compare.excess(losses, accuracies) for (losses, _), accuracies in zip(groups, assigned, strict=True))

    found = compare.agreement(groups)
    assert found.agreeing - found.pairs / 2 == total([accuracies for _, accuracies in groups]) / 2
    everything = list(itertools.product(*(itertools.permutations(accuracies) for _, accuracies in groups)))
    as_far = sum(abs(total(each)) >= 2 * abs(found.agreeing - found.pairs / 2) for each in everything)
    assert found.p_value == pytest.approx(as_far / len(everything))


def test_the_table_has_encoders_with_enough_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "RESULTS", tmp_path)
    for name, seeds in (("listops/bt-grc", 3), ("listops/ebt-grc", 2)):
        for seed in range(seeds):
            folder = tmp_path / f"{name}-seed{seed}"
            folder.mkdir(parents=True)
            splits = {split: {"accuracy": seed / 10} for split in compare.SPLITS}
            losses = [1 + seed if epoch < 10 else 1 - seed for epoch in range(1, 16)]
            (folder / "results.json").write_text(json.dumps({"splits": splits, "dev": {"loss": 0}}))
            lines = [json.dumps({"epoch": epoch, "dev_loss": loss}) for epoch, loss in enumerate(losses, 1)]
            (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    rows = [row.split(" | ")[1] for row in compare.table().splitlines()[2:]]
    assert rows == [*3 * ["0 of 3 (0.333)"], *2 * ["3 of 3 (0.333)"], "1.5 of 3 (1.000)"]
