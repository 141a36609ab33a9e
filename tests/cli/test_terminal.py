"""Progress without a terminal, and tables with any text."""

import pytest
from rich.progress import MofNCompleteColumn

from beamtree.utils.terminal import FIRST_LINE, NEXT_LINE, make_table, named_bars, print_table, progress_bar


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def test_lines_come_after_a_while_and_not_too_often(clock, capsys):
    with named_bars() as bar:
        shown = []
        for second in range(100):
            clock.now = second
            bar("near-iid", 100 * second, 10_000)
            if line := capsys.readouterr().err:
                shown.append((second, line))
    assert (FIRST_LINE, NEXT_LINE) == (10, 30)
    assert shown == [
        (10, "near-iid: 1,000 of 10,000\n"),
        (40, "near-iid: 4,000 of 10,000\n"),
        (70, "near-iid: 7,000 of 10,000\n"),
    ]


def test_several_works_share_the_time(clock, capsys):
    with named_bars() as bar:
        clock.now = 10
        bar("dev", 1, 2)
        clock.now = 39
        bar("test", 1, None)
        clock.now = 40
        bar("test", 1_500, None)
    assert capsys.readouterr().err == "dev: 1 of 2\ntest: 1,500\n"


def test_short_work_prints_nothing(clock, capsys):
    with named_bars() as bar:
        clock.now = FIRST_LINE - 0.1
        bar("dev", 2, 2)
    assert capsys.readouterr() == ("", "")


def test_a_hidden_bar_prints_nothing(clock, capsys):
    with progress_bar(MofNCompleteColumn(), hidden=True) as bar:
        task = bar.add_task("parse", total=9)
        clock.now = 1000
        bar.update(task, completed=3)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_has_a_bar_and_no_lines(clock, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with named_bars() as bar:
        clock.now = 1000
        bar("near-iid", 1_200, 10_000)
    shown = capsys.readouterr().err
    assert "1200/10000" in shown
    assert "1,200 of 10,000" not in shown


def test_brackets_in_a_table_are_text(capsys):
    table = make_table("token", "[bold]", left=("token",))
    table.add_row("[MAX", "[/b] :smile:")
    print_table(table)
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("[bold]", "[MAX", "[/b] :smile:"))
