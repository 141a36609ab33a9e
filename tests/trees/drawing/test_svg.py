"""SVG that any reader takes, whatever the words are."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from beamtree import Tree
from beamtree.trees.drawing import beams_svg, chart_svg, draw_tree, tree_svg
from beamtree.trees.drawing.shapes import clean, clipped
from trees.drawing.parses import make_parses, read, texts

# All of Unicode, with what XML cannot hold and half pairs of surrogates, but for the spaces that no leaf may have.
words = st.text(st.characters(), min_size=1, max_size=6).filter(lambda word: word.split() == [word])


@settings(max_examples=40)
@given(st.lists(words, min_size=2, max_size=4))
def test_any_words_give_valid_xml_in_which_text_stays_text(leaves):
    parses = make_parses(leaves, count=2)
    for svg in (tree_svg(parses[0].tree), beams_svg(parses), chart_svg(leaves, parses)):
        svg.encode()
        read(svg)
    assert texts(tree_svg(parses[0].tree)) == [clean(leaf) for leaf in leaves]


def test_what_xml_cannot_hold_is_replaced_and_all_else_stays():
    assert clean("a\x00\x1b\ud800\uffff\n") == "a" + "\ufffd" * 5
    assert clean("é中𝔸🌲 ~\x7f") == "é中𝔸🌲 ~\x7f"


def test_markup_is_shown_as_text():
    svg = tree_svg(Tree(("<script>alert('1')</script>", '&amp;"x'), (0, 1)))
    assert "<script" not in svg
    assert texts(svg) == ["<script>alert('1')</script>", '&amp;"x']


def test_a_drawing_of_a_page_styles_nothing_else_of_it():
    style = re.search(r"<style>(.*)</style>", tree_svg(Tree.parse("(a b)")), re.DOTALL).group(1)
    rules = [line for line in style.splitlines() if "{" in line and not line.startswith("@media")]
    assert len(rules) > 5
    for rule in rules:
        assert all(part.strip().startswith("svg.beamtree") for part in rule.split("{")[0].split(","))


def test_dark_pages_have_colours_of_their_own_and_nothing_is_loaded():
    svg = tree_svg(Tree.parse("(a b)"))
    assert "@media (prefers-color-scheme: dark)" in svg
    assert re.findall(r"https?://[^\"]*", svg) == ["http://www.w3.org/2000/svg"]
    assert "url(" not in svg


def test_wide_signs_take_two_places_and_combining_ones_none():
    one, two = draw_tree(Tree.parse("aaaa")).scene.width, draw_tree(Tree.parse("中文")).scene.width
    assert one == two == draw_tree(Tree.parse("áááa\u0301\u0301")).scene.width
    assert clipped("中" * 10, 8 * 7.83) == "中中中…"
