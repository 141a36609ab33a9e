"""Output: bars only on a terminal, lines unless quiet, warnings always."""

import pytest

from beamtree.training import console, train
from beamtree.training.console import TrainingConsole
from training.toy_runs import toy_settings, write_data


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(console, "_PAUSE", 0.0)


def test_the_bar_has_loss_accuracy_and_speed(terminal, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path / "cache"))
    settings = toy_settings(write_data(tmp_path / "data"), training__max_epochs=1)
    train(settings, tmp_path / "run", device="cpu")
    shown = capsys.readouterr().err
    assert "epoch 1/1  train loss" in shown
    for text in ("epoch 1/1", "7/7", "loss", "accuracy", "samples/s", "dev", "test"):
        assert text in shown.replace("epoch 1/1  train loss", "")


def test_bars_come_and_go(terminal, capsys):
    shown = TrainingConsole()
    with shown.open():
        assert shown.has_bar
        shown.show("pears", 1, 2)
        shown.show("pears", 2, 2, "ripe")
        shown.clear()
        shown.print("a line")
    assert not shown.has_bar
    text = capsys.readouterr().err
    assert "pears" in text
    assert "a line" in text


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, "printed\nwarning: warned\n"), ({"quiet": True}, "warning: warned\n"), ({"mute": True}, "")],
)
def test_without_a_terminal_there_are_lines(settings, expected, capsys, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    shown = TrainingConsole(**settings)
    with shown.open():
        assert not shown.has_bar
        shown.show("pears", 1, 2)
        shown.print("printed")
        shown.warn("warned")
    assert capsys.readouterr().err == expected
