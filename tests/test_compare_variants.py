"""The comparison of variants: the rank test, and its table."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from result_scripts import script

compare = script("compare_variants")


@pytest.mark.parametrize(
    ("ours", "others", "expected"),
    [
        ([6, 7, 8, 9, 10], [1, 2, 3, 4, 5], 2 / 252),
        ([6, 7, 8], [1, 2, 3, 4, 5], 2 / 56),
        ([1, 3], [2, 4], 4 / 6),  # U = 1: as far from 2 as in all divisions but {1, 4} and {2, 3}
        ([1, 1], [1, 1], 1.0),
    ],
)
def test_p_values_of_small_samples(ours, others, expected):
    assert compare.p_value(ours, others) == pytest.approx(expected)


scores = st.lists(st.integers(0, 9), min_size=2, max_size=4)


@given(scores, scores)
def test_the_test_is_symmetric_and_depends_on_ranks_only(ours, others):
    expected = compare.p_value(ours, others)
    assert compare.p_value(others, ours) == pytest.approx(expected)
    assert compare.p_value([each**3 for each in ours], [each**3 for each in others]) == pytest.approx(expected)
    assert 0 < expected <= 1


@pytest.fixture
def write_runs(tmp_path, monkeypatch):
    """Writes runs whose accuracies are 0, 10, 20, … per cent, except on some splits."""
    monkeypatch.setattr(compare, "RESULTS", tmp_path)

    def write(name, seeds, **others):
        for seed in range(seeds):
            values = dict.fromkeys(("near-iid", "900-1000", "args-10", "args-15", "lra"), 0.1 * seed) | others
            folder = tmp_path / f"{name}-seed{seed}"
            folder.mkdir(parents=True)
            splits = {split: {"accuracy": value} for split, value in values.items()}
            (folder / "results.json").write_text(json.dumps({"splits": splits}))

    return write


def test_a_split_is_compared_where_all_runs_have_it(write_runs):
    write_runs("listops/bt-grc", 2)
    write_runs("listops/ebt-grc", 3, **{"args-dev": 0.5})
    write_runs("listops/bsrp-grc", 1)
    _, _, baseline, variant, one_run = compare.table().splitlines()
    assert baseline == "| `listops/bt-grc` | 2 | 5.00 | 5.00 | – | 5.00 | 5.00 | 5.00 |"
    p = f"{compare.p_value([0, 1, 2], [0, 1]):.3f}"
    assert variant == f"| `listops/ebt-grc` | 3 | 10.00 | 10.00 | 50.00 | 10.00 ({p}) | 10.00 ({p}) | 10.00 ({p}) |"
    assert one_run == "| `listops/bsrp-grc` | 1 | 0.00 | 0.00 | – | 0.00 | 0.00 | 0.00 |"


def test_noise_is_compared_with_the_same_encoder(write_runs):
    write_runs("listops/gold-tree-grc", 2)
    write_runs("listops/gold-tree-grc-noise50", 3)
    write_runs("listops/ebt-grc", 3)  # without noise only: no row
    p = f"{compare.p_value([0, 1, 2], [0, 1]):.3f}"
    assert compare.noise_table().splitlines()[2:] == [
        "| `listops/gold-tree-grc` | 2 | 5.00 | 5.00 | – | 5.00 | 5.00 | 5.00 |",
        f"| `listops/gold-tree-grc-noise50` | 3 | 10.00 | 10.00 | – | 10.00 ({p}) | 10.00 ({p}) | 10.00 ({p}) |",
    ]


def test_every_run_has_its_accuracies(write_runs):
    write_runs("listops/bt-grc", 2)
    write_runs("listops/bt-grc-rise50", 1, lra=0.9)
    assert compare.every_run().splitlines() == [
        "| variant | args-dev | 10 arguments | 15 arguments | LRA |",
        "|---|---|---|---|---|",
        "| `listops/bt-grc` | – | 0.00, 10.00 | 0.00, 10.00 | 0.00, 10.00 |",
        "| `listops/bt-grc-rise50` | – | 0.00 | 0.00 | 90.00 |",
    ]


def test_runs_of_the_study_are_not_among_those_of_the_paper(tmp_path):
    for name in ("bt-grc-seed0", "bt-grc-slice16-seed0", "ebt-grc-all-seed1", "gold-tree-grc-noise50-seed2"):
        (tmp_path / name).mkdir()
    assert [path.name for path in compare.of_the_paper(tmp_path)] == ["bt-grc-seed0"]
