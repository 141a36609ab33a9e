"""The beam chart: every span that a beam holds has its cell, as dark as it is probable."""

import pytest

from beamtree.trees.drawing import chart_svg
from beamtree.trees.parses import Parse, span_probabilities
from trees.drawing.parses import SVG, chain, make_parses, read, size, spans, texts


def cells(svg):
    """(x, y, width, height, strength) of all cells behind the legend's, with their titles."""
    found = []
    for mark in read(svg).iter(f"{SVG}g"):
        rectangle = mark.find(f"{SVG}rect")
        if mark.get("class") == "mark" and rectangle is not None:
            numbers = [float(rectangle.get(key)) for key in ("x", "y", "width", "height", "fill-opacity")]
            found.append((*numbers, mark.find(f"{SVG}title").text))
    return found


@pytest.mark.parametrize("layout", ["columns", "rows"])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_cells_are_as_strong_as_their_spans_are_probable(layout, count):
    leaves = [f"w{position}" for position in range(count)]
    parses = make_parses(leaves, count=3)
    svg = chart_svg(leaves, parses, layout)
    expected = span_probabilities(parses)
    assert {span: p for span, p in spans(svg).items() if p} == pytest.approx(expected, abs=1e-3)
    assert len(cells(svg)) == (len(expected) if layout == "rows" else count * (count - 1) // 2)
    for *_, strength, title in cells(svg):
        assert strength == pytest.approx(float(title.split("probability ")[1].split(":")[0]), abs=0.006)


@pytest.mark.parametrize("layout", ["columns", "rows"])
def test_cells_do_not_overlap_and_stay_in_the_picture(layout):
    leaves = list("abcdefghijkl")
    svg = chart_svg(leaves, make_parses(leaves, count=5), layout)
    boxes = [cell[:4] for cell in cells(svg)]
    width, height = size(svg)
    for number, (x, y, wide, high) in enumerate(boxes):
        assert x >= 0
        assert y >= 0
        assert x + wide <= width
        assert y + high <= height
        for left, top, other_wide, other_high in boxes[:number]:
            beside = x >= left + other_wide - 0.02 or left >= x + wide - 0.02
            assert beside or y >= top + other_high - 0.02 or top >= y + high - 0.02


@pytest.mark.parametrize(("layout", "axis"), [("columns", "x"), ("rows", "y")])
def test_a_cell_stands_over_the_middle_of_its_leaves(layout, axis):
    leaves = [f"w{position}" for position in range(7)]
    svg = chart_svg(leaves, make_parses(leaves), layout)
    places = {element.text: float(element.get(axis)) for element in read(svg).iter(f"{SVG}text")}
    for x, y, width, height, _, title in cells(svg):
        start, end = map(int, title[1 : title.index(")")].split(", "))
        middle = x + width / 2 if axis == "x" else y + height / 2
        assert middle == pytest.approx((places[leaves[start]] + places[leaves[end - 1]]) / 2, abs=0.02)


@pytest.mark.parametrize(("layout", "axis"), [("columns", 1), ("rows", 0)])
def test_longer_spans_are_farther_from_the_leaves(layout, axis):
    parse = Parse(chain(9), 1.0, tuple((0, end) for end in range(2, 10)))
    ways = [cell[axis] for cell in cells(chart_svg(["w"] * 9, [parse], layout)) if cell[4] == 1]
    assert len(ways) == 8
    assert ways == sorted(ways, reverse=True) or ways == sorted(ways)
    assert len(set(ways)) == 8


def test_numbers_on_strong_cells_are_light():
    parses = make_parses("abc", count=2, seed=1)
    assert len({parse.tree for parse in parses}) == 2
    classes = {element.text: element.get("class") for element in read(chart_svg("abc", parses)).iter(f"{SVG}text")}
    assert (classes["1.00"], classes["0.67"], classes["0.33"]) == ("dark centred", "dark centred", "leaf centred")


def test_200_and_2000_leaves_are_drawn():
    leaves = [f"word{position}" for position in range(200)]
    svg = chart_svg(leaves, make_parses(leaves, count=5))
    assert size(svg)[0] < 960
    assert texts(svg)[-200:] == leaves
    parse = Parse(chain(2000), 1.0, tuple((0, end) for end in range(2, 2001)))
    assert len(cells(chart_svg(["w"] * 2000, [parse]))) == 1999


def test_a_chart_needs_parses_of_its_tokens():
    with pytest.raises(ValueError, match="the chart of 3 tokens needs parses of as many leaves, got 2"):
        chart_svg("abc", make_parses("ab", count=1))
    with pytest.raises(ValueError, match="got none"):
        chart_svg("abc", [])
