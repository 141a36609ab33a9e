import json
import math

import pytest

from beamtree.bench import measure as bench
from beamtree.bench import plot as bench_plot
from beamtree.bench import tables as bench_tables
from beamtree.bench.measure import Case, Result
from beamtree.bench.tables import TABLES, Published, cases, likely_seconds, records, run
from beamtree.nn.encoders import encoders
from beamtree.utils import palette, plot


@pytest.fixture
def timed(monkeypatch):
    """Measurements that take what a function of the length says; the cases that were measured."""
    measured = []

    def set_times(seconds):
        def measure(case, repeats, budget):
            measured.append(case)
            return Result(case, train_seconds=seconds(case.length))

        monkeypatch.setattr(bench, "measure", measure)
        return measured

    return set_times


@pytest.mark.parametrize("table", TABLES)
def test_a_table_has_the_papers_width_and_beams_and_the_fastest_engine(table):
    assert {(case.dim, case.beam_size, case.engine) for case in cases(table)} == {(128, 5, "auto")}


@pytest.mark.parametrize(
    ("table", "lengths", "batch_size"),
    [("speed", [225, 550, 950], 1), ("batched", [50, 100], 128)],
)
def test_speed_and_batched_hold_every_encoder_at_every_length(table, lengths, batch_size):
    found = cases(table)
    assert [(case.encoder, case.length) for case in found] == [(name, n) for name in encoders() for n in lengths]
    assert {case.batch_size for case in found} == {batch_size}


def test_scaling_doubles_the_length_of_one_encoder():
    found = cases("scaling")
    assert [case.length for case in found] == [256, 512, 1024, 2048, 4096, 8192, 16384]
    assert {(case.encoder, case.batch_size) for case in found} == {("bt-grc", 1)}


def test_encoders_engine_and_settings_are_the_users():
    found = cases("batched", ["bt-lstm", "bt-lstm"], "torch", seed=3, dropout=0.0)
    assert found == [Case("bt-lstm", "torch", n, 128, dim=128, dropout=0.0, seed=3) for n in (50, 100)]


def test_an_unknown_table_names_those_there_are():
    with pytest.raises(ValueError, match="known: speed, batched, scaling"):
        cases("slow")


def test_the_lengths_of_the_speed_table_lie_in_the_papers_splits():
    for length, split in zip(TABLES["speed"].lengths, bench_tables.SPLITS, strict=True):
        shortest, longest = map(int, split.split("–"))
        assert shortest < length < longest


def test_the_figures_are_the_papers():
    def figures(name):
        return [bench_tables.published(Case(name, length=length)) for length in (225, 550, 950)]

    assert figures("bt-grc") == [Published(1.1, 1.71), Published(2.6, 9.82), Published(5.1, 27.27)]
    assert figures("bt-grc-onesoft") == [Published(1.4, 2.74), Published(4.0, 15.5), Published(7.1, 42.95)]
    assert figures("bt-lstm") == [None, None, None]  # not in the paper's table
    assert bench_tables.PAPER["ordered-memory"][2] == Published(38.2, 0.35)
    assert bench_tables.PAPER["cyk-grc"] == (Published(9.3, 32.4), Published(None, None), Published(None, None))
    assert len(bench_tables.PAPER) == 10
    assert bench_tables.HARDWARE == "RTX A6000"


@pytest.mark.parametrize("power", [1, 1.5, 2, 3])
def test_two_times_foretell_a_power_law(power):
    times = [(n, 0.1 * n**power) for n in (10, 20)]
    assert likely_seconds(70, times) == pytest.approx(0.1 * 70**power)


def test_a_foretold_time_grows_with_length_whatever_noise_the_times_hold():
    assert likely_seconds(40, []) == 0
    assert likely_seconds(40, [(10, 1.0)]) == 16  # quadratic until more is known
    assert likely_seconds(40, [(10, 1.0), (20, 0.5)]) == 1  # at least linear
    assert likely_seconds(40, [(10, 1.0), (20, 100.0)]) == 800  # at most cubic


def test_a_length_beyond_the_limit_is_left_out_with_all_longer_ones(timed):
    measured = timed(lambda length: length / 1024)
    results = run(cases("scaling"), limit=12.5)
    assert [case.length for case in measured] == [256, 512, 1024, 2048, 4096]  # 4 s a step, and three of them
    assert [result.note for result in results[-3:]] == [
        "",
        "skipped: would take about 24 s",
        "skipped: would take about 48 s",
    ]
    assert results[-1].train_seconds is None


def test_one_encoder_beyond_the_limit_does_not_cut_another(timed):
    measured = timed(lambda length: 100.0)
    run(cases("batched", ["bt-grc", "bt-lstm"]))
    assert [(case.encoder, case.length) for case in measured] == [("bt-grc", 50), ("bt-lstm", 50)]


def test_without_a_limit_all_is_measured(timed):
    measured = timed(lambda length: 1e6)
    run(cases("scaling"), limit=math.inf)
    assert len(measured) == 7


@pytest.mark.parametrize("limit", [0, -1.0, math.nan])
def test_a_limit_is_above_zero(limit):
    with pytest.raises(ValueError, match="number of seconds above 0"):
        run(cases("scaling"), limit=float(limit))


def test_what_did_not_fit_is_not_tried_at_a_greater_length(monkeypatch):
    def measure(case, repeats, budget):
        return Result(case, note="out of memory") if case.length == 550 else Result(case, train_seconds=1.0)

    monkeypatch.setattr(bench, "measure", measure)
    notes = [result.note for result in run(cases("speed", ["bt-grc-onesoft"]))]
    assert notes == ["", "out of memory", "skipped: out of memory at length 550"]


def test_progress_hears_of_skipped_cases_too(timed):
    timed(lambda length: 100.0)
    heard = []
    results = run(cases("batched", ["bt-grc"]), lambda case, result: heard.append((case, result)))
    assert heard == [pair for result in results for pair in ((result.case, None), (result.case, result))]


def test_speed_is_the_time_of_a_hundred_samples():
    assert bench_tables.seconds_for_samples(Result(Case(batch_size=1), train_seconds=0.03)) == pytest.approx(3)
    assert bench_tables.seconds_for_samples(Result(Case(batch_size=50), train_seconds=0.5)) == pytest.approx(1)
    assert bench_tables.seconds_for_samples(Result(Case())) is None


def test_records_survive_json_and_hold_the_paper_in_the_speed_table(timed, monkeypatch):
    timed(lambda length: length / 1000)
    monkeypatch.setitem(bench_tables.PAPER, "bt-lstm", bench_tables.PAPER["cyk-grc"])
    rows = json.loads(json.dumps(records("speed", run(cases("speed", ["bt-grc", "bt-lstm"])))))
    assert rows[2]["seconds_for_100_samples"] == pytest.approx(95)
    assert rows[2]["paper"] == {
        "lengths": "900–1000",
        "hardware": "RTX A6000",
        "minutes": 5.1,
        "gigabytes": 27.27,
        "note": "",
    }
    assert rows[5]["paper"]["note"] == "out of memory"
    assert rows[5]["paper"]["minutes"] is None
    assert "paper" not in records("batched", run(cases("batched")))[0]


def test_a_plot_leaves_out_what_was_not_measured(tmp_path):
    pytest.importorskip("matplotlib")
    results = [
        *(Result(case, case.length / 1e3, peak_bytes=case.length * 2**10) for case in cases("scaling")[:4]),
        Result(cases("scaling")[4], note="skipped: would take about 87 s"),
        *(Result(case, case.length / 1e2) for case in cases("scaling", ["bt-lstm"])),  # memory unknown
    ]
    for ending in plot.ENDINGS:
        file = tmp_path / f"curve{ending}"
        plot.check_plot(file)
        bench_plot.draw(results, file, "a title")
        assert file.stat().st_size > 1000
    bench_plot.draw(results[4:5], tmp_path / "empty.svg")  # nothing measured at all
    picture = (tmp_path / "curve.svg").read_text()
    assert all(colour.lower() in picture for colour in palette.SERIES[:2])


def test_a_plot_that_cannot_be_written_is_told_in_a_line(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "curve.png").mkdir()
    with pytest.raises(ValueError, match=r"curve.png' cannot be written: Is a directory"):
        bench_plot.draw([Result(case, 1.0) for case in cases("scaling")], tmp_path / "curve.png")
