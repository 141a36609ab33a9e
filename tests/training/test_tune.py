"""Studies: parameters, trials and their outcomes, which do not depend on kills or on the number of processes."""

import contextlib
import importlib.util
import itertools
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import beamtree
from beamtree.models import storage
from beamtree.training import loop, tune
from beamtree.training.callbacks import Callback
from beamtree.training.folder import Status, status
from beamtree.training.tune import study as studies
from beamtree.training.tune.space import Choices, Range, apply, check_params, parse_params
from forked import Command
from training.processes import fork, wait
from training.toy_runs import metrics, outcome, toy_settings, write_data

optuna = pytest.importorskip("optuna")

RATES = {"optimizer.lr": Range(1e-4, 1e-1, log=True), "model.dropout": Range(0.1, 0.5)}
TRIALS = 4


def start(data: Path, folder: Path, trials: int = TRIALS, params: Any = RATES, **options: Any) -> tune.StudySummary:
    settings = toy_settings(data, **options.pop("changes", {}))
    defaults = {"device": "cpu", "loggers": [], "progress": False, "pruner": "none"}
    return tune.tune(settings, params, folder, trials=trials, **{**defaults, **options})


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path / "cache"))
    return write_data(tmp_path / "data")


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials are not trained; their loss is their learning rate."""

    def train(settings: Any, folder: Path, **options: Any) -> dict[str, Any]:
        for callback in options["callbacks"]:
            callback.has_started = True
        return {"dev": {"loss": settings.optimizer.lr, "accuracy": 0.5}}

    monkeypatch.setattr(loop, "train", train)


class At(Callback):
    """Calls a function at the end of an epoch of a trial, before it is reported to the study; or after a step."""

    def __init__(self, trial: int, act: Callable[[], Any], epoch: int = 1, step: int | None = None) -> None:
        self.name, self.act, self.epoch, self.step = f"trial-{trial:03d}", act, epoch, step

    def on_step_end(self, run: Any, loss: Any) -> None:
        if run.folder.name == self.name and run.step == self.step:
            self.act()

    def on_epoch_end(self, run: Any, metrics: dict[str, Any]) -> None:
        if run.folder.name == self.name and run.epoch == self.epoch and self.step is None:
            self.act()


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def test_the_forms_of_parameters():
    texts = ["a.b=log:1e-4:1e-2", "c=0.1:0.5", "d = int:2:5", "e=ranger, adamw", "f=null,1,2.5,true,5e-4"]
    assert parse_params(texts) == {
        "a.b": Range(1e-4, 1e-2, log=True),
        "c": Range(0.1, 0.5),
        "d": Range(2.0, 5.0, integer=True),
        "e": Choices(("ranger", "adamw")),
        "f": Choices((None, 1, 2.5, True, 5e-4)),
    }
    assert [str(param) for param in parse_params(texts).values()] == [
        *("log:0.0001:0.01", "0.1:0.5", "int:2:5", "ranger,adamw", "None,1,2.5,True,0.0005"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimizer.lr", "it must be KEY=FORM, as in optimizer.lr=log:1e-4:1e-2"),
        ("=1:2", "it must be KEY=FORM"),
        ("a=1", "one of the forms low:high, log:low:high, int:low:high, or choices a,b,c"),
        ("a=lin:1:2", "one of the forms"),
        ("a=log:1", "one of the forms"),
        ("a=1:x", "1:x is not low:high with two numbers"),
        ("a=int:1:2.5", "1:2.5 is not low:high with two integers"),
        ("a=2:1", "2 must be less than 1"),
        ("a=0:inf", "both must be finite"),
        ("a=log:0:1", "0 must be greater than 0 in a logarithmic range"),
        ("a=x,,y", "must be distinct and not empty"),
        ("a=x,x", "must be distinct and not empty"),
        ("a='x,y", "must be valid YAML"),
        ("a={x: 1},y", "must be a single value"),
    ],
)
def test_a_wrong_form_is_refused_by_name(text, message):
    with pytest.raises(ValueError, match=f"^{re.escape(f'--param {text}: ')}.*{re.escape(message)}"):
        parse_params([text])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "there is nothing to tune"),
        (["optimizer.lrr=1:2"], "did you mean 'optimizer.lr'"),
        (["optimizer.lr=0:1"], "optimizer.lr is 0.0: it must be a number above 0"),
        (["model.dropout=0.5:1"], "model.dropout is 1.0"),
        (["model.dim=4:8"], "model.dim is an integer: write --param model.dim=int:LOW:HIGH"),
        (["encoder.options.beam_size=2:5"], "beam_size is an integer: write --param encoder.options.beam_size=int"),
        (["encoder.options.beam_sizes=int:2:5"], "beam_sizes"),
        (["optimizer.name=ranger,sgd"], "optimizer.name is 'sgd'"),
        (["training.micro_batch=4,3"], "training.micro_batch is 3: it must divide training.batch_size"),
        (["seed=int:0:9"], "seed cannot be tuned"),
        (["encoder.name=bt-grc,bt-lstm"], "encoder.name cannot be tuned: create a study for each encoder"),
    ],
)
def test_parameters_that_the_settings_refuse(tmp_path, shape_checks_off, texts, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        check_params(toy_settings(tmp_path), parse_params(texts))


def test_values_that_only_some_combinations_allow_are_accepted(tmp_path):
    settings = toy_settings(tmp_path)  # with batches of 8, in parts of 4
    check_params(settings, parse_params(["training.batch_size=8,16", "training.micro_batch=4,16"]))
    assert apply(settings, {"encoder.options.beam_size": 3}).encoder.options["beam_size"] == 3


def test_every_trial_is_a_run_and_the_best_is_a_model(data, tmp_path):
    params = parse_params(["optimizer.lr=log:1e-4:1e-1", "encoder.options.beam_size=int:2:3"])
    study = start(data, tmp_path / "study", 3, params, metric="loss")
    assert [trial.state for trial in study.trials] == ["complete"] * 3
    assert sorted(trial.number for trial in study.trials) == [0, 1, 2]
    values = [trial.value for trial in study.trials]
    assert values == sorted(values)  # the best first
    for trial in study.trials:
        settings = apply(toy_settings(data), trial.params)
        assert status(trial.folder, settings) is Status.FINISHED
        assert storage.read_results(trial.folder)["dev"]["loss"] == trial.value
        assert trial.epochs == len(metrics(trial.folder)) == 3
    assert study.best == study.trials[0]
    assert beamtree.load(study.best.folder).predict(["a b a"])[0].label in ("a", "b", "c")
    report = study.to_dict()
    assert report["metric"] == "dev_loss"
    assert report["best"] == report["trials"][0]
    assert report["best"]["folder"] == str(study.best.folder)


def test_a_study_is_extended_but_not_repeated(data, tmp_path, no_training, monkeypatch):
    first = start(data, tmp_path / "study", 2, metric="loss")
    second = start(data, tmp_path / "study", 5, metric="loss")
    assert {trial.number: trial for trial in first.trials}.items() <= {t.number: t for t in second.trials}.items()
    assert len(second.trials) == 5
    monkeypatch.setattr(loop, "train", None)
    monkeypatch.setattr(tune, "load", None)  # nor is its data loaded
    assert start(data, tmp_path / "study", 5, metric="loss") == second


def test_another_search_in_the_same_folder_is_refused(data, tmp_path, no_training):
    start(data, tmp_path / "study", 1)
    for change, message in (
        ({"changes": {"optimizer__weight_decay": 0.5}}, "holds a study with optimizer.weight_decay 0.01, not 0.5"),
        ({"params": {"model.dropout": Range(0.1, 0.5)}}, "with --param optimizer.lr 'log:0.0001:0.1', not None"),
        ({"metric": "loss"}, "with metric 'accuracy', not 'loss'"),
    ):
        with pytest.raises(ValueError, match=message):
            start(data, tmp_path / "study", 1, **change)


def test_a_folder_of_something_else_is_refused(data, tmp_path):
    for folder in (data, data / "train.tsv"):
        with pytest.raises(ValueError, match=r"not empty, but not a study|is a file"):
            start(data, folder)
    assert not (data / ".locks").exists()


def test_a_database_that_cannot_be_used_is_one_line(data, tmp_path):
    for url, message in (
        ("nonsense", "the storage cannot be used: "),
        ("sqlite:////nowhere/at/all.db", "sqlite:////nowhere/at/all.db cannot be used: unable to open"),
        ("mysql+pymysql://me:secret@host/db", "mysql+pymysql://me:***@host/db cannot be used: "),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}.+$"):  # one line
            start(data, tmp_path / "study", storage=url)


def test_data_that_is_missing_ends_the_search_before_the_study_exists(data, tmp_path):
    (data / "dev.tsv").unlink()
    with pytest.raises(ValueError, match="has no split dev"):
        start(data, tmp_path / "study")
    write_data(data)
    assert start(data, tmp_path / "study", 1, changes={"training__max_epochs": 1}).best is not None


def test_the_pruner_ends_a_trial_that_is_worse_than_the_median(data, tmp_path, monkeypatch):
    """The metric is scripted: the first trial is good, the second becomes bad, and the third is bad from the start."""
    monkeypatch.setattr(studies, "_STARTUP_TRIALS", 1)
    script = {"trial-000": [0.5] * 5, "trial-001": [0.6, 0.6, 0.6, 0.1, 0.1], "trial-002": [0.4] * 5}

    class Scripted(Callback):
        def on_epoch_end(self, run: Any, metrics: dict[str, Any]) -> None:
            metrics["dev_accuracy"] = script[run.folder.name][run.epoch - 1]

    options = {"changes": {"training__max_epochs": 5, "training__patience": 9}, "callbacks": [Scripted()]}
    study = start(data, tmp_path / "study", 3, pruner="median", **options)
    by_number = {trial.number: trial for trial in study.trials}
    assert [by_number[number].state for number in range(3)] == [
        "complete",
        "complete",
        "pruned",
    ]  # its best epoch counts
    assert by_number[2].epochs == studies._WARMUP_EPOCHS
    assert by_number[2].value == 0.4
    assert len(metrics(by_number[2].folder)) == studies._WARMUP_EPOCHS
    assert not storage.is_finished(by_number[2].folder)
    assert study.trials[2] == by_number[2]
    study = start(data, tmp_path / "unpruned", 3, pruner="none", **options)
    assert [trial.state for trial in study.trials] == ["complete"] * 3


@pytest.mark.parametrize("error", [ValueError("it has diverged"), torch.OutOfMemoryError("out of\nmemory")])
def test_a_trial_that_fails_does_not_end_the_study(data, tmp_path, error, capsys):
    options = {"changes": {"training__max_epochs": 1}, "callbacks": [At(0, fail(error))]}
    study = start(data, tmp_path / "study", 2, progress=True, **options)
    complete, failed = study.trials
    assert (complete.number, complete.state, complete.error) == (1, "complete", None)
    reason = " ".join(str(error).split())
    assert (failed.number, failed.state, failed.error) == (0, "failed", reason)
    lines = [line for line in capsys.readouterr().err.splitlines() if ": started" not in line]
    assert lines[0] == f"trial-000: failed: {reason} (1 of 2 trials)"
    assert lines[1].startswith("trial-001: dev accuracy ")
    assert lines[1].endswith(" % after 1 epochs (2 of 2 trials)")


def test_a_bug_ends_the_search_but_is_not_run_again(data, tmp_path):
    options = {"changes": {"training__max_epochs": 1}}
    with pytest.raises(ZeroDivisionError):
        start(data, tmp_path / "study", 2, callbacks=[At(0, lambda: 1 / 0)], **options)
    study = start(data, tmp_path / "study", 2, **options)
    assert [(trial.number, trial.state) for trial in study.trials] == [(1, "complete"), (0, "failed")]


def test_an_error_before_the_training_is_not_that_of_the_trial(data, tmp_path, monkeypatch):
    options = {"changes": {"training__max_epochs": 1}}
    with monkeypatch.context() as patch:
        patch.setattr(loop, "train", lambda *arguments, **options: fail(ValueError("the disk is full"))())
        with pytest.raises(ValueError, match="the disk is full"):
            start(data, tmp_path / "study", 1, **options)
    study = start(data, tmp_path / "study", 1, **options)
    assert [(trial.number, trial.state) for trial in study.trials] == [(0, "complete")]


def test_a_combination_that_is_not_allowed_is_a_failed_trial(data, tmp_path, no_training):
    params = parse_params(["training.batch_size=4,8", "training.micro_batch=4,8"])
    study = start(data, tmp_path / "study", 12, params)
    for trial in study.trials:
        wrong = trial.params == {"training.batch_size": 4, "training.micro_batch": 8}
        assert trial.state == ("failed" if wrong else "complete")
        assert (trial.error or "").startswith("training.micro_batch is 8" if wrong else "")
    assert {trial.state for trial in study.trials} == {"complete", "failed"}


def test_without_optuna_the_error_says_what_is_missing(data, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    with pytest.raises(ValueError, match=r"tune needs optuna, which is not installed: pip install 'beamtree\[tune\]'"):
        start(data, tmp_path / "study")


def opened(stack: Any, data: Path, folder: Path, url: str | None = None) -> studies.Study:
    database = stack.enter_context(studies.open_database(folder, url))
    return database.open_study(studies.StudySpec(toy_settings(data), RATES, "accuracy"), "none")


def test_a_trial_is_claimed_by_one_process_at_a_time_and_again_if_it_was_interrupted(data, tmp_path):
    with contextlib.ExitStack() as stack:
        one, two = (opened(stack, data, tmp_path / "study") for _ in range(2))
        with one.claim(2) as first, two.claim(2) as second:
            assert (first.number, second.number) == (0, 1)
            assert first.params != second.params
            with one.claim(2) as third:
                assert third is None
            two.complete(second, 0.5)
        with two.claim(2) as again:
            assert again.number == 0
            assert again.params == first.params
            two.complete(again, 0.6)
        with one.claim(2) as none:
            assert none is None
        assert [trial.number for trial in one.summary().trials] == [0, 1]


def test_machines_that_share_only_the_database_leave_each_others_trials_alone(data, tmp_path):
    url = f"sqlite:///{tmp_path}/shared.db"
    with contextlib.ExitStack() as stack:
        one, two = (opened(stack, data, tmp_path / machine / "study", url) for machine in ("one", "two"))
        with one.claim(3) as interrupted:
            assert interrupted.number == 0
        with two.claim(3) as other:
            assert other.number == 1
            with one.claim(3) as again:
                assert again.number == 0


def test_ctrl_c_stops_with_a_checkpoint_and_the_study_resumes(data, tmp_path):
    interrupt = At(0, lambda: os.kill(os.getpid(), signal.SIGINT), step=6)
    with pytest.raises(KeyboardInterrupt):
        start(data, tmp_path / "study", 1, callbacks=[interrupt])
    assert [trial.state for trial in start_nothing(data, tmp_path / "study").trials] == ["running"]
    study = start(data, tmp_path / "study", 1)
    whole = start(data, tmp_path / "whole", 1)
    assert outcome(study.best.folder) == outcome(whole.best.folder)
    assert study.best.value == whole.best.value


def start_nothing(data: Path, folder: Path) -> tune.StudySummary:
    """Open the study without starting a trial."""
    with contextlib.ExitStack() as stack:
        return opened(stack, data, folder).summary()


def program() -> None:
    """Run in another process: a study, the same study killed repeatedly, and the same study shared by two processes."""
    place = Path(sys.argv[1])
    data = write_data(place / "data")
    wait(fork(lambda: start(data, place / "whole")))
    for attack in (
        At(0, kill, step=3),
        At(1, kill, epoch=2),  # after the checkpoint, before the report
        At(1, kill, step=11),
    ):
        child = fork(lambda attack=attack: start(data, place / "killed", callbacks=[attack]))  # type: ignore[misc]
        _, code = os.waitpid(child, 0)
        assert os.WIFSIGNALED(code)
    wait(fork(lambda: start(data, place / "killed")))

    def worker(name: str) -> None:
        with open(place / f"{name}.log", "wb") as log:
            os.dup2(log.fileno(), 2)
        start(data, place / "shared", progress=True)

    wait(*(fork(lambda name=name: worker(name)) for name in ("one", "two")))  # type: ignore[misc]


def test_a_study_may_be_killed_or_shared_by_two_processes(tmp_path):
    """Its trials are the same as in an uninterrupted study of one process."""
    places = os.pathsep.join(map(str, (Path(beamtree.__file__).parents[1], Path(__file__).parents[1])))
    environment = {
        **os.environ,
        "PYTHONPATH": places,
        "OMP_NUM_THREADS": "1",
        "BEAMTREE_CACHE": str(tmp_path / "cache"),
    }
    status, _, errors = Command([str(tmp_path)], tmp_path, environment, tmp_path / "program", program).ended(300)
    assert (status, errors) == (0, "")
    whole, killed, shared = (
        start_nothing(tmp_path / "data", tmp_path / name) for name in ("whole", "killed", "shared")
    )
    assert whole.count("complete") == TRIALS
    for one, two in zip(whole.trials, killed.trials, strict=True):
        assert (one.number, one.state, one.value, one.params) == (two.number, two.state, two.value, two.params)
        assert outcome(one.folder) == outcome(two.folder)
    assert shared.count("complete") == len(shared.trials) == TRIALS
    started = [
        [line.split(":")[0] for line in (tmp_path / f"{name}.log").read_text().splitlines() if ": started" in line]
        for name in ("one", "two")
    ]
    assert all(started)
    assert sorted(itertools.chain(*started)) == [f"trial-{number:03d}" for number in range(TRIALS)]
