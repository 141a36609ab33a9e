"""`beamtree bench`: measure the engines against the reference, and tables of all encoders."""

# ruff: noqa: B006 (typer takes the default of a repeatable option as a list, which is never modified)

# PyTorch is imported inside functions, so that help is fast.
import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from beamtree import __version__
from beamtree.utils.checks import check_choice, check_integer
from beamtree.utils.devices import device_name, find_device
from beamtree.utils.plot import check_plot
from beamtree.utils.terminal import INTERRUPTED, digits, duration, make_table, memory, print_table, progress_bar

if TYPE_CHECKING:
    import beamtree.bench.measure

EXAMPLE = (
    "Examples: all engines on long inputs, with batch size 1; only the fastest; the paper's efficiency table; a curve "
    "over lengths\n\n"
    "  beamtree bench -e bt-grc -e bt-grc-onesoft -n 200 -n 500 -b 1\n\n"
    "  beamtree bench -e ebt-grc -n 950 -b 1 --dim 128 --engine auto --no-reference\n\n"
    "  beamtree bench --table speed\n\n"
    "  beamtree bench --table scaling --plot scaling.svg"
)
TABLES, MEASUREMENT = "Tables", "Measurement"  # groups of options in the help
PLAIN_COLUMNS = ("train\nstep", "inference", "saved for\nbackward", "peak\nmemory")
SPEED_COLUMNS = ("100\nsamples", "in the\npaper", "peak\nmemory", "in the\npaper")


def bench_command(
    names: Annotated[
        list[str],
        typer.Option(
            "--encoder",
            "-e",
            help="Encoder to measure, see 'beamtree models'; repeatable.",
            show_default="bt-grc; all in the tables speed and batched",
        ),
    ] = [],
    table: Annotated[
        str | None,
        typer.Option(
            metavar="speed|batched|scaling",
            rich_help_panel=TABLES,
            help="speed: the paper's efficiency table, next to its figures. batched: 128 samples at once. "
            "scaling: lengths from 256 to 16,384.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(rich_help_panel=TABLES, help="Plot the table scaling to this .png, .svg or .pdf file."),
    ] = None,
    lengths: Annotated[
        list[int], typer.Option("--length", "-n", help="Length N of the inputs; repeatable.", show_default="200")
    ] = [],
    batch_sizes: Annotated[
        list[int], typer.Option("--batch", "-b", help="Batch size B; repeatable.", show_default="4")
    ] = [],
    engines: Annotated[
        list[str],
        typer.Option(
            "--engine",
            metavar="auto|reference|torch|triton",
            help="auto: the fastest. Repeatable, except with --table.",
            show_default="all that can run; auto in a table",
        ),
    ] = [],
    reference: Annotated[
        bool,
        typer.Option("--reference/--no-reference", rich_help_panel=MEASUREMENT, help="Also run the reference engine."),
    ] = True,
    dim: Annotated[
        int | None, typer.Option(help="Width D of inputs and states.", show_default="64; 128 in a table")
    ] = None,
    beam_size: Annotated[int | None, typer.Option("--beam", help="Number of beams K.", show_default="5")] = None,
    dropout: Annotated[float, typer.Option(help="Dropout inside the cell during training.")] = 0.1,
    device: Annotated[
        str, typer.Option(rich_help_panel=MEASUREMENT, metavar="auto|cpu|cuda", help="Where to measure.")
    ] = "auto",
    dtype: Annotated[
        str,
        typer.Option(
            rich_help_panel=MEASUREMENT,
            metavar="float32|float64|\nbfloat16-autocast",
            help="Precision of weights and inputs.",
        ),
    ] = "float32",
    threads: Annotated[
        int | None,
        typer.Option(rich_help_panel=MEASUREMENT, help="Number of CPU threads.", show_default="PyTorch's choice"),
    ] = None,
    repeats: Annotated[
        int,
        typer.Option(
            rich_help_panel=MEASUREMENT, help="Number of passes, whose median is reported; fewer beyond 10 s."
        ),
    ] = 5,
    limit: Annotated[
        float | None,
        typer.Option(rich_help_panel=TABLES, help="Maximum time per row of the table, in seconds.", show_default="60"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights, inputs and noise.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Measure time and memory of the engines, and compare them with the reference.

    A training step is the forward and backward pass of an encoder over B random inputs of length N; inference is the
    forward pass only. "Saved for backward" is the memory that autograd holds between the two passes, "peak memory"
    that of a training step.

    --table measures all encoders, or those given, on the fastest engine with D 128 and K 5, at fixed lengths and batch
    size. It skips measurements that are likely to take longer than the limit.
    """
    import torch

    from beamtree.bench import measure as bench
    from beamtree.bench import tables as bench_tables

    check_integer("repeats", repeats, at_least=1)
    if threads is not None:
        check_integer("threads", threads, at_least=1)
        torch.set_num_threads(threads)
    device = find_device(device)
    common: dict[str, Any] = {"dropout": dropout, "device": device, "dtype": dtype, "seed": seed}
    run: Callable[..., list[bench.Result]]
    if table is None:
        if limit is not None:
            raise ValueError("--limit requires --table: add --table, or leave out --limit")
        common |= {key: value for key, value in (("dim", dim), ("beam_size", beam_size)) if value is not None}
        common["reference"] = reference
        cases = bench.grid(names or ["bt-grc"], lengths or [200], batch_sizes or [4], engines or None, **common)
        run = partial(bench.run, cases, repeats=repeats)
    else:
        check_table_options(
            table, engines, {"--length": lengths, "--batch": batch_sizes, "--dim": dim, "--beam": beam_size}
        )
        cases = bench_tables.cases(table, names or None, *engines, **common)
        limit = bench_tables.LIMIT if limit is None else limit
        run = partial(bench_tables.run, cases, repeats=repeats, limit=limit)
    if plot is not None:
        if table != "scaling":
            raise ValueError("--plot requires --table scaling: add it")
        check_plot(plot)

    results, interrupted = run_with_bar(cases, run)
    setting = {
        "beamtree": __version__,
        "torch": torch.__version__,
        "device": device_name(device),
        "threads": torch.get_num_threads(),
    }
    if as_json:
        rows = bench.records(results) if table is None else bench_tables.records(table, results)
        typer.echo(json.dumps({**setting, "table": table, "interrupted": interrupted, "results": rows}, indent=2))
    else:
        typer.echo(
            f"{setting['device']}, torch {setting['torch']}, threads {setting['threads']}, {dtype}; "
            f"D {cases[0].dim}, K {cases[0].beam_size}, dropout {dropout:g}, seed {seed}"
        )
        print_results(table, results)
    if plot is not None and results:
        from beamtree.bench.plot import draw

        draw(results, plot, f"{setting['device']}, {dtype}; D {cases[0].dim}, K {cases[0].beam_size}, batch 1")
    if interrupted:
        typer.echo(f"interrupted: {len(results)} of {len(cases)} cases measured", err=True)
        raise typer.Exit(INTERRUPTED)


def check_table_options(table: str, engines: list[str], fixed: dict[str, list[int] | int | None]) -> None:
    """Raise a `ValueError` for options that --table fixes, and for several engines."""
    from beamtree.bench import tables as bench_tables

    check_choice("table", table, tuple(bench_tables.TABLES))
    for option, value in fixed.items():
        if value not in (None, []):
            raise ValueError(
                f"{option} cannot be combined with --table {table}, which has fixed sizes: leave out one of them"
            )
    if len(engines) > 1:
        raise ValueError(f"--table {table} takes one --engine, not {len(engines)}: {', '.join(engines)}")


def run_with_bar(
    cases: "list[beamtree.bench.measure.Case]", run: "Callable[..., list[beamtree.bench.measure.Result]]"
) -> "tuple[list[beamtree.bench.measure.Result], bool]":
    """Run with a progress bar. Returns the results so far, and whether Ctrl-C interrupted the measurement."""
    results: list[beamtree.bench.measure.Result] = []
    with progress_bar() as bar:
        task = bar.add_task("", total=len(cases))

        def show(case: "beamtree.bench.measure.Case", result: "beamtree.bench.measure.Result | None") -> None:
            name = f"{case.encoder}, length {case.length}, batch {case.batch_size}, {case.engine}"
            if result is not None:
                results.append(result)
            bar.update(task, description=name, completed=len(results))

        try:
            run(progress=show)
        except KeyboardInterrupt:
            return results, True
    return results, False


def print_results(table: str | None, results: "list[beamtree.bench.measure.Result]") -> None:
    from beamtree.bench import tables as bench_tables

    if table is None:
        print_table(results_table(results))
        return
    typer.echo(bench_tables.TABLES[table].title)
    if table == "speed":
        print_table(encoders_table(results, SPEED_COLUMNS, speed_figures))
        typer.echo(
            f"\nThe paper's figures: an {bench_tables.HARDWARE}, lengths {', '.join(bench_tables.SPLITS)}, "
            "classifier and optimizer included."
        )
    else:
        print_table(encoders_table(results, PLAIN_COLUMNS, plain_figures))


def results_table(results: "list[beamtree.bench.measure.Result]") -> Table:
    from beamtree.bench import measure as bench

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


def encoders_table(
    results: "list[beamtree.bench.measure.Result]",
    columns: tuple[str, ...],
    figures: "Callable[[beamtree.bench.measure.Result], tuple[str, ...]]",
) -> Table:
    """A table with a section per encoder and a row per length."""
    notes = ["note"] if any(result.note for result in results) else []
    table = make_table("encoder", "length", *columns, *notes, left=("encoder", "note"))
    for name, rows in itertools.groupby(results, key=lambda result: result.case.encoder):
        for result in rows:
            table.add_row(name, str(result.case.length), *figures(result), *([result.note] if notes else []))
        table.add_section()
    return table


def plain_figures(result: "beamtree.bench.measure.Result") -> tuple[str, ...]:
    times = duration(result.train_seconds), duration(result.inference_seconds)
    return (*times, memory(result.saved_bytes), memory(result.peak_bytes))


def speed_figures(result: "beamtree.bench.measure.Result") -> tuple[str, ...]:
    """Our figures, each followed by the paper's."""
    from beamtree.bench import measure as bench
    from beamtree.bench import tables as bench_tables

    time, peak = duration(bench_tables.seconds_for_samples(result)), memory(result.peak_bytes)
    published = bench_tables.published(result.case)
    if published is None:
        return time, digits(None), peak, digits(None)
    if published.minutes is None:
        return time, bench.OUT_OF_MEMORY, peak, bench.OUT_OF_MEMORY
    return time, f"{published.minutes} min", peak, f"{published.gigabytes} GB"
