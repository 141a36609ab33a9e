"""Measure what the training runs that are still missing would cost: the time of an epoch, and the memory.

    python results/measure_costs.py --seconds 45                      # each row that lacks runs, one after the other
    python results/measure_costs.py --seconds 45 --only 'sst5/*'      # some of them
    python results/measure_costs.py --table

A row is a recipe, an encoder and its changes, as in run_queue.py. Its first seed is trained for a limited time, alone
on the device, and not evaluated. The first third of the time is not measured: kernels are compiled and captured then.
Results go to results/costs/RECIPE/NAME.json, also those of rows that fail, with the error.
"""

import argparse
import fnmatch
import json
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from compare_variants import OF_THE_STUDY
from run_queue import RUNS, Run

import beamtree
from beamtree.runs import recipes
from beamtree.training import Callback, train
from beamtree.utils.devices import device_name

RESULTS = Path(__file__).parent
WARM_UP = 1 / 3  # of the time
MIN_STEPS = 3
MISSING = "–"  # a value that was not measured


class Row(NamedTuple):
    """The runs of one encoder with the same settings."""

    run: Run  # its first seed
    missing: int  # how many of its runs are not in results/

    @property
    def name(self) -> str:
        return str(self.run.folder(Path())).removesuffix(f"-seed{self.run.seed}")


def rows(patterns: Iterable[str] = ("*",)) -> list[Row]:
    """The rows of the paper's tables that lack runs."""
    missing: dict[str, Row] = {}
    for run in RUNS:
        name = Row(run, 0).name
        of_the_study = any(fnmatch.fnmatch(run.folder(Path()).name, pattern) for pattern in OF_THE_STUDY)
        chosen = any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
        if chosen and not of_the_study and not run.is_finished(RESULTS):
            first = missing.get(name, Row(run, 0))
            missing[name] = Row(first.run, first.missing + 1)
    return list(missing.values())


class Enough(Exception):
    """Raised to end the training when its speed is known."""


class StepTimer(Callback):
    """Measures the mean time of a step after a warm-up."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.began = self.warm_at = self.took = 0.0
        self.first = self.steps = self.steps_per_epoch = 0

    def on_train_start(self, run: Any) -> None:
        accumulate = run.settings.training.batch_size // run.settings.training.micro_batch
        self.steps_per_epoch = -(-len(run.loader) // accumulate)
        self.began = time.monotonic()

    def on_step_end(self, run: Any, loss: torch.Tensor) -> None:
        now = time.monotonic()
        if not self.first:
            if now - self.began >= WARM_UP * self.seconds:
                self.first, self.warm_at = run.step, self.synchronised(loss)
        elif now - self.began >= self.seconds and run.step - self.first >= MIN_STEPS:
            self.took, self.steps = self.synchronised(loss) - self.warm_at, run.step - self.first
            raise Enough

    @staticmethod
    def synchronised(loss: torch.Tensor) -> float:
        loss.item()  # waits for the device
        return time.monotonic()


def measure(run: Run, seconds: float, device: str) -> dict[str, Any]:
    timer = StepTimer(seconds)
    settings = recipes.load(run.recipe, run.encoder, run.seed, recipes.parse_changes(run.all_changes))
    found: dict[str, Any] = {
        "device": device_name(device),
        "torch": torch.__version__,
        "beamtree": beamtree.__version__,
    }
    beamtree.release_memory()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        with tempfile.TemporaryDirectory() as folder:
            train(settings, folder, device=device, loggers=(), progress=False, callbacks=[timer])
    except Enough:
        pass
    except (RuntimeError, ValueError) as error:  # out of memory; files that are missing
        return {**found, "error": str(error).partition("\n")[0]}
    if not timer.steps:
        return {**found, "error": f"the training ended within {seconds:g} seconds"}
    step = timer.took / timer.steps
    if device == "cuda":
        found["peak_mib"] = round(torch.cuda.max_memory_allocated() / 2**20)
    times = {"steps": timer.steps, "step_ms": round(1000 * step, 2)}
    return {**found, **times, "epoch_seconds": round(step * timer.steps_per_epoch, 1)}


def usual_epochs(recipe: str) -> float | None:
    """The median number of epochs of the recipe's runs in results/."""
    epochs = [json.loads(path.read_text())["epochs"] for path in (RESULTS / recipe).glob("*/results.json")]
    return statistics.median(epochs) if epochs else None


def table() -> str:
    """The rows of the paper's tables that lack runs, and the cost of a run. Columns without values are left out."""
    cells = [("row", "runs missing", "epochs", "step", "epoch", "peak", "hours for one run")]
    for row in rows():
        path = RESULTS / "costs" / f"{row.name}.json"
        found = json.loads(path.read_text()) if path.exists() else {}
        epochs = usual_epochs(row.run.recipe)
        usual = f"{epochs:.0f}" if epochs else MISSING
        cells.append((f"`{row.name}`", str(row.missing), usual, *_costs(found, epochs)))
    columns = [column for column in zip(*cells, strict=True) if any(cell != MISSING for cell in column[1:])]
    header, *lines = (f"| {' | '.join(row)} |" for row in zip(*columns, strict=True))
    return "\n".join([header, "|---|" + "---:|" * (len(columns) - 1), *lines])


def _costs(found: Mapping[str, Any], epochs: float | None) -> list[str]:
    """Step, epoch, peak and hours of a row."""
    if "error" in found:
        return [found["error"], *3 * [MISSING]]
    step = f"{found['step_ms']:.0f} ms" if found else MISSING
    epoch = f"{found['epoch_seconds']:,.0f} s" if found else MISSING
    peak = f"{found['peak_mib']:,} MiB" if "peak_mib" in found else MISSING
    hours = f"{epochs * found['epoch_seconds'] / 3600:.1f}" if found and epochs else MISSING
    return [step, epoch, peak, hours]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=45.0, help="for each row (default: %(default)s)")
    parser.add_argument("--only", nargs="+", metavar="PATTERN", help="rows such as 'sst5/*'")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--commit", default="", help="commit of the code, recorded in the files")
    parser.add_argument("--table", action="store_true", help="only print the table of what was measured")
    options = parser.parse_args()
    if options.seconds <= 0:
        parser.error(f"--seconds is {options.seconds:g}: it must be positive")
    for pattern in options.only or ():
        if not rows([pattern]):
            parser.error(f"--only: no row that lacks runs matches {pattern!r}")
    chosen = [] if options.table else rows(options.only or ["*"])
    for row in chosen:
        path = RESULTS / "costs" / f"{row.name}.json"
        if path.exists():
            continue
        found = measure(row.run, options.seconds, options.device)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"row": row.name, **found, "commit": options.commit}) + "\n")
        print(row.name, found, flush=True)
    print(table())


if __name__ == "__main__":
    main()
