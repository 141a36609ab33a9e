"""The folder of a run: its settings, the environment, and the fingerprint of its data."""

import json
import os

import numpy as np
import pytest
import torch

import beamtree
from beamtree import data
from beamtree.models import storage
from beamtree.models.config import make_config
from beamtree.runs import recipes
from beamtree.runs.folder import environment, fingerprint, read_settings


def message(call, *arguments):
    """The error message for a mistake, which is one line."""
    with pytest.raises(ValueError, match=r"\A.+\Z") as caught:
        call(*arguments)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path):
    """A folder with the configuration of a run, and its settings."""
    settings = recipes.load("listops", seed=3)
    storage.write_config(tmp_path, make_config(settings.to_dict(), ("no", "yes"), pair=False, closed_vocabulary=True))
    return tmp_path


def change(folder, old, new):
    path = folder / storage.CONFIG
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_the_settings_of_a_run_are_read_from_its_folder(folder):
    assert read_settings(folder) == recipes.load("listops", seed=3)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("clip: 1.0", "clip: x", "training.clip is 'x'"),
        ("clip: 1.0", "", "training.clip is missing"),
        ("clip: 1.0", "clip: 1.0\n  clpi: 2.0", "unknown setting 'training.clpi' (did you mean 'training.clip'?)"),
        ("seed: 3", "seed: -1", "seed is -1"),
        ("seed: 3", "seed: 3\nsede: 4", "unknown setting 'sede' (did you mean 'seed'?)"),
        ("labels:", "labels2:", "the key labels is missing"),
    ],
)
def test_settings_that_cannot_be_used_are_named_in_one_line(folder, old, new, expected):
    change(folder, old, new)
    found = message(read_settings, folder)
    assert found.startswith(f"{folder / storage.CONFIG}: {expected}")
    assert "version" not in found


def test_settings_of_another_version_say_so(folder):
    change(folder, "clip: 1.0", "clip: 1.0\n  clpi: 2.0")
    change(folder, f"beamtree: {beamtree.__version__}", "beamtree: 9.9.9")
    found = message(read_settings, folder)
    assert "training.clpi" in found
    assert f"written by beamtree 9.9.9, and this is {beamtree.__version__}" in found


def test_the_message_about_a_long_value_is_short(folder):
    change(folder, "clip: 1.0", f"clip: {'x' * 10_000}")
    assert len(message(read_settings, folder)) < 1000


@pytest.fixture
def own_data(tmp_path, monkeypatch):
    """Creates data with one split from the lines of a table."""
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path / "cache"))

    def make(*lines):
        path = tmp_path / f"{len(os.listdir(tmp_path))}.tsv"
        path.write_text("\n".join(lines) + "\n")
        found = data.load(path)
        return fingerprint(found, found.splits)[found.splits[0]]

    return make


def test_the_fingerprint_is_that_of_the_data(own_data):
    first = own_data("a b\tno", "c d\tyes")
    assert first == own_data("a b\tno", "c d\tyes")
    others = [
        own_data("a b\tyes", "c d\tno"),
        own_data("a\tno", "b c d\tyes"),
        own_data("a b\tno", "c e\tyes"),
        own_data("c d\tyes", "a b\tno"),
        own_data("a b\tno", "c d\tyeah"),
    ]
    assert len({first, *others}) == 6
    assert all(len(digest) == 64 for digest in others)


def test_the_fingerprint_does_not_depend_on_where_the_arrays_are(tmp_path):
    split = data.Split.from_samples([data.Sample(("a", "b"), "x"), data.Sample(("b",), "y")], ("x", "y"))
    arrays = split.arrays()
    np.save(tmp_path / "tokens.npy", arrays["tokens"])
    mapped = {**arrays, "tokens": np.load(tmp_path / "tokens.npy", mmap_mode="r")}
    again = data.Split.from_arrays(mapped, ("x", "y"))
    digests = [each.fingerprint for each in (split, again)]
    assert digests[0] == digests[1]


def test_the_environment_has_versions_and_hardware_in_json():
    found = json.loads(json.dumps(environment("cpu")))
    assert found["versions"]["beamtree"] == beamtree.__version__
    assert found["versions"]["torch"] == torch.__version__
    assert found["device"]
    assert found["threads"] == torch.get_num_threads()
