"""Lists of ListOps: which of them a model keeps intact, and whose value it knows."""

import dataclasses

import pytest

import beamtree
from beamtree.data.tasks.listops.expressions import DIGITS, evaluate, values
from beamtree.data.tasks.listops.splits import generate, preset
from beamtree.evaluation.lists import ListReport, find_lists, measure_lists

NESTED = ["[MAX", "2", "[MIN", "4", "7", "]", "[SM", "5", "[MED", "1", "9", "9", "]", "8", "]", "]"]


def test_lists_have_their_values_and_spans():
    for example in generate(dataclasses.replace(preset("args-10"), count=60, min_length=1), seed=3):
        found = find_lists(example.tokens)
        assert {each.span: each.value for each in found} == values(example.tokens)
        for each in found:
            assert example.tokens[each.span[0]] == each.operator == each.alone[0]
            assert DIGITS[evaluate(example.tokens[slice(*each.span)])] == each.value


def test_inner_lists_are_replaced_by_their_values():
    assert [" ".join(each.alone) for each in find_lists(NESTED)] == [
        "[MIN 4 7 ]",
        "[MED 1 9 9 ]",
        "[SM 5 9 8 ]",
        "[MAX 2 4 2 ]",
    ]


def test_broken_lists_wrong_values_and_whole_expressions_are_counted_apart():
    right = {each.span: each.value for each in find_lists(NESTED)}
    report = ListReport()
    report.add(NESTED, right)
    report.add(NESTED, {**right, (8, 13): "0"})  # a wrong value
    broken = {span: value for span, value in right.items() if span != (8, 13)}
    report.add(NESTED, {**broken, (0, len(NESTED)): "0"})
    medians = report.lists["[MED", 3]
    assert (medians.lists, medians.intact, medians.correct) == (3, 2, 1)
    assert (report.lists["[MIN", 2].intact, report.lists["[MIN", 2].correct) == (3, 3)
    assert report.by_most_arguments.keys() == {3}
    assert report.by_most_arguments[3].accuracy == pytest.approx(2 / 3)
    assert report.by_operator["[MAX"].expressions == 3
    assert [row["operator"] for row in report.to_dict()["lists"]] == ["[MIN", "[MAX", "[MED", "[SM"]


def test_a_digit_has_no_lists():
    report = ListReport()
    report.add(["7"], {(0, 1): "7"})
    assert report == ListReport()


@pytest.mark.usefixtures("shape_checks_off")
def test_the_shipped_model_keeps_lists_intact_and_fails_at_long_medians(tmp_path, monkeypatch):
    monkeypatch.setenv("BEAMTREE_CACHE", str(tmp_path))
    model = beamtree.load("listops-bt-grc")
    lines = ["text\tlabel"]
    for operator in ("[MAX", "[MED"):
        for count in (3, 9):
            for first in range(10):
                tokens = [operator, *(str((first + 3 * place) % 10) for place in range(count)), "]"]
                lines.append(f"{' '.join(tokens)}\t{evaluate(tokens)}")
    (tmp_path / "lists.tsv").write_text("\n".join(lines) + "\n")
    split = beamtree.data.load(tmp_path / "lists.tsv", tokenizer="spaces")["lists"]
    report = measure_lists(model, split, alone=5)
    assert {key: counts.lists for key, counts in report.lists.items()} == dict.fromkeys(
        [("[MAX", 3), ("[MAX", 9), ("[MED", 3), ("[MED", 9)], 10
    )
    for counts in report.lists.values():
        assert counts.intact == counts.lists
        assert counts.alone == 5
    for key in (("[MAX", 3), ("[MAX", 9), ("[MED", 3)):
        assert report.lists[key].correct == 10
        assert report.lists[key].alone_correct == 5
    assert report.lists["[MED", 9].correct < 10
    assert measure_lists(model, split, limit=3, alone=0).by_most_arguments[3].expressions == 3
