"""Folders of finished runs with given accuracies, for reports."""

from beamtree.evaluation import report
from beamtree.models import storage
from beamtree.models.config import make_config
from beamtree.runs import recipes
from beamtree.runs.settings import replace
from beamtree.utils import files


def write_run(folder, accuracies, seed=0, encoder="bt-grc", recipe="listops", own=None, **changes):
    """A finished run, or with None an unfinished one. Dots of keys are written as __; `own` replaces whole fields."""
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    settings = replace(recipes.load(recipe, encoder, seed, changes), **(own or {}))
    folder.mkdir(parents=True)
    storage.write_config(folder, make_config(settings.to_dict(), ("a", "b"), pair=False, closed_vocabulary=False))
    if accuracies is not None:
        splits = {split: {"correct": 1, "count": 2, "accuracy": x, "loss": 0.5} for split, x in accuracies.items()}
        files.write_json(folder / storage.RESULTS, {"splits": splits})


def table_of(folder, **settings):
    (table,) = report.tables(report.find([folder]).runs, **settings)
    return table
