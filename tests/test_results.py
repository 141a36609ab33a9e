"""The figures of `docs/results.md` are those of the runs in `results/`."""

import json
from pathlib import Path

import pytest

from result_scripts import script

ROOT = Path(__file__).parents[1]
write_tables = script("write_tables")


def test_the_tables_are_those_of_the_files():
    page = write_tables.PAGE.read_text(encoding="utf-8")
    assert write_tables.BLOCK.search(page)
    assert write_tables.with_tables(page) == page, "run `make results`"


@pytest.mark.parametrize("folder", sorted((ROOT / "results").glob("*/*/")), ids=lambda path: path.name)
def test_every_run_says_how_it_was_made(folder):
    assert {path.name for path in folder.iterdir()} - {write_tables.ORIGINAL} == {
        "config.yaml", "environment.json", "metrics.jsonl", "results.json"
    }  # fmt: skip
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["commit"]
    assert environment["versions"]["beamtree"]
