"""The folder of a run: what is written is read back, whole or not at all, and what is wrong is said in one line."""

import errno
import json
import os

import numpy as np
import pytest
import torch
from torch import nn

import beamtree
from beamtree import data, recipes, runs
from beamtree.runs import Config, read_config, write_config


def config(labels=("no", "yes"), **settings):
    return Config(recipes.load("listops"), tuple(labels), **{"pair": False, "closed_vocabulary": True, **settings})


def message(call, *arguments):
    """What a mistake is answered with, which is one line."""
    with pytest.raises(ValueError, match=r"\A.+\Z") as caught:
        call(*arguments)
    return str(caught.value)


@pytest.mark.parametrize(
    "labels", [("0", "1", "2"), ("=", "<", "#"), ("yes", "no", "null", "~"), ("größer", "\udc80", "a: b", " ", "1e3")]
)
def test_a_config_is_read_as_it_was_written(tmp_path, labels):
    written = config(labels, pair=True, closed_vocabulary=False)
    write_config(tmp_path, written)
    assert read_config(tmp_path) == written
    assert f"beamtree: {beamtree.__version__}" in (tmp_path / runs.CONFIG).read_text()


def test_a_folder_is_a_run_once_it_has_a_config_and_finished_once_it_has_results(tmp_path):
    results = {"splits": {"test": {"correct": 1, "count": 2, "accuracy": 0.5, "loss": 1.0}}}
    runs.write_json(tmp_path / runs.RESULTS, results)
    assert not runs.is_run(tmp_path)
    assert not runs.is_finished(tmp_path)
    write_config(tmp_path, config())
    assert runs.is_run(tmp_path)
    assert runs.is_finished(tmp_path)
    assert runs.read_results(tmp_path) == results
    damages = ('{"splits": {"test"', "[]", "{}", '{"splits": [1]}', '{"splits": {"test": 1}}')
    for damaged in (*damages, '{"splits": {"test": {"count": 2}}}'):
        (tmp_path / runs.RESULTS).write_text(damaged)
        assert not runs.is_finished(tmp_path)
        assert runs.RESULTS in message(runs.read_results, tmp_path)
    (tmp_path / runs.RESULTS).unlink()
    assert "has no results.json: the run is not finished" in message(runs.read_results, tmp_path)


def test_a_folder_that_is_none_is_named(tmp_path):
    assert message(read_config, tmp_path / "none") == f"{tmp_path / 'none'}: there is no such folder"
    assert message(read_config, tmp_path) == f"{tmp_path} is no run: it has no config.yaml"
    (tmp_path / "file").write_text("")
    assert message(read_config, tmp_path / "file") == f"{tmp_path / 'file'}: it is a file, no folder"
    assert not runs.is_run("x" * 5000)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda text: text.replace("seed: 0", "seed: [0"), "config.yaml: it is no YAML file"),
        (lambda text: text.replace("seed: 0", "seed: 2020-99-99"), "config.yaml: it is no YAML file"),
        (lambda text: "[" * 5000, "config.yaml: it is no YAML file"),
        (lambda text: text.replace("seed: 0", "seed: \x00"), "config.yaml: it is no YAML file"),
        (lambda text: text.replace("seed: 0", "seed: !!python/object/apply:os.getpid []"), "it is no YAML file"),
        (lambda text: "", "config.yaml: it holds NoneType"),
        (lambda text: text.replace("pair: false", ""), "config.yaml: the key pair is missing"),
        (lambda text: text.replace("pair: false", "pair: 2"), "pair is 2: it must be of type bool"),
        (lambda text: text.replace("- 'no'", "- no"), "labels is [False, 'yes']"),
        (lambda text: text.replace("- 'no'", "- 'yes'"), "two or more different words"),
        (lambda text: text.replace("- 'no'\n", ""), "two or more different words"),
        (lambda text: text.replace("clip: 1.0", "clip: x"), "training.clip is 'x'"),
        (lambda text: text.replace("clip: 1.0", ""), "training.clip is missing"),
    ],
)
def test_a_damaged_config_is_answered_in_one_line(shape_checks_off, tmp_path, change, expected):
    write_config(tmp_path, config())
    path = tmp_path / runs.CONFIG
    before = path.read_text()
    path.write_text(change(before))
    assert path.read_text() != before
    assert expected in message(read_config, tmp_path)


def test_a_config_of_another_version_says_so(tmp_path):
    write_config(tmp_path, config())
    path = tmp_path / runs.CONFIG
    unknown = path.read_text().replace("clip: 1.0", "clip: 1.0\n  clpi: 2.0")
    path.write_text(unknown)
    assert "version" not in message(read_config, tmp_path)
    path.write_text(unknown.replace(f"beamtree: {beamtree.__version__}", "beamtree: 9.9.9"))
    found = message(read_config, tmp_path)
    assert "training.clpi" in found
    assert f"written by beamtree 9.9.9, and this is {beamtree.__version__}" in found


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_file_is_written_as_a_whole_or_not_at_all(tmp_path, monkeypatch, error):
    path = tmp_path / "file"
    runs.write_atomically(path, "before")
    runs.write_atomically(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert path.stat().st_mode & 0o777 == 0o644

    def fail(*arguments):
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises((ValueError, KeyboardInterrupt)) as caught:
        runs.write_atomically(path, "after")
    if isinstance(error, OSError):
        assert str(caught.value).startswith(f"{path}: it cannot be written (No space left on device)")
    assert path.read_bytes() == b"\x00\xff"
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_that_is_not_there_cannot_be_written_to(tmp_path):
    assert "it cannot be written" in message(runs.write_json, tmp_path / "none" / "x.json", {})
    assert "it cannot be written" in message(runs.append_json_line, tmp_path / "none" / "x.jsonl", {})


def test_lines_are_added_and_half_a_line_makes_way(tmp_path):
    path = tmp_path / runs.METRICS
    runs.append_json_line(path, {"epoch": 0, "note": "ü\n\udc80"})
    runs.append_json_line(path, {"epoch": 1})
    with open(path, "ab") as file:
        file.write(b'{"epoch": 2, "tra')  # all that a killed process could write
    assert runs.read_json_lines(path) == [{"epoch": 0, "note": "ü\n\udc80"}, {"epoch": 1}]
    runs.append_json_line(path, {"epoch": 2})
    assert [line["epoch"] for line in runs.read_json_lines(path)] == [0, 1, 2]
    path.write_text('{"epoch": 0}\nx\n{"epoch": 1}\n')
    assert "metrics.jsonl, line 2: it is no JSON" in message(runs.read_json_lines, path)


def test_json_is_read_as_it_was_written(tmp_path):
    value = {"b": [1, 2.5, None], "a": {"ü": "\udc80"}}
    runs.write_json(tmp_path / "x.json", value)
    assert runs.read_json(tmp_path / "x.json") == value
    (tmp_path / "x.json").write_text('{"b": [1, 2.5')
    assert "x.json: it is no JSON file" in message(runs.read_json, tmp_path / "x.json")


def test_weights_come_back_bit_by_bit(tmp_path):
    write_config(tmp_path, config())
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    model.weight.requires_grad_(False)
    with torch.no_grad():
        model.bias[0] = torch.nan
        model.weight.set_(torch.randn(3, 2).t())  # not contiguous
    runs.write_weights(tmp_path, model)
    runs.fill(other, runs.read_weights(tmp_path), "here")
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name].view(torch.int32), tensor.contiguous().view(torch.int32))


@pytest.mark.parametrize(("exact", "size"), [(True, 2), (False, 4)])
def test_frozen_weights_of_half_precision_take_half_the_room(tmp_path, exact, size):
    write_config(tmp_path, config())
    model, other = nn.Embedding(500, 10), nn.Embedding(500, 10)
    with torch.no_grad():
        model.weight.copy_(model.weight.half())
        model.weight[7, 7] += 0 if exact else 1e-5
    for frozen in (True, False):
        model.weight.requires_grad_(not frozen)
        runs.write_weights(tmp_path, model)
        assert (tmp_path / runs.WEIGHTS).stat().st_size // 5000 == (size if frozen else 4)
        runs.fill(other, runs.read_weights(tmp_path), "here")
        assert other.weight.dtype == torch.float32
        assert torch.equal(other.weight, model.weight)


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:20], lambda b: b"", lambda b: b"PK\x03\x04" + b])
def test_damaged_weights_are_answered_in_one_line(tmp_path, damage):
    write_config(tmp_path, config())
    assert "has no model.safetensors" in message(runs.read_weights, tmp_path)
    runs.write_weights(tmp_path, nn.Linear(3, 2))
    path = tmp_path / runs.WEIGHTS
    path.write_bytes(damage(path.read_bytes()))
    assert f"{path}: it is damaged, or no safetensors file" in message(runs.read_weights, tmp_path)


def test_weights_of_another_model_are_named_three_at_most():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    right = model.state_dict()
    before = {name: tensor.clone() for name, tensor in right.items()}
    wrong = {"0.weight": torch.zeros(2, 4), "1.bias": torch.zeros(2, dtype=torch.int64), "2.bias": torch.zeros(1)}
    found = message(runs.fill, model, {**{"0.bias": right["0.bias"]}, **wrong}, "here")
    assert found == (
        "here: these are the weights of another model: 1.weight is missing, 2.bias is superfluous, "
        "0.weight is floats of shape (2, 4) and must be floats of shape (2, 3), and 1 more"
    )
    found = message(runs.fill, model, {**right, "1.bias": wrong["1.bias"]}, "here")
    assert found.endswith("1.bias is integers of shape (2,) and must be floats of shape (2,)")
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())


@pytest.fixture
def own_data(tmp_path, monkeypatch):
    """Makes data of one split from the lines of a table."""
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path / "cache"))

    def make(*lines):
        path = tmp_path / f"{len(os.listdir(tmp_path))}.tsv"
        path.write_text("\n".join(lines) + "\n")
        found = data.load(path)
        return runs.fingerprint(found, found.splits)[found.splits[0]]

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
    digests = [runs._digest(each.arrays(), each.label_names) for each in (split, again)]
    assert digests[0] == digests[1]


def test_the_environment_has_versions_and_hardware_in_json():
    found = json.loads(json.dumps(runs.environment("cpu")))
    assert found["versions"]["beamtree"] == beamtree.__version__
    assert found["versions"]["torch"] == torch.__version__
    assert found["device"]
    assert found["threads"] == torch.get_num_threads()


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_files_have_the_permissions_of_the_users_other_files(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        runs.write_atomically(tmp_path / "file", "text")
        (tmp_path / "other").write_text("text")
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == (tmp_path / "other").stat().st_mode & 0o777 == mode
