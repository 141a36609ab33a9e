import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from beamtree.bench import measure as bench
from beamtree.bench.measure import REFERENCE, Case, Ratios, Result, grid, measure, needed_bytes, ratios, records, run
from beamtree.nn.encoders import encoders

SMALL = {"dim": 8, "beam_size": 2}


@pytest.fixture(scope="module")
def pair():
    """The reference and the torch engine on one case, long enough for N² to show."""
    return run(grid(["bt-grc"], [32], [2], ["torch"], **SMALL), repeats=2)


def test_every_engine_of_a_case_follows_its_reference():
    cases = grid(["bt-grc", "bt-lstm"], [8, 16], [1], ["torch", "torch"])
    assert [case.engine for case in cases] == ["reference", "torch"] * 4
    assert [(case.encoder, case.length) for case in cases[::2]] == [
        ("bt-grc", 8),
        ("bt-grc", 16),
        ("bt-lstm", 8),
        ("bt-lstm", 16),
    ]


@pytest.mark.parametrize(
    ("device", "engines"), [("cpu", ["reference", "torch"]), ("cuda", ["reference", "torch", "triton"])]
)
def test_by_default_all_engines_run_that_the_device_can(device, engines, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)  # triton is installed
    assert [case.engine for case in grid(["bt-grc"], [8], [1], device=device)] == engines


def test_an_engine_that_cannot_run_here_is_a_mistake(monkeypatch):
    with pytest.raises(ValueError, match="'triton' needs a CUDA device, not cpu; here there are: auto, reference, tor"):
        grid(["bt-grc"], [8], [1], ["triton"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert bench.engines_on("cuda") == ["reference", "torch"]
    with pytest.raises(ValueError, match="'triton' needs the package triton, which is not installed"):
        grid(["bt-grc"], [8], [1], ["triton"], device="cuda")


def test_a_case_that_an_engine_is_not_made_for_is_a_result_with_the_reason():
    cases = [Case("bt-grc", engine, 4, 1, dtype="float64", **SMALL) for engine in ("triton", "torch")]
    first, second = run(cases, repeats=1)
    assert re.match(r"cannot: (it runs on|it computes in|the package)", first.note)
    assert first.train_seconds is None
    assert second.note == ""


@pytest.mark.parametrize(
    ("encoder", "engine", "reason"),
    [
        ("ndr", "reference", "it has no reference engine"),
        ("lstm", "reference", "it has no reference engine"),
        ("transformer", "reference", "it has no reference engine"),
        ("bt-grc-soft", "reference", "unknown engine 'reference'; known: auto, torch, triton"),
    ],
)
def test_an_engine_that_an_encoder_does_not_have_is_a_result_with_the_reason(encoder, engine, reason):
    case = Case(encoder, engine, 4, 1, **SMALL)
    assert measure(case, repeats=1) == Result(case, note=f"cannot: {reason}")


@pytest.mark.parametrize("encoder", ["ndr", "lstm", "transformer"])
def test_every_width_can_be_measured(encoder):
    """Heads divide it, and an odd one is read in one direction."""
    assert measure(Case(encoder, "auto", 4, 1, dim=9), repeats=1).train_seconds > 0


@pytest.mark.gpu
def test_on_a_gpu_the_fused_engine_names_what_it_does_not_do():
    case = Case("bt-grc", "triton", length=8, batch_size=1, device="cuda", dtype="float64", **SMALL)
    assert measure(case, repeats=1).note.startswith("cannot: it computes in float32")


def test_the_torch_engine_saves_less_than_the_reference(pair):
    reference, fast = pair
    assert 0 < fast.saved_bytes < reference.saved_bytes / 5


@pytest.mark.parametrize("encoder", ["bt-grc", "bt-lstm", "bt-grc-onesoft"])
def test_the_reference_saves_what_its_estimate_says(encoder):
    reference = measure(Case(encoder, length=24, batch_size=1, **SMALL), repeats=1)
    estimate = bench.needed_bytes(reference.case)
    assert 0.5 * estimate < reference.saved_bytes < 1.3 * estimate


def test_times_are_positive_and_the_reference_is_its_own_measure(pair):
    assert all(result.train_seconds > 0 and result.inference_seconds > 0 for result in pair)
    own = ratios(pair)[0]
    assert (own.train_seconds, own.inference_seconds, own.saved_bytes) == (1, 1, 1)


def test_a_ratio_is_the_reference_over_the_engine_of_the_same_case():
    def results(length, *quantities):
        return [
            Result(Case(length=length), 6.0, 8.0, 100, None),
            Result(Case(length=length, engine="torch"), *quantities),
        ]

    _, first, _, second = ratios([*results(8, 2.0, 4.0, 50, 10), *results(9, 3.0, 16.0, None, 0)])
    assert first == Ratios(3.0, 2.0, 2.0, None)
    assert second == Ratios(2.0, 0.5, None, None)


def test_records_survive_json(pair):
    rows = json.loads(json.dumps(records(pair)))
    assert [row["engine"] for row in rows] == ["reference", "torch"]
    assert rows[1]["length"] == 32
    assert rows[1]["ratios"]["saved_bytes"] == pair[0].saved_bytes / pair[1].saved_bytes


def test_a_slow_pass_is_timed_once_and_a_fast_one_as_often_as_asked():
    def count(repeats, budget):
        calls = []
        assert bench.median_seconds(lambda: calls.append(1), "cpu", repeats, budget) > 0
        return len(calls)

    assert count(5, budget=10.0) == 5
    assert count(5, budget=0.0) == 1


@pytest.mark.parametrize("dtype", ["float64", "bfloat16-autocast"])
def test_precisions(dtype):
    result = measure(Case(engine="torch", length=4, batch_size=1, dtype=dtype, **SMALL), repeats=1)
    assert result.train_seconds > 0


@pytest.mark.parametrize("length", [1, 2])
def test_shortest_inputs(length):
    for case in grid(["bt-grc-onesoft"], [length], [1], [*bench.engines_on("cpu"), "auto"], **SMALL):
        assert measure(case, repeats=1).train_seconds > 0


def test_measuring_leaves_the_random_state_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    measure(Case(engine="torch", length=4, batch_size=1, **SMALL), repeats=1)
    assert torch.equal(torch.rand(3), expected)


def test_the_estimate_of_memory_is_near_what_the_reference_keeps():
    for name in encoders():
        case = Case(name, REFERENCE, length=24, batch_size=2, dim=64, beam_size=3)
        kept = measure(case, repeats=1).saved_bytes
        if kept is not None:  # it has a reference
            assert kept < 1.1 * needed_bytes(case) < 5 * kept, name


def test_without_the_reference():
    cases = grid(["bt-grc"], [4], [1], ["torch"], reference=False)
    assert [case.engine for case in cases] == ["torch"]


def test_a_reference_that_cannot_fit_is_skipped():
    result = measure(Case(length=100_000, batch_size=64))
    assert re.fullmatch(r"skipped: would need about [\d,.]+ GiB", result.note)
    assert result.train_seconds is None


def test_running_out_of_memory_ends_a_case_and_not_the_run(monkeypatch):
    real = bench._measure

    def greedy(case, repeats, budget):
        if case.length == 4:
            torch.ones(2**50)
        return real(case, repeats, budget)

    monkeypatch.setattr(bench, "_measure", greedy)
    first, second = run([Case(length=length, batch_size=1, **SMALL) for length in (4, 5)], repeats=1)
    assert first.note == "out of memory"
    assert second.train_seconds > 0


@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
@pytest.mark.parametrize("text", ["a bug", "engine 'torch' cannot do this: a bug; engine 'auto' can"])
def test_another_error_is_not_hidden(kind, text, monkeypatch):
    """Whatever it says: only an `EngineError` is a refusal."""

    def broken(*_):
        raise kind(text)

    monkeypatch.setattr(bench, "_measure", broken)
    with pytest.raises(kind, match="a bug"):
        measure(Case(**SMALL))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"encoder": "bt-gcr"}, "did you mean 'bt-grc'"),
        ({"engine": "warp"}, "known: auto, reference, torch"),
        ({"length": 0}, "length is 0"),
        ({"batch_size": -1}, "batch_size is -1"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"dtype": "float8"}, "known: float32"),
        ({"device": "tpu"}, "known: auto, cpu, cuda"),
    ],
)
def test_a_case_checks_its_settings(setting, message):
    with pytest.raises(ValueError, match=message):
        Case(**setting)


def test_auto_is_the_gpu_where_there_is_one(monkeypatch):
    for available, device in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        assert Case(device="auto").device == device


def test_importing_the_library_imports_no_command_line():
    code = "import beamtree, beamtree.bench, sys; sys.exit('typer' in sys.modules or 'rich' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(bench.__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0


@pytest.mark.gpu
def test_on_a_gpu_the_fast_engine_peaks_lower():
    reference, fast = run(grid(["bt-grc"], [32], [2], ["torch"], device="cuda", **SMALL), repeats=2)
    assert 0 < fast.peak_bytes < reference.peak_bytes
    assert 0 < fast.saved_bytes < reference.saved_bytes
