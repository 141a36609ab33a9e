"""`beamtree analyse`: compare trees with gold trees, baselines and each other, and check labels of constituents."""

# ruff: noqa: B006 (typer takes the default of a repeatable option as a list, which is never modified)

# PyTorch is imported inside functions, so that help is fast.
import json
from functools import partial
from typing import Annotated, Any

import typer

from beamtree.cli import evaluate
from beamtree.utils.checks import check_integer
from beamtree.utils.devices import find_device
from beamtree.utils.extras import require
from beamtree.utils.terminal import INTERRUPTED, digits, make_table, named_bars, print_table

EXAMPLE = (
    "Examples: one model on a test split of its task; two seeds on the first 100 sentences of a split; your own file, "
    "without gold trees\n\n"
    "  beamtree analyse listops-bt-grc --split near-iid\n\n"
    "  beamtree analyse runs/sst5/bt-grc-seed0 runs/sst5/bt-grc-seed1 --data sst5 --split iid --limit 100\n\n"
    "  beamtree analyse runs/sst5/bt-grc-seed0 --data reviews.tsv --json"
)
SCORES = ("corpus F1", "sentence F1", "nontrivial corpus F1", "nontrivial sentence F1", "exact match")


def analyse_command(
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help="Folders of runs, shipped models, or hub ids.")],
    data_name: evaluate.DataOption = None,
    splits: evaluate.SplitsOption = [],
    settings: evaluate.SettingsOption = [],
    roots: evaluate.RootsOption = [],
    limit: evaluate.LimitOption = None,
    seed: Annotated[int, typer.Option(help="Seed of the random trees.")] = 0,
    batch_size: Annotated[
        int | None, typer.Option(help="Maximum batch size; smaller for long inputs.", show_default="128")
    ] = None,
    device: evaluate.DeviceOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Compare the trees of models with gold trees, baselines and each other; check labels of constituents.

    F1 is computed over unlabelled spans of at least two tokens, in per cent; nontrivial spans exclude the whole text.
    It is the F1 of the most probable tree of each text; "expected F1" is the mean over the beams, weighted by their
    probabilities. The entropy of the beams is in nats. If the data has labels for constituents, as SST has for phrases
    and ListOps for lists, the labels in the model's tree are compared with them, by height and by length. Without
    --data and --split, the test splits of the first model's task are used. docs/trees.md has the definitions.
    """
    require("train", "beamtree analyse")
    if limit is not None:
        check_integer("limit", limit, at_least=1)
    if batch_size is not None:
        check_integer("batch size", batch_size, at_least=1)
    check_integer("seed", seed, at_least=0)
    place = find_device(device)
    import torch

    from beamtree.evaluation import trees as analysis
    from beamtree.models import inference, pretrained

    trained = {name: pretrained.load(name, place) for name in dict.fromkeys(models)}
    first = next(iter(trained.values()))
    run = partial(analysis.analyse, trained, limit=limit, seed=seed, max_samples=batch_size or inference.MAX_SAMPLES)
    found: dict[str, analysis.Analysis] = {}
    totals: dict[str, int] = {}
    interrupted = False
    with named_bars() as bar, evaluate.warning_lines():
        data, wanted, missing = evaluate.choose_data(first, splits, data_name, settings, roots, bar)
        try:
            for split in wanted:
                if split not in missing:
                    samples = data[split]
                    totals[split] = len(samples)
                    torch.manual_seed(seed)  # for encoders that sample their trees
                    found[split] = analysis.Analysis(list(trained))
                    run(samples, progress=partial(bar, split), into=found[split])
        except KeyboardInterrupt:
            interrupted = True

    encoders = {name: model.config.encoder for name, model in trained.items()}
    report: dict[str, Any] = {
        **{"models": encoders, "data": data.name, "options": data.options, "device": place},
        **{"limit": limit, "seed": seed, "interrupted": interrupted, "missing": missing},
        "splits": {split: {**one.to_dict(), "total": totals[split]} for split, one in found.items()},
    }
    if as_json:
        typer.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print(report)
    if interrupted:
        counts = ", ".join(f"{one.sentences:,} sentences of {split}" for split, one in found.items()) or "nothing"
        typer.echo(f"interrupted: {counts} analysed", err=True)
        raise typer.Exit(INTERRUPTED)


def _print(report: dict[str, Any]) -> None:
    models = ", ".join(f"{name} ({encoder})" for name, encoder in report["models"].items())
    typer.echo(f"{models} on {evaluate.data_line(report)}")
    for split, found in report["splits"].items():
        limit = min(report["limit"] or found["total"], found["total"])
        limited = "" if limit == found["total"] else f", {evaluate.count_text(limit, found['total'])} samples"
        typer.echo(f"\n{split}, {found['sentences']:,} sentences{limited}")
        rows = found["rows"]
        if any(row["against_trees"] for row in rows.values()):
            _print_trees({name: row for name, row in rows.items() if name != "oracle"}, report["models"])
        else:
            _print_without_gold(rows, report["models"])
        if any(row["against_lists"] for row in rows.values()):
            typer.echo("\ncompared with the lists only: a tree may merge the parts of a list in any order")
            _print_lists({name: row for name, row in rows.items() if name != "gold"})
        labelled = {name: row["constituents"] for name, row in rows.items() if row["constituents"]}
        if labelled:
            typer.echo("\naccuracy by constituent: the classifier's label of each constituent of the model's tree")
            _print_constituents(labelled)
            for key, kind in (("by_height", "height"), ("by_length", "length")):
                typer.echo(f"\naccuracy by {kind} of the constituent (recall: share of them in the tree)")
                _print_bins(kind, {name: row[key] for name, row in labelled.items()})
        if found["agreement"]:
            typer.echo("\nagreement between models")
            _print_agreement(found)
    evaluate.print_missing(report["missing"])


def _print_trees(rows: dict[str, Any], models: dict[str, str]) -> None:
    table = make_table("trees", *SCORES, "expected F1", "depth", "entropy", left=("trees",))
    for name, row in rows.items():
        # Baselines and gold trees are single trees: they have no expected F1 and no entropy.
        beams = (_percent(row["expected_f1"]), _nats(row["entropy"])) if name in models else ("", "")
        table.add_row(name, *_scores(row["against_trees"]), beams[0], digits(row["depth"]), beams[1])
    print_table(table)


def _print_without_gold(rows: dict[str, Any], models: dict[str, str]) -> None:
    table = make_table("trees", "depth", "entropy", left=("trees",))
    for name, row in rows.items():
        table.add_row(name, digits(row["depth"]), _nats(row["entropy"]) if name in models else "")
    print_table(table)


def _print_lists(rows: dict[str, Any]) -> None:
    table = make_table("trees", *SCORES, "recall", left=("trees",))
    for name, row in rows.items():
        shown = "oracle: the best possible binary tree" if name == "oracle" else name
        table.add_row(shown, *_scores(row["against_lists"]), _percent(row["against_lists"]["merged"]["recall"]))
    print_table(table)


def _print_constituents(rows: dict[str, Any]) -> None:
    table = make_table("model", "labelled", "in the tree", "accuracy", left=("model",))
    for name, row in rows.items():
        table.add_row(name, f"{row['expected']:,}", _percent(row["recall"]), _percent(row["accuracy"]))
    print_table(table)


def _print_bins(kind: str, rows: dict[str, list[dict[str, Any]]]) -> None:
    """Print one row per height or range of lengths, and one column per model."""

    def bounds(tally: dict[str, Any]) -> tuple[int, int]:
        return (tally[kind], tally[kind]) if kind in tally else (tally["first"], tally["last"])

    table = make_table(kind, "labelled", *rows)
    cells = {name: {bounds(tally): tally for tally in tallies} for name, tallies in rows.items()}
    for first, last in next(iter(cells.values())):
        found = [column[first, last] for column in cells.values()]
        shown = (f"{_percent(tally['accuracy'])} ({_percent(tally['recall'])})" for tally in found)
        table.add_row(str(first) if first == last else f"{first}–{last}", f"{found[0]['expected']:,}", *shown)
    print_table(table)


def _print_agreement(found: dict[str, Any]) -> None:
    table = make_table("models", "sentence F1", "nontrivial", "expected F1", "same tree", left=("models",))
    mean = [{"models": ["mean of all pairs"], **found["agreement"]}] if len(found["pairs"]) > 1 else []
    for pair in (*found["pairs"], *mean):
        shown = (pair[key] for key in ("f1", "nontrivial_f1", "expected_f1", "same_tree"))
        table.add_row(" – ".join(pair["models"]), *map(_percent, shown))
    print_table(table)


def _scores(record: dict[str, Any]) -> list[str]:
    """The cells of `SCORES`."""
    counted = [record[name][key] for name in ("merged", "nontrivial") for key in ("f1", "sentence_f1")]
    return [*map(_percent, counted), _percent(record["exact_match"])]


def _percent(share: float | None) -> str:
    return digits(None) if share is None else evaluate.percent(share)


def _nats(entropy: float) -> str:
    return f"{entropy:.3f}"
