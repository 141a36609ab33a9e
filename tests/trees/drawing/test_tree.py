"""Drawn trees: every constituent is there with its label, for short texts and for very long ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beamtree import Tree
from beamtree.trees.drawing import draw_beams, draw_tree
from beamtree.trees.drawing.scene import Dot, Line, Text
from beamtree.trees.parses import Parse, span_probabilities
from beamtree.utils.palette import SENTIMENT as COLORS
from beamtree.utils.palette import THEMES
from trees.drawing.parses import (
    SENTIMENT,
    SVG,
    chain,
    listops,
    make_parses,
    nodes,
    read,
    shapes,
    size,
    spans,
    texts,
    titles,
)


@given(shapes(words=("a", "[MAX", "中文", "<b>")), st.sampled_from(["vertical", "horizontal"]))
def test_every_constituent_has_a_title_with_its_span(shape, orientation):
    tree = Tree.from_actions(*shape)
    svg = draw_tree(tree, orientation=orientation).svg()
    assert sorted(spans(svg)) == sorted(tree.spans())
    assert texts(svg) == list(tree.leaves)


@pytest.mark.parametrize("orientation", ["vertical", "horizontal"])
@pytest.mark.parametrize("theme", ["paper", "dark"])
def test_a_wrong_value_is_red_beside_the_expected_one(orientation, theme):
    svg = draw_tree(*listops(), orientation=orientation, theme=theme).svg()
    fills = {element.text: element.get("fill") for element in read(svg).iter(f"{SVG}text")}
    assert fills["5≠4"] == THEMES[theme]["wrong"]
    assert fills["[MIN"] == THEMES[theme]["ink"]
    shown = [element.text for element in read(svg).iter(f"{SVG}text")]
    assert shown.count("4") == 2  # the leaf and the value of the inner list
    assert "[0, 7), label 5 0.100, expected 4: [MAX 2 [MIN 4 7 ] ]" in titles(svg)


@pytest.mark.parametrize("theme", ["paper", "dark"])
def test_sentiment_has_the_colours_of_the_palette_at_all_nodes(theme):
    tree = Tree.parse("((a b) c)")
    svg = draw_tree(tree, nodes(tree, SENTIMENT, SENTIMENT), theme=theme).svg()
    fills = [circle.get("fill") for circle in read(svg).iter(f"{SVG}circle")]
    assert fills == list(COLORS[theme])
    assert texts(svg) == ["a", "b", "c"]


def test_few_leaves_are_drawn_vertically_and_many_horizontally():
    few, many = draw_tree(chain(5)).scene, draw_tree(chain(200, "word")).scene
    assert few.width < 200
    assert few.height < 200
    assert many.width < 960
    assert many.height == 200 * 18  # a line for each leaf
    words = [shape for shape in many.painting_order() if isinstance(shape, Text)]
    assert len({word.x for word in words}) == 1
    assert [word.y for word in words] == sorted({word.y for word in words})


def test_a_single_leaf_is_a_word_without_lines():
    for orientation in ("vertical", "horizontal"):
        (word,) = draw_tree(Tree.parse("film"), orientation=orientation).scene.painting_order()
        assert word.text == "film"


def test_950_leaves_with_values_are_drawn():
    tree = chain(950)
    drawing = draw_tree(tree, nodes(tree, ["7"] * 1899, ("7", "12")))
    drawn = drawing.scene.painting_order()
    assert sum(isinstance(shape, Text) for shape in drawn) == 950 + 949
    assert not any(isinstance(shape, Dot) for shape in drawn)


def test_a_chain_of_2000_leaves_is_drawn():
    svg = draw_tree(chain(2000)).svg()
    assert len(titles(svg)) == 3999
    assert len(svg) < 1_600_000  # titles quote a few words, or they would take a hundred times as much


def test_a_long_word_is_cut_but_its_title_is_whole():
    svg = draw_tree(Tree(("x" * 400, "b"), (0, 1))).svg()
    assert texts(svg)[0] == "x" * len(texts(svg)[0][:-1]) + "…"
    assert len(texts(svg)[0]) < 40
    assert f"[0, 1): {'x' * 400}" in titles(svg)


def test_beams_are_side_by_side_under_their_probabilities():
    parses = make_parses("abcde", count=3)
    drawing = draw_beams(parses)
    headings = [text for text in texts(drawing.svg()) if "probability" in text]
    assert headings == [f"tree {n}, probability {parse.probability:.3f}" for n, parse in enumerate(parses, start=1)]
    found = {span: p for span, p in spans(drawing.svg()).items() if p is not None}
    assert found == pytest.approx(span_probabilities(parses), abs=1e-3)
    ((_, _, trees),) = drawing.scene.parts
    assert [y for _, y, _ in trees.parts] == [0.0] * 3


def test_beams_take_several_rows_where_the_page_ends_unless_they_are_horizontal():
    (_, _, wide), *_ = draw_beams(make_parses(["words"] * 12, count=4)).scene.parts
    assert len({y for _, y, _ in wide.parts}) > 1
    assert wide.width <= 960
    (_, _, long), *_ = draw_beams(make_parses(["word"] * 100, count=5)).scene.parts
    assert len({y for _, y, _ in long.parts}) == 1


def test_beams_that_are_left_out_are_counted():
    parses = make_parses("abcd", count=4)
    rest = sum(parse.probability for parse in parses[1:])
    assert texts(draw_beams(parses, top=1).svg())[-1] == f"not drawn: 3 more, probability {rest:.3f}"
    assert not any("not drawn" in text for text in texts(draw_beams(parses, top=None).svg()))


def test_trees_alone_have_no_headings_and_no_legend():
    tree = Tree.parse("((a b) c)")
    parse = Parse(tree, 0.5, tuple(tree.spans(leaves=False)), nodes(tree, SENTIMENT, SENTIMENT))
    assert texts(draw_beams([parse] * 2, top=1, headings=False).svg()) == ["a", "b", "c"]
    shown = texts(draw_beams([parse] * 2, top=1).svg())
    assert shown[-5:] == list(SENTIMENT)
    assert shown[0] == "tree 1, probability 0.500"


def test_lines_end_before_texts_and_run_through_dots():
    drawn = draw_tree(*listops()).scene.painting_order()
    (value,) = [shape for shape in drawn if isinstance(shape, Text) and shape.text == "5≠4"]
    dots = {(shape.x, shape.y) for shape in drawn if isinstance(shape, Dot)}
    starts = [shape.points[0] for shape in drawn if isinstance(shape, Line)]
    assert dots <= set(starts)
    assert sorted(x - value.x for x, y in starts if y == value.y)[0] < -10
    assert (value.x, value.y) not in starts


def test_mistakes_are_answered_in_one_line(shape_checks_off):
    with pytest.raises(ValueError, match="there are no parses to draw"):
        draw_beams([])
    with pytest.raises(ValueError, match="top is 0"):
        draw_beams(make_parses("ab"), top=0)
    with pytest.raises(ValueError, match=r"unknown orientation 'vertcal' \(did you mean 'vertical'\?\)"):
        draw_tree(Tree.parse("(a b)"), orientation="vertcal")


def test_the_size_of_the_svg_is_that_of_the_scene_and_its_margin():
    drawing = draw_tree(chain(5))
    assert size(drawing.svg()) == pytest.approx((drawing.scene.width + 20, drawing.scene.height + 20), abs=0.01)
