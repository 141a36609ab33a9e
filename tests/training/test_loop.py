"""A run produces a model with its results, is trained once, and resumes after any interruption to the same result."""

import errno
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric

from beamtree.data import Data, load
from beamtree.evaluation import evaluate_model
from beamtree.models import pretrained, storage
from beamtree.runs import checkpoints
from beamtree.runs import folder as run_folder
from beamtree.runs.folder import CHECKPOINTS, ENVIRONMENT, fingerprint
from beamtree.training import loop as run_module
from beamtree.training import resume, train
from beamtree.training.progress import Forecast
from beamtree.utils import files
from training.toy_runs import PLAIN, metrics, outcome, toy_settings, write_data


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("runs") / "data")


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BEAMTREE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        folder = tmp_path_factory.mktemp("runs") / "whole"
        begin(data, folder)
    return folder


def begin(data: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    return train(toy_settings(data, **changes), folder, device="cpu", progress=False, checkpoint_steps=1)


class Stop(BaseException):
    pass


@contextmanager
def stopped_at(number: int, before: bool = False) -> Iterator[None]:
    """Stop a run right after its n-th checkpoint is written, or right before."""
    save, count = checkpoints.save, 0

    def stopping(path: Path, state: dict[str, Any]) -> None:
        nonlocal count
        count += 1
        if before and count == number:
            raise Stop
        save(path, state)
        if count == number:
            raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "save", stopping)
        with pytest.raises(Stop):
            yield


def test_the_folder_is_a_model_with_its_results(whole, data):
    results = storage.read_results(whole)
    assert storage.is_finished(whole)
    assert sorted(path.name for path in whole.iterdir()) == sorted(
        (
            "checkpoints",
            "config.yaml",
            "environment.json",
            "logs",
            "metrics.jsonl",
            "model.safetensors",
            "results.json",
            "vocab.json",
        )
    )
    model = pretrained.load(whole)
    splits = load(data, tokenizer="spaces")
    for split, found in (("test", results["splits"]["test"]), ("dev", results["dev"])):
        scores = evaluate_model(model.model, splits[split].batches(model.vocabulary), device="cpu")
        assert found == {
            "correct": int(scores.hit.sum()),
            "count": len(splits[split]),
            "accuracy": float(scores.hit.mean()),
            "loss": float(scores.losses.mean()),
        }
    assert files.read_json(whole / ENVIRONMENT)["data"] == fingerprint(splits, ["train", "dev", "test"])
    assert model.predict(["a a a b"])[0].label in "abc"


def test_a_finished_run_is_never_run_again(whole, data, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    monkeypatch.setattr(run_module, "prepare", None)
    assert begin(data, whole) == resume(whole) == storage.read_results(whole)
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before


def test_a_folder_of_other_settings_is_refused_with_the_first_difference(whole, data):
    with pytest.raises(
        ValueError, match=r"whole holds a run with optimizer\.lr 0\.01, not 0\.02: choose another folder"
    ):
        begin(data, whole, optimizer__lr=0.02)
    with pytest.raises(ValueError, match=r"holds a run with encoder\.options\.beam_size 2, not 3"):
        begin(data, whole, encoder__options={"beam_size": 3})


def test_a_folder_that_is_no_run_is_left_alone(data, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "mine.ckpt").write_text("more of them")
    for folder, message in (
        (tmp_path, "is not empty, but not a run: choose another folder"),
        (tmp_path / "checkpoints", "is not empty, but not a run"),
        (tmp_path / "thesis.tex", "is a file: a run needs a folder"),
    ):
        with pytest.raises(ValueError, match=message):
            begin(data, folder)
    with pytest.raises(ValueError, match="nowhere: there is no such folder"):
        resume(tmp_path / "nowhere")


def test_a_model_from_elsewhere_is_not_gone_on_with(whole, tmp_path):
    pretrained.load(whole).save_pretrained(tmp_path / "model")
    (tmp_path / "model" / storage.RESULTS).unlink(missing_ok=True)
    with pytest.raises(ValueError, match=r"is a model that was trained elsewhere: it has no metrics\.jsonl"):
        resume(tmp_path / "model")


def test_a_run_that_stops_at_every_checkpoint_ends_the_same(whole, data, tmp_path):
    """Within an epoch, at its end, and before the results are written."""
    assert metrics(whole)[-1]["lr"] < metrics(whole)[0]["lr"], "there is something to restore"
    folder = tmp_path / "run"
    for _ in range(3 * 4):  # epochs and their steps
        with stopped_at(1):
            begin(data, folder)
    begin(data, folder)
    assert outcome(folder) == outcome(whole)


def test_an_epoch_without_its_checkpoint_is_trained_again(whole, data, tmp_path):
    """Metrics and weights of an epoch are written only after its checkpoint."""
    with stopped_at(4, before=True):
        begin(data, tmp_path / "run")
    assert metrics(tmp_path / "run") == []
    assert not (tmp_path / "run" / storage.WEIGHTS).exists()
    resume(tmp_path / "run", device="cpu", progress=False)
    assert outcome(tmp_path / "run") == outcome(whole)


def test_a_run_that_had_ended_only_lacks_its_results(data, tmp_path):
    """The checkpoint stores that the run had stopped early."""
    changes = {"optimizer__lr": 1e-9, "training__patience": 1}
    expected = begin(data, tmp_path / "whole", **changes)
    assert expected["epochs"] == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "_finish", None)
        with pytest.raises(TypeError):
            begin(data, tmp_path / "run", **changes)
    begin(data, tmp_path / "run", **changes)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(whole, data, tmp_path, capsys):
    folder = tmp_path / "run"
    with stopped_at(3):
        begin(data, folder)
    newest = checkpoints.all_of(folder / CHECKPOINTS)[-1]
    newest.write_bytes(newest.read_bytes()[:-9])
    begin(data, folder)
    assert capsys.readouterr().err == f"warning: {newest}: the checkpoint is damaged: using the previous one\n"
    assert outcome(folder) == outcome(whole)


def test_a_full_disk_is_one_line_and_costs_nothing_else(whole, data, tmp_path, monkeypatch):
    folder, write = tmp_path / "run", os.fsync

    def full(handle: int) -> None:
        if len(checkpoints.all_of(folder / CHECKPOINTS)) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match=r"cannot be written \(No space left on device\): free some space") as caught:
        begin(data, folder)
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(os, "fsync", write)
    assert len(checkpoints.all_of(folder / CHECKPOINTS)) == 2
    begin(data, folder)
    assert outcome(folder) == outcome(whole)


def ask_to_stop(monkeypatch: pytest.MonkeyPatch, number: int, times: int) -> None:
    """In the second step of the second epoch, which has two micro-batches."""
    backward, asked = Fabric.backward, 0
    steps = 0

    def asking(self: Any, *arguments: Any, **options: Any) -> None:
        nonlocal asked, steps
        steps += 1
        if steps > 9 and asked < times:
            asked += 1
            os.kill(os.getpid(), number)
        backward(self, *arguments, **options)

    monkeypatch.setattr(Fabric, "backward", asking)


@pytest.mark.parametrize(
    ("number", "times", "error", "last"),
    [
        (signal.SIGINT, 1, KeyboardInterrupt, "step-000000006.ckpt"),
        (signal.SIGTERM, 1, SystemExit, "step-000000006.ckpt"),
        (signal.SIGINT, 2, KeyboardInterrupt, "step-000000004.ckpt"),
    ],
    ids=["ctrl-c", "sigterm", "ctrl-c twice"],
)
def test_asked_to_stop_it_writes_a_checkpoint_first(number, times, error, last, whole, data, tmp_path):
    folder, handler = tmp_path / "run", signal.getsignal(number)
    with pytest.MonkeyPatch.context() as patch:
        ask_to_stop(patch, number, times)
        with pytest.raises(error):
            train(toy_settings(data), folder, device="cpu", progress=False)  # no checkpoint within an epoch
    assert signal.getsignal(number) is handler
    assert checkpoints.all_of(folder / CHECKPOINTS)[-1].name == last
    begin(data, folder)
    assert outcome(folder) == outcome(whole)


@pytest.mark.parametrize(("minutes", "expected"), [(0.0, 4), (5.0, 1)])
def test_checkpoints_are_written_after_minutes_and_epochs(minutes, expected, data, tmp_path, monkeypatch):
    save, saved = checkpoints.save, []

    def counting(path: Path, state: dict[str, Any]) -> None:
        saved.append(path)
        save(path, state)

    monkeypatch.setattr(checkpoints, "save", counting)
    settings = toy_settings(data, training__max_epochs=1)
    train(settings, tmp_path / "run", device="cpu", progress=False, checkpoint_minutes=minutes)
    assert len(saved) == expected


def test_on_another_number_of_devices_other_random_numbers_are_told_of(data, tmp_path, capsys):
    with stopped_at(1):
        begin(data, tmp_path / "run")
    path = checkpoints.all_of(tmp_path / "run" / CHECKPOINTS)[-1]
    state = checkpoints.load(path)
    state["random"] *= 2
    checkpoints.save(path, state)
    train(toy_settings(data), tmp_path / "run", device="cpu")
    assert capsys.readouterr().err.startswith("the run was started on 2 devices and continues on 1: ")


def test_only_one_process_trains_in_a_folder(data, tmp_path):
    from beamtree.training.folder import exclusive

    with exclusive(tmp_path / "run"), pytest.raises(ValueError, match="another process is training in this folder"):
        begin(data, tmp_path / "run")


def test_a_run_that_is_resumed_elsewhere_has_both_environments(data, tmp_path, monkeypatch):
    def recorded():
        return files.read_json(tmp_path / "run" / ENVIRONMENT)

    with stopped_at(1):
        begin(data, tmp_path / "run")
    with stopped_at(1):
        begin(data, tmp_path / "run")
    first = recorded()
    assert "resumed" not in first
    monkeypatch.setattr(run_folder, "device_name", lambda _: "another machine")
    with stopped_at(1):
        begin(data, tmp_path / "run")
    begin(data, tmp_path / "run")
    there = {key: value for key, value in first.items() if key != "data"} | {"device": "another machine"}
    assert recorded() == {**first, "data": recorded()["data"], "resumed": [there]}


def test_a_run_is_not_gone_on_with_on_other_data(tmp_path):
    data = write_data(tmp_path / "data")
    with stopped_at(1):
        begin(data, tmp_path / "run")
    text = (data / "train.tsv").read_text()
    header, *rows = text.splitlines()
    (data / "train.tsv").write_text("\n".join((header, *reversed(rows))) + "\n")
    with pytest.raises(
        ValueError, match=r"run: the split train has changed since the run was started: restore the data$"
    ):
        begin(data, tmp_path / "run")
    (data / "train.tsv").write_text(f"{text}a\tnew new new\n")
    with pytest.raises(
        ValueError, match=r"vocab\.json: the vocabulary of the data has changed since the run was started"
    ):
        begin(data, tmp_path / "run")
    (data / "train.tsv").write_text(f"{text}d\ta b c\n")
    with pytest.raises(ValueError, match="the labels or the form of the data have changed"):
        begin(data, tmp_path / "run")


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer__name": "adamw", "training__select": "loss", "training__plateau_factor": None},
        {"training__precision": "bf16"},
        {"training__precision": "tf32", "encoder__name": "bt-lstm"},
    ],
    ids=["adamw", "bf16", "tf32"],
)
def test_other_settings_train_too(changes, data, tmp_path):
    before = torch.get_float32_matmul_precision()
    results = begin(data, tmp_path / "run", training__max_epochs=1, **changes)
    assert results["epochs"] == 1
    assert results["splits"]["test"]["count"] == 9
    assert torch.get_float32_matmul_precision() == before


def test_pairs_with_vectors_that_stay_as_they_are(tmp_path):
    data = write_data(tmp_path / "data", pairs=True)
    (tmp_path / "glove.6B.50d.txt").write_text("".join(f"{word}{f' {n}.5' * 50}\n" for n, word in enumerate("abc")))
    settings = toy_settings(data, data__vectors="glove-6b", model__dim=50, training__max_epochs=2)
    results = train(settings, tmp_path / "run", device="cpu", progress=False, roots=[tmp_path])
    model = pretrained.load(tmp_path / "run")
    assert results["best_epoch"] > 0
    place = model.vocabulary.ids(["c"])[0]
    assert model.model.embedding.words.weight[place].tolist() == [2.5] * 50
    assert model.predict([("a", "b")])[0].label in "abc"


def test_what_is_trained_learns(data, tmp_path):
    changes = {**PLAIN, "model__dim": 12, "optimizer__lr": 0.1, "training__select": "loss"}
    settings = toy_settings(data, **changes, training__max_epochs=8)
    results = train(settings, tmp_path / "run", device="cpu", progress=False)
    lines = metrics(tmp_path / "run")
    assert lines[-1]["train_loss"] < 0.7 * lines[0]["train_loss"]
    assert results["dev"]["loss"] < lines[0]["dev_loss"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "unknown device 'tpu' .did you mean 'cpu'.*; known: auto, cpu, cuda"),
        ({"devices": 0}, "devices is 0: it must be an integer of at least 1"),
        ({"nodes": 0}, "nodes is 0"),
        ({"checkpoint_steps": 0}, "checkpoint_steps is 0"),
        ({"checkpoint_minutes": -1.0}, r"checkpoint_minutes is -1\.0: it must be at least 0"),
    ],
)
def test_wrong_options_are_refused(options, message, data, tmp_path):
    with pytest.raises(ValueError, match=message):
        train(toy_settings(data), tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.device_count() > 8, reason="needs fewer GPUs")
def test_more_gpus_than_there_are_are_refused(data, tmp_path):
    with pytest.raises(ValueError, match=r"devices is 9, but \d CUDA devices are visible: use fewer"):
        train(toy_settings(data), tmp_path / "run", device="cuda", devices=9)


def test_a_line_tells_of_each_epoch(data, tmp_path, capsys):
    train(toy_settings(data, training__max_epochs=2), tmp_path / "run", device="cpu")
    lines = capsys.readouterr().err.splitlines()
    assert [line[:9] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert all("dev loss" in line and "samples/s" in line for line in lines)


def test_training_in_a_thread_leaves_signals_alone(data, tmp_path):
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(begin(data, tmp_path / "run", training__max_epochs=1)))
    thread.start()
    thread.join()
    assert found[0]["epochs"] == 1


def test_a_finished_run_says_when_it_was_finished(whole, data, capsys):
    results = train(toy_settings(data), whole, device="cpu")
    assert re.fullmatch(rf"{whole} was finished on \d{{4}}-\d\d-\d\d \d\d:\d\d; .*\n", capsys.readouterr().err)
    assert results == storage.read_results(whole)


def test_a_finished_run_may_have_more_epochs(data, tmp_path):
    """The result is that of a run with more epochs from the start, including the learning rate and the best epoch."""
    changes = {"training__patience": 9}
    begin(data, tmp_path / "whole", training__max_epochs=4, **changes)
    begin(data, tmp_path / "run", training__max_epochs=2, **changes)
    assert begin(data, tmp_path / "run", training__max_epochs=4, **changes)["epochs"] == 4
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    assert resume(tmp_path / "run", max_epochs=5, device="cpu", progress=False)["epochs"] == 5
    with pytest.raises(ValueError, match=r"holds a run with training\.max_epochs 5, not 4"):
        begin(data, tmp_path / "run", training__max_epochs=4, **changes)


def test_a_run_that_no_longer_improved_has_had_its_epochs(data, tmp_path):
    changes = {"optimizer__lr": 1e-9, "training__patience": 1}
    results = begin(data, tmp_path / "run", **changes)
    assert results["epochs"] == 2
    assert begin(data, tmp_path / "run", training__max_epochs=9, **changes) == results


def test_a_model_without_checkpoints_is_never_overwritten(whole, data, tmp_path):
    shutil.copytree(whole, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints", storage.RESULTS))
    weights = (tmp_path / "run" / storage.WEIGHTS).read_bytes()
    with pytest.raises(ValueError, match="it has no checkpoints to continue from; choose another folder"):
        begin(data, tmp_path / "run")
    assert (tmp_path / "run" / storage.WEIGHTS).read_bytes() == weights


def test_a_start_that_fails_leaves_no_folder(data, tmp_path):
    with pytest.raises(ValueError, match="unknown split 'none'"):
        begin(data, tmp_path / "some" / "run", data__tests=("none",))
    assert not (tmp_path / "some" / "run").exists()


def test_a_forecast_is_made_once_and_suggests_a_smaller_recipe(data, tmp_path, capsys, monkeypatch):
    for limit in ("AFTER", "SHORT", "LONG"):
        monkeypatch.setattr(Forecast, limit, 0.0)
    train(toy_settings(data, recipe="listops", training__max_epochs=2), tmp_path / "run", device="cpu")
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"an epoch takes about \d+ s on this machine, 2 epochs at most \d+ s; on a CPU, a smaller recipe is faster: "
        "beamtree train listops-tiny",
        lines[0],
    )
    assert [line[:5] for line in lines[1:]] == ["epoch", "epoch"]


def test_data_can_be_given(data, tmp_path):
    """Instead of the data that the settings name."""
    given = load(data, tokenizer="spaces")
    settings = toy_settings(data, training__max_epochs=1)
    assert train(settings, tmp_path / "run", data=given, device="cpu", progress=False)["splits"].keys() == {"test"}
    assert resume(tmp_path / "run", max_epochs=2, device="cpu", progress=False)["epochs"] == 2


def test_samples_in_memory_can_be_trained_on(tmp_path):
    """The model stores its tokenizer; one that cannot be stored must be passed when the model is loaded."""
    texts = ["Good film!", "A bad film.", "Very good.", "Bad, bad.", "So good", "So bad"] * 5
    labels = ["yes", "no"] * 15
    settings = toy_settings(tmp_path, training__max_epochs=1)
    results = train(settings, tmp_path / "words", data=Data.from_samples(texts, labels), device="cpu", progress=False)
    assert results["splits"]["test"]["count"] == 3
    model = pretrained.load(tmp_path / "words")
    assert model.parse("A GOOD film.")[0].tree.leaves == ("A", "GOOD", "film", ".")
    own = Data.from_samples(texts, labels, tokenizer=str.split)
    train(settings, tmp_path / "own", data=own, device="cpu", progress=False)
    with pytest.raises(ValueError, match="was trained with a function as tokenizer, which is not stored with it"):
        pretrained.load(tmp_path / "own").predict(["so good"])
    given = pretrained.load(tmp_path / "own", tokenizer=own.tokenizer)
    assert given.parse("So good film.")[0].tree.leaves == ("So", "good", "film.")
