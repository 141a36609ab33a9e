"""Charts of results/: every value is a dot at its height, and the names of lines do not overlap."""

import itertools
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beamtree.evaluation.lists import ListReport, find_lists
from beamtree.trees.drawing.metrics import LINE_HEIGHT
from beamtree.trees.drawing.scene import Dot, Line, Scene, Text
from result_scripts import script

charts = script("charts")
measure_lists = script("measure_lists")

values = st.lists(st.one_of(st.none(), st.floats(0, 100)), min_size=3, max_size=3)


@given(st.lists(values, min_size=1, max_size=8))
def test_values_are_dots_and_names_do_not_overlap(lines):
    scene = charts.line_chart("title", ["a", "b", "c"], {f"line {index}": line for index, line in enumerate(lines)})
    dots = [shape for shape in scene.shapes if isinstance(shape, Dot) and shape.title]
    shown = [value for line in lines for value in line if value is not None]
    assert [dot.title.split(": ")[1] for dot in dots] == [f"{value:.2f}" for value in shown]
    heights = sorted(zip(shown, (-dot.y for dot in dots), strict=True))
    assert [height for _, height in heights] == sorted(height for _, height in heights)
    names = [shape for shape in scene.shapes if isinstance(shape, Text) and shape.text.startswith("line ")]
    assert len(names) == sum(any(value is not None for value in line) for line in lines)
    places = sorted(name.y for name in names)
    assert all(second - first >= LINE_HEIGHT - 1e-6 for first, second in itertools.pairwise(places))
    assert all(0 <= dot.x <= scene.width and 0 <= dot.y <= scene.height for dot in dots)


def test_no_two_of_21_lines_look_alike():
    """A name has the dot of its line before it."""
    scene = charts.line_chart("title", ["a"], {f"line {index}": [50.0 + index] for index in range(21)})
    looks = {shape.title.split(":")[0]: shape[3:5] for shape in scene.shapes if isinstance(shape, Dot) and shape.title}
    assert len(set(looks.values())) == 21
    for dot, name in itertools.pairwise(scene.shapes):
        if isinstance(name, Text) and name.text in looks:
            assert (dot.style, dot.outline) == looks[name.text]
            assert dot.outline == name.style


def test_a_logarithmic_axis_has_equal_steps_for_equal_ratios():
    axis = charts.Axis({1.0: "1", 10.0: "10", 1000.0: "1000"}, is_log=True)
    assert [axis.height(value) for value in (1, 10, 100, 1000)] == pytest.approx([0, 1 / 3, 2 / 3, 1])


def test_the_figure_of_lists_has_a_line_for_each_operator(monkeypatch):
    monkeypatch.setattr(measure_lists, "FEWEST", 1)
    report = ListReport()
    for text in ("[MAX 2 [MIN 4 7 ] ]", "[MED 1 2 3 ]", "[SM 1 2 ]"):
        tokens = text.split()
        report.add(tokens, {each.span: each.value for each in find_lists(tokens)})
    scene = measure_lists.figure({"model": "some", "split": "toy", **report.to_dict()})
    assert isinstance(scene, Scene)
    drawn = scene.painting_order()
    titles = [shape.title for shape in drawn if isinstance(shape, Dot) and shape.title]
    assert titles.count("[MAX: 100.00") == 1
    assert titles.count("some: 100.00") == 2  # expressions with at most two and three arguments
    assert "Lists kept intact (%), by arguments" in [shape.text for shape in drawn if isinstance(shape, Text)]
    assert [shape for shape in drawn if isinstance(shape, Line)]


def test_expressions_with_equally_many_arguments_are_shown_by_their_operator(monkeypatch):
    monkeypatch.setattr(measure_lists, "FEWEST", 1)
    report = ListReport()
    for text, value in (("[MAX 2 7 ]", "7"), ("[MED 1 2 ]", "3")):  # the second one is wrong
        tokens = text.split()
        report.add(tokens, {(0, len(tokens)): value})
    scene = measure_lists.expressions_chart({"model": "some", **report.to_dict()})
    assert [shape.title for shape in scene.shapes if isinstance(shape, Dot) and shape.title] == [
        "[MAX: 100.00",
        "[MED: 0.00",
    ]


def test_a_model_must_be_named(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["measure_lists.py"])
    with pytest.raises(SystemExit):
        measure_lists.main()
    assert "give at least one model" in capsys.readouterr().err
