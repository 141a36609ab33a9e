"""A drawing in notebooks and in files."""

import pytest

from beamtree.trees.drawing import draw_beams, draw_tree
from trees.drawing.parses import chain, make_parses


def test_a_notebook_displays_the_svg_in_a_box_that_scrolls():
    drawing = draw_tree(chain(3))
    assert drawing._repr_html_().startswith('<div style="overflow: auto')
    assert drawing._repr_svg_() in drawing._repr_html_()
    assert chain(3)._repr_svg_() == drawing._repr_svg_()
    assert make_parses("abc")._repr_html_() == draw_beams(make_parses("abc"))._repr_html_()


def test_a_file_has_the_format_of_its_ending(tmp_path):
    pytest.importorskip("matplotlib")
    drawing = draw_tree(chain(3))
    for name in ("tree.svg", "tree.PNG", "tree.pdf", "tree.tex"):
        drawing.save(str(tmp_path / name))
    assert (tmp_path / "tree.svg").read_text() == drawing.svg()
    assert (tmp_path / "tree.PNG").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "tree.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "tree.tex").read_text() == drawing.tikz()
    drawing.save(tmp_path / "outlines.svg", fonts="outlines")
    assert (tmp_path / "outlines.svg").read_text() == drawing.svg("outlines")


def test_mistakes_are_answered_in_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"tree.jpg' must end in .svg, .png, .pdf or .tex"):
        draw_tree(chain(3)).save(tmp_path / "tree.jpg")
    with pytest.raises(ValueError, match="cannot be written"):
        draw_tree(chain(3)).save(tmp_path / "none" / "tree.svg")


def test_its_repr_is_short():
    assert repr(draw_tree(chain(300))).startswith("<Drawing of a tree over 300 leaves, ")
