"""`beamtree bench`: the engines beside the reference."""

# ruff: noqa: B006 (a list is how typer is told the default of a repeatable option; nothing changes it)

import json
import platform
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table

from beamtree import __version__, bench
from beamtree.checks import check_integer
from beamtree.cli.terminal import INTERRUPTED, digits, duration, make_table, memory, print_table, progress_bar
from beamtree.encoders import encoders
from beamtree.engine import ENGINES

EVERY_ENGINE = list(ENGINES)
EXAMPLE = (
    "Example: every engine on long inputs, one at a time\n\n"
    "  beamtree bench -e bt-grc -e bt-grc-onesoft -n 200 -n 500 -b 1"
)


def bench_command(
    names: Annotated[
        list[str], typer.Option("--encoder", "-e", help=f"Repeatable. One of: {', '.join(encoders())}.")
    ] = ["bt-grc"],
    lengths: Annotated[list[int], typer.Option("--length", "-n", help="N, repeatable.")] = [200],
    batch_sizes: Annotated[list[int], typer.Option("--batch", "-b", help="B, repeatable.")] = [4],
    engines: Annotated[
        list[str], typer.Option("--engine", help="Repeatable. The reference always runs too.")
    ] = EVERY_ENGINE,
    dim: Annotated[int, typer.Option(help="D, the width.")] = 64,
    beam_size: Annotated[int, typer.Option("--beam", help="K, the number of beams.")] = 5,
    dropout: Annotated[float, typer.Option(help="Inside the cell, in training.")] = 0.1,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help=f"{', '.join(bench.DTYPES)}.")] = "float32",
    threads: Annotated[int | None, typer.Option(help="CPU threads.", show_default="PyTorch's choice")] = None,
    repeats: Annotated[int, typer.Option(help="Passes to take the median of, fewer beyond 10 s.")] = bench.REPEATS,
    seed: Annotated[int, typer.Option(help="Of weights, inputs and noise.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Measure time and memory of the engines, each beside the reference.

    A training step is forward and backward of an encoder over B random inputs of length N; inference is forward alone.
    "Saved" is what autograd holds between the two, "peak" the most that a training step needs.
    """
    check_integer("repeats", repeats, at_least=1)
    if threads is not None:
        check_integer("threads", threads, at_least=1)
        torch.set_num_threads(threads)
    device = bench.find_device(device)
    common = {"dim": dim, "beam_size": beam_size, "dropout": dropout, "device": device, "dtype": dtype, "seed": seed}
    cases = bench.grid(names, lengths, batch_sizes, engines, **common)

    results, interrupted = run_with_bar(cases, repeats)
    setting = {
        "beamtree": __version__,
        "torch": torch.__version__,
        "device": device_name(device),
        "threads": torch.get_num_threads(),
    }
    if as_json:
        typer.echo(json.dumps({**setting, "interrupted": interrupted, "results": bench.records(results)}, indent=2))
    else:
        typer.echo(
            f"{setting['device']}, torch {setting['torch']}, threads {setting['threads']}, {dtype}; "
            f"D {dim}, K {beam_size}, dropout {dropout:g}, seed {seed}"
        )
        print_table(results_table(results))
    if interrupted:
        typer.echo(f"interrupted: {len(results)} of {len(cases)} cases measured", err=True)
        raise typer.Exit(INTERRUPTED)


def run_with_bar(cases: list[bench.Case], repeats: int) -> tuple[list[bench.Result], bool]:
    """The results, all or those until Ctrl-C, and whether that came."""
    results: list[bench.Result] = []
    with progress_bar() as bar:
        task = bar.add_task("", total=len(cases))

        def show(case: bench.Case, result: bench.Result | None) -> None:
            name = f"{case.encoder}, length {case.length}, batch {case.batch_size}, {case.engine}"
            if result is not None:
                results.append(result)
            bar.update(task, description=name, completed=len(results))

        try:
            bench.run(cases, show, repeats)
        except KeyboardInterrupt:
            return results, True
    return results, False


def results_table(results: list[bench.Result]) -> Table:
    times = ("train\nstep", "×\nfaster", "inference", "×\nfaster")
    sizes = ("saved for\nbackward", "×\nless", "peak\nmemory", "×\nless")
    table = make_table("encoder", "length", "batch", "engine", *times, *sizes, left=("encoder", "engine"))
    notes = any(result.note for result in results)
    if notes:
        table.add_column("note")
    for result, ratio in zip(results, bench.ratios(results), strict=True):
        case = result.case
        if case.engine == bench.REFERENCE and table.row_count:
            table.add_section()
        table.add_row(
            *(case.encoder, str(case.length), str(case.batch_size), case.engine),
            *(duration(result.train_seconds), digits(ratio.train_seconds)),
            *(duration(result.inference_seconds), digits(ratio.inference_seconds)),
            *(memory(result.saved_bytes), digits(ratio.saved_bytes)),
            *(memory(result.peak_bytes), digits(ratio.peak_bytes)),
            *([result.note] if notes else []),
        )
    return table


def device_name(device: str) -> str:
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    cpuinfo = Path("/proc/cpuinfo")  # Linux; elsewhere platform knows the name
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
