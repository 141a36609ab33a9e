"""Runs of a second: a few short texts over three letters, whose label is the most frequent letter."""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from beamtree.models import storage
from beamtree.runs.folder import METRICS
from beamtree.runs.settings import (
    DataSettings,
    EncoderSettings,
    ModelSettings,
    OptimizerSettings,
    Settings,
    TrainingSettings,
    replace,
)
from beamtree.utils import files

SIZES = {"train": 25, "dev": 10, "test": 9}  # the last of the four steps of an epoch has one sample
PLAIN: dict[str, Any] = {  # without random numbers, which differ between numbers of devices
    "model__dropout": 0.0,
    "model__dropout_in": 0.0,
    "encoder__options": {"dropout": 0.0, "stochastic": False},
}


def write_data(folder: Path, sizes: Mapping[str, int] = SIZES, pairs: bool = False, longest: int = 5) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    for split, count in sizes.items():
        rows = ["label\tsentence1\tsentence2" if pairs else "label\ttext"]
        for _ in range(count):
            texts = [draw.choices("abc", k=draw.randint(1, longest)) for _ in range(1 + pairs)]
            together = [word for text in texts for word in text]
            rows.append("\t".join((max("abc", key=together.count), *(" ".join(text) for text in texts))))
        (folder / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    return folder


def toy_settings(folder: Path, **changes: Any) -> Settings:
    """Settings for the data in a folder. Changes are given by keys with "__" for "."; options are merged."""
    settings = Settings(
        recipe="toy",
        seed=0,
        data=DataSettings(task=str(folder), options={"tokenizer": "spaces"}, vectors=None, tests=()),
        model=ModelSettings(dim=6, hidden=None, dropout=0.1, dropout_in=0.1),
        encoder=EncoderSettings(name="bt-grc", options={"beam_size": 2, "dropout": 0.1}),
        optimizer=OptimizerSettings(name="ranger", lr=1e-2, weight_decay=1e-2),
        training=TrainingSettings(
            batch_size=8,
            micro_batch=4,
            dev_batch=8,
            bucket_factor=2,
            clip=1.0,
            max_epochs=3,
            patience=3,
            select="accuracy",  # constant on ten samples, so the learning rate is reduced
            plateau_factor=0.5,
            plateau_patience=0,
            precision="32",
        ),
    )
    for key, value in changes.items():
        group, _, name = key.partition("__")
        if name:
            before = getattr(settings, group)
            value = {**before.options, **value} if name == "options" else value
            value = replace(before, **{name: value})
        settings = replace(settings, **{group: value})
    return settings


def outcome(folder: Path) -> tuple[bytes, list[dict[str, Any]], dict[str, Any]]:
    """Weights, metrics and results: all that must not depend on when a run was stopped, and so not on the clock."""
    lines = files.read_json_lines(folder / METRICS)
    results = storage.read_results(folder)
    for timed in (*lines, results):
        for key in ("seconds", "samples_per_second"):
            timed.pop(key, None)
    return (folder / storage.WEIGHTS).read_bytes(), lines, results


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
