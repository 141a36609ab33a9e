"""Three predefined benchmark tables.

`speed` is the paper's efficiency table, with the paper's figures beside ours: a training step at batch size 1, times
100. `batched` measures typical training batches, and `scaling` doubles the length from case to case. All use the
paper's width and number of beams, and by default the fastest engine available for each case.

    results = run(cases("speed", device="cuda"))
    records("speed", results)
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from beamtree.bench import measure as bench
from beamtree.bench.measure import AUTO, Case, Result
from beamtree.nn.encoders import encoders
from beamtree.utils.checks import check_choice
from beamtree.utils.devices import find_device

DIM, BEAM_SIZE = 128, 5  # the paper's values for ListOps
SAMPLES = 100  # in each of the paper's splits
LIMIT = 60.0  # seconds per case
PASSES = 3  # minimal cost of a case, in training steps: one watched, one timed, and two inferences of under half each


@dataclass(frozen=True)
class Plan:
    """What a table measures. names: the encoders; None for all."""

    title: str
    lengths: tuple[int, ...]  # increasing: a case's time is estimated from shorter ones
    batch_size: int
    names: tuple[str, ...] | None = None


TABLES = {
    "speed": Plan("100 samples of training, one at a time", (225, 550, 950), 1),  # midpoints of the paper's splits
    "batched": Plan("a training step of 128 samples", (50, 100), 128),
    "scaling": Plan("a training step of one long sample", tuple(2**power for power in range(8, 15)), 1, ("bt-grc",)),
}


@dataclass(frozen=True)
class Published:
    """Training on 100 samples and its peak memory, as printed in the paper. None: out of memory."""

    minutes: float | None
    gigabytes: float | None  # 10⁹ bytes


# Ray Chowdhury & Caragea, Beam Tree Recursive Cells (ICML 2023), section "Efficiency Analysis", the table "Empirical
# time and memory consumption for various models on an RTX A6000" (table:speedtest): its columns, one line per model.
# The paper trains on ListOps, with embedding, classifier and optimizer; we measure the encoder alone.
HARDWARE = "RTX A6000"
SPLITS = ("200–250", "500–600", "900–1000")
PAPER: dict[str, tuple[Published, Published, Published]] = {
    "recurrent-grc": (Published(0.2, 0.02), Published(0.5, 0.02), Published(1.3, 0.03)),
    "gumbel-tree-grc": (Published(0.5, 0.35), Published(2.1, 1.95), Published(3.5, 5.45)),
    "cyk-grc": (Published(9.3, 32.4), Published(None, None), Published(None, None)),
    "bsrp-grc": (Published(2.3, 0.06), Published(6.1, 0.19), Published(10.5, 0.42)),
    "ordered-memory": (Published(8.0, 0.09), Published(20.6, 0.21), Published(38.2, 0.35)),
    "crvnn": (Published(1.5, 1.57), Published(4.3, 12.2), Published(8.0, 42.79)),  # never halting early
    "mc-gumbel-tree-grc": (Published(1.1, 1.71), Published(2.4, 9.85), Published(4.3, 27.33)),
    "bt-grc": (Published(1.1, 1.71), Published(2.6, 9.82), Published(5.1, 27.27)),
    "bt-grc-onesoft": (Published(1.4, 2.74), Published(4.0, 15.5), Published(7.1, 42.95)),
    "bt-grc-soft": (Published(5.1, 2.67), Published(12.6, 15.4), Published(23.1, 42.78)),
}


def cases(
    table: str, names: Iterable[str] | None = None, engine: str = AUTO, device: str = "cpu", **common: Any
) -> list[Case]:
    """The cases of a table, grouped by encoder, with increasing lengths.

    names: the encoders; None for those of the table.
    """
    check_choice("table", table, tuple(TABLES))
    plan, device = TABLES[table], find_device(device)
    bench.check_engine(engine, device)
    common = {"dim": DIM, "beam_size": BEAM_SIZE, "batch_size": plan.batch_size, **common}
    return [
        Case(name, engine, length, device=device, **common)
        for name in dict.fromkeys(names or plan.names or encoders())
        for length in plan.lengths
    ]


def run(
    cases: Sequence[Case],
    progress: bench.BenchProgress = lambda case, result: None,
    repeats: int = bench.REPEATS,
    limit: float = LIMIT,
) -> list[Result]:
    """Measure all cases, except those that shorter cases predict to fail or to take too long.

    limit: seconds; a case that would probably take longer is skipped.
    """
    if not limit > 0:
        raise ValueError(f"limit is {limit!r}: it must be a number of seconds above 0")
    results: list[Result] = []
    for case in cases:
        progress(case, None)
        note = hopeless(case, results, limit)
        results.append(Result(case, note=note) if note else bench.measure(case, repeats, bench.BUDGET))
        progress(case, results[-1])
    return results


def hopeless(case: Case, earlier: Sequence[Result], limit: float) -> str | None:
    """Why a case should be skipped, predicted from shorter ones; None if it should run."""
    shorter = [result for result in earlier if replace(result.case, length=case.length) == case]
    for result in shorter:
        if result.note == bench.OUT_OF_MEMORY:
            return f"skipped: {result.note} at length {result.case.length}"
    times = [(result.case.length, result.train_seconds) for result in shorter if result.train_seconds]
    seconds = PASSES * likely_seconds(case.length, times)
    return f"skipped: would take about {seconds:,.0f} s" if seconds > limit else None


def likely_seconds(length: int, times: Sequence[tuple[int, float]]) -> float:
    """Predicted time of a pass at a length, from the times at shorter lengths; 0 if there are none.

    The last two times determine the exponent, between 1 and 3; with only one, growth is assumed to be quadratic.
    """
    if not times:
        return 0.0
    exponent, (longest, seconds) = 2.0, times[-1]
    if len(times) > 1:
        before, less = times[-2]
        exponent = min(max(math.log(seconds / less) / math.log(longest / before), 1.0), 3.0)
    return seconds * (length / longest) ** exponent


def seconds_for_samples(result: Result) -> float | None:
    """Training time for the number of samples in the paper's splits."""
    return None if result.train_seconds is None else result.train_seconds * SAMPLES / result.case.batch_size


def published(case: Case) -> Published | None:
    """The paper's figures for a case of the table `speed`; None if there are none."""
    column = TABLES["speed"].lengths.index(case.length)
    return PAPER[case.encoder][column] if case.encoder in PAPER else None


def split(case: Case) -> str:
    """The paper's length range that a case of the table `speed` represents."""
    return SPLITS[TABLES["speed"].lengths.index(case.length)]


def records(table: str, results: Sequence[Result]) -> list[dict[str, Any]]:
    """A table as JSON-serialisable dictionaries; those of `speed` include the paper's figures."""
    rows = [asdict(result) for result in results]
    rows = [{**row.pop("case"), **row} for row in rows]
    if table != "speed":
        return rows
    return [
        {**row, "seconds_for_100_samples": seconds_for_samples(result), "paper": _paper_record(result.case)}
        for row, result in zip(rows, results, strict=True)
    ]


def _paper_record(case: Case) -> dict[str, Any] | None:
    figures = published(case)
    if figures is None:
        return None
    note = bench.OUT_OF_MEMORY if figures.minutes is None else ""
    return {"lengths": split(case), "hardware": HARDWARE, **asdict(figures), "note": note}
