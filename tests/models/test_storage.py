"""Models on disk: writing and reading lose nothing, and errors of a folder are one line."""

import pytest
import torch
from torch import nn

import beamtree
from beamtree.models import storage
from beamtree.models.config import make_config
from beamtree.models.storage import read_config, write_config
from beamtree.runs import recipes
from beamtree.utils import files


def config(labels=("no", "yes"), **settings):
    return make_config(
        recipes.load("listops").to_dict(), tuple(labels), **{"pair": False, "closed_vocabulary": True, **settings}
    )


def message(call, *arguments):
    """The error message for a mistake, which is one line."""
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
    assert f"beamtree: {beamtree.__version__}" in (tmp_path / storage.CONFIG).read_text()


def test_a_folder_is_a_run_once_it_has_a_config_and_finished_once_it_has_results(tmp_path):
    results = {"splits": {"test": {"correct": 1, "count": 2, "accuracy": 0.5, "loss": 1.0}}}
    files.write_json(tmp_path / storage.RESULTS, results)
    assert not storage.is_run(tmp_path)
    assert not storage.is_finished(tmp_path)
    write_config(tmp_path, config())
    assert storage.is_run(tmp_path)
    assert storage.is_finished(tmp_path)
    assert storage.read_results(tmp_path) == results
    damages = ('{"splits": {"test"', "[]", "{}", '{"splits": [1]}', '{"splits": {"test": 1}}')
    for damaged in (*damages, '{"splits": {"test": {"count": 2}}}'):
        (tmp_path / storage.RESULTS).write_text(damaged)
        assert not storage.is_finished(tmp_path)
        assert storage.RESULTS in message(storage.read_results, tmp_path)
    (tmp_path / storage.RESULTS).unlink()
    assert "has no results.json: the run is not finished" in message(storage.read_results, tmp_path)


def test_a_folder_that_is_none_is_named(tmp_path):
    assert message(read_config, tmp_path / "none") == f"{tmp_path / 'none'}: there is no such folder"
    assert message(read_config, tmp_path) == f"{tmp_path} is not a run: it has no config.yaml"
    (tmp_path / "file").write_text("")
    assert message(read_config, tmp_path / "file") == f"{tmp_path / 'file'}: it is a file, not a folder"
    assert not storage.is_run("x" * 5000)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda text: text.replace("seed: 0", "seed: [0"), "config.yaml: it is not YAML"),
        (lambda text: text.replace("seed: 0", "seed: 2020-99-99"), "config.yaml: it is not YAML"),
        (lambda text: "[" * 5000, "config.yaml: it is not YAML"),
        (lambda text: text.replace("seed: 0", "seed: \x00"), "config.yaml: it is not YAML"),
        (lambda text: text.replace("seed: 0", "seed: !!python/object/apply:os.getpid []"), "it is not YAML"),
        (lambda text: "", "config.yaml: it contains NoneType"),
        (lambda text: text.replace("pair: false", ""), "config.yaml: the key pair is missing"),
        (lambda text: text.replace("pair: false", "pair: 2"), "pair is 2: it must be of type bool"),
        (lambda text: text.replace("- 'no'", "- no"), "labels is [False, 'yes']"),
        (lambda text: text.replace("- 'no'", "- 'yes'"), "two or more different strings"),
        (lambda text: text.replace("- 'no'\n", ""), "two or more different strings"),
        (lambda text: text.replace("dim: 128", "dim: x"), "config.yaml: model.dim is 'x': it must be an integer"),
        (lambda text: text.replace("dim: 128", ""), "config.yaml: model.dim is missing"),
    ],
)
def test_a_damaged_config_is_answered_in_one_line(shape_checks_off, tmp_path, change, expected):
    write_config(tmp_path, config())
    path = tmp_path / storage.CONFIG
    before = path.read_text()
    path.write_text(change(before))
    assert path.read_text() != before
    assert expected in message(read_config, tmp_path)


def test_a_config_of_another_version_says_so(tmp_path):
    write_config(tmp_path, config())
    path = tmp_path / storage.CONFIG
    renamed = path.read_text().replace("dim: 128", "width: 128")
    path.write_text(renamed)
    assert "version" not in message(read_config, tmp_path)
    path.write_text(renamed.replace(f"beamtree: {beamtree.__version__}", "beamtree: 9.9.9"))
    found = message(read_config, tmp_path)
    assert "model.dim is missing" in found
    assert f"written by beamtree 9.9.9, and this is {beamtree.__version__}" in found


def test_weights_come_back_bit_by_bit(tmp_path):
    write_config(tmp_path, config())
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    model.weight.requires_grad_(False)
    with torch.no_grad():
        model.bias[0] = torch.nan
        model.weight.set_(torch.randn(3, 2).t())  # not contiguous
    storage.write_weights(tmp_path, model)
    storage.fill(other, storage.read_weights(tmp_path), "here")
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
        storage.write_weights(tmp_path, model)
        assert (tmp_path / storage.WEIGHTS).stat().st_size // 5000 == (size if frozen else 4)
        storage.fill(other, storage.read_weights(tmp_path), "here")
        assert other.weight.dtype == torch.float32
        assert torch.equal(other.weight, model.weight)


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:20], lambda b: b"", lambda b: b"PK\x03\x04" + b])
def test_damaged_weights_are_answered_in_one_line(tmp_path, damage):
    write_config(tmp_path, config())
    assert "has no model.safetensors" in message(storage.read_weights, tmp_path)
    storage.write_weights(tmp_path, nn.Linear(3, 2))
    path = tmp_path / storage.WEIGHTS
    path.write_bytes(damage(path.read_bytes()))
    assert f"{path}: it is damaged, or not a safetensors file" in message(storage.read_weights, tmp_path)


def test_weights_of_another_model_are_named_three_at_most():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    right = model.state_dict()
    before = {name: tensor.clone() for name, tensor in right.items()}
    wrong = {"0.weight": torch.zeros(2, 4), "1.bias": torch.zeros(2, dtype=torch.int64), "2.bias": torch.zeros(1)}
    found = message(storage.fill, model, {**{"0.bias": right["0.bias"]}, **wrong}, "here")
    assert found == (
        "here: these are the weights of another model: 1.weight is missing, 2.bias is unexpected, "
        "0.weight is floats of shape (2, 4) and must be floats of shape (2, 3), and 1 more"
    )
    found = message(storage.fill, model, {**right, "1.bias": wrong["1.bias"]}, "here")
    assert found.endswith("1.bias is integers of shape (2,) and must be floats of shape (2,)")
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
