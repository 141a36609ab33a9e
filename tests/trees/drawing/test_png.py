"""PNG of the same layout, painted with matplotlib."""

import importlib.util
import io

import pytest

from beamtree import Tree
from beamtree.trees.drawing import draw_beams, draw_chart, draw_tree
from trees.drawing.parses import chain, make_parses

matplotlib = pytest.importorskip("matplotlib")


def image(drawing):
    return matplotlib.image.imread(io.BytesIO(drawing.png()))


@pytest.fixture(autouse=True)
def reader():
    importlib.import_module("matplotlib.image")


def test_a_png_has_the_size_of_the_scene_twice():
    drawing = draw_beams(make_parses("abcd"))
    height, width, _ = image(drawing).shape
    assert width == pytest.approx(2 * (drawing.scene.width + 24), abs=2)
    assert height == pytest.approx(2 * (drawing.scene.height + 24), abs=2)


def test_a_cell_has_the_colour_of_its_probability_and_stands_where_the_svg_has_it():
    drawing = draw_chart("ab", make_parses("ab", count=1))
    painted = image(drawing)
    ((_, y, chart),) = [part for part in drawing.scene.parts if any(mark.title for mark in part[2].marks)]
    cell = next(shape for mark in chart.marks if mark.title for shape in mark.shapes)
    blue, (left, top) = [0x08 / 255, 0x51 / 255, 0x9C / 255], (12 + cell.x, 12 + y + cell.y)
    for x, y in ((left + 2, top + 2), (left + cell.width - 2, top + cell.height - 2)):
        assert painted[int(2 * y), int(2 * x), :3] == pytest.approx(blue, abs=0.01)
    assert painted[0, 0, :3] == pytest.approx([1, 1, 1])


def test_dollars_and_control_characters_are_only_signs():
    assert draw_tree(Tree(("$x^{$", "\x01\ud800", "\\frac"), (0, 1, 1))).png().startswith(b"\x89PNG")


def test_signs_that_the_font_lacks_are_named_once():
    with pytest.warns(RuntimeWarning, match="boxes for 中 文, which its font lacks: an SVG shows them") as caught:
        draw_tree(Tree.parse("(中文 (文 中))")).png()
    assert len(caught) == 1


def test_what_is_too_large_is_refused_before_it_is_painted():
    with pytest.raises(ValueError, match="pixels is too large for a PNG: write an SVG"):
        draw_tree(chain(5000)).png()


def test_without_matplotlib_the_error_tells_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install matplotlib, or write an SVG"):
        draw_tree(chain(2)).png()
