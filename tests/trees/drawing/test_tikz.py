r"""LaTeX documents that compile, whatever the words are."""

import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beamtree import Tree
from beamtree.trees.drawing import draw_beams, draw_chart, draw_tree
from beamtree.trees.drawing.scene import DrawingTooLarge
from beamtree.trees.drawing.tikz import escape
from beamtree.trees.parses import Parse
from beamtree.utils.palette import SENTIMENT as COLORS
from beamtree.utils.palette import THEMES
from trees.drawing.parses import SENTIMENT, WORDS, chain, labelled, listops, make_labelled, make_parses, nodes


def forests(document):
    """The trees of a document, in brackets."""
    return re.findall(r"\\begin\{forest\} beamtree, .*\n((?:.*\n)*?)\\end\{forest\}", document)


def read(forest):
    """The tree of a forest, whose words have no brackets of their own."""
    text = re.sub(
        r"\[\{\}, dot=[-\w]+|\[\{[^{}]*\}, (?:value|colored)=[-\w{}]+(?:, wrong)?(?:, s sep=[\d.]+pt)?", "(", forest
    )
    return Tree.parse(re.sub(r"\[\{(\w+)\}(?:, underlined=[-\w]+)?\]", r" \1 ", text).replace("]", ")"))


@given(labelled(words=("a", "Film", "not")))
def test_the_tree_can_be_read_back_from_its_document(drawn):
    tree, found = make_labelled(drawn)
    for orientation in ("vertical", "horizontal"):
        (forest,) = forests(draw_tree(tree, found, orientation=orientation).tikz())
        assert read(forest.replace(r"$\neq$", "").replace(r"\textendash\kern0.4pt{}", "")) == tree


@given(st.text(st.characters(), max_size=12))
def test_braces_are_balanced_and_no_special_character_is_left(text):
    escaped = escape(text)
    plain = re.sub(r"\\[a-zA-Z]+(?:\{\})?|\\[&%$#_{}]|\$\\neq\$|\{\}|0\.4pt", "", escaped)
    assert not set(plain) & set('\\{}$&#^_%~"\0')
    assert not re.search(r"--|''|``|<<|>>|,,|\?`|!`", escaped)


def test_special_characters_are_commands():
    assert escape("&%$#_{}") == r"\&\%\$\#\_\{\}"
    assert escape("~^\\") == r"\textasciitilde{}\textasciicircum{}\textbackslash{}"
    assert escape("-- << ''") == "-{}- <{}< '{}'"
    assert escape("e\u0301") == "é"
    assert escape("don't") == "don't"


def test_labels_have_the_colours_of_the_palette():
    tree = Tree.parse("((a b) c)")
    document = draw_tree(tree, nodes(tree, SENTIMENT, SENTIMENT), theme="dark").tikz()
    for grade, value in enumerate(COLORS["dark"], start=1):
        assert rf"\definecolor{{sentiment-{grade}}}{{HTML}}{{{value[1:].upper()}}}" in document
    assert "[{a}, underlined=sentiment-1]" in document
    assert "[{++}, colored={sentiment-5}{white}" in document or "[{++}, colored={sentiment-5}{black}" in document
    assert rf"\definecolor{{ground}}{{HTML}}{{{THEMES['dark']['ground'][1:].upper()}}}\pagecolor{{ground}}" in document
    wrong = draw_tree(*listops()).tikz()
    assert r"[{5$\neq$4}, value=wrong" in wrong
    assert rf"\definecolor{{wrong}}{{HTML}}{{{THEMES['paper']['wrong'][1:].upper()}}}" in wrong
    assert "pagecolor" not in wrong


def test_every_colour_that_is_used_is_defined():
    for drawing in (draw_tree(*listops()), draw_beams(make_parses("abcd")), draw_chart("abc", make_parses("abc"))):
        document = drawing.tikz()
        defined = set(re.findall(r"\\definecolor\{([-\w]+)\}", document))
        used = re.findall(r"(?:dot|value|underlined|fill|draw|colored|textcolor)[={]+([a-z]+(?:-\w+)?)\b", document)
        assert set(used) <= defined
        assert used


def test_beams_are_several_forests_side_by_side():
    document = draw_beams(make_parses("abcd", count=3)).tikz()
    assert len(forests(document)) == 3
    assert document.count(r"\qquad") == 2
    assert "tree 2, probability 0.286" in document
    assert r"\begin{tabular}" not in draw_tree(Tree.parse("(a b)")).tikz()


def test_a_very_large_tree_is_refused():
    with pytest.raises(DrawingTooLarge, match="points is too large for LaTeX: write a PDF or an SVG"):
        draw_tree(chain(5000)).tikz()
    assert len(draw_tree(chain(950)).tikz()) > 950 * 20


@pytest.mark.parametrize("program", ["pdflatex", "lualatex"])
def test_documents_compile(tmp_path, program):
    if shutil.which(program) is None or shutil.which("kpsewhich") is None:
        pytest.skip(f"{program} is not installed")
    if not subprocess.run(["kpsewhich", "forest.sty"], capture_output=True).stdout:
        pytest.skip("the package forest is not installed")
    words = Tree(WORDS, (0, *[1] * (len(WORDS) - 1)))
    tree = Tree.parse("((a b) c)")
    wrong = nodes(tree, SENTIMENT, SENTIMENT, {(0, 3): "negative"})
    sentiment = Parse(tree, 0.5, tuple(tree.spans(leaves=False)), wrong)
    drawings = {
        "words": draw_tree(words),
        "horizontal": draw_tree(words, orientation="horizontal"),
        "listops": draw_tree(*listops()),
        "beams": draw_beams([sentiment] * 2, theme="dark"),
        "chart": draw_chart("ab", make_parses("ab")),
        "leaf": draw_tree(Tree.parse("a")),
        "long": draw_tree(chain(60)),
    }
    for name, drawing in drawings.items():
        drawing.save(tmp_path / f"{name}.tex")
        command = [program, "-interaction=nonstopmode", "-halt-on-error", f"{name}.tex"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
        assert done.returncode == 0, done.stdout[-2000:]
        assert "(1 page" in done.stdout
