import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import beamtree
from beamtree import bench, cli
from beamtree.cli import terminal

SMALL = ("bench", "--dim", "8", "--beam", "2", "-n", "8", "-b", "1", "--repeats", "1")


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
    for text in ("bt-lstm", "bt-grc-onesoft", *beamtree.engine.ENGINES, "float64", " ms", "KiB", "faster", "less"):
        assert text in result.stdout
    assert "note" not in result.stdout


def test_a_skipped_case_has_a_note_in_the_table():
    result = invoke(*SMALL, "-n", "1000000", "--engine", "reference")
    assert result.exit_code == 0
    assert "skipped: would need about" in result.stdout


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_help_names_the_commands(arguments):
    result = invoke(*arguments)
    assert result.exit_code == 0
    assert "bench" in result.stdout


def test_the_help_of_bench_shows_an_example_that_is_valid(monkeypatch):
    example = "beamtree bench -e bt-grc -e bt-grc-onesoft -n 200 -n 500 -b 1"
    assert example in invoke("bench", "--help").stdout
    monkeypatch.setattr(bench, "measure", lambda case, repeats, budget: bench.Result(case, 1.0, 1.0, 1, 1))
    assert invoke(*example.split()[1:]).exit_code == 0


def test_version():
    assert invoke("--version").stdout == f"beamtree {beamtree.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-e", "bt-gcr"], "did you mean 'bt-grc'?); known: bt-grc, "),
        (["--engine", "warp"], "known: reference, torch"),
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
    assert result.stderr == f"interrupted: 1 of {len(beamtree.engine.ENGINES)} cases measured\n"


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
