"""SVG that any viewer reads, whatever the words are, with dots over lines."""

import re
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beamtree import Tree
from beamtree.trees.drawing import draw_beams, draw_chart, draw_tree
from beamtree.trees.drawing.metrics import clean
from beamtree.utils.palette import THEMES
from trees.drawing.parses import (
    SENTIMENT,
    SVG,
    WORDS,
    chain,
    labelled,
    listops,
    make_labelled,
    make_parses,
    nodes,
    read,
    texts,
)

# All of Unicode, including what XML does not allow and lone surrogates, except the spaces that no leaf may have.
words = st.text(st.characters(), min_size=1, max_size=6).filter(lambda word: word.split() == [word])


@settings(max_examples=40)
@given(st.lists(words, min_size=2, max_size=4))
def test_any_words_give_valid_xml_in_which_text_stays_text(leaves):
    parses = make_parses(leaves, count=2)
    for drawing in (draw_tree(parses[0].tree), draw_beams(parses), draw_chart(leaves, parses)):
        drawing.svg().encode()
        read(drawing.svg())
        read(drawing._repr_svg_())
    assert texts(draw_tree(parses[0].tree).svg()) == [clean(leaf) for leaf in leaves]


@given(labelled())
def test_all_lines_are_painted_before_all_dots_and_these_before_all_texts(drawn):
    tree, found = make_labelled(drawn)
    drawn = [element.tag.removeprefix(SVG) for element in read(draw_tree(tree, found).svg()).iter()]
    layers = [tag for tag in drawn if tag in ("path", "circle", "text")]
    assert layers == sorted(layers, key=("path", "circle", "text").index)


def test_dots_are_opaque():
    svg = draw_beams(make_parses("abcdef")).svg()
    assert "opacity" not in svg
    assert all(re.fullmatch("#[0-9a-f]{6}", circle.get("fill")) for circle in read(svg).iter(f"{SVG}circle"))


def test_xmllint_finds_no_errors(tmp_path):
    if shutil.which("xmllint") is None:
        pytest.skip("xmllint is not installed")
    tree = Tree(WORDS, (0, *[1] * (len(WORDS) - 1)))
    drawings = (
        draw_beams(make_parses(WORDS)),
        draw_tree(tree),
        draw_tree(*listops()),
        draw_chart("ab", make_parses("ab")),
    )
    for number, drawing in enumerate(drawings):
        drawing.save(tmp_path / f"{number}.svg")
        subprocess.run(["xmllint", "--noout", tmp_path / f"{number}.svg"], check=True)


def test_markup_is_shown_as_text():
    svg = draw_tree(Tree(("<script>alert('1')</script>", '&amp;"x'), (0, 1))).svg()
    assert "<script" not in svg
    assert texts(svg) == ["<script>alert('1')</script>", '&amp;"x']


def test_a_theme_has_its_own_colours_and_no_rules():
    for theme in ("paper", "dark"):
        svg = draw_tree(*listops(), theme=theme).svg()
        assert read(svg).find(f"{SVG}rect").get("fill") == THEMES[theme]["ground"]
        assert "<style" not in svg
        used = set(re.findall("#[0-9a-f]{6}", svg))
        assert used <= set(THEMES[theme].values())


def test_notebooks_follow_the_colour_scheme_of_the_reader_and_files_do_not():
    tree = Tree.parse("((a b) c)")
    drawing = draw_tree(tree, nodes(tree, SENTIMENT, SENTIMENT))
    assert "@media (prefers-color-scheme: dark)" in drawing._repr_svg_()
    assert drawing.svg() == draw_tree(tree, nodes(tree, SENTIMENT, SENTIMENT), theme="paper").svg()
    dark = draw_tree(tree, nodes(tree, SENTIMENT, SENTIMENT), theme="dark")
    assert dark._repr_svg_() == dark.svg()
    # Every class that an element has gets its dark colour.
    svg = drawing._repr_svg_()
    classes = {name for names in re.findall('class="(fill[^"]*|stroke[^"]*)"', svg) for name in names.split()}
    ruled = dict(re.findall(r"svg\.beamtree \.(\S+) \{ \w+: (#\w+); \}", svg))
    assert classes == set(ruled)
    assert ruled["fill-ground"] == THEMES["dark"]["ground"]


def test_a_drawing_styles_nothing_else_of_its_page_and_loads_nothing():
    svg = draw_tree(Tree.parse("(a b)"))._repr_svg_()
    style = re.search(r"<style>(.*)</style>", svg, re.DOTALL)[1]
    rules = [line for line in style.splitlines() if "{" in line and not line.startswith("@media")]
    assert len(rules) >= 4
    assert all(rule.startswith("svg.beamtree .") for rule in rules)
    assert re.findall(r"https?://[^\"]*", svg) == ["http://www.w3.org/2000/svg"]
    assert "url(" not in svg


def test_outlines_replace_text_by_paths_at_the_same_places():
    pytest.importorskip("matplotlib")
    drawing = draw_tree(Tree(("$x$", "film"), (0, 1)))
    text, outlines = read(drawing.svg()), read(drawing.svg(fonts="outlines"))
    assert not list(outlines.iter(f"{SVG}text"))
    glyphs = [path for path in outlines.iter(f"{SVG}path") if path.get("transform")]
    assert len(glyphs) == 2
    for word, path in zip(text.iter(f"{SVG}text"), glyphs, strict=True):
        shift_x, shift_y = map(float, re.findall(r"[-\d.]+", path.get("transform")))
        xs = [shift_x + float(x) for x in re.findall(r"[MLQC ]?(-?[\d.]+) -?[\d.]+", path.get("d"))]
        assert (min(xs) + max(xs)) / 2 == pytest.approx(float(word.get("x")), abs=2)
        assert shift_y == float(word.get("y"))
    assert {circle.get("cx") for circle in text.iter(f"{SVG}circle")} == {
        circle.get("cx") for circle in outlines.iter(f"{SVG}circle")
    }


def test_unknown_fonts_are_refused(shape_checks_off):
    with pytest.raises(ValueError, match="unknown fonts 'outline'"):
        draw_tree(chain(2)).svg(fonts="outline")
