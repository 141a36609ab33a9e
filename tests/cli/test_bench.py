import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import beamtree
from beamtree import cli
from beamtree.bench import measure as bench
from beamtree.bench import plot as bench_plot
from beamtree.bench import tables as bench_tables
from beamtree.nn.encoders import encoders
from beamtree.utils import terminal

SMALL = ("bench", "--dim", "8", "--beam", "2", "-n", "8", "-b", "1", "--repeats", "1", "--device", "cpu")


def invoke(*arguments):
    return CliRunner().invoke(cli.app, arguments, prog_name="beamtree")


def test_json_holds_every_case_and_nothing_else():
    result = invoke(*SMALL, "-b", "2", "--engine", "torch", "--json")
    assert result.exit_code == 0
    assert result.stderr == ""
    report = json.loads(result.stdout)
    assert report["torch"] == torch.__version__
    assert not report["interrupted"]
    rows = report["results"]
    assert [(row["encoder"], row["batch_size"], row["engine"]) for row in rows] == [
        ("bt-grc", 1, "reference"),
        ("bt-grc", 1, "torch"),
        ("bt-grc", 2, "reference"),
        ("bt-grc", 2, "torch"),
    ]
    for row in rows:
        assert row["train_seconds"] > 0
        assert row["inference_seconds"] > 0
        assert row["ratios"]["train_seconds"] > 0
        if row["engine"] == "reference":
            assert row["ratios"]["train_seconds"] == row["ratios"]["inference_seconds"] == 1


def test_the_table_names_encoders_and_engines_in_full():
    result = invoke(*SMALL, "-e", "bt-lstm", "-e", "bt-grc-onesoft", "--dtype", "float64")
    assert result.exit_code == 0
    assert f"torch {torch.__version__}" in result.stdout
    for text in ("bt-lstm", "bt-grc-onesoft", "reference", "torch", "float64", " ms", "KiB", "faster", "less"):
        assert text in result.stdout
    assert "note" not in result.stdout
    assert "triton" not in result.stdout  # which a CPU cannot run


def test_a_skipped_case_has_a_note_in_the_table():
    result = invoke(*SMALL, "-n", "1000000", "--engine", "reference")
    assert result.exit_code == 0
    assert "skipped: would need about" in result.stdout


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_help_names_the_commands(arguments):
    result = invoke(*arguments)
    assert result.exit_code == 0
    assert "bench" in result.stdout


def test_the_help_of_bench_shows_examples_that_are_valid(monkeypatch):
    help = invoke("bench", "--help").stdout
    monkeypatch.setattr(bench, "measure", lambda case, repeats, budget: bench.Result(case, 1.0, 1.0, 1, 1))
    command = importlib.import_module("beamtree.cli.bench")
    monkeypatch.setattr(command, "check_plot", lambda file: None)
    monkeypatch.setattr(bench_plot, "draw", lambda results, file, title: None)
    for example in (
        "beamtree bench -e bt-grc -e bt-grc-onesoft -n 200 -n 500 -b 1",
        "beamtree bench --table speed",
        "beamtree bench --table scaling --plot scaling.svg",
    ):
        assert example in help
        assert invoke(*example.split()[1:]).exit_code == 0


def test_version():
    assert invoke("--version").stdout == f"beamtree {beamtree.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-e", "bt-gcr"], "did you mean 'bt-grc'?); known: recurrent-grc, "),
        (["--engine", "warp"], "known: auto, reference, torch"),
        (["--engine", "triton"], "'triton' needs a CUDA device, not cpu"),
        (["--table", "sped"], "did you mean 'speed'?); known: speed, batched, scaling"),
        (["--table", "speed", "--engine", "triton"], "'triton' needs a CUDA device, not cpu"),
        (["--table", "speed", "--engine", "torch", "--engine", "auto"], "takes one --engine, not 2: torch, auto"),
        (["--table", "speed", "--engine", "warp"], "known: auto, reference, torch"),
        (["--table", "speed", "-e", "bt-gcr"], "did you mean 'bt-grc'?"),
        (["--table", "speed", "-n", "200"], "--length cannot be combined with --table speed"),
        (["--table", "batched", "-b", "4"], "--batch cannot be combined with --table batched"),
        (["--table", "scaling", "--dim", "64"], "--dim cannot be combined with --table scaling"),
        (["--table", "scaling", "--beam", "5"], "--beam cannot be combined with --table scaling"),
        (["--table", "speed", "--limit", "0"], "limit is 0.0: it must be a number of seconds above 0"),
        (["--limit", "9"], "--limit requires --table"),
        (["--plot", "curve.png"], "--plot requires --table scaling"),
        (["--table", "scaling", "--plot", "curve.txt"], "must end in .png, .svg or .pdf"),
        (["--table", "scaling", "--plot", "no/such/curve.png"], "folder that does not exist"),
        (["-n", "0"], "at least 1"),
        (["-n", "long"], "valid int"),
        (["-b", "0"], "at least 1"),
        (["--dim", "0"], "at least 1"),
        (["--beam", "0"], "at least 1"),
        (["--repeats", "0"], "at least 1"),
        (["--threads", "0"], "at least 1"),
        (["--seed", "-1"], "at least 0"),
        (["--dropout", "1"], "from 0 up to but not including 1"),
        (["--dtype", "float8"], "known: float32, float64, bfloat16-autocast"),
        (["--device", "tpu"], "known: auto, cpu, cuda"),
        (["--device", "cuda"], "choose 'cpu' or 'auto'"),
        (["--size", "3"], "see 'beamtree bench --help'"),
    ],
)
def test_a_mistake_is_answered_in_one_line(arguments, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = invoke("bench", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_an_unknown_command_is_a_mistake_too():
    result = invoke("benhc")
    assert result.exit_code == 2
    assert "'bench'" in result.stderr


def test_a_bug_is_not_taken_for_a_mistake(monkeypatch):
    def broken(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(bench, "measure", broken)
    assert isinstance(invoke(*SMALL).exception, RuntimeError)


@pytest.fixture
def small_tables(monkeypatch):
    """The tables with tiny widths and a few tiny lengths, so that measuring is fast."""
    monkeypatch.setattr(bench_tables, "DIM", 8)
    for name, table in bench_tables.TABLES.items():
        lengths = (4, 5, 6) if name == "speed" else (4, 5)
        small = replace(table, lengths=lengths, batch_size=min(table.batch_size, 2))
        monkeypatch.setitem(bench_tables.TABLES, name, small)


TABLE = ("bench", "--repeats", "1", "--device", "cpu", "--table")


@pytest.fixture
def one_length_measured(monkeypatch):
    """Every encoder is measured once, at the table's first length; the others repeat the figures."""
    real, measured = bench.measure, {}

    def measure(case, repeats, budget):
        if case.encoder not in measured:
            measured[case.encoder] = real(case, repeats, budget)
        return replace(measured[case.encoder], case=case)

    monkeypatch.setattr(bench, "measure", measure)
    return measured


def test_the_speed_table_has_every_encoder_with_the_papers_figures_beside_ours(small_tables, one_length_measured):
    result = invoke(*TABLE, "speed")
    assert result.exit_code == 0
    for text in (*encoders(), "RTX A6000", "200–250, 500–600, 900–1000", "D 8, K 5", "1.1 min", "27.27 GB"):
        assert text in result.stdout
    lines = [line.split() for line in result.stdout.splitlines()]
    for name in encoders():
        assert [line[1] for line in lines if line and line[0] == name] == ["4", "5", "6"]
        assert one_length_measured[name].train_seconds > 0


def test_a_paper_that_ran_out_of_memory_has_no_figures(small_tables, monkeypatch):
    monkeypatch.setitem(bench_tables.PAPER, "bt-grc", bench_tables.PAPER["cyk-grc"])
    lines = invoke(*TABLE, "speed", "-e", "bt-grc").stdout.splitlines()
    assert [line.count("out of memory") for line in lines if line.startswith("bt-grc")] == [0, 2, 2]


@pytest.mark.parametrize("table", ["batched", "scaling"])
def test_the_other_tables_show_time_and_memory(table, small_tables, monkeypatch):
    monkeypatch.setattr(bench, "measure", lambda case, repeats, budget: bench.Result(case, 0.5, 0.1, 2**20, 2**30))
    result = invoke(*TABLE, table)
    assert result.exit_code == 0
    for text in ("train", "inference", "500 ms", "100 ms", "1.00 MiB", "1.00 GiB", bench_tables.TABLES[table].title):
        assert text in result.stdout
    assert "paper" not in result.stdout
    shown = {line.split()[0] for line in result.stdout.splitlines() if line.startswith(tuple(encoders()))}
    assert shown == ({"bt-grc"} if table == "scaling" else set(encoders()))


@pytest.mark.parametrize("table", ["speed", "batched", "scaling"])
def test_a_table_as_json_holds_every_line(table, small_tables):
    result = invoke(*TABLE, table, "-e", "bt-grc", "-e", "bt-lstm", "--engine", "torch", "--json")
    report = json.loads(result.stdout)
    assert report["table"] == table
    lengths = bench_tables.TABLES[table].lengths
    assert [(row["encoder"], row["length"]) for row in report["results"]] == [
        (name, length) for name in ("bt-grc", "bt-lstm") for length in lengths
    ]
    assert all(row["train_seconds"] > 0 and row["engine"] == "torch" for row in report["results"])
    assert all(("paper" in row) == (table == "speed") for row in report["results"])


def test_a_line_beyond_the_limit_has_a_note(small_tables, monkeypatch):
    monkeypatch.setattr(bench, "measure", lambda case, repeats, budget: bench.Result(case, train_seconds=9.0))
    assert "skipped" not in invoke(*TABLE, "batched").stdout
    assert "skipped: would take about 42 s" in invoke(*TABLE, "batched", "--limit", "40").stdout


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_plot_is_written_beside_the_table(form, small_tables, tmp_path):
    pytest.importorskip("matplotlib")
    result = invoke(*TABLE, "scaling", "--plot", str(tmp_path / "curve.svg"), *form)
    assert result.exit_code == 0
    assert "bt-grc" in result.stdout
    assert "<svg" in (tmp_path / "curve.svg").read_text()


def test_a_plot_without_matplotlib_is_a_mistake_before_anything_is_measured(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(bench, "measure", None)
    result = invoke(*TABLE, "scaling", "--plot", "curve.png")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: a plot needs matplotlib, which is not installed: "
        "pip install 'beamtree[plot]', or '.[plot]' in a clone\n"
    )


def test_long_work_prints_lines_of_progress(clock, monkeypatch):
    def measure(case, repeats, budget):
        clock.now += 60
        return bench.Result(case, train_seconds=60.0)

    monkeypatch.setattr(bench, "measure", measure)
    result = invoke(*SMALL, "--engine", "torch", "--json")
    assert result.stderr.splitlines() == [
        "bt-grc, length 8, batch 1, reference: 1 of 2",
        "bt-grc, length 8, batch 1, torch: 2 of 2",
    ]
    assert len(json.loads(result.stdout)["results"]) == 2


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_ctrl_c_shows_what_was_measured_so_far(form, monkeypatch):
    def measure(case, repeats, budget):
        if case.engine != "reference":
            raise KeyboardInterrupt
        return bench.Result(case, train_seconds=0.125)

    monkeypatch.setattr(bench, "measure", measure)
    result = invoke(*SMALL, *form)
    assert result.exit_code == 130
    assert "0.125" in result.stdout if form else "125 ms" in result.stdout
    assert result.stderr == "interrupted: 1 of 2 cases measured\n"


def test_the_number_of_threads_is_set_and_shown():
    before = torch.get_num_threads()
    try:
        assert "threads 1," in invoke(*SMALL, "--threads", "1").stdout
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0.5, "0.50"), (1.0, "1.00"), (12.345, "12.3"), (123.4, "123"), (12345.6, "12346")]
)
def test_numbers_have_three_digits(value, text):
    assert terminal.digits(value) == text


def test_units_are_those_a_person_would_choose():
    assert [terminal.duration(seconds) for seconds in (0.0042, 0.5, 12.0)] == ["4.20 ms", "500 ms", "12.0 s"]
    assert [terminal.memory(size) for size in (512, 3 * 2**20, 5 * 2**30)] == ["0.50 KiB", "3.00 MiB", "5.00 GiB"]


def test_the_module_is_the_program():
    command = [sys.executable, "-m", "beamtree", *SMALL, "--engine", "reference", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(Path(beamtree.__file__).parents[1])}
    process = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert process.returncode == 0
    assert json.loads(process.stdout)["results"][0]["encoder"] == "bt-grc"
    assert process.stderr == ""
