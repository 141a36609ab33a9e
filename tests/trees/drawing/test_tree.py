"""Drawn trees: every constituent is there, in its place, for short texts and for very long ones."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beamtree import Tree
from beamtree.trees.drawing import beams_svg, draw_beams, draw_tree, tree_svg
from beamtree.trees.parses import span_probabilities
from trees.drawing.parses import SVG, chain, make_parses, points, read, size, spans, texts, titles


@st.composite
def shapes(draw):
    """The merges that build a tree, and its leaves."""
    leaves = draw(st.lists(st.sampled_from(["a", "[MAX", "中文", "<b>"]), min_size=1, max_size=9))
    return [draw(st.integers(0, left - 2)) for left in range(len(leaves), 1, -1)], leaves


def pieces(path):
    """The straight lines of a constituent, each as ((left, right), (top, bottom))."""
    for (x, y), (to_x, to_y) in pairwise(path):
        yield (min(x, to_x), max(x, to_x)), (min(y, to_y), max(y, to_y))


def crosses(one, other):
    """Whether two lines meet within both."""
    return all(
        max(a[0], b[0]) < min(a[1], b[1]) or a[0] < b[0] == b[1] < a[1] or b[0] < a[0] == a[1] < b[1]
        for a, b in zip(one, other, strict=True)
    )


@given(shapes(), st.sampled_from(["columns", "rows"]))
def test_every_constituent_has_a_title_with_its_span_and_no_lines_cross(shape, layout):
    tree = Tree.from_actions(*shape)
    svg = tree_svg(tree, layout=layout)
    assert sorted(spans(svg)) == sorted(tree.spans())
    assert texts(svg) == list(tree.leaves)
    paths = list(points(svg))
    assert len(paths) == len(tree) - 1
    for one, other in combinations(paths, 2):
        assert not any(crosses(a, b) for a in pieces(one) for b in pieces(other))


@given(shapes(), st.sampled_from(["columns", "rows"]))
def test_nothing_is_outside_of_the_picture(shape, layout):
    tree = Tree.from_actions(*shape)
    svg = tree_svg(tree, layout=layout)
    width, height = size(svg)
    for path in points(svg):
        assert all(0 <= x <= width and 0 <= y <= height for x, y in path)
    for element in read(svg).iter(f"{SVG}text"):
        assert 0 <= float(element.get("x")) <= width
        assert 0 <= float(element.get("y")) <= height


def test_a_parent_is_farther_from_the_leaves_than_its_children():
    tree = Tree.parse("((a b) (c (d e)))")
    down = [max(y for _, y in path) - min(y for _, y in path) for path in points(tree_svg(tree))]
    heights = dict(zip(tree.spans(leaves=False), tree.heights(leaves=False), strict=True))
    step = down[0]  # of (a b), which lies on two leaves
    lowest = {(0, 2): 0, (3, 5): 0, (2, 5): 0, (0, 5): 1}  # the height of the lower child
    expected = [step * (heights[span] - lowest[span]) for span in tree.spans(leaves=False)]
    assert down == pytest.approx(expected, abs=0.05)


def test_titles_quote_the_text_and_cut_what_is_long():
    svg = tree_svg(Tree.parse("((so bad) film)"), {(0, 2): 0.25, (0, 3): 1.0})
    assert "[0, 2), probability 0.250: so bad" in titles(svg)
    assert "[0, 3), probability 1.000: so bad film" in titles(svg)
    assert "[2, 3): film" in titles(svg)
    leaves = [f"w{position}" for position in range(30)]
    long = titles(tree_svg(chain(30).with_leaves(leaves)))
    assert f"[0, 30): {' '.join(leaves[:6])} … {' '.join(leaves[24:])}" in long
    assert f"[0, 12): {' '.join(leaves[:12])}" in long


def test_few_leaves_stand_in_columns_and_many_in_rows():
    few, many = draw_tree(chain(5)).scene, draw_tree(chain(200, "word")).scene
    assert few.width < 200
    assert few.height < 200
    assert many.width < 960
    assert many.height == 200 * 18  # a line for each leaf
    xs, ys = ([float(element.get(axis)) for element in read(tree_svg(chain(200))).iter(f"{SVG}text")] for axis in "xy")
    assert len(set(xs)) == 1
    assert ys == sorted(set(ys))


def test_a_chain_of_5000_leaves_is_drawn():
    svg = tree_svg(chain(5000))
    assert len(titles(svg)) == 9999
    assert len(svg) < 3_000_000  # titles quote a few words, or they would take a hundred times as much


def test_a_long_word_is_cut_but_its_title_is_whole():
    svg = tree_svg(Tree(("x" * 500, "b"), (0, 1)))
    assert texts(svg)[0] == "x" * 31 + "…"
    assert f"[0, 1): {'x' * 500}" in titles(svg)


def test_beams_stand_side_by_side_under_their_probabilities():
    parses = make_parses("abcde", count=3)
    svg = beams_svg(parses)
    headings = [text for text in texts(svg) if "probability" in text]
    assert headings == [f"{n}: probability {parse.probability:.3f}" for n, parse in enumerate(parses, start=1)]
    expected = span_probabilities(parses)
    found = {span: p for span, p in spans(svg).items() if p is not None}
    assert found == pytest.approx(expected, abs=1e-3)
    tops = {y for _, y, _ in draw_beams(parses).scene.parts}
    assert len(tops) == 1


def test_beams_fold_where_the_page_ends_unless_their_leaves_are_lines():
    wide = draw_beams(make_parses(["word"] * 12, count=4)).scene
    assert len({y for _, y, _ in wide.parts}) > 1
    assert wide.width <= 960
    long = draw_beams(make_parses(["word"] * 100, count=5)).scene
    assert len({y for _, y, _ in long.parts}) == 1


def test_beams_that_are_left_out_are_counted():
    parses = make_parses("abcd", count=4)
    rest = sum(parse.probability for parse in parses[1:])
    assert texts(beams_svg(parses, top=1))[-1] == f"not drawn: 3 more, probability {rest:.3f}"
    assert not any("not drawn" in text for text in texts(beams_svg(parses, top=None)))


def test_mistakes_are_answered_in_one_line(shape_checks_off):
    with pytest.raises(ValueError, match="there are no parses to draw"):
        beams_svg([])
    with pytest.raises(ValueError, match="top is 0"):
        beams_svg(make_parses("ab"), top=0)
    with pytest.raises(ValueError, match=r"unknown layout 'row' \(did you mean 'rows'\?\)"):
        tree_svg(Tree.parse("(a b)"), layout="row")
