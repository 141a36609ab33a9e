"""Positions of nodes: a parent is over the middle of its children, nothing overlaps, and nothing is outside."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beamtree import Tree
from beamtree.trees.drawing import draw_beams, draw_tree
from beamtree.trees.drawing.layout import place_nodes
from beamtree.trees.drawing.metrics import FONT_SIZE, text_width
from beamtree.trees.drawing.scene import MARGIN, Dot, Line, Text
from beamtree.trees.parses import Parse
from trees.drawing.parses import chain, labelled, make_labelled, shapes

ORIENTATIONS = st.sampled_from(["vertical", "horizontal"])


@given(shapes(), st.data(), st.booleans())
def test_nodes_are_in_order_and_parents_over_the_middle_of_their_children(shape, data, whole):
    tree = Tree.from_actions(*shape)
    sizes = [float(data.draw(st.integers(1, 9))) for _ in tree.leaves]
    distances = {span: float(data.draw(st.integers(0, 30))) for span in tree.spans(leaves=False)}
    layout = place_nodes(tree, sizes, distances, whole=whole)
    leaves, parents = layout.nodes[: len(tree)], layout.nodes[len(tree) :]
    assert [node.span for node in layout.nodes] == tree.spans()
    assert [node.height for node in layout.nodes] == tree.heights()
    for (node, before), (after, size) in pairwise(zip(leaves, sizes, strict=True)):
        assert after.place - node.place >= (before + size) / 2 - 1 * whole
    for node in parents:
        left, right = layout.nodes[node.left], layout.nodes[node.right]
        assert (left.start, left.end, right.end) == (node.start, right.start, node.end)
        assert right.place - left.place >= distances[node.span]
        middle = (left.place + right.place) / 2
        assert node.place == (middle // 1 if whole else pytest.approx(middle))
    assert leaves[0].place >= 0
    assert leaves[-1].place <= layout.size
    assert layout.size == pytest.approx(sum(sizes) + sum(layout.shifts.values()))


def test_space_is_added_only_where_a_label_needs_it():
    tree = chain(4)
    assert place_nodes(tree, [10.0] * 4).size == 40
    assert place_nodes(tree, [10.0] * 4, {(0, 2): 10.0}).shifts == {}
    wide = place_nodes(tree, [10.0] * 4, {(0, 2): 25.0})
    assert wide.shifts == {(0, 2): 15.0}
    assert [node.place for node in wide.nodes[:4]] == [5, 30, 40, 50]


def test_a_chain_of_5000_leaves_is_laid_out():
    layout = place_nodes(chain(5000), [1.0] * 5000)
    assert layout.height == 4999
    assert layout.size == 5000


def box(text):
    """(left, right, top, bottom) of a text, with the height of its capital letters."""
    width = text_width(text.text)
    left = text.x - width / 2 if text.centred else text.x
    return left, left + width, text.y - 0.36 * FONT_SIZE, text.y + 0.36 * FONT_SIZE


def segments(scene):
    """All straight lines, as (left, right, top, bottom)."""
    for line in scene.painting_order():
        if isinstance(line, Line):
            for (x, y), (to_x, to_y) in pairwise(line.points):
                yield min(x, to_x), max(x, to_x), min(y, to_y), max(y, to_y)


def overlaps(one, other):
    """Whether two boxes, of which one may be a line, share more than their borders."""
    (left, right, top, bottom), (other_left, other_right, other_top, other_bottom) = one, other
    return (
        max(left, other_left) < min(right, other_right) - 1e-6
        and max(top, other_top) < min(bottom, other_bottom) - 1e-6
    )


def crosses(line, text):
    """Whether a line, which has no area, passes through the inside of a box."""
    (left, right, top, bottom), (box_left, box_right, box_top, box_bottom) = line, text
    return left < box_right and right > box_left and top < box_bottom and bottom > box_top


@settings(max_examples=150)
@given(labelled(), ORIENTATIONS)
def test_no_texts_overlap_and_no_line_crosses_a_text(drawn, orientation):
    tree, found = make_labelled(drawn)
    scene = draw_tree(tree, found, orientation=orientation).scene
    boxes = [box(shape) for shape in scene.painting_order() if isinstance(shape, Text)]
    assert len(boxes) >= len(tree)
    for one, other in combinations(boxes, 2):
        assert not overlaps(one, other)
    for line in segments(scene):
        assert not any(crosses(line, each) for each in boxes)


@given(labelled(), ORIENTATIONS)
def test_no_two_lines_cross(drawn, orientation):
    tree, found = make_labelled(drawn)
    for one, other in combinations(segments(draw_tree(tree, found, orientation=orientation).scene), 2):
        across = (one[0] < other[0] == other[1] < one[1]) and (other[2] < one[2] == one[3] < other[3])
        along = (other[0] < one[0] == one[1] < other[1]) and (one[2] < other[2] == other[3] < one[3])
        assert not across
        assert not along


@given(labelled(), ORIENTATIONS)
def test_everything_is_inside_of_the_drawing(drawn, orientation):
    tree, found = make_labelled(drawn)
    parse = Parse(tree, 0.5, tuple(tree.spans(leaves=False)), found)
    scene = draw_beams([parse] * 2, orientation=orientation).scene
    width, height = scene.width + 2 * MARGIN, scene.height + 2 * MARGIN
    for shape in scene.painting_order():
        match shape:
            case Line(points):
                boxes = [(x, x, y, y) for x, y in points]
            case Dot(x, y, radius):
                boxes = [(x - radius, x + radius, y - radius, y + radius)]
            case Text():
                boxes = [box(shape)]
        for left, right, top, bottom in boxes:
            assert 0 <= left <= right <= width + 1e-6
            assert 0 <= top <= bottom <= height + 1e-6


@given(shapes(), ORIENTATIONS)
def test_dots_are_at_the_middle_of_the_lines_to_their_children(shape, orientation):
    tree = Tree.from_actions(*shape)
    shapes = draw_tree(tree, orientation=orientation).scene.painting_order()
    dots = [shape for shape in shapes if isinstance(shape, Dot)]
    lines = [shape.points for shape in shapes if isinstance(shape, Line)]
    assert len(dots) == len(tree) - 1
    assert len(lines) == 2 * len(dots)
    axis = 0 if orientation == "vertical" else 1
    for dot in dots:
        ends = [points[-1][axis] for points in lines if points[0] == (dot.x, dot.y)]
        assert sum(ends) / 2 == pytest.approx((dot.x, dot.y)[axis])


def test_a_parent_is_farther_from_the_leaves_than_its_children():
    dots = [shape for shape in draw_tree(chain(6)).scene.painting_order() if isinstance(shape, Dot)]
    heights = [dot.y for dot in dots]
    assert heights == sorted(heights, reverse=True)
    steps = {round(upper - lower, 6) for lower, upper in pairwise(heights)}
    assert len(steps) == 1
    assert steps != {0}
