"""The beam chart: every span of a beam has its cell, as dark as it is probable."""

import pytest

from beamtree.trees.drawing import draw_chart
from beamtree.trees.drawing.scene import Rectangle, Text
from beamtree.trees.parses import Parse, span_probabilities
from trees.drawing.parses import chain, make_parses, size, spans, texts


def cells(drawing):
    """All cells except those of the legend."""
    return [shape for shape in drawing.scene.painting_order() if isinstance(shape, Rectangle) and shape.title]


@pytest.mark.parametrize("orientation", ["vertical", "horizontal"])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_cells_are_as_dark_as_their_spans_are_probable(orientation, count):
    leaves = [f"w{position}" for position in range(count)]
    parses = make_parses(leaves, count=3)
    drawing = draw_chart(leaves, parses, orientation=orientation)
    expected = span_probabilities(parses)
    assert {span: p for span, p in spans(drawing.svg()).items() if p} == pytest.approx(expected, abs=1e-3)
    assert len(cells(drawing)) == (len(expected) if orientation == "horizontal" else count * (count - 1) // 2)
    for cell in cells(drawing):
        shown = float(cell.title.split("probability ")[1].split(":")[0])
        assert int(cell.style.removeprefix("heat-")) == pytest.approx(100 * shown, abs=0.6)


@pytest.mark.parametrize("orientation", ["vertical", "horizontal"])
def test_cells_do_not_overlap_and_stay_in_the_drawing(orientation):
    leaves = list("abcdefghijkl")
    drawing = draw_chart(leaves, make_parses(leaves, count=5), orientation=orientation)
    boxes = [cell[:4] for cell in cells(drawing)]
    width, height = size(drawing.svg())
    for number, (x, y, wide, high) in enumerate(boxes):
        assert x >= 0
        assert y >= 0
        assert x + wide <= width
        assert y + high <= height
        for left, top, other_wide, other_high in boxes[:number]:
            beside = x >= left + other_wide - 0.02 or left >= x + wide - 0.02
            assert beside or y >= top + other_high - 0.02 or top >= y + high - 0.02


@pytest.mark.parametrize("orientation", ["vertical", "horizontal"])
def test_a_cell_is_over_the_middle_of_its_leaves(orientation):
    leaves = [f"w{position}" for position in range(7)]
    drawing = draw_chart(leaves, make_parses(leaves), orientation=orientation)
    axis = 0 if orientation == "vertical" else 1
    places = {shape.text: shape[axis] for shape in drawing.scene.painting_order() if isinstance(shape, Text)}
    for cell in cells(drawing):
        start, end = map(int, cell.title[1 : cell.title.index(")")].split(", "))
        middle = cell[axis] + cell[axis + 2] / 2
        assert middle == pytest.approx((places[leaves[start]] + places[leaves[end - 1]]) / 2, abs=0.02)


@pytest.mark.parametrize(("orientation", "axis"), [("vertical", 1), ("horizontal", 0)])
def test_longer_spans_are_farther_from_the_leaves(orientation, axis):
    parse = Parse(chain(9), 1.0, tuple((0, end) for end in range(2, 10)))
    drawing = draw_chart(["w"] * 9, [parse], orientation=orientation)
    depths = [cell[axis] for cell in cells(drawing) if cell.style == "heat-100"]
    assert len(set(depths)) == 8
    assert depths == sorted(depths, reverse=True)


def test_probabilities_on_dark_cells_are_light():
    parses = make_parses("abc", count=2, seed=1)
    assert len({parse.tree for parse in parses}) == 2
    drawn = draw_chart("abc", parses).scene.painting_order()
    styles = {shape.text: shape.style for shape in drawn if isinstance(shape, Text)}
    assert (styles["1.00"], styles["0.67"], styles["0.33"]) == ("on-heat", "on-heat", "ink")


def test_200_and_2000_leaves_are_drawn():
    leaves = [f"word{position}" for position in range(200)]
    svg = draw_chart(leaves, make_parses(leaves, count=5)).svg()
    assert size(svg)[0] < 960
    assert texts(svg)[-200:] == leaves
    parse = Parse(chain(2000), 1.0, tuple((0, end) for end in range(2, 2001)))
    assert len(cells(draw_chart(["w"] * 2000, [parse]))) == 1999


def test_a_chart_needs_parses_of_its_tokens():
    with pytest.raises(ValueError, match="the chart of 3 tokens needs parses with as many leaves, got 2"):
        draw_chart("abc", make_parses("ab", count=1))
    with pytest.raises(ValueError, match="got none"):
        draw_chart("abc", [])
