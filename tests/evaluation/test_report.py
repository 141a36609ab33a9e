"""Reports: groups of runs, their statistics, and the paper's figures beside them."""

import json
import re

import numpy as np
import pytest

from beamtree import encoders
from beamtree.data import TASKS
from beamtree.evaluation import report
from beamtree.evaluation.report import paper
from beamtree.evaluation.report.paper import Figure
from beamtree.models import storage
from beamtree.runs.settings import DataSettings
from written_runs import table_of, write_run

LISTOPS = ["near-iid", "200-300", "500-600", "900-1000", "args-10", "args-15", "lra"]


def test_listops_is_the_median_of_the_runs(tmp_path):
    for seed, accuracy in enumerate((0.5, 0.9, 0.97)):
        write_run(tmp_path / str(seed), dict.fromkeys(LISTOPS, accuracy), seed)
    table = table_of(tmp_path)
    assert table.statistic == "median"
    assert list(table.columns.values()) == ["near-IID", "200-300", "500-600", "900-1000", "Args 10", "Args 15", "LRA"]
    ours, theirs = table.rows
    assert (ours.model, ours.count) == ("BT-GRC", 3)
    assert {figure.value for figure in ours.figures.values()} == {90}
    assert (theirs.model, theirs.count, theirs.table) == ("BT-GRC (paper)", 3, 1)
    assert [figure.value for figure in theirs.figures.values()] == [99.39, 96.15, 92.55, 86.7, 77.1, 63.7, 67.3]


def test_other_tasks_are_mean_and_population_deviation(tmp_path):
    values = [0.5, 0.52, 0.6]
    for seed, accuracy in enumerate(values):
        write_run(tmp_path / str(seed), {"iid": accuracy}, seed, recipe="sst5")
    ours, theirs = table_of(tmp_path).rows
    assert ours.figures["iid"].value == pytest.approx(100 * np.mean(values))
    assert ours.figures["iid"].std == pytest.approx(100 * np.std(values))
    assert (theirs.figures["iid"].value, theirs.figures["iid"].std) == (52.32, pytest.approx(0.47))


def test_listops_can_be_mean_and_deviation_too(tmp_path):
    for seed, accuracy in enumerate((0.5, 0.9)):
        write_run(tmp_path / str(seed), dict.fromkeys(LISTOPS, accuracy), seed)
    table = table_of(tmp_path, mean=True)
    ours, theirs = table.rows
    assert (ours.figures["lra"].value, ours.figures["lra"].std) == pytest.approx((70, 20))
    assert theirs.table == 11


def test_one_run_has_no_deviation(tmp_path):
    write_run(tmp_path / "a", {"iid": 0.5}, recipe="sst5")
    assert table_of(tmp_path).rows[0].figures["iid"].std is None


def test_runs_go_together_unless_a_setting_differs(tmp_path):
    write_run(tmp_path / "a", {"lra": 0.5}, seed=0)
    write_run(tmp_path / "b", {"lra": 0.6}, seed=1, training__micro_batch=32, encoder__options__engine="torch")
    write_run(tmp_path / "c", {"lra": 0.7}, seed=2, optimizer__lr=5e-4, data__options__seed=3)
    write_run(tmp_path / "d", {"lra": 0.8}, seed=3, encoder__options__beam_size=2)
    rows = table_of(tmp_path).rows
    assert [(row.model, row.count) for row in rows] == [
        ("BT-GRC", 2),
        ("BT-GRC, data.seed=3, lr=0.0005", 1),
        ("BT-GRC (paper)", 3),
        ("BT-GRC, beam_size=2", 1),
        ("BT-GRC, beam_size=2 (paper)", 3),
    ]
    assert rows[1].changes == {"data.options.seed": 3, "optimizer.lr": 5e-4}


def test_encoders_are_in_the_papers_order(tmp_path):
    for encoder in ("bt-grc-onesoft", "bt-lstm", "bt-grc"):
        write_run(tmp_path / encoder, {"lra": 0.5}, encoder=encoder)
    models = [row.model for row in table_of(tmp_path).rows if row.table is None]
    assert models == ["BT-GRC", "BT-LSTM", "BT-GRC + OneSoft"]


def test_runs_of_ones_own_recipe_are_told_apart_by_what_differs_between_them(tmp_path):
    write_run(tmp_path / "a", {"lra": 0.5}, own={"recipe": "mine"}, optimizer__lr=1e-4)
    write_run(tmp_path / "b", {"lra": 0.5}, own={"recipe": "mine"}, optimizer__lr=1e-4, model__dropout=0.5)
    models = [row.model for row in table_of(tmp_path).rows if row.table is None]
    assert models == ["BT-GRC, recipe=mine", "BT-GRC, recipe=mine, model.dropout=0.5"]


def test_each_task_has_a_table_and_ones_own_data_its_own_columns(tmp_path):
    data = DataSettings(task=str(tmp_path), options={}, vectors=None, tests=())
    write_run(tmp_path / "a", {"good": 0.5, "bad": 0.25}, own={"data": data})
    write_run(tmp_path / "b", {"iid": 0.5}, recipe="sst5")
    write_run(tmp_path / "c", {"near-iid": 0.5}, recipe="listops-original")
    found = report.tables(report.find([tmp_path]).runs)
    assert [table.task for table in found] == ["listops-original", "sst5", str(tmp_path)]
    assert found[0].rows[1].figures["near-iid"].value == 99.39
    assert list(found[2].columns) == ["good", "bad"]
    assert [row.table for row in found[2].rows] == [None]


def test_a_split_that_some_runs_lack_is_marked(tmp_path):
    write_run(tmp_path / "a", {"near-iid": 0.5, "lra": 0.5}, seed=0)
    write_run(tmp_path / "b", {"near-iid": 0.7}, seed=1)
    found = report.tables(report.find([tmp_path]).runs)
    assert found[0].rows[0].figures["lra"].runs == 1
    assert found[0].rows[0].figures["args-10"] is None
    assert "50.00 (of 1) |" in report.markdown(found)
    assert " 60.00 † |" in report.markdown(found)


def test_unfinished_damaged_and_repeated_runs_are_named_and_left_out(tmp_path):
    write_run(tmp_path / "deep" / "down" / "a", {"lra": 0.5})
    write_run(tmp_path / "b", None, seed=1)
    write_run(tmp_path / "c", {"lra": 7}, seed=2)
    write_run(tmp_path / "d", {"lra": 0.5}, seed=0)
    write_run(tmp_path / "d" / "checkpoints" / "inner", {"lra": 0.5}, seed=9)  # inside a run, so not a run of its own
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / storage.CONFIG).write_text("recipe: [")
    found = report.find([tmp_path, tmp_path / "d"])
    assert [run.folder.name for run in found.runs] == ["d"]
    reasons = {folder.rpartition("/")[2]: why for folder, why in found.left_out.items()}
    assert "not finished" in reasons["b"]
    assert "the accuracy of lra is 7" in reasons["c"]
    assert f"the same settings and seed as {tmp_path / 'd'}" in reasons["a"]
    assert "not YAML" in reasons["e"]
    assert sorted(reasons) == ["a", "b", "c", "e"]


@pytest.mark.parametrize(("name", "message"), [("none", "no such folder"), ("empty", "no runs in it")])
def test_a_folder_without_runs_is_a_mistake(tmp_path, name, message):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=message):
        report.find([tmp_path / name])


def test_only_unfinished_runs_are_a_mistake(tmp_path):
    write_run(tmp_path / "a", None)
    with pytest.raises(ValueError, match=r"no finished run: .*results\.json"):
        report.find([tmp_path])


def cells(line):
    return [cell.strip() for cell in line.strip("| ").split("|")]


def test_markdown_is_a_table_with_a_cell_for_every_column(tmp_path):
    for seed in range(2):
        write_run(tmp_path / str(seed), {"con-ood": 0.75 + seed / 100, "count-ood": 0.5}, seed, recipe="imdb")
    text = report.markdown(report.tables(report.find([tmp_path]).runs))
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(line) for line in lines}) == 1
    assert cells(lines[0]) == ["Model", "Runs", "Con. OOD", "Count. OOD"]
    assert cells(lines[2]) == ["BT-GRC", "2", "**75.50 ± 0.50**", "50.00 ± 0.00 †"]
    assert cells(lines[3]) == ["BT-GRC (paper)", "3", "75.07 ± 2.9", "82.86 ± 2.3"]
    assert "Table 2 of Ray Chowdhury & Caragea" in text


def test_latex_has_as_many_cells_in_every_line_and_escapes_names(tmp_path):
    write_run(tmp_path / "a", dict.fromkeys(LISTOPS, 0.5), encoder__options__beam_size=3)
    for seed in range(2):
        write_run(tmp_path / f"b{seed}", {"iid": 0.5 + 0.0094 * seed}, seed, recipe="sst5")
    listops, sst = report.latex(report.tables(report.find([tmp_path]).runs)).split(r"\end{table*}")[:2]
    assert r"\begin{tabular}{l r | l | l l l | l l | l}" in listops
    assert r"\multicolumn{3}{c}{\textbf{Length Gen.}}" in listops
    assert r"BT-GRC, beam\_size=3 & 1 & $50.00$ & " in listops
    assert r"BT-GRC & 2 & $50.47_{4.7}^\dagger$ \\" in sst
    assert r"BT-GRC (paper) & 3 & $52.32_{4.7}$ \\" in sst
    for text in (listops, sst):
        lines = [line for line in text.splitlines() if line.endswith(r"\\")]
        spans = [sum(int(n) - 1 for n in re.findall(r"multicolumn\{(\d)", line)) for line in lines]
        assert len({line.count("& ") + span for line, span in zip(lines, spans, strict=True)}) == 1
        assert not re.search(r"(?<!\\)[%#]", text)


def test_what_must_be_known_to_compare_is_said(tmp_path):
    write_run(tmp_path / "a", {"lra": 0.5})
    assert "Our splits are generated" in report.markdown(report.tables(report.find([tmp_path]).runs))


def test_records_hold_every_run(tmp_path):
    for seed in range(2):
        write_run(tmp_path / str(seed), {"lra": 0.5, "300-400": 0.25}, seed)
    (table,) = json.loads(json.dumps(report.records(report.tables(report.find([tmp_path]).runs))))
    ours, theirs = table["rows"]
    assert ours["seeds"] == [0, 1]
    assert ours["folders"] == [str(tmp_path / "0"), str(tmp_path / "1")]
    assert ours["splits"][0] == {"lra": 0.5, "300-400": 0.25}
    assert ours["figures"]["lra"] == {"value": 50, "std": None, "runs": 2}
    assert theirs["paper_table"] == 1


def all_paper_rows():
    return [(task, row) for task in TASKS for row in paper.rows(task)]


def test_every_figure_of_the_paper_belongs_to_a_split_that_there_is():
    assert {row.table for _, row in all_paper_rows()} == {1, 2, 3, 5, 6, 7, 8, 9, 10, 11}
    for task, row in all_paper_rows():
        for split, figure in row.figures.items():
            if task != "listops-original" or not split.startswith("args"):
                assert TASKS[task].part(split)[1].name == split
            assert figure is None or 10 < figure.value <= 100
            assert figure is None or (figure.std is not None) == (row.statistic == "mean")


def test_every_model_of_the_paper_has_a_name():
    names = paper._document()["models"]
    assert {row.encoder for _, row in all_paper_rows()} <= set(names)
    assert set(encoders()) <= set(names)


def test_no_two_rows_of_the_paper_can_be_meant_by_one_run():
    for task in TASKS:
        rows = [(row.statistic, row.encoder, str(row.options)) for row in paper.rows(task)]
        assert len(set(rows)) == len(rows)


@pytest.mark.parametrize(
    ("table", "task", "encoder", "figures"),
    [
        (1, "listops", "ordered-memory", "99.88 99.55 92.7 76.9 84.15 75.05 80.1"),
        (1, "listops", "cyk-grc", "97.87 93.75 None None 60.75 42.45 None"),
        (2, "mnli", "bt-grc-onesoft", "71.7 71.9 65.6 66.7 53.2 54.2"),
        (3, "listops", "bt-grc-soft", "69.0 44.0 37.1 29.4 39.5 38.6 31.6"),
        (5, "listops-dg", "bt-grc", "99.95 99.95 99.95 99.9 75.35 72.05 68.1"),
        (8, "logic", "crvnn", "96.9 95.99 94.51 94.48 92.73"),
        (8, "logic-c", "crvnn", "89.79"),
        (11, "listops", "bt-grc-onesoft", "99.6 97.2 94.8 92.2 73.3 63.1 66.1"),
    ],
)
def test_figures_are_the_papers(table, task, encoder, figures):
    (row,) = (row for row in paper.rows(task) if row.table == table and row.encoder == encoder)
    assert " ".join(str(figure and figure.value) for figure in row.figures.values()) == figures


def test_a_subscript_is_in_tenths():
    assert Figure.parse("90_1") == Figure(90.0, 0.1, printed="90")
    assert Figure.parse("90") == Figure(90.0, None, printed="90")
    assert Figure.parse("-") is None
